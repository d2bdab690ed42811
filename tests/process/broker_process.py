"""A broker with Spark in a process of its own: `python -m tests.process.broker_process …`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.books import GROUP, Books
from txmq.ops.broker import Broker, BrokerHandle, run_until_signal
from txmq.spark.session import local_session
from txmq.store.store import Store


def main(location: str, books: str, ready: str) -> None:
    broker = Broker(
        Store.open(location), spark=local_session(for_minutes=True), listeners={GROUP: Books(books)}
    )

    def start() -> BrokerHandle:
        handle = broker.start()
        Path(ready).touch()
        return handle

    run_until_signal(start)


if __name__ == "__main__":
    main(*sys.argv[1:])
