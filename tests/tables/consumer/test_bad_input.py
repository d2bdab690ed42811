"""What a consumer refuses: with an error that says what to do, before anything is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.builders import table_versions
from tests.kit.consumer_world import BILLING, ConsumerWorld, drained, make_old
from tests.kit.delay_world import TOPIC
from txmq.consumer.group import group_in
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    ConsumerGroupConflictError,
    InvalidFilterError,
    InvalidNameError,
    OffsetOutOfRangeError,
    QueueNotOwnedError,
    StoreFormatError,
    TxmqError,
)
from txmq.spark.streams import Consumer
from txmq.testing import START_MS

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"consumer_group": "a/b"}, InvalidNameError),
        ({"consumer_group": ""}, InvalidNameError),
        ({"consumer_group": None}, InvalidNameError),
        ({"consumer_group": "RETRY_billing"}, InvalidNameError),
        ({"consumer_group": "x" * 121}, InvalidNameError),
        ({"topics": "../etc"}, InvalidNameError),
        ({"topics": []}, ConfigError),
        ({"topics": {}}, ConfigError),
        ({"topics": 5}, ConfigError),
        ({"topics": b"orders"}, ConfigError),
        ({"topics": [TOPIC, None]}, InvalidNameError),
        ({"topics": [[TOPIC]]}, InvalidNameError),
        ({"topics": {TOPIC: "a ||"}}, InvalidFilterError),
        ({"topics": {TOPIC: "sql:1; DROP TABLE x"}}, InvalidFilterError),
        ({"topics": {TOPIC: 5}}, InvalidFilterError),
        ({"mode": "BROADCASTING"}, ConfigError),
        ({"mode": ConsumeMode.BROADCASTING}, InvalidNameError),
        ({"member_id": "a b"}, InvalidNameError),
        ({"member_id": ""}, InvalidNameError),
        ({"member_id": "\ud800"}, InvalidNameError),
        ({"namespace": "a.b"}, InvalidNameError),
        ({"from_where": "first"}, ConfigError),
        ({"from_where": ConsumeFromWhere.TIMESTAMP}, ConfigError),
        ({"from_timestamp": datetime(2026, 1, 1, tzinfo=UTC)}, ConfigError),
        ({"from_where": ConsumeFromWhere.TIMESTAMP, "from_timestamp": NAIVE}, ConfigError),
        ({"from_where": {TOPIC: 5}}, ConfigError),
        ({"from_where": {TOPIC: {0: 2}}}, OffsetOutOfRangeError),
        ({"from_where": {"stock": {0: 0}}}, ConfigError),
        ({"from_where": {TOPIC: {0: -1}}}, ConfigError),
        ({"from_where": {TOPIC: {0: True}}}, ConfigError),
    ],
)
def test_consumer_that_cannot_be_is_refused_before_anything_is_written(
    world: ConsumerWorld, arguments: dict[str, Any], error: type[TxmqError]
) -> None:
    world.send("m")
    before = table_versions(world.store)

    with pytest.raises(error):
        PullConsumer(world.store, **{"consumer_group": BILLING, "topics": TOPIC, **arguments})

    assert table_versions(world.store) == before


@pytest.mark.parametrize("arguments", [(0, 1.0), (-1, 1.0), (True, 1.0), ("5", 1.0), (1, -1)])
def test_poll_that_cannot_be_is_refused(world: ConsumerWorld, arguments: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError):
        world.consumer().poll(*arguments)


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), None, "1"])
def test_time_to_wait_is_a_number_of_seconds(world: ConsumerWorld, timeout_s: Any) -> None:
    with pytest.raises(ConfigError):
        world.consumer().poll(1, timeout_s)


def test_group_name_twice_with_other_topics_is_refused_while_a_member_lives(
    world: ConsumerWorld,
) -> None:
    first = world.consumer()

    with pytest.raises(ConsumerGroupConflictError) as refused:
        world.consumer("stock")
    with pytest.raises(ConsumerGroupConflictError):
        world.consumer({TOPIC: "eu"})
    with pytest.raises(ConsumerGroupConflictError):
        world.consumer(mode=ConsumeMode.BROADCASTING, member_id="blue")

    assert (refused.value.group, refused.value.given) == (BILLING, "stock (CLUSTERING)")
    first.close()
    assert drained(world.consumer("stock")) == []


def test_member_whose_group_got_other_settings_meanwhile_is_told(world: ConsumerWorld) -> None:
    silent = world.consumer()
    world.clock.advance(3600)
    make_old(world, 3600)
    world.consumer("stock")

    with pytest.raises(ConsumerGroupConflictError):
        silent.poll(timeout_s=0)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "10"])
def test_size_of_a_batch_is_checked_before_the_group_is_joined(
    world: ConsumerWorld, number: Any
) -> None:
    before = table_versions(world.store)

    with pytest.raises(ConfigError, match="max_messages"):
        Consumer(world.store, consumer_group=BILLING).subscribe(
            TOPIC,
            print,
            spark=None,
            max_messages=number,  # type: ignore[arg-type]
        )

    assert table_versions(world.store) == before


@pytest.mark.parametrize("offset", [-1, 4, 10**18, None, "0", True, 1.0])
def test_offset_that_no_message_will_have_next_is_refused(
    world: ConsumerWorld, offset: Any
) -> None:
    world.send_to(0, "m0", "m1", "m2")
    consumer = world.consumer()
    before = table_versions(world.store)

    with pytest.raises(OffsetOutOfRangeError) as refused:
        consumer.seek(TOPIC, 0, offset)

    assert (refused.value.first_offset, refused.value.end_offset) == (0, 3)
    assert table_versions(world.store) == before


@pytest.mark.parametrize("queue_id", [4, -1, "0", None, True, 1.0, [1]])
def test_seek_in_a_queue_of_somebody_else_is_refused(world: ConsumerWorld, queue_id: Any) -> None:
    with pytest.raises(QueueNotOwnedError):
        world.consumer().seek(TOPIC, queue_id, 0)


@pytest.mark.parametrize("queue_id", [-1, "0", True, 1.0])
@pytest.mark.parametrize("call", ["pause", "resume"])
def test_queue_that_cannot_be_is_not_paused_in_silence(
    world: ConsumerWorld, call: str, queue_id: Any
) -> None:
    with pytest.raises(ConfigError, match="queue_id"):
        getattr(world.consumer(), call)(TOPIC, queue_id)


@pytest.mark.parametrize("call", ["pause", "resume", "seek", "seek_to_time"])
def test_topic_that_is_not_read_cannot_be_moved(world: ConsumerWorld, call: str) -> None:
    more = {"seek": (0, 0), "seek_to_time": (datetime.now(UTC),)}.get(call, ())

    with pytest.raises(ConfigError, match="not among those"):
        getattr(world.consumer(), call)("stock", *more)


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))])
def test_seek_to_a_moment_that_is_none_in_utc_is_refused(
    world: ConsumerWorld, moment: datetime
) -> None:
    with pytest.raises(ConfigError, match="years 1 to 9999"):
        world.consumer().seek_to_time(TOPIC, moment)


def test_seek_to_a_moment_needs_a_time_zone(world: ConsumerWorld) -> None:
    with pytest.raises(ConfigError, match="time zone"):
        world.consumer().seek_to_time(TOPIC, NAIVE)


CALLS: list[Callable[[PullConsumer], object]] = [
    lambda consumer: consumer.poll(timeout_s=0),
    lambda consumer: consumer.commit(),
    lambda consumer: consumer.run_once(print),
    lambda consumer: consumer.start(print),
    lambda consumer: consumer.pause(TOPIC),
    lambda consumer: consumer.seek(TOPIC, 0, 0),
]


@pytest.mark.parametrize("call", CALLS)
def test_closed_consumer_does_nothing_more(
    world: ConsumerWorld, call: Callable[[PullConsumer], object]
) -> None:
    consumer = world.consumer()
    consumer.close()
    consumer.close()

    with pytest.raises(ClosedError):
        call(consumer)


@pytest.mark.parametrize("call", CALLS)
def test_second_thread_is_refused(
    world: ConsumerWorld, call: Callable[[PullConsumer], object]
) -> None:
    consumer = world.consumer()
    polling = threading.Thread(target=lambda: consumer.poll(timeout_s=1.0))
    polling.start()
    try:
        from tests.kit.reading import wait_until

        wait_until(lambda: consumer._use._is_taken)
        with pytest.raises(ConcurrentUseError):
            call(consumer)
    finally:
        polling.join()


def test_consumer_of_a_forked_process_is_refused(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    consumer._use._pid = os.getpid() + 1

    with pytest.raises(ClosedError, match="forked"):
        consumer.poll(timeout_s=0)

    consumer._use._pid = os.getpid()


def test_stream_that_begins_at_a_moment_needs_one(world: ConsumerWorld) -> None:
    world.send("m")
    consumer = Consumer(world.store, consumer_group=BILLING)
    no_spark: Any = None

    with pytest.raises(ConfigError, match="from_timestamp"):
        consumer.read_stream(TOPIC, spark=no_spark, from_where=ConsumeFromWhere.TIMESTAMP)


def test_group_value_that_is_none_is_a_typed_error(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.consumer().close()
    register = group_in(world.store, BILLING)._register
    with monkeypatch.context() as patched:
        # As another program writes it; txmq would refuse to.
        patched.setattr("txmq.store.register.problem_of_value", lambda *_: None)
        register.swap(register.read(), {"mode": "NONSENSE"}, START_MS)

    with pytest.raises(StoreFormatError):
        world.consumer()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40), member_id=st.text(max_size=10))
def test_any_filter_and_any_name_is_a_consumer_or_an_error_of_ours(
    world: ConsumerWorld, text: str, member_id: str
) -> None:
    with suppress(TxmqError):
        world.consumer({TOPIC: text}, group="fuzz", member_id=member_id).close()
