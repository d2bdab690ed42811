"""Retention leaves what is set aside, also a delayed message whose half is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock

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
