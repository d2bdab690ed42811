"""Retention: what nobody needs goes by whole days, what is open for too long expires in sight."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.kit.stores import fresh_store
from txmq.errors import TransactionNotFoundError
from txmq.ground.clock import milliseconds
from txmq.maintenance import retention
from txmq.maintenance.retention import (
    Retained,
    Retention,
    is_over,
    published_up_to,
)
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.known import FORGOTTEN_BEFORE
from txmq.store.op import OpRow
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock, failing_commits
from txmq.verify import verify

GROUP = "orders"
HOUR_MS = 3_600_000
DAY = date(2026, 1, 1)
DAY_END_MS = milliseconds(datetime(2026, 1, 2, tzinfo=UTC))


class World:
    """A store with a publisher and retention whose clock is hours away from its files."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Files carry the machine's time, so this is where the clock begins.
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.publisher = Publisher(store, clock=self.clock)
        self.retention = Retention(store, self.clock)
        self.producer = TransactionProducer(store, producer_group=GROUP, clock=self.clock)

    def send(self, count: int = 1, end: ClaimKind | None = ClaimKind.COMMIT) -> list[str]:
        ids = []
        for number in range(count):
            transaction = self.producer.begin_transaction()
            transaction.send(Message("order-paid", b"body-%d" % number))
            transaction.prepare()
            ids.append(transaction.id)
            if end is ClaimKind.COMMIT:
                transaction.commit()
            elif end is ClaimKind.ROLLBACK:
                transaction.rollback()
        self.publisher.run_once()
        return ids

    def discard(self, transaction_id: str) -> None:
        """One question without an answer is enough in this store."""
        self.clock.advance(60)
        self.claim(transaction_id, ClaimKind.UNKNOWN, check_times=1)
        self.claim(transaction_id, ClaimKind.DISCARD)

    def claim(
        self, transaction_id: str, kind: ClaimKind, life: int = 0, check_times: int | None = None
    ) -> None:
        row = OpRow(
            transaction_id,
            kind,
            GROUP,
            ClaimSource.CHECK,
            self.clock.now_ms(),
            life=life,
            check_times=check_times,
        )
        self.store.tables.op_log().append(
            [row], 0, app_id=f"test-{kind}-{transaction_id}", number=1
        )
        self.publisher.run_once()

    def rows(self, path: str) -> int:
        return sum(file.num_records for file in self.store.tables.table_at(path).files.all())

    def logs(self) -> tuple[int, int, int]:
        return self.rows("half"), self.rows("op"), self.rows("settled")

    def dead(self) -> int:
        return self.rows(f"topics/{TRANS_CHECK_MAX_TIME_TOPIC}")

    def days_later(self, days: float = 5) -> Retained:
        self.clock.advance(days * 86_400)
        return self.retention.run()

    def check(self) -> None:
        report = verify(self.store.location)
        assert [one for one in report.results if one.violation_count] == []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # Here each file of a day is judged by itself; the other tests of retention have one piece.
    monkeypatch.setattr(retention, "IDS_AT_ONCE", 1)
    settings = Config(transaction_check_max=1, transaction_timeout_s=0.001)
    return World(fresh_store(tmp_path / "store", settings))


# --- the rule ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newest_write_ms", "now_ms", "over"),
    [
        (0, DAY_END_MS + 72 * HOUR_MS, True),
        (0, DAY_END_MS + 72 * HOUR_MS - 1, False),
        (DAY_END_MS + HOUR_MS, DAY_END_MS + 72 * HOUR_MS, False),
        (DAY_END_MS + HOUR_MS, DAY_END_MS + 73 * HOUR_MS, True),
    ],
)
def test_day_is_over_when_it_and_its_last_write_are_old(
    newest_write_ms: int, now_ms: int, *, over: bool
) -> None:
    assert is_over(DAY, newest_write_ms, now_ms, 72 * HOUR_MS) is over


@given(some.integers(0, 10**13), some.integers(0, 10**13), some.integers(0, 10**12))
def test_nothing_younger_than_what_is_reserved_is_over(
    write_ms: int, now_ms: int, reserved_ms: int
) -> None:
    if is_over(DAY, write_ms, now_ms, reserved_ms):
        assert now_ms - write_ms >= reserved_ms
        assert now_ms - DAY_END_MS >= reserved_ms


# --- what goes ----------------------------------------------------------------------------------


def test_what_is_published_and_old_goes_from_all_three_logs(world: World) -> None:
    world.send(3)
    world.send(2, ClaimKind.ROLLBACK)
    gone = world.days_later()

    assert world.logs() == (0, 0, 0)
    assert gone.half_days == gone.op_days == gone.settled_days != ()
    assert world.rows("topics/order-paid") == 3


def test_what_is_young_stays(world: World) -> None:
    world.send(3)

    assert world.days_later(1) == Retained()
    assert world.logs() == (3, 3, 3)


def test_old_id_that_was_written_just_now_stays(world: World) -> None:
    behind = ManualClock(now_ms=world.clock.now_ms() - 30 * 86_400_000)
    with TransactionProducer(world.store, producer_group=GROUP, clock=behind) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"body"))
        transaction.prepare()
        transaction.commit()
    world.publisher.run_once()

    assert world.retention.run() == Retained()
    assert world.logs() == (1, 1, 1)


def test_what_is_not_published_yet_stays(world: World) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message("order-paid", b"body"))
    transaction.prepare()
    transaction.commit()

    assert world.days_later() == Retained()
    assert world.logs() == (1, 1, 0)


def test_messages_of_a_parked_topic_stay_until_it_has_them(world: World) -> None:
    world.send(1)
    with failing_commits(100, table="topics/order-paid", error=OSError("gone")):
        world.send(2)
        world.clock.advance(5 * 86_400)
        assert world.retention.run() == Retained()
    world.publisher.run_once()
    world.retention.run()

    assert world.logs() == (0, 0, 0)
    assert world.rows("topics/order-paid") == 3


def test_new_days_stay_when_old_ones_go(world: World) -> None:
    world.send(2)
    world.clock.advance(5 * 86_400)
    world.send(4)
    gone = world.retention.run()

    assert len(gone.half_days) == 1
    assert world.logs() == (4, 4, 4)


def test_it_is_said_before_which_day_transactions_may_be_missing(world: World) -> None:
    world.send(1)
    gone = world.days_later()
    said = world.store.tables.register("maintenance").read().value

    assert said == {FORGOTTEN_BEFORE: (gone.half_days[0] + timedelta(days=1)).isoformat()}


def test_late_end_of_a_forgotten_transaction_is_not_found(world: World) -> None:
    (own_id,) = world.send(1)
    world.days_later()
    with pytest.raises(TransactionNotFoundError):
        world.producer.end_transaction(own_id, _commit())


# --- what is still open -------------------------------------------------------------------------


def test_open_transaction_expires_and_its_messages_are_dead_letters(world: World) -> None:
    world.send(2, end=None)

    assert world.days_later().expired == 2
    assert world.rows("half") == 2
    world.publisher.run_once()
    assert world.dead() == 2
    world.check()
    world.retention.run()
    assert world.rows("half") == 0
    assert world.dead() == 2


def test_discarded_transaction_expires_without_a_second_dead_letter(world: World) -> None:
    (own_id,) = world.send(1, end=None)
    world.discard(own_id)
    assert world.dead() == 1
    assert world.days_later().expired == 1
    world.publisher.run_once()

    assert world.dead() == 1
    world.check()


def test_resumed_transaction_expires_with_a_dead_letter_of_its_new_life(world: World) -> None:
    (own_id,) = world.send(1, end=None)
    world.discard(own_id)
    world.claim(own_id, ClaimKind.RESUME, life=1)
    assert world.days_later().expired == 1
    world.publisher.run_once()

    assert world.dead() == 2
    world.check()


def test_transaction_is_expired_once_however_often_maintenance_runs(world: World) -> None:
    world.send(1, end=None)

    assert [world.days_later().expired, world.days_later().expired] == [1, 0]


def test_commit_before_the_expiry_is_settled_wins(world: World) -> None:
    (own_id,) = world.send(1, end=None)
    world.claim(own_id, ClaimKind.COMMIT)

    assert world.days_later().expired == 0
    assert world.rows("topics/order-paid") == 1


def test_store_that_never_published_has_published_nothing(store: Store) -> None:
    assert published_up_to(store) == -1


def test_retention_shorter_than_all_checks_is_refused() -> None:
    from txmq.errors import ConfigError

    with pytest.raises(ConfigError, match="file_reserved_time_h"):
        Config(file_reserved_time_h=1, transaction_check_max=1000)


def _commit() -> object:
    from txmq.message.message import LocalTransactionState

    return LocalTransactionState.COMMIT


# --- a publisher that stood still meanwhile -------------------------------------------------------


def send_delayed(world: World) -> None:
    """Its fact stays until it is delivered; its halves go before."""
    transaction = world.producer.begin_transaction()
    transaction.send(Message("order-paid", b"body", delay_s=10))
    transaction.prepare()
    transaction.commit()


def goes_on_without_halves(world: World, sleeper: Publisher) -> None:
    """Retention takes the halves and leaves the facts; nothing is set aside for it."""
    retained = world.days_later()
    assert retained.half_days
    assert not retained.settled_days
    sleeper.run_once()
    assert not read_set_aside(world.store.tables).transactions


def test_publisher_that_stood_still_sets_nothing_aside_that_another_published(
    world: World,
) -> None:
    """Retention took the halves of what its own low-water mark still shows as not published."""
    sleeper = Publisher(world.store, clock=world.clock)
    sleeper.run_once()
    send_delayed(world)
    world.publisher.run_once()

    goes_on_without_halves(world, sleeper)


def test_parked_topic_that_another_publisher_caught_up_is_not_caught_up_again(
    world: World,
) -> None:
    sleeper = Publisher(world.store, clock=world.clock)
    send_delayed(world)
    with failing_commits(99, error=OSError(5, "broken"), table=SCHEDULE_TOPIC):
        sleeper.run_once()
    world.clock.advance(3_600)
    world.publisher.run_once()

    goes_on_without_halves(world, sleeper)
    assert world.store.tables.register("publisher").read().value["parked"] == {}


def test_day_of_a_row_by_hand_that_has_no_end_is_never_over() -> None:
    assert not is_over(date.max, 0, 2**62, 0.0)
