"""A process that has an accident.

What happens is `dies` (in its local transaction, or while it answers a question) or the name of a
fail point, at which the process stops as by SIGSTOP; then it goes on with SIGCONT.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.books import GROUP, TOPICS, Books
from tests.kit.forked import Forked, forked
from tests.kit.steps import PATIENCE_S, act
from txmq.errors import AlreadyResolvedError
from txmq.ground.fail_points import FailPoint, arm
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

if TYPE_CHECKING:
    from txmq.listeners.protocol import HalfMessage
    from txmq.message.message import LocalTransactionState

DIES = "dies"


class DyingBooks(Books):
    """Whose process is killed while it pays, or while it looks up an answer."""

    def pay(self, transaction_id: str, body: bytes) -> None:
        with closing(self._open()) as books:
            books.execute("INSERT INTO paid VALUES (?, ?)", (transaction_id, body))
            os.kill(os.getpid(), signal.SIGKILL)

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().check_local_transaction(message)


def sell_with_a_key(store: Store, books: Books) -> None:
    """One order by a job that may be run again and again."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction(
            idempotency_key="order 1", key_timestamp=made_at(store)
        )
        for topic in TOPICS:
            transaction.send(Message(topic, b"order 1"))
        try:
            transaction.prepare()
        except AlreadyResolvedError:
            # An earlier run has done it all.
            return
        if transaction.id not in books.paid():
            books.pay(transaction.id, b"order 1")
        transaction.commit()


def made_at(store: Store) -> datetime:
    """A time that every run of the job gives again."""
    first_commit = Path(store.location, "half", "_delta_log", "00000000000000000000.json")
    return datetime.fromtimestamp(int(first_commit.stat().st_mtime), UTC)


def stop_at(point: FailPoint) -> None:
    """Stop this process at the first time it gets there."""
    waiting = [point]

    def hook(reached: FailPoint) -> None:
        if reached in waiting:
            waiting.clear()
            # Sent to the process, it could take effect when this thread is a step further.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    arm(hook)


def main(location: str, actor: str, path: str, what: str) -> None:
    books = DyingBooks(path) if what == DIES else Books(path)
    if what in list(FailPoint):
        stop_at(FailPoint(what))
    if actor == "seller with a key":
        sell_with_a_key(Store.open(location), books)
    else:
        act(actor, location, books)


def rebuild(location: str, topic: str) -> None:
    """What `txmq topics rebuild --apply` does."""
    Topics(Store.open(location)).rebuild(topic, apply=True)


def started(actor: str, store: Store, books: Books, what: str = "", faults: str = "") -> Forked:
    """The process; `faults` as TXMQ_FAILPOINTS takes them."""
    return forked(main, store.location, actor, books.path, what, faults=faults)


def ended(
    actor: str, store: Store, books: Books, what: str = "", faults: str = ""
) -> tuple[int, str]:
    """The exit code of the process, as `subprocess` tells it, and what it complained about."""
    process = started(actor, store, books, what, faults)
    return process.wait(PATIENCE_S), process.complaint()


@contextmanager
def stopped(actor: str, store: Store, books: Books, point: FailPoint) -> Iterator[Forked]:
    """A process that has stopped at a fail point; it is gone afterwards."""
    process = started(actor, store, books, point)
    try:
        process.wait_until_stopped()
        yield process
    finally:
        process.kill()


def gone_on(process: Forked) -> tuple[int, str]:
    """Let a stopped process go on to its end, as `ended`."""
    process.send_signal(signal.SIGCONT)
    return process.wait(PATIENCE_S), process.complaint()
