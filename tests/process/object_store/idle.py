"""`python -m tests.process.object_store.idle`: the requests of an idle broker in an hour, by kind.

A broker without Spark serves a store in a bucket (moto) and is left alone: a minute until it is
quiet, then two minutes that are counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.machine import machine_facts
from tests.kit import s3
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

QUIET_S, COUNTED_S, HOUR_S = 60.0, 120.0, 3600.0


def kind_of(request: str) -> str:
    """HEAD, GET, PUT, POST, or LIST, which costs as much as a PUT."""
    _, method, path = request.split(" ", 2)
    return "LIST" if "list-type=2" in path else method


def requests_of_an_idle_broker(counting: s3.Proxied) -> list[str]:
    """The requests of COUNTED_S."""
    store = Store.create(counting.location(s3.BUCKET, "store"))
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"x"))
    broker = Broker(store).start()
    time.sleep(QUIET_S)
    before = len(counting.requests())
    time.sleep(COUNTED_S)
    told = counting.requests()[before:]
    broker.stop()
    return told


def main() -> int:
    """Print a table."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        s3.moto(Path(temporary, "moto")) as server,
        s3.proxy(server, Path(temporary, "requests")) as counting,
    ):
        os.environ.update(counting.environment)
        kinds = Counter(map(kind_of, requests_of_an_idle_broker(counting)))
    for kind, count in [*kinds.most_common(), ("all", kinds.total())]:
        sys.stdout.write(f"{kind:6} {count / COUNTED_S * HOUR_S:9,.0f} an hour\n")
    facts = machine_facts()
    sys.stdout.write(f"{facts['processor']}, commit {facts['git_commit']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
