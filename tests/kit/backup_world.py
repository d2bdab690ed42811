"""A store whose life goes on while it is copied, and what was said to its callers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.reading import topic_rows
from txmq.consumer.pull import PullConsumer
from txmq.delta.log_files import clean_log
from txmq.ground.clock import SystemClock
from txmq.maintenance.compaction import compact
from txmq.message.message import Message
from txmq.ops.backup.backup import Progress
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

TOPIC, GROUP, READERS = "order-paid", "orders", "billing"
LARGE_MESSAGES = 9
TARGET_BYTES = 1024 * 1024


@dataclass
class Life:
    """One store, its clock, and what was acknowledged so far."""

    store: Store
    clock: ManualClock
    # Message ids that are committed, in the order of their acknowledgements.
    acknowledged: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def begin(cls, folder: Path) -> Life:
        # From now on: retention also looks at the times of files.
        clock = ManualClock(SystemClock().now_ms())
        config = Config(half_queues=1, default_topic_queue_nums=2, checkpoint_interval=5)
        return cls(Store.create(folder, config, clock=clock), clock)

    def send(self) -> None:
        """A transaction, an ordinary message, a delayed one, and one that stays open."""
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            with producer.begin_transaction() as transaction:
                transaction.send(Message(TOPIC, self.body()))
                transaction.prepare()
                transaction.commit()
            self.acknowledged.append(f"{transaction.id}:0")
            sent = producer.send([Message(TOPIC, self.body()), Message(TOPIC, self.body())])
            self.acknowledged += sent.message_ids
            self.acknowledged += producer.send(Message(TOPIC, self.body(), delay_s=1)).message_ids

    def send_large(self) -> None:
        """So many messages that their file is copied in pieces."""
        bodies = [os.urandom(1024 * 1024) for _ in range(LARGE_MESSAGES)]
        with TransactionProducer(self.store, producer_group=GROUP, clock=self.clock) as producer:
            sent = producer.send([Message(TOPIC, body) for body in bodies])
            self.acknowledged += sent.message_ids

    def body(self) -> bytes:
        return b"%d" % next(self.numbers)

    def publish(self) -> None:
        Broker(self.store, clock=self.clock).run_once()

    def consume(self) -> list[str]:
        """What the group has not seen yet; it has seen it then."""
        return consumed(self.store, self.clock)

    def maintain(self) -> None:
        """Merge all files, and take away what the newest version needs not."""
        for path in self.store.tables.table_paths():
            table = self.store.tables.table_at(path)
            compact(table, TARGET_BYTES)
            table.refresh().writer.checkpoint()
            if path != "op":
                clean_log(table, table.version)

    def go_on(self) -> None:
        """All of it once."""
        self.send()
        self.publish()
        self.consume()
        self.clock.advance(2.0)
        self.maintain()


def consumed(store: Store, clock: ManualClock) -> list[str]:
    """What the group of a store has not seen yet, in its order."""
    seen: list[str] = []
    with PullConsumer(store, consumer_group=READERS, topics=TOPIC, clock=clock) as consumer:
        while messages := consumer.poll(max_messages=100, timeout_s=0.0):
            seen += [message.message_id for message in messages]
            consumer.commit()
    return seen


def check_restored(location: Path | str, clock: ManualClock, acknowledged: list[str]) -> Store:
    """A restored store goes on: all that was acknowledged is visible once, and verify is clean."""
    store = Store.open(location)
    clock.advance(3600.0)
    broker = Broker(store, clock=clock)
    broker.run_once()
    broker.run_once()
    shown = [row["message_id"] for row in topic_rows(store, TOPIC)]
    assert len(shown) == len(set(shown))
    assert set(acknowledged) <= set(shown)
    report = verify(store.location)
    assert report.is_clean, report.results
    return store


class KilledError(Exception):
    pass


def kill_at(number: int) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        if progress.files >= min(number, progress.all_files):
            raise KilledError

    return tell
