"""`python -m tests.process.object_store.idle [OPEN ...]`: requests of an idle broker in an hour.

A broker without Spark serves a store in a bucket (moto) and is left alone: a minute until it is
quiet, then two minutes that are counted, by kind. Then the same once for each number OPEN, with so
many local transactions that one producer works on all the time, and of these requests those for
renewals.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.machine import machine_facts
from tests.kit import s3
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.store import Store

QUIET_S, COUNTED_S, HOUR_S, THREADS = 60.0, 120.0, 3600.0, 64


def kind_of(request: str) -> str:
    """HEAD, GET, PUT, POST, or LIST, which costs as much as a PUT."""
    _, method, path = request.split(" ", 2)
    return "LIST" if "list-type=2" in path else method


def requests_of_an_idle_broker(counting: s3.Proxied, open_count: int) -> list[str]:
    """The requests of COUNTED_S, while so many transactions are open."""
    store = Store.create(counting.location(s3.BUCKET, f"store-{open_count}"))
    with TransactionProducer(store, producer_group="orders", listener=Never()) as producer:
        producer.send(Message("order-paid", b"x"))
        with Broker(store, listeners={"orders": Never()}).start():
            with ThreadPoolExecutor(THREADS) as threads:
                transactions = list(threads.map(lambda _: prepared(producer), range(open_count)))
            time.sleep(QUIET_S)
            before = len(counting.requests())
            time.sleep(COUNTED_S)
            requests = counting.requests()[before:]
            for transaction in transactions:
                transaction.rollback()
    return requests


class Never:
    """Is not asked: the producer lives."""

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Raise: a renewal was not heeded."""
        raise AssertionError(message.transaction_id)


def prepared(producer: TransactionProducer) -> Transaction:
    """A transaction that is open as long as somebody holds it."""
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", b"x"))
    transaction.prepare()
    return transaction


def show(requests: list[str], title: str) -> None:
    """Print a table."""
    renewals = [request for request in requests if "renewals" in request]
    for name, those in (title, requests), (f"{title}: renewals", renewals):
        kinds = Counter(map(kind_of, those))
        for kind, count in [*kinds.most_common(), ("all", kinds.total())]:
            sys.stdout.write(f"{name}: {kind:6} {count / COUNTED_S * HOUR_S:9,.0f} an hour\n")


def main(open_counts: list[int]) -> int:
    """Print the tables."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        s3.moto(Path(temporary, "moto")) as server,
        s3.proxy(server, Path(temporary, "requests")) as counting,
    ):
        os.environ.update(counting.environment)
        for count in [0, *open_counts]:
            show(requests_of_an_idle_broker(counting, count), f"{count:,} open")
    facts = machine_facts()
    sys.stdout.write(f"{facts['processor']}, commit {facts['git_commit']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main([int(count) for count in sys.argv[1:]]))
