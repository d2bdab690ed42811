"""What spans cost a producer, without and with an SDK: `python -m bench.tracing`.

The three producers take turns in one process and on one store, in a random order each round, so
that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from txmq.message.message import Message
from txmq.ops.tracing import OpenTelemetryHook
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

ROUNDS, TRANSACTIONS, SENDS = 20, 20, 400
GROUP, MESSAGE = "bench", Message("order-paid", b"x" * 100, keys="order-1")


def main() -> None:
    """Print the median of each producer in microseconds of the processor."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hooks = {
        "without": [], "no SDK": [OpenTelemetryHook()], "SDK": [OpenTelemetryHook(provider)],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store")
        producers = {
            name: TransactionProducer(store, producer_group=GROUP, hooks=hook)
            for name, hook in hooks.items()
        }
        for what, run in (("transaction", transactions), ("send_async", sends)):
            for name, cost_us in measured(producers, run, exporter.clear).items():
                sys.stdout.write(f"{what:12} {name:8} {cost_us:8.1f} us\n")
        for producer in producers.values():
            producer.close()


def measured(
    producers: dict[str, TransactionProducer],
    run: Callable[[TransactionProducer], int],
    after: Callable[[], None],
) -> dict[str, float]:
    """The median cost of one send of each producer."""
    costs_us: dict[str, list[float]] = {name: [] for name in producers}
    for number in range(ROUNDS + 1):
        for name in random.sample(list(producers), len(producers)):
            begun_s = time.process_time()
            count = run(producers[name])
            # The first round warms up.
            if number:
                costs_us[name].append((time.process_time() - begun_s) / count * 1e6)
        after()
    return {name: statistics.median(costs) for name, costs in costs_us.items()}


def transactions(producer: TransactionProducer) -> int:
    """Transactions of one message, one after the other."""
    for _ in range(TRANSACTIONS):
        with producer.begin_transaction() as transaction:
            transaction.send(MESSAGE)
            transaction.prepare()
            transaction.commit()
    return TRANSACTIONS


def sends(producer: TransactionProducer) -> int:
    """Ordinary messages that share commits."""
    for future in [producer.send_async(MESSAGE) for _ in range(SENDS)]:
        future.result()
    return SENDS


if __name__ == "__main__":
    main()
