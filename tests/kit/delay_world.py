"""A store with a producer, a publisher and a delay service on one clock that tests set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.kit.stores import fresh_store
from txmq.ground.clock import timestamp
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayResult, DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.testing import ManualClock

GROUP = "orders-service"
TOPIC = "order-paid"


class DelayWorld:
    """Nothing runs by itself: `publish` and `deliver` do one round."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        # Files carry the machine's time, so this is where the clock begins.
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.store = fresh_store(folder / "store", Config(**settings))
        self.publisher = Publisher(self.store, clock=self.clock)
        self.service = DelayService(self.store, clock=self.clock)
        self.producer = TransactionProducer(self.store, producer_group=GROUP, clock=self.clock)

    @property
    def now(self) -> datetime:
        return timestamp(self.clock.now_ms())

    def in_s(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def send(self, *bodies: str, topic: str = TOPIC, **delay: Any) -> tuple[str, ...]:
        """A batch, published as far as it is due; returns its message ids."""
        batch = [Message(topic, body.encode(), **delay) for body in bodies]
        sent = self.producer.send(batch).message_ids
        self.publisher.run_once()
        return sent

    def deliver(self) -> DelayResult:
        """One round of the delay service, published."""
        result = self.service.run_once()
        self.publisher.run_once()
        return result

    def after(self, seconds: float) -> list[str]:
        """What is visible once the clock has moved on and the services have run."""
        self.clock.advance(seconds)
        self.deliver()
        return self.visible()

    def restart(self) -> None:
        """Another delay service, that knows nothing but the tables."""
        self.service = DelayService(self.store, clock=self.clock)

    def rows(self, topic: str = TOPIC) -> list[Mapping[str, Any]]:
        """A topic in its order of publishing, queue by queue."""
        if topic not in self.store.topics():
            return []
        table = self.store.tables.table_at(f"topics/{topic}")
        names = [field.name for field in table.schema.columns]
        found: list[Mapping[str, Any]] = table.rows.read(table.files.all(), names).to_pylist()
        return sorted(found, key=lambda row: (row["queue_id"], row["queue_offset"]))

    def visible(self, topic: str = TOPIC) -> list[str]:
        """Bodies in the order of their claims."""
        ordered = sorted(self.rows(topic), key=lambda row: (row["op_version"], row["sequence"]))
        return [row["body"].decode() for row in ordered]

    def scheduled(self) -> list[str]:
        return [row["body"].decode() for row in self.rows(SCHEDULE_TOPIC)]

    def claim(self, kind: ClaimKind, transaction_id: str, *sequences: int) -> None:
        """What any process may write."""
        row = OpRow(
            transaction_id, kind, GROUP, ClaimSource.DELAY, self.clock.now_ms(),
            life=0 if kind is ClaimKind.DISCARD else None, sequences=sequences or None,
        )  # fmt: skip
        number = time.monotonic_ns()
        self.store.tables.op_log().append([row], 0, app_id=f"test-{number}", number=1)
        self.publisher.run_once()
