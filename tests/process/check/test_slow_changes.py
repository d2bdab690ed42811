"""A change that outlasts the immunity by far, in a process of its own, beside a check that runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.check_world import wait_until
from tests.kit.forked import Forked
from tests.kit.stores import fresh_store
from txmq.check.service import CheckService
from txmq.errors import LocalTransactionFencedError
from txmq.ground.clock import Clock, SystemClock
from txmq.listeners.delta import DeltaListener
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.logs import EndReader
from txmq.store.store import Store
from txmq.testing import WrongClock

HOUR_S = 3600
ROWS = pa.table({"id": ["1"]})
CONFIG = Config(transaction_timeout_s=0.4, producer_lease_s=3.0, check_trigger_interval_s=0.1)


def change_slowly(location: str, table: str, folder: str, ahead_s: str) -> None:
    """Prepare, say the id, change the table when told, and say what came of it."""
    clock: Clock = WrongClock(int(ahead_s)) if int(ahead_s) else SystemClock()
    listener = DeltaListener(table)
    store, said = Store.open(location), Path(folder)
    with TransactionProducer(
        store, producer_group="orders", listener=listener, clock=clock
    ) as producer:
        with producer.begin_transaction() as transaction:
            transaction.send(Message("order-paid", b"1"))
            transaction.prepare()
            (said / "id").write_text(f"{transaction.id}\n")
            wait_until((said / "go").exists, "the word to go on", 300.0)
            outcome = "done"
            try:
                with transaction.delta_rs() as (handle, properties):
                    write_deltalake(handle, ROWS, mode="append", commit_properties=properties)
                transaction.commit()
            except LocalTransactionFencedError:
                outcome = "fenced"
                transaction.rollback()
        (said / "outcome").write_text(outcome)


def die_in_a_thread(location: str, table: str, folder: str) -> None:
    """Lose a transaction in a thread whose exception nobody sees, and live on."""
    said = Path(folder)
    producer = TransactionProducer(
        Store.open(location), producer_group="orders", listener=DeltaListener(table)
    )

    def work() -> None:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"1"))
        transaction.prepare()
        (said / "id").write_text(f"{transaction.id}\n")
        wait_until((said / "go").exists, "the word to go on", 300.0)
        raise SystemExit

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    wait_until((said / "end").exists, "the word to end", 300.0)


class Shop:
    """A store with a check that runs, a table to change, and a producer in its own process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, str(folder / "orders")
        self.store = fresh_store(folder / "store", CONFIG)
        write_deltalake(self.table, ROWS.slice(0, 0))
        listeners = {"orders": DeltaListener(self.table)}
        self.check = CheckService(self.store, listeners=listeners).start()
        self.process: Forked | None = None

    def start(self, function: Callable[..., None], *more: str) -> Forked:
        words = self.store.location, self.table, str(self.folder), *more
        self.process = Forked(function, *words, faults="", log=self.folder / "log")
        wait_until(lambda: self.transaction_id() != "", "the transaction is prepared")
        return self.process

    def transaction_id(self) -> str:
        """What the process said, as soon as it said all of it."""
        text = self.word("id").read_text() if self.word("id").exists() else ""
        return text.rstrip() if text.endswith("\n") else ""

    def word(self, name: str) -> Path:
        return self.folder / name

    def wait_for_renewals(self, count: int) -> None:
        """Until the check has passed the transaction over so many times."""
        wait_until(lambda: len(self.renewals()) >= count, f"{count} renewals")

    def renewals(self) -> list[dict[str, object]]:
        op = self.store.tables.op_log()
        rows = op.between(-1, op.table.version).to_pylist()
        unknown = ClaimKind.UNKNOWN.value
        return [row for row in rows if (row["kind"], row["reason"]) == (unknown, "PRODUCER_LIVES")]

    def state(self) -> TransactionState:
        return EndReader(self.store.tables.logs()).end_of(self.transaction_id()).state

    def wait_until_rolled_back(self) -> None:
        wait_until(lambda: self.state() is TransactionState.ROLLED_BACK, "the check rolled it back")

    def rows(self) -> int:
        return DeltaTable(self.table).to_pyarrow_table().num_rows

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.check.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    own = Shop(tmp_path)
    yield own
    own.close()


@pytest.mark.parametrize("ahead_s", [0, HOUR_S, -HOUR_S])
def test_slow_change_of_a_process_that_lives_is_published(shop: Shop, ahead_s: int) -> None:
    process = shop.start(change_slowly, str(ahead_s))
    shop.wait_for_renewals(2)
    shop.word("go").touch()

    assert process.wait(60) == 0
    assert shop.word("outcome").read_text() == "done"
    assert shop.state() is TransactionState.COMMITTED
    assert shop.rows() == 1


def test_slow_change_of_a_killed_process_is_rolled_back_and_fenced(shop: Shop) -> None:
    process = shop.start(change_slowly, "0")
    shop.wait_for_renewals(1)
    process.kill()

    shop.wait_until_rolled_back()
    assert shop.rows() == 0


def test_process_that_slept_past_its_lease_is_fenced_and_told(shop: Shop) -> None:
    process = shop.start(change_slowly, "0")
    shop.wait_for_renewals(1)
    process.send_signal(signal.SIGSTOP)
    process.wait_until_stopped()
    shop.wait_until_rolled_back()
    process.send_signal(signal.SIGCONT)
    shop.word("go").touch()

    assert process.wait(60) == 0
    assert shop.word("outcome").read_text() == "fenced"
    assert shop.rows() == 0


def test_transaction_of_a_dead_thread_is_asked_while_its_process_lives(shop: Shop) -> None:
    process = shop.start(die_in_a_thread)
    shop.wait_for_renewals(1)
    shop.word("go").touch()

    shop.wait_until_rolled_back()
    assert process.poll() is None
    shop.word("end").touch()
    assert process.wait(60) == 0


def test_of_two_processes_of_a_group_the_one_that_dies_is_asked(shop: Shop) -> None:
    lost = shop.start(change_slowly, "0")
    lost_id = shop.transaction_id()
    shop.word("id").unlink()
    works = shop.start(change_slowly, "0")
    shop.wait_for_renewals(2)
    lost.kill()
    reader = EndReader(shop.store.tables.logs())
    wait_until(
        lambda: reader.end_of(lost_id).state is TransactionState.ROLLED_BACK, "the lost one ended"
    )
    shop.word("go").touch()

    assert works.wait(60) == 0
    assert shop.state() is TransactionState.COMMITTED
