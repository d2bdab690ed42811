"""A day of honest work in a store, whatever else is in it, and what went wrong in that day."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.kit.consumer_world import drained, wake
from tests.kit.stores import fresh_store
from txmq.consumer.pull import PullConsumer
from txmq.errors import TxmqError
from txmq.ground.columns import python_rows
from txmq.message.message import LocalTransactionState, Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.ops.backup.backup import back_up
from txmq.ops.broker import Broker
from txmq.ops.metrics.meter import Meter
from txmq.producer.producer import TransactionProducer
from txmq.publish.progress import PublishProgress
from txmq.store.config import Config
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import ManualClock
from txmq.verify import verify

SHOP, BILLING, PAID = "shop", "billing", "paid"
FOREIGN, KEY = "foreign-", "key"
OLD_BODIES = ("old-0", "old-1", "old-2", "old-3", "old-4")
# It was not due when the day before ended.
_HANDED_OUT_BEFORE = ("old-0", "old-1", "old-2", "old-4")
_CONFIG = Config(default_topic_queue_nums=2, half_queues=1, publish_threads=1, check_threads=1)
# Of delta-rs, which verify reads with: it opens no table with such an entry.
_REFUSED_BY_DELTA_RS = ("Failed to parse value", "Json error")


class SaysCommit:
    """Answers each check by COMMIT."""

    def execute_local_transaction(self, message: object, argument: object) -> object:  # noqa: ARG002
        """Is never called."""
        raise AssertionError

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        """Say that it was done."""
        return LocalTransactionState.COMMIT


def day_before(location: Path, clock: ManualClock) -> str:
    """Make a store in which each table has rows; return the id of a transaction that is open."""
    store = fresh_store(location, _CONFIG)
    Topics(store, clock=clock).create(
        PAID, kind=TopicKind.UNSPECIFIED, queue_nums=2, reserved_time_h=72
    )
    broker = Broker(store, listeners={SHOP: SaysCommit()}, clock=clock)
    with TransactionProducer(store, producer_group=SHOP, clock=clock) as producer:
        producer.send([Message(PAID, b"old-0"), Message(PAID, b"old-1")], queue_id=0)
        producer.send(Message(PAID, b"old-2"), queue_id=1)
        producer.send(Message(PAID, b"old-3", delay_s=600))
        producer.send(Message(PAID, b"old-4", delay_s=1))
        broker.run_once()
        clock.advance(2)
        broker.run_once()
        with PullConsumer(store, consumer_group=BILLING, topics=PAID, clock=clock) as consumer:
            assert len(drained(consumer)) == len(_HANDED_OUT_BEFORE)
            consumer.commit()
        victim = producer.begin_transaction()
        victim.send(Message(PAID, b"victim", keys=KEY))
        victim.prepare()
    return victim.id


class HonestDay:
    """Sends, checks, delays, publishes, consumes, looks and cleans, and keeps what went wrong.

    Attributes:
        problems: what went wrong, in words.
        has_stopped: whether a part stopped, as it may: its error named the table.
    """

    def __init__(
        self, folder: Path, clock: ManualClock, path: str, victim: str, *, may_stop: bool
    ) -> None:
        """Open the store in `folder`.

        Args:
            folder: its store; a backup is put beside it.
            clock: shows the time; a step of it is a part of the day.
            path: the table in which something is foreign.
            victim: the id of a transaction that tools are asked about.
            may_stop: whether a part may stop by an error of txmq that names this table.
        """
        self.problems: list[str] = []
        self.has_stopped, self.may_stop = False, may_stop
        self._folder, self._path, self._clock, self._victim = folder, path, clock, victim
        self._store = Store.open(str(folder / "store"))
        self._bodies, self._number = list(OLD_BODIES), 0

    def work(self) -> None:
        """Send, and let a broker serve until all that waits is due."""
        self._step("send", self._send)
        broker = self._broker()
        self._serve(broker)
        for seconds in (70, 700):
            self._clock.advance(seconds)
            self._serve(broker)

    def read(self) -> None:
        """Consume, and look at what each tool shows."""
        bodies = self._step("consume", self._consume)
        if bodies is not None:
            self._compare("consumed", [*_HANDED_OUT_BEFORE, *bodies])
        self._judge_topic()
        admin, messages = Admin(self._store, clock=self._clock), MessageQuery(self._store)
        self._step("life", lambda: admin.transaction(self._victim).to_dict())
        self._step("messages", lambda: messages.by_transaction(self._victim))
        self._step("key", lambda: messages.by_key(KEY))
        self._step("open", Operator(self._store, clock=self._clock).open_transactions)
        self._step("doctor", lambda: Doctor(self._store, clock=self._clock).examine().to_dict())
        self._step("metrics", lambda: Meter(self._store, clock=self._clock).count())
        self._step("backup", lambda: back_up(self._store, self._folder / "backup"))
        self._look()

    def outlive_retention(self) -> None:
        """Serve when all of it is older than the retention."""
        self._clock.advance(5 * 86_400)
        broker = self._broker()
        self._serve(broker)
        self._serve(broker)
        self._look()

    def _broker(self) -> Broker | None:
        listeners = {SHOP: SaysCommit()}
        made: Broker | None = self._step(
            "broker", lambda: Broker(self._store, listeners=listeners, clock=self._clock)
        )
        return made

    def _serve(self, broker: Broker | None) -> None:
        if broker is None:
            return
        result = self._step("broker", broker.run_once)
        register = self._store.tables.register("publisher", PublishProgress)
        parked = self._step("parked", lambda: register.read().value.get("parked"))
        self.has_stopped |= self.may_stop and bool(parked)
        failures = [] if result is None else [*result.maintained.failed]
        if failures and not self.may_stop:
            self.problems.append(f"maintenance failed: {failures}")

    def _send(self) -> None:
        with TransactionProducer(self._store, producer_group=SHOP, clock=self._clock) as producer:
            # What a send that failed has written is nobody's promise.
            self._number = number = self._number + 10
            for body in (f"new-{number}", f"new-{number + 1}"):
                producer.send(Message(PAID, body.encode()), queue_id=0)
                self._bodies.append(body)
            producer.send(Message(PAID, b"delayed-%d" % number, delay_s=60))
            self._bodies.append(f"delayed-{number}")
            for body, ends in ((f"committed-{number}", True), (f"checked-{number}", False)):
                transaction = producer.begin_transaction()
                transaction.send(Message(PAID, body.encode()), queue_id=1)
                transaction.prepare()
                if ends:
                    transaction.commit()
                self._bodies.append(body)

    def _consume(self) -> list[str]:
        with PullConsumer(
            self._store, consumer_group=BILLING, topics=PAID, clock=self._clock
        ) as consumer:
            wake(consumer)
            bodies = [_text(message) for message in drained(consumer)]
            consumer.commit()
        return bodies

    def _look(self) -> None:
        self._step("status", lambda: Admin(self._store, clock=self._clock).status().to_dict())
        self._step("verify", lambda: verify(self._store.location).to_dict())

    def _judge_topic(self) -> None:
        rows = self._step("plain read", lambda: _honest_rows(self._store.location)) or []
        self._compare("shown", [_decoded(row["body"]) for row in rows])
        new = [_decoded(row["body"]) for row in rows if row["queue_id"] == 0]
        numbers = [int(body[4:]) for body in new if body.startswith("new-")]
        if numbers != sorted(numbers):
            self.problems.append(f"order: {numbers}")
        aside = self._step("aside", lambda: read_set_aside(self._store.tables).transactions) or {}
        if honest := [row["transaction_id"] for row in rows if row["transaction_id"] in aside]:
            self.problems.append(f"set aside: {honest}")

    def _compare(self, what: str, bodies: Iterable[str]) -> None:
        """Expect each honest body once; a foreign row has another body, or that of the victim."""
        counts = Counter(bodies)
        if wrong := {body: counts[body] for body in self._bodies if counts[body] != 1}:
            self.problems.append(f"{what}: {wrong}")

    def _step(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TxmqError as error:
            if self._is_allowed(name, str(error)):
                self.has_stopped = True
                return None
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it has a line
            told = f"{type(error).__name__}: {str(error)[:300]}"
            self.problems.append(f"{name}: {told} {_place(error)}")
        return None

    def _is_allowed(self, name: str, told: str) -> bool:
        is_refused = name == "verify" and any(text in told for text in _REFUSED_BY_DELTA_RS)
        return (self.may_stop or is_refused) and self._path.rpartition("/")[2] in told


def _place(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[::-1]
        if "/txmq/" in frame.filename
    ]
    return " < ".join(
        f"{frame.filename.split('/txmq/')[-1]}:{frame.lineno}" for frame in frames[:4]
    )


def _text(message: ReceivedMessage) -> str:
    return _decoded(message.body)


def _decoded(body: bytes | None) -> str:
    return (body or b"").decode(errors="replace")


def _honest_rows(location: str) -> list[dict[str, Any]]:
    """Read the rows of the topic without foreign files, by queue and offset, by delta-rs."""
    uris = DeltaTable(f"{location}/topics/{PAID}").file_uris()
    names = ["body", "queue_id", "queue_offset", "transaction_id"]
    rows = [
        row
        for uri in uris
        if FOREIGN not in uri
        for row in python_rows(pq.ParquetFile(uri).read(names))
        if None not in (row["queue_id"], row["queue_offset"])
    ]
    return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))
