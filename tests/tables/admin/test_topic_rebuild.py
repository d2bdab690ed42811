"""Rebuilding a topic: however it was damaged, it is what half and settled say again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.builders import table_versions
from tests.kit.planted import DEAD, Filled, Vandal, filled
from tests.kit.reading import topic_rows
from tests.kit.stores import fresh_store
from txmq.delta.commit_writer import TURN_FILE
from txmq.errors import InvalidNameError, PayloadMissingError, TopicNotRebuiltError
from txmq.ground.fail_points import FailPoint
from txmq.maintenance.retention import Retention, TopicRetention
from txmq.message.message import Message
from txmq.ops.admin.rebuild import RebuiltGroups
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.schemas import TOPIC as SCHEMA
from txmq.store.store import Store
from txmq.testing import ManualClock, arm_fail_points, before_commit
from txmq.verify import verify

GROUP, TOPIC = "orders", "order-paid"
PAID = "paid"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled(str(tmp_path_factory.mktemp("rebuild") / "store"))


@pytest.fixture
def made(original: Filled, tmp_path: Path) -> Filled:
    """A copy to damage: every kind of life, all published, nothing wrong."""
    shutil.copytree(original.location, tmp_path / "store")
    return Filled(str(tmp_path / "store"), original.ids)


@pytest.fixture
def vandal(made: Filled) -> Vandal:
    return Vandal(made.location)


def is_clean(location: str) -> bool:
    report = verify(location)
    assert [one for one in report.results if one.violation_count] == []
    return report.is_clean


# --- damage --------------------------------------------------------------------------------------


def doubled(vandal: Vandal, ids: dict[str, str]) -> None:
    (row,) = vandal.rows(f"topics/{PAID}", ids["plain_once"])
    vandal.show(ids["plain_once"], PAID, op_version=row["op_version"])


def one_lost(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.lose(ids["plain_once"], PAID)


def all_lost(vandal: Vandal, ids: dict[str, str]) -> None:  # noqa: ARG001
    vandal.rewrite(f"topics/{PAID}", lambda _: None)


def body_changed(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.change(ids["plain_once"], PAID, body=b"something else")


def properties_lost(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.change(ids["plain"], PAID, properties=None)


def offset_changed(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.change(ids["plain_once"], PAID, queue_offset=1000)


def queue_changed(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.change(ids["plain_once"], PAID, queue_id=5)


def life_changed(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.change(ids["plain_once"], PAID, life=3)


def from_nowhere(vandal: Vandal, ids: dict[str, str]) -> None:
    vandal.show(ids["rolled_back"], PAID)
    vandal.show(ids["open"], PAID)


def file_gone(vandal: Vandal, ids: dict[str, str]) -> None:  # noqa: ARG001
    for path in Path(vandal.location, "topics", PAID).glob("*.parquet"):
        path.unlink()


DAMAGE = [
    (doubled, {"extra": 1}),
    (one_lost, {"missing": 1}),
    (all_lost, {}),
    (body_changed, {"different": 1}),
    (properties_lost, {"different": 2}),
    (offset_changed, {"different": 1}),
    (queue_changed, {"different": 1}),
    (life_changed, {"missing": 1, "extra": 1}),
    (from_nowhere, {"extra": 2}),
    (file_gone, {}),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGE, ids=lambda one: getattr(one, "__name__", ""))
def test_damaged_topic_is_what_it_was(
    made: Filled,
    vandal: Vandal,
    damage: Callable[[Vandal, Any], None],
    told: dict[str, int],
) -> None:
    before = topic_rows(made.store, PAID)
    damage(vandal, made.ids)
    topics = Topics(made.store)

    found = topics.rebuild(PAID)
    assert found.is_needed
    assert {name: getattr(found, name) for name in told} == told
    assert topics.rebuild(PAID, apply=True).is_written

    after = topic_rows(made.store, PAID)
    assert [without_time(row) for row in after] == [without_time(row) for row in before]
    assert is_clean(made.location)
    assert not topics.rebuild(PAID).is_needed


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "store_timestamp"}


def test_times_of_rows_that_are_there_are_kept(made: Filled, vandal: Vandal) -> None:
    before = {row["message_id"]: row["store_timestamp"] for row in topic_rows(made.store, PAID)}
    one_lost(vandal, dict(made.ids))
    lost = made.ids["plain_once"]
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000 + 60_000)

    Topics(made.store, clock=clock).rebuild(PAID, apply=True)

    after = {row["message_id"]: row["store_timestamp"] for row in topic_rows(made.store, PAID)}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"{lost}:0"}
    assert after[f"{lost}:0"].timestamp() * 1000 == pytest.approx(clock.now_ms())


def test_dry_run_writes_nothing(made: Filled, vandal: Vandal) -> None:
    doubled(vandal, dict(made.ids))
    before = table_versions(made.store)

    assert not Topics(made.store).rebuild(PAID).is_written
    assert table_versions(made.store) == before


def test_topic_that_is_right_is_left_alone(made: Filled) -> None:
    before = table_versions(made.store)
    for topic in made.store.topics():
        found = Topics(made.store).rebuild(topic, apply=True)
        assert (topic, found.is_needed, found.is_written) == (topic, False, False)
    assert table_versions(made.store) == before


def test_dead_letters_are_rebuilt_too(made: Filled, vandal: Vandal) -> None:
    before = topic_rows(made.store, DEAD)
    vandal.lose(made.ids["dead_letters_torn"], DEAD, keep=1)

    found = Topics(made.store).rebuild(DEAD, apply=True)

    assert (found.missing, found.is_written) == (1, True)
    after = topic_rows(made.store, DEAD)
    assert [without_time(row) for row in after] == [without_time(row) for row in before]
    assert is_clean(made.location)


def test_wrong_marks_are_set_right(made: Filled, vandal: Vandal) -> None:
    vandal.append(f"topics/{PAID}", *no_rows(), {f"txmq/{vandal.op_id}": 0, "txmq-offset/0": 1})

    found = Topics(made.store).rebuild(PAID, apply=True)

    assert (found.marks_differ, found.missing, found.extra, found.different) == (True, 0, 0, 0)
    assert not Topics(made.store).rebuild(PAID).is_needed


def no_rows() -> Any:
    return SCHEMA, []


def test_messages_that_are_not_published_yet_are_no_fault(made: Filled, vandal: Vandal) -> None:
    with TransactionProducer(made.store, producer_group="shop") as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(PAID, b"new"))
        transaction.prepare()
        transaction.commit()
    # Settled by a publisher that died before it wrote the topic.
    disarm = arm_fail_points(f"{FailPoint.FACTS_COMMITTED}=raise")
    with pytest.raises(OSError, match="fail point"):
        Publisher(made.store).run_once()
    disarm()

    found = Topics(made.store).rebuild(PAID)
    assert (found.unpublished, found.is_needed) == (1, False)

    doubled(vandal, dict(made.ids))
    assert Topics(made.store).rebuild(PAID, apply=True).unpublished == 1
    Publisher(made.store).run_once()
    assert is_clean(made.location)
    assert not Topics(made.store).rebuild(PAID).is_needed


def test_half_that_is_missing_without_a_reason_stops_it(made: Filled, vandal: Vandal) -> None:
    DeltaTable(f"{made.location}/half").delete(f"transaction_id = '{made.ids['plain_once']}'")
    doubled_of = dict(made.ids)
    vandal.change(doubled_of["plain"], PAID, body=b"wrong")
    before = table_versions(made.store)

    with pytest.raises(PayloadMissingError):
        Topics(made.store).rebuild(PAID, apply=True)
    assert table_versions(made.store) == before


def test_schedule_that_is_whole_is_not_rebuilt(made: Filled) -> None:
    made.store.tables.create_topic("SCHEDULE_TOPIC_XXXX")

    with pytest.raises(InvalidNameError, match="schedule"):
        Topics(made.store).rebuild("SCHEDULE_TOPIC_XXXX")


# --- publishers ----------------------------------------------------------------------------------


def test_publisher_with_the_old_handle_is_refused_and_goes_on(made: Filled, vandal: Vandal) -> None:
    publisher = Publisher(made.store)
    publisher.run_once()
    send(made.store, PAID, 1)
    doubled(vandal, dict(made.ids))

    def rebuild() -> None:
        Topics(made.store).rebuild(PAID, apply=True)

    with before_commit(rebuild, table=PAID):
        result = publisher.run_once()

    assert result.refused >= 1
    send(made.store, PAID, 2)
    publisher.run_once()
    assert is_clean(made.location)
    assert not Topics(made.store).rebuild(PAID).is_needed


def test_rebuild_takes_in_what_a_publisher_appends_meanwhile(made: Filled, vandal: Vandal) -> None:
    doubled(vandal, dict(made.ids))
    send(made.store, PAID, 3)

    with before_commit(lambda: Publisher(made.store).run_once() and None, table=PAID):
        assert Topics(made.store).rebuild(PAID, apply=True).is_written

    assert is_clean(made.location)
    assert not Topics(made.store).rebuild(PAID).is_needed


def test_publisher_that_is_faster_each_time_waits_for_the_rebuild_in_the_end(
    made: Filled, vandal: Vandal, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(vandal, dict(made.ids))
    store = Store.open(made.location)
    check, waits = RebuiltGroups.check, []

    def publish_unless_asked_to_wait(groups: RebuiltGroups) -> None:
        check(groups)
        waits.append(Path(store.topic_location(PAID), TURN_FILE).exists())
        if not waits[-1]:
            send(store, PAID, 1)
            Publisher(store).run_once()

    monkeypatch.setattr(RebuiltGroups, "check", publish_unless_asked_to_wait)

    assert Topics(store).rebuild(PAID, apply=True).is_written
    assert waits[-1]
    assert not Path(store.topic_location(PAID), TURN_FILE).exists()
    monkeypatch.undo()
    Publisher(store).run_once()
    assert is_clean(made.location)


def send(store: Store, topic: str, count: int) -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        for number in range(count):
            transaction = producer.begin_transaction()
            transaction.send(Message(topic, b"%d" % number))
            transaction.prepare()
            transaction.commit()


# --- after retention -----------------------------------------------------------------------------


class Past:
    """A topic with messages of days whose halves are gone, and of today."""

    def __init__(self, location: Path) -> None:
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.store = fresh_store(location, Config(default_topic_queue_nums=2))
        self.topics = Topics(self.store, clock=self.clock)
        self.publisher = Publisher(self.store, clock=self.clock)
        self.send(6)
        self.clock.advance(5 * 86_400)
        Retention(self.store, self.clock).run()
        self.send(4)
        self.vandal = Vandal(str(location))

    def send(self, count: int) -> None:
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            for number in range(count):
                transaction = producer.begin_transaction()
                transaction.send(Message(TOPIC, b"%d" % number))
                transaction.prepare()
                transaction.commit()
        self.publisher.run_once()

    def rows(self) -> list[dict[str, Any]]:
        return topic_rows(self.store, TOPIC)

    def is_parked(self) -> bool:
        return any(one.is_parked for one in self.topics.all() if one.topic == TOPIC)

    def oldest(self) -> str:
        return min(row["transaction_id"] for row in self.rows())

    def newest(self) -> str:
        return max(row["transaction_id"] for row in self.rows())


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    world = Past(tmp_path / "store")
    assert sum(file.num_records for file in world.store.tables.table_at("half").files.all()) == 4
    yield world
    assert not any(row["queue_offset"] is None for row in world.rows())


def test_messages_without_halves_are_kept_from_the_topic_itself(past: Past) -> None:
    before = past.rows()
    past.vandal.lose(past.newest(), TOPIC)

    found = past.topics.rebuild(TOPIC, apply=True)

    assert (found.missing, found.kept, found.rows) == (1, 6, 10)
    assert [without_time(row) for row in past.rows()] == [without_time(row) for row in before]
    assert is_clean(past.store.location)


def test_message_without_a_half_that_was_doubled_is_there_once(past: Past) -> None:
    before = past.rows()
    row = next(row for row in before if row["transaction_id"] == past.oldest())
    past.vandal.append(f"topics/{TOPIC}", SCHEMA, [row])

    assert past.topics.rebuild(TOPIC, apply=True).extra == 1
    assert past.rows() == before


def test_message_without_a_half_that_is_missing_stops_it(past: Past) -> None:
    past.vandal.lose(past.oldest(), TOPIC)
    before = table_versions(past.store)

    with pytest.raises(TopicNotRebuiltError, match="nothing holds them"):
        past.topics.rebuild(TOPIC, apply=True)
    assert table_versions(past.store) == before


def test_message_that_nothing_holds_any_more_is_given_up_by_name(past: Past) -> None:
    past.vandal.lose(past.oldest(), TOPIC)
    before = past.rows()
    past.send(1)
    assert past.is_parked()

    past.topics.rebuild(TOPIC, apply=True, give_up=True)

    assert past.rows() == before
    past.clock.advance(3_600)
    past.send(1)
    assert len(past.rows()) == len(before) + 2
    assert not past.topics.rebuild(TOPIC).is_needed
    assert is_clean(past.store.location)


def test_message_without_a_half_with_two_contents_stops_it(past: Past) -> None:
    row = next(row for row in past.rows() if row["transaction_id"] == past.oldest())
    past.vandal.append(f"topics/{TOPIC}", SCHEMA, [{**row, "body": b"forged"}])

    with pytest.raises(TopicNotRebuiltError, match="several contents"):
        past.topics.rebuild(TOPIC, apply=True)


def test_file_with_messages_without_halves_that_cannot_be_read_stops_it(past: Past) -> None:
    for path in Path(past.store.location, "topics", TOPIC).glob("*.parquet"):
        path.rename(path.with_suffix(".gone"))

    with pytest.raises(TopicNotRebuiltError, match="cannot be read"):
        past.topics.rebuild(TOPIC, apply=True)

    for path in Path(past.store.location, "topics", TOPIC).glob("*.gone"):
        path.rename(path.with_suffix(".parquet"))


@pytest.fixture
def short(tmp_path: Path) -> tuple[Store, Topics, Publisher]:
    """A topic of nine messages whose first ones its own retention has taken."""
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    store = Store.create(tmp_path / "store", Config(file_reserved_time_h=1_000))
    topics = Topics(store, clock=clock)
    topics.create(TOPIC, queue_nums=1, reserved_time_h=1)
    publisher = Publisher(store, clock=clock)
    for _ in range(9):
        send(store, TOPIC, 1)
        publisher.run_once()
        clock.advance(600)
    TopicRetention(store, clock).run()
    assert topic_rows(store, TOPIC)[0]["queue_offset"] > 0
    return store, topics, publisher


def test_topic_that_lost_old_messages_by_its_own_retention_keeps_its_offsets(
    short: tuple[Store, Topics, Publisher],
) -> None:
    store, topics, publisher = short
    before = topic_rows(store, TOPIC)
    vandal = Vandal(store.location)
    vandal.lose(before[-2]["transaction_id"], TOPIC)
    vandal.change(before[0]["transaction_id"], TOPIC, body=b"wrong")

    found = topics.rebuild(TOPIC, apply=True)

    assert (found.missing, found.different, found.rows) == (1, 1, len(before))
    after = topic_rows(store, TOPIC)
    assert [without_time(row) for row in after] == [without_time(row) for row in before]
    send(store, TOPIC, 1)
    publisher.run_once()
    assert topic_rows(store, TOPIC)[-1]["queue_offset"] == before[-1]["queue_offset"] + 1


def test_topic_whose_last_rows_are_lost_after_its_retention_gets_its_offsets_back(
    short: tuple[Store, Topics, Publisher],
) -> None:
    store, topics, publisher = short
    before = topic_rows(store, TOPIC)
    DeltaTable(f"{store.location}/topics/{TOPIC}").delete()
    send(store, TOPIC, 1)

    found = topics.rebuild(TOPIC, apply=True)

    assert found.missing == len(before)
    publisher.run_once()
    after = topic_rows(store, TOPIC)
    assert [row["queue_offset"] for row in after] == [
        *(row["queue_offset"] for row in before), before[-1]["queue_offset"] + 1,
    ]  # fmt: skip
    assert is_clean(store.location)


# --- delayed messages ----------------------------------------------------------------------------


class Delays:
    """Messages that wait for hours or days, delivered by a clock that moves when told."""

    def __init__(self, location: Path) -> None:
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.store = fresh_store(location, Config(default_topic_queue_nums=2))
        self.topics = Topics(self.store, clock=self.clock)
        self.publisher = Publisher(self.store, clock=self.clock)
        self.delays = DelayService(self.store, clock=self.clock)

    def send(self, *delays_s: int | None) -> str:
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            transaction = producer.begin_transaction()
            for delay_s in delays_s:
                transaction.send(Message(TOPIC, b"%d" % (delay_s or 0), delay_s=delay_s))
            transaction.prepare()
            transaction.commit()
        self.publisher.run_once()
        return transaction.id

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.delays.run_once()
        self.publisher.run_once()

    def rows(self) -> list[dict[str, Any]]:
        return topic_rows(self.store, TOPIC)


@pytest.fixture
def waiting(tmp_path: Path) -> Delays:
    return Delays(tmp_path / "store")


def test_delivered_messages_are_rebuilt_and_waiting_ones_stay_hidden(waiting: Delays) -> None:
    own_id = waiting.send(60, None, 120, 3600)
    waiting.send(None, 90)
    waiting.later(100)
    waiting.later(100)
    before = waiting.rows()
    assert sorted(row["body"] for row in before) == [b"0", b"0", b"120", b"60", b"90"]
    Vandal(waiting.store.location).lose(own_id, TOPIC)

    found = waiting.topics.rebuild(TOPIC, apply=True)

    assert (found.missing, found.rows) == (3, 5)
    assert [without_time(row) for row in waiting.rows()] == [without_time(row) for row in before]
    assert not waiting.topics.rebuild(TOPIC).is_needed
    waiting.later(3600)
    assert len(waiting.rows()) == 6
    assert is_clean(waiting.store.location)
    assert not waiting.topics.rebuild(TOPIC).is_needed


def test_delivered_messages_whose_halves_are_gone_come_from_the_schedule(waiting: Delays) -> None:
    own_id = waiting.send(None, 10 * 86_400)
    waiting.clock.advance(5 * 86_400)
    waiting.send(None)
    Retention(waiting.store, waiting.clock).run()
    waiting.later(6 * 86_400)
    before = waiting.rows()
    assert len(before) == 3
    Vandal(waiting.store.location).lose(own_id, TOPIC, keep=1)

    found = waiting.topics.rebuild(TOPIC, apply=True)

    assert (found.missing, found.kept) == (1, 1)
    assert [without_time(row) for row in waiting.rows()] == [without_time(row) for row in before]
    assert is_clean(waiting.store.location)


def test_recalled_message_is_not_rebuilt(waiting: Delays) -> None:
    own_id = waiting.send(60, 61)
    with TransactionProducer(waiting.store, producer_group=GROUP) as producer:
        producer.recall(f"{own_id}:1")
    waiting.later(100)

    found = waiting.topics.rebuild(TOPIC)

    assert (found.rows, found.is_needed) == (1, False)
