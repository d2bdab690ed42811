"""Streams of the data source `txmq`: what each batch reads, with and without a group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, wake
from tests.kit.delay_world import TOPIC
from tests.kit.stream_world import Query, TwoQueues, older_topic
from txmq.consumer.lag import lag_of_group
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import (
    CheckpointCorruptError,
    ConfigError,
    MessagesExpiredError,
    TopicNotFoundError,
    TopicRestoredError,
)
from txmq.ground.clock import SystemClock
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.admin.groups import ConsumerGroups
from txmq.store.settled import NOTHING
from txmq.store.topic import remove_messages


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = TwoQueues(tmp_path, queues=2)
    yield made
    made.close()


def expected(count: int, *, first: int = 0) -> list[str]:
    return sorted(f"{queue}-{n}" for queue in range(2) for n in range(first, count))


BOTH = pytest.mark.parametrize("options", [{}, {"group": BILLING}], ids=["alone", "group"])


@BOTH
def test_all_messages_come_once_and_each_queue_in_its_order(
    world: ConsumerWorld, options: dict[str, str]
) -> None:
    query = Query.over(world, maxMessagesPerTrigger="7", **options)
    world.fill(10)

    assert query.run() == 3
    world.fill(3)
    query.run()

    assert all(len(rows) <= 7 for rows in query.sink.values())
    assert len(query.rows) == 26
    assert query.are_in_order()
    assert query.plan() is False


@BOTH
@pytest.mark.parametrize("stage", ["planned", "written", "done"])
def test_query_that_is_killed_in_each_batch_gives_each_message_once(
    world: ConsumerWorld, options: dict[str, str], stage: str
) -> None:
    world.fill(10)
    query = Query.over(world, maxMessagesPerTrigger="5", **options)
    for _ in range(20):
        world.clock.advance(world.store.config.consumer_lease_s + 1)
        # A member waits until the one before it has lost its lease.
        if not query.plan():
            continue
        if stage == "planned":
            query.die()
        query.write()
        if stage == "written":
            query.die()
            query.write()
        query.done += 1
        if stage == "done":
            query.die()

    assert sorted(query.bodies) == expected(10)
    assert query.are_in_order()


def test_group_stands_where_the_stream_is(world: ConsumerWorld) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.run()

    assert lag_of(world) == 0
    query.stop()
    world.fill(1)
    assert bodies(drained(world.consumer())) == ["0-0", "1-0"]


def lag_of(world: ConsumerWorld) -> int:
    return sum(queue.lag for queue in lag_of_group(world.store, BILLING, world.clock))


def test_group_is_not_moved_before_a_batch_is_done(world: ConsumerWorld) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.plan()
    query.write()

    assert lag_of(world) == 8


def test_lost_checkpoint_begins_where_the_group_stands(world: ConsumerWorld) -> None:
    world.fill(4)
    first = Query.over(world, group=BILLING)
    first.run()
    first.stop()
    world.fill(2)

    second = Query.over(world, group=BILLING)
    second.run()

    assert sorted(second.bodies) == expected(2)


def test_batch_that_was_done_and_not_told_is_told_by_the_next_start(world: ConsumerWorld) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.plan()
    query.write()
    query.done += 1
    query.die()
    assert lag_of(world) == 8

    for _ in range(3):
        assert query.run() == 0
        world.clock.advance(world.store.config.consumer_lease_s + 1)

    assert lag_of(world) == 0


def test_batch_that_was_done_is_not_read_again_while_a_dead_member_has_its_queues(
    world: ConsumerWorld,
) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.plan()
    query.write()
    query.done += 1
    query.die()

    assert query.run() == 0
    query.die()
    assert query.run() == 0
    world.clock.advance(world.store.config.consumer_lease_s + 1)
    world.fill(1)
    query.run()

    assert len(query.bodies) == 10
    assert query.are_in_order()


def test_operator_who_resets_the_group_moves_the_stream(world: ConsumerWorld) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.run()
    query.stop()
    groups = ConsumerGroups(world.store, clock=world.clock)
    groups.reset_offsets(BILLING, TOPIC, ConsumeFromWhere.FIRST_OFFSET, apply=True)

    query.run()

    assert sorted(query.bodies) == sorted(2 * expected(4))


def test_two_queries_of_a_group_share_the_queues(world: ConsumerWorld) -> None:
    first, second = Query.over(world, group=BILLING), Query.over(world, group=BILLING)
    world.fill(1)
    for query in 3 * (first, second):
        query.run()
        world.clock.advance(world.store.config.consumer_lease_s / 3)
    world.fill(6)
    for query in (first, second, first, second):
        query.run()

    assert sorted(first.bodies + second.bodies) == sorted(expected(1) + expected(6))
    assert min(len(first.bodies), len(second.bodies)) >= 6


def test_stream_and_pull_member_share_the_queues_and_hand_over(world: ConsumerWorld) -> None:
    world.fill(4)
    query = Query.over(world, group=BILLING)
    query.run()
    member = world.consumer()
    for _ in range(4):
        query.run()
        wake(member)
        member.poll(1, 0)
        member.commit()
        world.clock.advance(world.store.config.consumer_lease_s / 3)
    world.fill(6)
    query.run()
    wake(member)
    own = bodies(drained(member))
    member.commit()
    query.run()

    assert sorted(query.bodies + own) == sorted(expected(4) + expected(6))
    assert own


@BOTH
def test_what_becomes_visible_after_available_now_waits(
    world: ConsumerWorld, options: dict[str, str]
) -> None:
    world.fill(3)
    query = Query.over(world, **options)
    query.reader.prepareForTriggerAvailableNow()
    world.fill(2)

    query.run()
    assert len(query.bodies) == 6
    query.stop()
    query.run()
    assert len(query.bodies) == 10


def test_available_now_takes_the_queues_of_a_member_that_is_gone(tmp_path: Path) -> None:
    world = TwoQueues(tmp_path, queues=2, consumer_lease_s=0.3)
    world.fill(3)
    killed = Query.over(world, group=BILLING)
    killed.clock = SystemClock()
    killed.plan()
    killed.die()
    query = Query.over(world, group=BILLING)
    query.clock = SystemClock()
    query.reader.prepareForTriggerAvailableNow()

    query.run()

    assert sorted(query.bodies) == expected(3)
    assert ConsumerGroups(world.store).list()[0].members == ()
    world.close()


@BOTH
def test_merged_files_and_removed_ones_disturb_nothing(
    world: ConsumerWorld, options: dict[str, str]
) -> None:
    query = Query.over(world, maxMessagesPerTrigger="9", **options)
    world.fill(10)
    query.plan()
    for _ in range(40):
        world.fill(1)
    Maintenance(world.store, clock=world.clock).run_once()
    DeltaTable(f"{world.store.location}/topics/{TOPIC}").optimize.compact()

    query.run()

    assert len(query.rows) == 100
    assert query.are_in_order()


def test_rows_that_another_program_doubled_come_once(world: ConsumerWorld) -> None:
    world.fill(5)
    folder = Path(world.store.location, "topics", TOPIC)
    table = DeltaTable(str(folder))
    rows = table.to_pyarrow_table()
    from deltalake import write_deltalake

    write_deltalake(table, rows, mode="append")
    query = Query.over(world)

    query.run()

    assert sorted(query.bodies) == expected(5)


@BOTH
def test_messages_that_are_gone_are_told_and_left_out_on_demand(
    world: ConsumerWorld, options: dict[str, str]
) -> None:
    world.fill(5)
    query = Query.over(world, **options)
    query.plan()
    DeltaTable(f"{world.store.location}/topics/{TOPIC}").delete("queue_offset = 2")

    with pytest.raises(MessagesExpiredError, match=r"1 messages from offset 2 .*failOnDataLoss"):
        query.write()
    query.die()
    query.options["failOnDataLoss"] = "false"
    query.write()

    assert sorted(query.bodies) == sorted(set(expected(5)) - {"0-2", "1-2"})


@BOTH
def test_stream_that_retention_overtook_is_told_and_goes_on_on_demand(
    world: ConsumerWorld, options: dict[str, str]
) -> None:
    world.fill(1)
    query = Query.over(world, **options)
    query.run()
    world.fill(4)
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    old = [part.file for part in table.files.parts(()) if part.file.num_records == 4]
    remove_messages(table, old, NOTHING, NOTHING)
    world.fill(1)

    with pytest.raises(MessagesExpiredError, match="4 messages from offset 1 "):
        query.run()
    query.stop()
    query.options["failOnDataLoss"] = "false"
    query.run()

    assert sorted(query.bodies) == sorted(2 * ["0-0", "1-0"])
    assert query.plan() is False


@BOTH
def test_topic_that_went_back_is_told(world: ConsumerWorld, options: dict[str, str]) -> None:
    world.fill(3)
    with older_topic(world):
        world.fill(3)
        query = Query.over(world, **options)
        query.run()
        query.stop()

    with pytest.raises(TopicRestoredError):
        query.plan()


def test_batch_that_runs_again_on_a_topic_that_went_back_is_told(world: ConsumerWorld) -> None:
    world.fill(3)
    with older_topic(world):
        world.fill(3)
        query = Query.over(world)
        query.plan()
        query.die()

    with pytest.raises(TopicRestoredError):
        query.write()


def test_new_stream_begins_where_the_options_say(world: ConsumerWorld) -> None:
    world.fill(3)
    latest = Query.over(world, startingOffsets="latest")
    chosen = Query.over(world, startingOffsets='{"order-paid": {"0": 2}}')
    moment = Query.over(world, startingTimestamp="2999-01-01T00:00:00+00:00")
    for query in (latest, chosen, moment):
        query.run()
    assert (latest.bodies, moment.bodies) == ([], [])
    assert sorted(chosen.bodies) == ["0-2", "1-0", "1-1", "1-2"]

    world.fill(1)
    for query in (latest, moment):
        query.run()
        assert sorted(query.bodies) == ["0-0", "1-0"]


def test_several_topics_and_a_queue_that_comes_later(world: ConsumerWorld) -> None:
    world.topics.create("refunds", queue_nums=1)
    world.send_to(0, "first")
    query = Query.over(world, topic=f"{TOPIC}, refunds")
    query.run()
    world.send_to(0, "refund", topic="refunds")
    world.send_to(1, "second")
    query.run()

    assert [row["topic"] for row in query.rows] == [TOPIC, TOPIC, "refunds"]
    assert query.bodies == ["first", "second", "refund"]


def test_filters_hold_back_and_their_messages_count_as_read(world: ConsumerWorld) -> None:
    messages = [Message(TOPIC, b"%d" % n, tags="odd" if n % 2 else None) for n in range(6)]
    world.producer.send(messages)
    world.publisher.run_once()
    by_tag, by_sql = Query.over(world, tags="odd"), Query.over(world, filter="TAGS IS NULL")
    for query in (by_tag, by_sql):
        query.run()
        assert query.plan() is False

    assert sorted(by_tag.bodies) == ["1", "3", "5"]
    assert sorted(by_sql.bodies) == ["0", "2", "4"]


def test_large_batch_is_cut_into_slices_and_stays_in_order(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        world.fill(20)
    monkeypatch.setattr("txmq.spark.topic_slices.SLICE_BYTES", 3_000)
    query = Query.over(world)
    query.plan()
    tasks = query.reader.partitions(query.start_of(0), query.offsets[0])
    query.run()

    assert len(tasks) > 3
    assert len(query.rows) == 200
    assert query.are_in_order()


def test_limit_of_a_trigger_is_obeyed_and_no_limit_takes_all(world: ConsumerWorld) -> None:
    world.fill(9)
    query = Query.over(world, maxMessagesPerTrigger="4")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(4)
    query.limit = ReadAllAvailable()
    assert query.run() == 1
    assert query.reader.reportLatestOffset() == {TOPIC: {"0": 9, "1": 9}}


def test_topic_that_is_not_there_is_told(world: ConsumerWorld) -> None:
    with pytest.raises(TopicNotFoundError):
        Query.over(world, topic="nothing").run()


@pytest.mark.parametrize(
    "checkpoint",
    [{"order-paid": {}}, {"order-paid": {"commit": None, "queues": {"0": [0, 0, 5, 3]}}},
     {"order-paid": {"commit": [1], "queues": {}}}, {"x": 7}],
)  # fmt: skip
def test_offsets_that_nobody_wrote_are_told(
    world: ConsumerWorld, checkpoint: dict[str, Any]
) -> None:
    world.fill(1)
    with pytest.raises(CheckpointCorruptError):
        Query.over(world).reader.latestOffset(checkpoint, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"tpic": "x"}, "option tpic is not one of"), ({"tags": "a", "filter": "x = 1"}, "pass one"),
     ({"startingOffsets": "first"}, "earliest, latest or JSON"),
     ({"startingOffsets": '{"order-paid": {"x": 1}}'}, "earliest, latest or JSON"),
     ({"startingTimestamp": "2026-01-01"}, "a time with its zone"),
     ({"startingTimestamp": "2026-01-01T00:00:00Z", "startingOffsets": "latest"}, "pass one"),
     ({"maxMessagesPerTrigger": "0"}, "above 0"), ({"failOnDataLoss": "no"}, "true or false")],
)  # fmt: skip
def test_options_that_cannot_be_used_are_told(
    world: ConsumerWorld, options: dict[str, str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        Query.over(world, **options).run()
