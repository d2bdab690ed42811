"""Delayed messages: never early, each once, in the order in which they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.delay_world import GROUP, TOPIC, DelayWorld
from tests.kit.reading import wait_until
from txmq.errors import InvalidMessageError, StorageError
from txmq.message.delay_levels import DEFAULT_LEVELS, DelayLevel, level_seconds
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import (
    MAX_PARTS,
    WAITING_COLUMNS,
    DelayResult,
    DelayService,
    WaitingMessages,
    deliver_claims,
    ordered,
)
from txmq.publish.publisher import Publisher
from txmq.store.schemas import SCHEDULE
from txmq.store.store import Store
from txmq.testing import failing_commits

DAY_S = 86_400


@pytest.fixture
def world(delay_world: DelayWorld) -> DelayWorld:
    return delay_world


# --- when ---------------------------------------------------------------------------------------


def test_commit_alone_never_shows_a_delayed_message(world: DelayWorld) -> None:
    world.send("later", delay_s=10)
    world.clock.advance(3600)
    world.publisher.run_once()

    assert world.visible() == []
    assert world.scheduled() == ["later"]


def test_message_comes_when_its_pause_is_over_and_not_a_moment_before(world: DelayWorld) -> None:
    world.send("later", delay_s=10)

    assert world.after(9.999) == []
    assert world.after(0.001) == ["later"]


def test_message_comes_at_its_time_and_not_a_moment_before(world: DelayWorld) -> None:
    world.send("later", deliver_timestamp=world.in_s(3600))

    assert world.after(3599.999) == []
    assert world.after(0.001) == ["later"]


@pytest.mark.parametrize("level", [*DelayLevel, 19, 1000])
def test_each_level_has_its_pause_and_above_the_last_is_the_last(
    world: DelayWorld, level: int
) -> None:
    pause_s = level_seconds(DEFAULT_LEVELS)[min(level, 18) - 1]
    world.send("later", delay_level=level)

    assert world.after(pause_s - 0.001) == []
    assert world.after(0.001) == ["later"]


def test_levels_are_a_setting(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, message_delay_level="2s 1d")
    world.send("two seconds", delay_level=1)
    world.send("a day", delay_level=2)

    assert world.after(2) == ["two seconds"]
    assert world.after(DAY_S - 2.001) == ["two seconds"]
    assert world.after(0.001) == ["two seconds", "a day"]


def test_time_in_the_past_is_now(world: DelayWorld) -> None:
    world.send("at once", deliver_timestamp=world.in_s(-DAY_S))

    assert world.after(0) == ["at once"]


def test_times_of_other_zones_are_the_same_moment(world: DelayWorld) -> None:
    there = world.in_s(60).astimezone(timezone(timedelta(hours=-7)))
    world.send("later", deliver_timestamp=there)

    assert world.after(59.999) == []
    assert world.after(0.001) == ["later"]


def test_pause_counts_from_the_commit_not_from_the_send(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"later", delay_s=10))
    transaction.prepare()
    world.clock.advance(100)
    transaction.commit()
    world.publisher.run_once()

    assert world.after(9.999) == []
    assert world.after(0.001) == ["later"]


def test_clock_that_jumps_ahead_delivers_by_what_it_shows(world: DelayWorld) -> None:
    world.send("later", delay_s=3600)

    assert world.after(3600) == ["later"]
    world.clock.advance(-3600)
    world.send("second", delay_s=60)
    assert world.after(59) == ["later"]
    assert world.after(1) == ["later", "second"]


def test_clock_that_is_set_back_never_brings_anything_early(world: DelayWorld) -> None:
    world.send("later", delay_s=60)
    assert world.after(-600) == []
    assert world.after(659.999) == []
    assert world.after(0.001) == ["later"]


@pytest.mark.parametrize(
    "delay", [{"delay_s": 3601}, {"deliver_timestamp": datetime(2100, 1, 1, tzinfo=UTC)}], ids=str
)
def test_delays_above_the_longest_are_refused(tmp_path: Path, delay: dict[str, object]) -> None:
    world = DelayWorld(tmp_path, timer_max_delay_s=3600.0)
    version = world.store.tables.half_log().table.version
    message = Message(TOPIC, b"", **delay)  # type: ignore[arg-type]

    with pytest.raises(InvalidMessageError, match="timer_max_delay_s"):
        world.producer.send(message)
    with pytest.raises(InvalidMessageError, match="timer_max_delay_s"):
        world.producer.begin_transaction().send(message)
    assert world.store.tables.half_log().table.version == version


def test_longest_delay_is_forty_days(world: DelayWorld) -> None:
    world.send("later", delay_s=40 * DAY_S)

    assert world.after(40 * DAY_S - 1) == []
    assert world.after(1) == ["later"]


# --- each once ----------------------------------------------------------------------------------


def test_delivered_message_is_what_was_sent(world: DelayWorld) -> None:
    message = Message(
        TOPIC, b"\x00\xff", tags="paid", keys=["a", "b"], properties={"x": "y"},
        sharding_key="s", delay_s=5,
    )  # fmt: skip
    now = world.now
    sent = world.producer.send(message)
    world.publisher.run_once()
    world.clock.advance(5)
    world.deliver()

    (row,) = world.rows()
    expected = {
        "message_id": sent.message_id, "topic": TOPIC, "tags": "paid", "keys": "a b",
        "body": b"\x00\xff", "properties": [("x", "y")], "sharding_key": "s",
        "born_timestamp": now, "producer_group": GROUP, "transaction_id": sent.transaction_ids[0],
        "sequence": 0, "life": 0, "queue_offset": 0, "store_timestamp": world.now,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_message_that_is_claimed_again_comes_once(world: DelayWorld) -> None:
    (own_id,) = world.send("later", delay_s=5)
    world.after(5)
    world.claim(ClaimKind.DELIVER, own_id.partition(":")[0])
    world.restart()
    world.deliver()

    assert world.visible() == ["later"]


def test_two_services_deliver_each_message_once(world: DelayWorld) -> None:
    world.send("a", "b", "c", delay_s=5)
    other = DelayService(world.store, clock=world.clock)
    other.run_once()
    world.clock.advance(5)

    assert (world.service.run_once().delivered, other.run_once().delivered) == (3, 3)
    world.publisher.run_once()
    assert world.visible() == ["a", "b", "c"]


def test_new_service_does_not_claim_again_what_was_delivered(world: DelayWorld) -> None:
    world.send("first", delay_s=5)
    world.send("second", delay_s=10)
    world.after(5)
    world.restart()

    assert world.deliver() == DelayResult(delivered=0, commits=0, waiting=1)
    world.clock.advance(5)
    assert world.deliver() == DelayResult(delivered=1, commits=1, waiting=0)


def test_service_that_kept_its_progress_reads_nothing_again(world: DelayWorld) -> None:
    world.send("first", delay_s=5)
    world.after(5)
    world.service._keep_progress()
    world.restart()

    assert world.deliver() == DelayResult()
    world.send("late", deliver_timestamp=world.in_s(-60))
    world.restart()
    assert world.after(0) == ["first", "late"]


def test_claims_that_could_not_be_written_are_written_later(world: DelayWorld) -> None:
    world.send("a", "b", delay_s=5)
    world.deliver()
    world.clock.advance(5)
    with failing_commits(100, table="op"), pytest.raises(StorageError):
        world.service.run_once()

    assert world.visible() == []
    assert world.after(0) == ["a", "b"]


def test_offsets_of_the_topic_have_no_gap(world: DelayWorld) -> None:
    for number in range(5):
        world.send(f"now {number}")
        world.send(f"later {number}", delay_s=number + 1)
        world.after(1)
    world.after(5)

    offsets: dict[int, list[int]] = {}
    for row in world.rows():
        offsets.setdefault(row["queue_id"], []).append(row["queue_offset"])
    assert len(world.rows()) == 10
    assert all(found == list(range(len(found))) for found in offsets.values())


# --- with transactions ----------------------------------------------------------------------------


def test_transaction_shows_at_once_what_is_not_delayed(world: DelayWorld) -> None:
    with world.producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"now"))
        transaction.send(Message(TOPIC, b"later", delay_s=5))
        transaction.send(Message("invoice-due", b"much later", delay_level=DelayLevel.AFTER_1H))
        transaction.prepare()
        transaction.commit()
    world.publisher.run_once()

    assert world.visible() == ["now"]
    assert world.after(5) == ["now", "later"]
    world.after(3600)
    assert world.visible("invoice-due") == ["much later"]


def test_rolled_back_delayed_message_never_comes(world: DelayWorld) -> None:
    with world.producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"never", delay_s=5))
        transaction.prepare()
        transaction.rollback()
    world.publisher.run_once()

    assert world.after(DAY_S) == []
    assert SCHEDULE_TOPIC not in world.store.topics()


def test_discarded_delayed_message_is_a_dead_letter_at_once(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"dead", delay_s=5))
    transaction.prepare()
    world.claim(ClaimKind.DISCARD, transaction.id)

    assert world.visible(TRANS_CHECK_MAX_TIME_TOPIC) == ["dead"]
    assert world.after(DAY_S) == []


def test_deliver_before_the_commit_has_no_effect(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"later", delay_s=5))
    transaction.prepare()
    world.claim(ClaimKind.DELIVER, transaction.id)
    transaction.commit()
    world.publisher.run_once()

    assert world.visible() == []
    assert world.after(5) == ["later"]


def test_deliver_in_the_round_of_its_commit_finds_the_payload(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"later", delay_s=5))
    transaction.prepare()
    transaction.commit()
    world.claim(ClaimKind.DELIVER, transaction.id, 0)

    assert world.visible() == ["later"]
    assert world.scheduled() == ["later"]
    assert world.after(DAY_S) == ["later"]


# --- order and many -------------------------------------------------------------------------------


def test_after_a_long_stop_all_that_is_due_comes_at_once_in_its_order(world: DelayWorld) -> None:
    for number in (5, 1, 4, 2, 3):
        world.send(f"day {number}", delay_s=number * DAY_S)
    world.clock.advance(10 * DAY_S)
    world.restart()

    assert world.deliver() == DelayResult(delivered=5, commits=5, waiting=0)
    assert world.visible() == [f"day {number}" for number in range(1, 6)]


def test_messages_of_one_transaction_come_in_the_order_in_which_they_are_due(
    world: DelayWorld,
) -> None:
    with world.producer.begin_transaction() as transaction:
        for second in (30, 10, 20):
            transaction.send(Message(TOPIC, f"{second}".encode(), delay_s=second))
        transaction.prepare()
        transaction.commit()
    world.publisher.run_once()
    world.clock.advance(60)
    world.service.run_once()
    world.publisher.run_once()

    claimed = world.store.tables.op_log().table
    rows = claimed.rows.read(claimed.files.all(), ("kind", "ordinal", "sequences")).to_pylist()
    delivered = sorted(
        (row["ordinal"], row["sequences"]) for row in rows if row["kind"] == "DELIVER"
    )
    assert delivered == [(0, [1, 2]), (1, [0])]


def test_many_messages_of_one_transaction_are_one_claim(world: DelayWorld) -> None:
    world.send(*[str(number) for number in range(1000)], delay_s=5)
    world.clock.advance(5)

    assert world.deliver() == DelayResult(delivered=1000, commits=1, waiting=0)
    claims = world.store.tables.op_log().table
    assert sum(file.num_records for file in claims.files.all()) == 2


def test_far_away_messages_are_not_kept_in_memory(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, delay_horizon_s=60.0)
    for minutes in range(10):
        world.send(f"{minutes}", delay_s=60 * minutes + 1)

    assert world.deliver().waiting == 1
    for minutes in range(10):
        assert world.after(60)[-1] == f"{minutes}"
        assert len(world.service._round._waiting) <= 2  # type: ignore[union-attr]


def test_message_that_arrives_within_the_horizon_is_seen(world: DelayWorld) -> None:
    world.send("first", delay_s=3600)
    world.deliver()
    world.send("soon", delay_s=5)

    assert world.after(5) == ["soon"]
    assert world.after(3595) == ["soon", "first"]


def test_messages_over_several_days_and_midnight(world: DelayWorld) -> None:
    pauses_s = [number * DAY_S // 4 + 1 for number in range(20)]
    for pause_s in pauses_s:
        world.send(str(pause_s), delay_s=pause_s)
    dates = {row["due_date"] for row in world.rows(SCHEDULE_TOPIC)}
    assert len(dates) >= 5
    for count in range(1, 21):
        world.after(1 if count == 1 else DAY_S // 4)
        assert len(world.visible()) == count


def test_store_without_delayed_messages_gets_no_schedule(world: DelayWorld) -> None:
    world.send("now")

    assert world.deliver() == DelayResult()
    assert world.store.topics() == [TOPIC]
    assert "state/delay" not in world.store.tables.table_paths()


def test_running_service_delivers_and_stops(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        handle = DelayService(store).start()
        producer.send(Message(TOPIC, b"soon", delay_s=1))
        publisher.run_once()
        op = store.tables.op_log().table
        wait_until(lambda: op.refresh().version >= 2)
        handle.stop()
    assert not handle.is_alive
    assert publisher.run_once().published == 1


# --- the memory of what waits ---------------------------------------------------------------------


def waiting(due_us: list[int]) -> pa.Table:
    rows = [
        {"transaction_id": f"{place:08}", "sequence": place % 3, "producer_group": GROUP,
         "op_version": place, "deliver_timestamp": datetime(2026, 1, 1, tzinfo=UTC)
         + timedelta(microseconds=due)}
        for place, due in enumerate(due_us)
    ]  # fmt: skip
    schema = pa.schema([SCHEDULE.columns.field(name) for name in WAITING_COLUMNS])
    return pa.Table.from_pylist(rows, schema)


START_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


@given(
    st.lists(st.lists(st.integers(0, 50_000), max_size=5), max_size=MAX_PARTS + 4),
    st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
)
def test_each_message_is_taken_once_when_it_is_due(
    parts: list[list[int]], looks_ms: list[int]
) -> None:
    messages = WaitingMessages()
    for part in parts:
        messages.add(waiting(part))
    taken: list[int] = []
    for look_ms in looks_ms:
        due = messages.take_due(START_MS + look_ms)
        moments = [
            (each - datetime(2026, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            for each in due["deliver_timestamp"].to_pylist()
        ]
        assert moments == sorted(moments)
        assert all(moment <= look_ms * 1000 for moment in moments)
        taken += moments
    expected = sorted(due for part in parts for due in part if due <= looks_ms[-1] * 1000)
    assert sorted(taken) == expected
    assert len(messages) == sum(len(part) for part in parts) - len(expected)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 9))))
def test_claims_name_each_due_message_once_in_its_order(
    found: list[tuple[int, int, int]],
) -> None:
    rows = [
        {"transaction_id": f"{own}", "sequence": sequence, "producer_group": GROUP,
         "op_version": own, "deliver_timestamp": datetime(2026, 1, 1, second=second, tzinfo=UTC)}
        for own, sequence, second in {(own, seq): (own, seq, at) for own, seq, at in found}.values()
    ]  # fmt: skip
    schema = pa.schema([SCHEDULE.columns.field(name) for name in WAITING_COLUMNS])
    due = ordered(pa.Table.from_pylist(rows, schema))

    claims = deliver_claims(due, START_MS)
    named = [
        (row["transaction_id"], sequence)
        for row in claims.to_pylist()
        for sequence in row["sequences"]
    ]
    in_order = zip(due["transaction_id"].to_pylist(), due["sequence"].to_pylist(), strict=True)
    assert named == list(in_order)
    assert all(row["sequences"] == sorted(row["sequences"]) for row in claims.to_pylist())
