"""A drill: a store under traffic, with two brokers and a group, is backed up and restored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.reading import are_gap_free, topic_rows
from txmq.consumer.pull import PullConsumer
from txmq.delta.log_files import log_files
from txmq.message.message import Message
from txmq.ops.backup.backup import Progress, back_up
from txmq.ops.backup.restore import restore
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

TOPIC, READERS = "order-paid", "billing"
BEFORE, DURING = 60, 40
LOOKS_UNDER_TRAFFIC = 4


@dataclass
class Traffic:
    """Producers and a member of a group, until they are told to stop; what they were told."""

    store: Store
    acknowledged: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def send(self) -> None:
        with TransactionProducer(self.store, producer_group="orders") as producer:
            while not self.stopping.is_set():
                with producer.begin_transaction() as transaction:
                    transaction.send(Message(TOPIC, b"paid"))
                    transaction.send(Message(TOPIC, b"late", delay_s=1))
                    transaction.prepare()
                    transaction.commit()
                self.add(self.acknowledged, [f"{transaction.id}:0", f"{transaction.id}:1"])

    def read(self) -> None:
        with PullConsumer(self.store, consumer_group=READERS, topics=TOPIC) as consumer:
            while not self.stopping.is_set():
                messages = consumer.poll(max_messages=10, timeout_s=0.2)
                if messages:
                    consumer.commit()
                    self.add(self.seen, [message.message_id for message in messages])

    def add(self, to: list[str], ids: list[str]) -> None:
        with self.changed:
            to += ids
            self.changed.notify_all()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_so, timeout=120.0)


@dataclass
class Life:
    """What goes on beside a backup, until clean-up was faster than the backup a few times."""

    traffic: Traffic
    brokers: list[Broker]
    threads: list[threading.Thread]
    looks: int = 0

    def go_on(self, progress: Progress) -> None:
        """At the first file logs are cleaned; a slow machine gets a store that stands still."""
        if progress.files > 1:
            return
        self.looks += 1
        if self.looks == 1:
            goal, kept = len(self.traffic.acknowledged) + DURING, self.oldest_claims()
            self.traffic.wait_for(
                lambda: len(self.traffic.acknowledged) >= goal and self.oldest_claims() > kept
            )
        elif self.looks == LOOKS_UNDER_TRAFFIC:
            self.end()

    def oldest_claims(self) -> int:
        return min(log_files(self.traffic.store.tables.op_log().table.folder).commits_ms)

    def end(self) -> None:
        """Stop all; once or twice."""
        self.traffic.stopping.set()
        for thread in self.threads:
            thread.join()
        for broker in self.brokers:
            broker.stop()


def test_what_was_acknowledged_before_a_backup_is_restored_once_and_groups_go_on(
    tmp_path: Path,
) -> None:
    settings = Config(
        half_queues=1, default_topic_queue_nums=2, checkpoint_interval=5,
        maintenance_interval_s=0.2, log_reserved_time_s=5.0,
    )  # fmt: skip
    store = Store.create(tmp_path / "store", settings)
    traffic = Traffic(store)
    brokers = [Broker(store, name=name).start() for name in ("one", "two")]
    threads = [threading.Thread(target=work) for work in (traffic.send, traffic.send, traffic.read)]
    for thread in threads:
        thread.start()
    traffic.wait_for(lambda: len(traffic.acknowledged) >= BEFORE and len(traffic.seen) > 0)
    acknowledged = list(traffic.acknowledged)
    life = Life(traffic, brokers, threads)
    result = back_up(store, str(tmp_path / "backup"), on_progress=life.go_on)
    life.end()

    assert (result.missing, result.faults) == ((), ())
    restore(result.location, str(tmp_path / "restored"))
    check_goes_on(Store.open(tmp_path / "restored"), acknowledged)


def check_goes_on(store: Store, acknowledged: list[str]) -> None:
    (by_topic,) = store.tables.register("group_billing").read().value["offsets"].values()
    begin = {int(queue): offset for queue, offset in by_topic[TOPIC].items()}
    brokers = [Broker(store, name=name).start() for name in ("three", "four")]
    with PullConsumer(store, consumer_group=READERS, topics=TOPIC) as consumer:
        rest = seen_until_all_are_there(store, consumer, acknowledged)
    for broker in brokers:
        broker.stop()
    Broker(store).run_once()

    rows = topic_rows(store, TOPIC)
    shown = [row["message_id"] for row in rows]
    assert len(shown) == len(set(shown))
    assert set(acknowledged) <= set(shown)
    assert are_gap_free(rows)
    for queue, offsets in rest.items():
        first = begin.get(queue, 0)
        assert offsets == list(range(first, first + len(offsets)))
    report = verify(store.location, drained=False)
    assert report.is_clean, report.results


def seen_until_all_are_there(
    store: Store, consumer: PullConsumer, acknowledged: list[str]
) -> dict[int, list[int]]:
    """The offsets that the group gets, until all that was acknowledged is visible and seen."""
    seen: dict[int, list[int]] = {}
    missing = set(acknowledged)
    for _ in range(600):
        messages = consumer.poll(max_messages=100, timeout_s=0.5)
        for message in messages:
            seen.setdefault(message.queue_id, []).append(message.queue_offset)
        consumer.commit()
        missing -= {row["message_id"] for row in topic_rows(store, TOPIC)}
        if not missing and not messages:
            return seen
    raise AssertionError(f"{len(missing)} messages did not become visible")
