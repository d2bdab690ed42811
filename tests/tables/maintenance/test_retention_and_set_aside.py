"""Retention leaves what is set aside, also a delayed message whose half is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from txmq.errors import TopicInUseError
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock, failing_commits
from txmq.verify import verify

pytestmark = pytest.mark.usefixtures("files_read_each_time")
HOUR_S = 3_600.0
DELAY_S = 73 * HOUR_S


def test_delivered_message_that_is_set_aside_outlives_its_day(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    store = Store.create(tmp_path / "store", Config(file_reserved_time_h=72.0))
    publisher, delay = Publisher(store, clock=clock), DelayService(store, clock=clock)
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        producer.send(Message("order-paid", b"late", delay_s=int(DELAY_S)))
    publisher.run_once()
    clock.advance(DELAY_S + 24 * HOUR_S)
    assert Maintenance(store, clock=clock).run_once().retained.half_days
    delay.run_once()
    (file,) = Path(store.location, "topics", "SCHEDULE_TOPIC_XXXX").glob("*.parquet")
    content, times = file.read_bytes(), (file.stat().st_atime, file.stat().st_mtime)

    # After its claim is settled and before it is copied.
    disarm = arm(lambda point: file.write_bytes(b"") if point is FailPoint.FACTS_COMMITTED else 0)
    publisher.run_once()
    disarm()
    assert len(read_set_aside(store.tables).transactions) == 1
    clock.advance(8 * 24 * HOUR_S)
    file.write_bytes(content)
    os.utime(file, times)
    assert Maintenance(store, clock=clock).run_once().retained.schedule_days == ()
    clock.advance(10 * HOUR_S)
    Publisher(store, clock=clock).run_once()

    assert bodies(store, "order-paid") == [b"late"]
    assert read_set_aside(store.tables).transactions == {}


# --- topics ---------------------------------------------------------------------------------------


class TwoTopics:
    """A transaction that topic a shows, and that was set aside before topic b got it."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.store = Store.create(tmp_path / "store")
        self.topics = Topics(self.store, clock=self.clock)
        self.topics.create("a", queue_nums=1, reserved_time_h=1)
        self.publisher = Publisher(self.store, clock=self.clock)
        self.send("before", "a")
        self.publisher.run_once()
        (old,) = Path(self.store.location, "half").rglob("*.parquet")
        self.send("both", "a", "b")
        with failing_commits(9, table="b", error=OSError(5, "no")):
            self.publisher.run_once()
        (self.file,) = set(Path(self.store.location, "half").rglob("*.parquet")) - {old}
        self.content = self.file.read_bytes()
        self.file.unlink()
        self.round_later()
        self.send("after", "a")
        self.round_later()
        assert len(read_set_aside(self.store.tables).transactions) == 1

    def send(self, body: str, *topics: str) -> None:
        with TransactionProducer(self.store, producer_group="shop", clock=self.clock) as producer:
            transaction = producer.begin_transaction()
            for topic in topics:
                transaction.send(Message(topic, body.encode()))
            transaction.prepare()
            transaction.commit()

    def round_later(self) -> None:
        self.clock.advance(self.store.config.park_retry_interval_s * 40)
        self.publisher.run_once()

    def retain_topics(self) -> int:
        self.clock.advance(2 * HOUR_S)
        return Maintenance(self.store, clock=self.clock).run_once().topic_files_removed

    def put_back(self) -> None:
        self.file.write_bytes(self.content)
        self.round_later()


def test_topic_keeps_what_it_shows_of_a_transaction_that_waits(tmp_path: Path) -> None:
    made = TwoTopics(tmp_path)

    assert made.retain_topics() == 1
    assert bodies(made.store, "a") == [b"after", b"both"]
    made.put_back()

    assert bodies(made.store, "a") == [b"after", b"both"]
    assert bodies(made.store, "b") == [b"both"]
    assert verify(made.store.location).is_clean
    assert made.retain_topics() == 1
    assert bodies(made.store, "a") == [b"after"]


def test_topic_of_a_transaction_that_waits_is_not_deleted(tmp_path: Path) -> None:
    made = TwoTopics(tmp_path)
    made.file.write_bytes(made.content)

    with pytest.raises(TopicInUseError):
        made.topics.delete("a", apply=True)

    made.round_later()
    assert made.topics.delete("a", apply=True).is_written
    assert bodies(made.store, "b") == [b"both"]
    assert verify(made.store.location).is_clean
