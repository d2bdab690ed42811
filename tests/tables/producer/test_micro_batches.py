"""A micro-batch that runs again is one transaction, whichever step it had reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.asked import states
from tests.kit.books import SETTINGS
from tests.kit.builders import table_versions
from tests.kit.reading import bodies, publish, rows_of, wait_until
from tests.kit.stores import fresh_store
from txmq.check.recheck import RecheckJob
from txmq.errors import AlreadyResolvedError, InvalidMessageError, LocalTransactionFencedError
from txmq.listeners.delta import DeltaListener
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.spark.micro_batches import TRIES, BatchTransactions
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.store.store import Store
from txmq.testing import arm_fail_points
from txmq.verify import verify

GROUP = "booking"
BATCH = ["1", "2"]
CRASHES = (
    "producer.half_ready", "producer.half_committed", "before the change", "after the change",
    "producer.end_ready", "producer.end_committed", "producer.end_confirmed",
)  # fmt: skip
DONE_BY_THEN = CRASHES[3:]


class CrashError(Exception):
    """The process ends here."""


@dataclass
class Job:
    """A job that books its batches; each `start()` is a process of its own."""

    store: Store
    table: str
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    changes: int = 0

    @property
    def listener(self) -> DeltaListener:
        return DeltaListener(self.table)

    def run(  # noqa: PLR0913
        self,
        batch: list[str] = BATCH,
        batch_id: int = 0,
        *,
        name: str = "booking",
        now: datetime | None = None,
        before: Callable[[Transaction], None] = lambda _: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        def change(batch: Any, transaction: Transaction) -> None:
            before(transaction)
            self.book(batch, transaction)
            after()

        with TransactionProducer(
            self.store, producer_group=GROUP, listener=self.listener
        ) as producer:
            batches = BatchTransactions(producer, query_name=name, send=tell, change=change)
            batches.run(batch, batch_id, now or self.now)

    def book(self, batch: list[str], transaction: Transaction) -> None:
        with transaction.delta_rs() as (handle, properties):
            self.changes += 1
            write_deltalake(handle, table_of(batch), mode="append", commit_properties=properties)

    def check(self) -> None:
        recheck = RecheckJob(self.store, listeners={GROUP: self.listener})
        wait_until(lambda: recheck.run_once().open_transactions == 0)

    def booked(self) -> list[str]:
        return sorted(row["payment"] for row in rows_of(self.table))

    def shown(self) -> list[str]:
        publish(self.store)
        assert verify(self.store.location).is_clean
        return [body.decode() for body in bodies(self.store)]


def tell(batch: Any, transaction: Transaction) -> None:
    for payment in batch:
        transaction.send(Message("order-paid", payment.encode()))


def table_of(payments: list[str]) -> pa.Table:
    return pa.table({"payment": pa.array(payments, pa.string())})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    table = str(tmp_path / "booked")
    write_deltalake(table, table_of([]))
    return Job(fresh_store(tmp_path / "store", Config(**SETTINGS)), table)


def crash(*_: object) -> None:
    raise CrashError


@contextmanager
def fault(point: str) -> Iterator[None]:
    disarm = arm_fail_points(f"{point}=raise")
    try:
        yield
    finally:
        disarm()


def run_until(job: Job, point: str) -> None:
    """A first run that gets as far as the point."""
    steps: dict[str, Any] = {
        "before the change": {"before": crash}, "after the change": {"after": crash}
    }  # fmt: skip
    with suppress(CrashError, OSError):
        if point in steps:
            job.run(**steps[point])
        else:
            with fault(point):
                job.run()
        pytest.fail(f"{point} was not reached")


@pytest.mark.parametrize("check_comes_first", [False, True])
@pytest.mark.parametrize("point", CRASHES)
def test_batch_that_runs_again_after_a_crash_is_booked_and_told_once(
    job: Job, point: str, *, check_comes_first: bool
) -> None:
    run_until(job, point)
    if check_comes_first:
        job.check()

    job.run()

    assert job.booked() == job.shown() == BATCH
    assert job.changes == 1


@pytest.mark.parametrize("point", CRASHES)
def test_check_alone_answers_as_the_table_says(job: Job, point: str) -> None:
    run_until(job, point)

    job.check()

    assert job.booked() == job.shown() == (BATCH if point in DONE_BY_THEN else [])


def test_batch_that_is_done_writes_nothing(job: Job) -> None:
    job.run()
    before = table_versions(job.store)

    job.run()

    assert table_versions(job.store) == before
    assert job.changes == 1


def test_batch_that_was_fenced_while_it_ran_is_tried_again_at_once(job: Job) -> None:
    waiting = [True]

    def check_is_first(transaction: Transaction) -> None:
        if waiting:
            waiting.pop()
            # The fence alone: its service died before the claim.
            assert states(job.listener, transaction.id) == ["ROLLBACK"]

    job.run(before=check_is_first)

    assert job.booked() == job.shown() == BATCH


def test_batch_that_is_always_slower_than_the_check_is_told(job: Job) -> None:
    tried: list[str] = []

    def check_is_first(transaction: Transaction) -> None:
        tried.append(transaction.id)
        states(job.listener, transaction.id)

    with pytest.raises(LocalTransactionFencedError):
        job.run(before=check_is_first)

    assert len(set(tried)) == len(tried) == TRIES
    assert job.booked() == job.shown() == []
    job.run()
    assert job.booked() == job.shown() == BATCH


def test_batch_whose_transaction_was_discarded_waits_for_an_operator(job: Job) -> None:
    ids: list[str] = []

    def note_and_crash(transaction: Transaction) -> None:
        ids.append(transaction.id)
        raise CrashError

    with suppress(CrashError):
        job.run(before=note_and_crash)
    row = OpRow(ids[0], ClaimKind.DISCARD, GROUP, ClaimSource.CHECK, 1, life=0)
    job.store.tables.op_log().append([row], 0, app_id="check", number=1)

    with pytest.raises(AlreadyResolvedError, match="DISCARDED"):
        job.run()

    assert job.changes == 0


def test_other_numbers_names_and_times_are_other_batches(job: Job) -> None:
    # A new checkpoint begins with number 0 again, at another time.
    later = job.now + timedelta(milliseconds=1)

    job.run(["1"], 0)
    job.run(["2"], 1)
    job.run(["3"], 0, name="refunds")
    job.run(["4"], 0, now=later)

    assert job.booked() == job.shown() == ["1", "2", "3", "4"]


def test_batch_that_nobody_can_know_about_any_more_is_refused(job: Job) -> None:
    before = table_versions(job.store)

    with pytest.raises(InvalidMessageError, match="file_reserved_time_h"):
        job.run(now=job.now - timedelta(days=4))

    assert table_versions(job.store) == before
    assert job.changes == 0
