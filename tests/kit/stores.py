"""Stores written row by row with delta-rs, so that tests expect what they wrote and no more.

Nothing here knows how the publisher works: every row of every table is said by the test.
"""

from __future__ import annotations

import copy
import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from txmq.delta.pinned import commit_properties
from txmq.delta.schemas import TableSchema
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.config import Config
from txmq.store.register import REVISION_MARK
from txmq.store.schemas import HALF, OP, REGISTER, SCHEDULE, SETTLED, TOPIC
from txmq.store.store import Store

START = datetime(2026, 1, 1, tzinfo=UTC)
# Later than the immunity of halves that are appended today.
LONG_AFTER = datetime(2200, 1, 1, tzinfo=UTC)
GROUP = "group"
DEAD = TRANS_CHECK_MAX_TIME_TOPIC


def transaction_id(number: int) -> str:
    """An id that sorts by its number."""
    value = (1_767_225_600_000 + number) << 80 | 0x7 << 76 | 0b10 << 62 | number
    return str(uuid.UUID(int=value))


@dataclass(frozen=True)
class Half:
    """A half as a test writes it; its content follows from its number and its place."""

    number: int
    sequence: int
    topic: str | None = "orders"
    message_count: int | None = None
    group: str = GROUP
    queue: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """A row of the half log."""
        own_id = transaction_id(self.number)
        moment = START + timedelta(milliseconds=self.number)
        values = {
            "transaction_id": own_id,
            "sequence": self.sequence,
            "message_id": f"{own_id}:{self.sequence}",
            "queue_id": 0,
            "producer_group": self.group,
            "real_topic": self.topic,
            "real_queue_id": None if self.topic is None else self.queue,
            "tags": "tag" if self.number % 2 else None,
            "keys": f"key-{self.number}",
            "body": None if self.topic is None else f"body-{self.number}-{self.sequence}".encode(),
            "properties": [("sequence", str(self.sequence))] if self.sequence % 2 else [],
            "born_timestamp": moment,
            "ordinary": False,
            "message_count": self.message_count,
            "check_immunity_time_s": 6.0 if self.message_count is not None else None,
            "store_date": moment.date(),
        }
        return {**values, **self.changes}


def halves(number: int, *topics: str, group: str = GROUP, queue: int = 0) -> list[Half]:
    """The halves of one transaction, one message for each topic; the first is the head."""
    return [
        Half(number, sequence, topic, len(topics) if sequence == 0 else None, group, queue)
        for sequence, topic in enumerate(topics)
    ]


@dataclass(frozen=True)
class Op:
    """A claim as a test writes it."""

    number: int
    kind: str
    group: str = GROUP
    life: int | None = None
    source: str = "producer"
    check_times: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def row(self, ordinal: int) -> dict[str, Any]:
        """A row of the op log."""
        values = {
            "transaction_id": transaction_id(self.number),
            "queue_id": 0,
            "ordinal": ordinal,
            "kind": self.kind,
            "source": self.source,
            "producer_group": self.group,
            "life": self.life,
            "check_times": self.check_times,
            "op_timestamp": START,
            "store_date": START.date(),
        }
        return {**values, **self.changes}


@dataclass(frozen=True)
class Settled:
    """A fact as a test writes it."""

    number: int
    state: str
    op_version: int
    ordinal: int = 0
    life: int = 0
    reason: str | None = None
    settled_timestamp: datetime = START
    op_timestamp: datetime | None = START
    sequences: Sequence[int] | None = None

    def row(self) -> dict[str, Any]:
        """A row of the settled log."""
        return {
            "transaction_id": transaction_id(self.number),
            "state": self.state,
            "sequences": self.sequences,
            "op_version": self.op_version,
            "ordinal": self.ordinal,
            "settled_timestamp": self.settled_timestamp,
            "source": "producer",
            "producer_group": GROUP,
            "life": self.life,
            "reason": self.reason,
            "op_timestamp": self.op_timestamp,
            "store_date": START.date(),
        }


_MADE: dict[str, TemporaryDirectory[str]] = {}


def fresh_store(location: str | Path, config: Config | None = None) -> Store:
    """As `Store.create`, by a copy of one with the same settings: a fifth of the time."""
    settings = config or Config()
    key = str(settings)
    if key not in _MADE:
        _MADE[key] = TemporaryDirectory(prefix="txmq-fresh-")
        Store.create(f"{_MADE[key].name}/store", settings)
    shutil.copytree(f"{_MADE[key].name}/store", location, dirs_exist_ok=True)
    return Store(str(location), settings)


class HandMadeStore:
    """A real store whose rows are all written by a test; offsets are counted up unless given.

    One check without an answer is enough for a DISCARD.
    """

    def __init__(self, location: str) -> None:
        self.store = Store.create(location, Config(transaction_check_max=1))
        self.location = location
        self.op_table_id = str(DeltaTable(f"{location}/op").metadata().id)
        self.next_offsets: dict[tuple[str, int], int] = {}
        self._followed: dict[str, int] = {}

    def copied_to(self, location: str) -> HandMadeStore:
        """The same store at another place, for a test that goes on from here."""
        shutil.copytree(self.location, location)
        other = copy.copy(self)
        other.store, other.location = Store.open(location), location
        other.next_offsets, other._followed = dict(self.next_offsets), dict(self._followed)
        return other

    def prepare(self, *written: Half) -> None:
        """One commit of halves."""
        self._append("half", HALF, [half.row() for half in written])

    def claim(self, *claims: Op) -> int:
        """One commit of claims; its version."""
        self._append("op", OP, [op.row(ordinal) for ordinal, op in enumerate(claims)])
        return int(DeltaTable(f"{self.location}/op").version())

    def settle(self, *facts: Settled, mark: int) -> None:
        """One commit of facts and how far they reach."""
        self._append(
            "settled", SETTLED, [fact.row() for fact in facts], self._marks("settled", mark)
        )

    def publish(
        self,
        topic: str,
        *published: Half,
        op_version: int,
        life: int = 0,
        mark: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """One commit of messages to one topic; `changes` falsify the rows."""
        self.store.tables.create_topic(topic)
        rows = [
            {**self._topic_row(topic, half, op_version, life), **(changes or {})}
            for half in published
        ]
        marks = self._marks(topic, op_version if mark is None else mark)
        for row in rows:
            queue = row["queue_id"]
            marks[f"txmq-offset/{queue}"] = self.next_offsets.get((topic, queue), 0)
        self._append(f"topics/{topic}", TOPIC, rows, marks)

    def schedule(
        self,
        *waiting: Half,
        op_version: int,
        due: datetime,
        life: int = 0,
        mark: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """One commit of messages to the schedule; `changes` falsify the rows."""
        told = {"deliver_timestamp": due, "due_date": due.date(), **(changes or {})}
        rows = [{**self._topic_row(SCHEDULE_TOPIC, h, op_version, life), **told} for h in waiting]
        marks = self._marks(SCHEDULE_TOPIC, op_version if mark is None else mark)
        for row in rows:
            queue = row["queue_id"]
            marks[f"txmq-offset/{queue}"] = self.next_offsets.get((SCHEDULE_TOPIC, queue), 0)
        self._append(f"topics/{SCHEDULE_TOPIC}", SCHEDULE, rows, marks)

    def bury(self, *published: Half, op_version: int, life: int = 0, **options: Any) -> None:
        """One commit of dead letters."""
        self.publish(DEAD, *published, op_version=op_version, life=life, **options)

    def remove(self, path: str, predicate: str) -> None:
        """Make rows disappear, as no part of txmq does."""
        DeltaTable(f"{self.location}/{path}").delete(predicate)

    def maintenance_state(self, **value: Any) -> None:
        """What retention says that it has taken away."""
        self._register("maintenance", value)

    def publisher_state(self, low_water_version: int, parked: Mapping[str, int]) -> None:
        """What the publisher says about itself."""
        value = {
            "op_table_id": self.op_table_id,
            "low_water_version": low_water_version,
            "op_commit_sha256": None,
            "parked": {
                topic: {"from_version": version, "reason": "test", "since_ms": 0, "attempts": 1}
                for topic, version in parked.items()
            },
        }
        self._register("publisher", value)

    def delay_state(self, op_version: int, due: datetime) -> None:
        """What the delay service says that it has claimed."""
        due_ms = round(due.timestamp() * 1000)
        value = {
            "op_table_id": self.op_table_id,
            "op_version": op_version,
            "due_ms": due_ms,
            "rule": "store time",
        }
        self._register("delay", value)

    def group_state(self, group: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """How far the members of a consumer group have read together."""
        self._register(f"group_{group}", {"offsets": {"": offsets}})

    def _register(self, name: str, value: Mapping[str, Any]) -> None:
        row = {"revision": 1, "value": json.dumps(value), "updated_timestamp": START}
        write_deltalake(
            f"{self.location}/state/{name}",
            pa.Table.from_pylist([row], schema=REGISTER.columns),
            mode="overwrite",
            commit_properties=commit_properties({REVISION_MARK: 1}),
        )

    def _topic_row(self, topic: str, half: Half, op_version: int, life: int) -> dict[str, Any]:
        row = half.row()
        queue = 0 if topic == DEAD else row["real_queue_id"]
        offset = self.next_offsets.get((topic, queue), 0)
        self.next_offsets[topic, queue] = offset + 1
        values = {
            **row,
            "topic": row["real_topic"],
            "queue_id": queue,
            "queue_offset": offset,
            "life": life,
            "op_version": op_version,
            "store_timestamp": START,
        }
        return {name: values.get(name) for name in TOPIC.columns.names}

    def _marks(self, name: str, mark: int) -> dict[str, int]:
        """A mark only rises; several commits of one round may be written one after the other."""
        if mark <= self._followed.get(name, -1):
            return {}
        self._followed[name] = mark
        return {f"txmq/{self.op_table_id}": mark}

    def _append(
        self,
        path: str,
        schema: TableSchema,
        rows: Sequence[Mapping[str, Any]],
        marks: Mapping[str, int] | None = None,
    ) -> None:
        transactions = [Transaction(name, number, 1) for name, number in (marks or {}).items()]
        write_deltalake(
            f"{self.location}/{path}",
            pa.Table.from_pylist(list(rows), schema=schema.columns),
            mode="append",
            partition_by=list(schema.partition_by) or None,
            commit_properties=CommitProperties(app_transactions=transactions or None),
        )


def clean_store(location: str) -> HandMadeStore:
    """Every kind of life, and nothing wrong.

    Transactions: 1 committed to two topics, 2 rolled back, 3 open, 4 committed (with a claim of
    another group before it, and late ends after it), 5 rolled back first and committed too late,
    6 discarded, 7 discarded, resumed, committed, 8 incomplete (a
    listener said COMMIT), 9 incomplete then rolled back,
    10 prepared twice by a retried append and committed, 11 without a COMMIT but checked.
    """
    made = HandMadeStore(location)
    two, others = halves(1, "orders", "stock"), {n: halves(n, "orders") for n in range(2, 12)}
    made.prepare(*two, *others[2], *others[3])
    for number in (4, 5, 6, 7, 10, 11):
        made.prepare(*others[number])
    retried = Half(10, 0, message_count=1, changes={"born_timestamp": START, "queue_id": 3})
    made.prepare(retried)
    made.prepare(Half(8, 0, message_count=2))
    made.prepare(Half(9, 0, message_count=2))
    first = made.claim(Op(1, "COMMIT"), Op(2, "ROLLBACK"))
    second = made.claim(
        Op(4, "ROLLBACK", group="strangers"), Op(4, "COMMIT"), Op(4, "ROLLBACK"), Op(4, "COMMIT"),
        Op(5, "ROLLBACK"), Op(5, "COMMIT"), Op(99, "COMMIT"),
        Op(7, "UNKNOWN", life=0, check_times=1),
    )  # fmt: skip
    third = made.claim(
        Op(6, "UNKNOWN", life=0, check_times=1), Op(6, "DISCARD", life=0),
        Op(7, "DISCARD", life=0), Op(7, "RESUME", life=1), Op(7, "COMMIT"),
        Op(8, "COMMIT", source="check", changes={"op_timestamp": LONG_AFTER}), Op(9, "COMMIT"),
        Op(9, "ROLLBACK"), Op(10, "COMMIT"),
        Op(11, "UNKNOWN", life=0, check_times=1), Op(11, "DISCARD", life=1),
    )  # fmt: skip
    made.settle(
        Settled(1, "COMMITTED", first, 0), Settled(2, "ROLLED_BACK", first, 1),
        Settled(4, "COMMITTED", second, 1), Settled(5, "ROLLED_BACK", second, 4), mark=second,
    )  # fmt: skip
    made.settle(
        Settled(6, "DISCARDED", third, 1), Settled(7, "DISCARDED", third, 2),
        Settled(7, "PENDING", third, 3, life=1), Settled(7, "COMMITTED", third, 4, life=1),
        Settled(8, "INCOMPLETE", third, 5, reason="MISSING"),
        Settled(9, "INCOMPLETE", third, 6, reason="MISSING"),
        Settled(9, "ROLLED_BACK", third, 7), Settled(10, "COMMITTED", third, 8), mark=third,
    )  # fmt: skip
    made.publish("orders", two[0], op_version=first)
    made.publish("stock", two[1], op_version=first)
    made.publish("orders", *others[4], op_version=second)
    made.publish("orders", *others[7], op_version=third, life=1)
    made.publish("orders", *others[10], op_version=third)
    made.bury(*others[6], *others[7], op_version=third)
    made.publisher_state(third, {})
    return made
