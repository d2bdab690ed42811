"""A process that has an accident: `python -m tests.scenario.accidents ACTOR LOCATION BOOKS WHAT`.

WHAT is `dies` (in its local transaction, or while it answers a question) or the name of a fail
point, at which the process stops as by SIGSTOP; then it goes on with SIGCONT.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.scenario.books import GROUP, TOPICS, Books
from tests.scenario.steps import REPOSITORY, act
from txmq.errors import AlreadyResolvedError
from txmq.fail_points import FailPoint, arm
from txmq.message import Message
from txmq.producer import TransactionProducer
from txmq.store import Store
from txmq.testing import FAIL_POINTS_VARIABLE

if TYPE_CHECKING:
    from txmq.listeners import HalfMessage
    from txmq.message import LocalTransactionState

DIES = "dies"
PATIENCE_S = 120


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


def main(actor: str, location: str, path: str, what: str) -> None:
    books = DyingBooks(path) if what == DIES else Books(path)
    if what in list(FailPoint):
        stop_at(FailPoint(what))
    if actor == "seller with a key":
        sell_with_a_key(Store.open(location), books)
    else:
        act(actor, location, books)


def started(
    actor: str, store: Store, books: Books, what: str = "", faults: str = ""
) -> subprocess.Popen[str]:
    """The process; `faults` as TXMQ_FAILPOINTS takes them."""
    module = [sys.executable, "-m", "tests.scenario.accidents"]
    environment = {**os.environ, FAIL_POINTS_VARIABLE: faults, "PYTHONPATH": str(REPOSITORY)}
    arguments = [actor, store.location, books.path, what]
    return subprocess.Popen(
        [*module, *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )


def ended(
    actor: str, store: Store, books: Books, what: str = "", faults: str = ""
) -> tuple[int, str]:
    """The exit code of the process, as `subprocess` tells it, and what it complained about."""
    with started(actor, store, books, what, faults) as process:
        _, complaint = process.communicate(timeout=PATIENCE_S)
    return process.returncode, complaint


@contextmanager
def stopped(
    actor: str, store: Store, books: Books, point: FailPoint
) -> Iterator[subprocess.Popen[str]]:
    """A process that has stopped at a fail point; it is gone afterwards."""
    with started(actor, store, books, point) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "it ended and did not stop"
            yield process
        finally:
            process.kill()


def gone_on(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let a stopped process go on to its end, as `ended`."""
    process.send_signal(signal.SIGCONT)
    _, complaint = process.communicate(timeout=PATIENCE_S)
    return process.returncode, complaint


if __name__ == "__main__":
    main(*sys.argv[1:])
