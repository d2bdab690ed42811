"""A store with something on each page of the dashboard, counted on a clock that tests set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.check_world import bent
from tests.kit.consumer_world import ConsumerWorld, drained
from tests.kit.handed_out import received
from tests.kit.wsgi import Page, asked
from txmq.consumer.send_back import SendBack
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.ops.dashboard.app import Dashboard
from txmq.producer.transaction import Transaction
from txmq.store.half import HalfOrigin, HalfTransaction
from txmq.store.op import OpRow
from txmq.store.schemas import HALF

TOPICS = ("order-paid", "order-shipped", "invoice-due", "stock-changed")
CONSUMERS = "billing"
MARKUP = "\"><script>alert('1')</script>"
# As no message of txmq may have it, but a row that another program wrote.
EVIL = f"{MARKUP}\u202e\x1b[2J"
SECRET = "card 4111-1111"  # noqa: S105 - what no page may show unless it is asked to


class DashboardWorld(ConsumerWorld):
    """Nothing is counted by itself: `count` does it once."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.dashboard = Dashboard(self.store, clock=self.clock)
        self.dice = random.Random(7)
        self.ids: dict[str, str] = {}
        self._reads_bodies = Dashboard(self.store, clock=self.clock, show_bodies=True)

    def count(self, dashboard: Dashboard | None = None) -> None:
        (dashboard or self.dashboard).counting.count()

    def page(self, address: str, *, with_bodies: bool = False, **headers: str) -> Page:
        """A page as a browser gets it."""
        if not with_bodies:
            return asked(self.dashboard.app, address, **headers)
        self.count(self._reads_bodies)
        return asked(self._reads_bodies.app, address, **headers)

    def prepared(self, *topics: str, key: str = "order-1", **fields: Any) -> Transaction:
        """A transaction without an end, a message for each topic."""
        made = self.producer.begin_transaction()
        for topic in topics:
            made.send(Message(topic, SECRET.encode(), keys=key, **fields))
        made.prepare()
        return made

    def claim_of(self, transaction_id: str, kind: ClaimKind, **fields: Any) -> None:
        """A claim that anybody may write."""
        source, now_ms = ClaimSource.RECHECK, self.clock.now_ms()
        row = OpRow(transaction_id, kind, "orders-service", source, now_ms, **fields)
        number = self.dice.getrandbits(40)
        self.store.tables.op_log().append([row], 0, app_id=f"test-{number}", number=1)
        self.publisher.run_once()

    def written_by_others(self) -> str:
        """An open transaction with EVIL wherever a row can have it."""
        own_id, now_ms = new_transaction_id(self.clock.now_ms()), self.clock.now_ms()
        origin = HalfOrigin(own_id, f"group {EVIL}", 0, 6.0, now_ms)

        def evil(rows: list[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
            texts = {"keys": EVIL, "tags": EVIL, "properties": [(EVIL, EVIL)]}
            for row in rows:
                named = dict(zip(HALF.columns.names, row, strict=True))
                yield tuple({**named, **texts}.values())

        made = HalfTransaction(origin, [Message(TOPICS[0], b"x")], [0], 1)
        table = bent([made], evil)
        self.store.tables.half_log().table.writer.append(table, app_id="others", number=1)
        return own_id

    def discarded(self, topic: str) -> str:
        """A transaction that was asked about too often."""
        made = self.prepared(topic, key="order-77")
        for times in (1, 2):
            self.clock.advance(30)
            self.claim_of(made.id, ClaimKind.UNKNOWN, life=0, check_times=times, reason="TIMEOUT")
        self.clock.advance(30)
        self.claim_of(made.id, ClaimKind.DISCARD, life=0, reason="checked 3 times")
        return made.id

    def bury(self, *keys: str, reason: str = "no customer of this number") -> list[str]:
        """Ids of dead letters of CONSUMERS."""
        back, letters = SendBack(self.store, CONSUMERS, self.clock), []
        for key in keys:
            sent = self.producer.send(Message(TOPICS[0], SECRET.encode(), keys=key)).message_ids[0]
            self.publisher.run_once()
            (row,) = [row for row in self.rows(TOPICS[0]) if row["message_id"] == sent]
            letters.append(back.send_back(received(row), reason=reason, delay_level=-1).message_id)
        self.publisher.run_once()
        return letters

    def park(self, topic: str, reason: str = "PermissionError: topics may not be written") -> None:
        """As a publisher does where a topic cannot be written."""
        register = self.store.tables.register("publisher")
        seen = register.read()
        entry = {"from_version": 1, "reason": reason, "since_ms": self.clock.now_ms() - 900_000,
                 "attempts": 31, "retry_ms": self.clock.now_ms()}  # fmt: skip
        register.swap(seen, {**seen.value, "parked": {topic: entry}}, self.clock.now_ms())

    def day(self, rounds: int) -> None:
        """A busy store with trouble in it; `ids` names what a test looks for."""
        ids = self.ids
        ids["old"] = self.prepared(TOPICS[2], key="order-13").id
        self.clock.advance(2 * 3600)
        ids["discarded"] = self.discarded(TOPICS[0])
        for _ in range(4):
            self.prepared(*self.dice.choices(TOPICS, k=2))
        self.clock.advance(400)
        self.producer.send([Message(TOPICS[2], b"later", delay_s=d) for d in (900, 5_000, 90_000)])
        (ids["letter"], *_) = self.bury("order-7", "order-8", "order-9")
        consumer, behind = self.consumer(list(TOPICS)), self.consumer(TOPICS[0], group="audit")
        drained(behind, 8)
        for number in range(rounds):
            self._round(number)
            drained(consumer, 16 if number % 7 else 64)
            consumer.commit()
            self.count()
        ids["open"] = self.prepared(*TOPICS[:2], key="order-99").id
        done = self.prepared(*TOPICS[:2], key="order-100", tags="paid")
        self.clock.advance(2.4)
        done.commit()
        self.publisher.run_once()
        ids["committed"] = done.id
        self.clock.advance(9)
        self.count()

    def troubled_day(self, rounds: int) -> None:
        """As `day`; then others write EVIL, and a topic is parked for it."""
        self.day(rounds)
        self.ids["evil"] = self.written_by_others()
        self.park("stock-changed", reason=EVIL)
        self.count()

    def _round(self, number: int) -> None:
        """Fifteen seconds of business."""
        for _ in range(self.dice.randint(1, 3) + (3 if 8 < number < 14 else 0)):
            made = self.prepared(*self.dice.choices(TOPICS, k=2), key=f"order-{number}")
            self.clock.advance(self.dice.choice((0.2, 0.4, 0.9, 1.6)))
            (made.rollback if self.dice.random() < 0.2 else made.commit)()
        if number % 9 == 0:
            self.prepared(TOPICS[1])
        self.clock.advance(self.dice.choice((0.05, 0.08, 0.3)))
        self.publisher.run_once()
        self.clock.advance(10)
