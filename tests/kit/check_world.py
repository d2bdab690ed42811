"""Halves and claims written straight into the logs, and listeners that keep a journal."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.kit import reading
from tests.kit.stores import fresh_store
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.store.config import Config
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow
from txmq.store.schemas import HALF
from txmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from txmq.listeners.protocol import HalfMessage

COMMIT = LocalTransactionState.COMMIT
ROLLBACK = LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
GROUP = "orders"
CHECK_CONFIG = Config(listener_timeout_s=0.5, check_lease_s=1.0)

Answer = Callable[["HalfMessage"], Any]
Change = Callable[[list[tuple[object, ...]]], Iterable[tuple[object, ...]]]


def wall_ms() -> int:
    """The machine's time; halves become due by the times of files."""
    return time.time_ns() // 1_000_000


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Return as soon as `holds`; fail after `timeout_s`."""
    reading.wait_until(holds, timeout_s, what)


@dataclass
class JournalListener:
    """Answers as told and writes every question into a file that txmq does not know."""

    path: Path
    answer: Answer
    lock: threading.Lock = field(default_factory=threading.Lock)

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> Any:
        with self.lock, self.path.open("a", encoding="utf-8") as journal:
            journal.write(f"{message.transaction_id} {message.check_times} {time.time()}\n")
        return self.answer(message)

    def asked(self) -> list[str]:
        """Ids in the order of the questions."""
        return [words[0] for words in self._lines()]

    def check_times(self) -> list[int]:
        """What each question said about the questions before it."""
        return [int(words[1]) for words in self._lines()]

    def first_asked_s(self) -> dict[str, float]:
        """When each transaction was asked about first, by the machine's clock."""
        return {words[0]: float(words[2]) for words in reversed(self._lines())}

    def _lines(self) -> list[list[str]]:
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]


def bent(halves: Sequence[HalfTransaction], change: Change) -> pa.Table:
    """The rows of each transaction as somebody else might have written them."""
    made = [half_table([half]).to_pylist() for half in halves]
    rows = [row for own in made for row in change([tuple(each.values()) for each in own])]
    columns = zip(zip(*rows, strict=True), HALF.columns, strict=True)
    arrays = [pa.array(values, field.type) for values, field in columns]
    return pa.table(arrays, schema=HALF.columns)


class CheckWorld:
    """A store and a clock that begins at the machine's time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.store = fresh_store(folder / "store", CHECK_CONFIG.replace(**settings))
        self.clock = ManualClock(wall_ms())
        self._half, self._op = self.store.tables.half_log(), self.store.tables.op_log()
        self._numbers = itertools.count(1)
        self._app_id = f"test/{uuid.uuid4()}"

    def prepare(
        self,
        count: int = 1,
        *,
        group: str = GROUP,
        messages: int = 1,
        immunity_s: float = 6.0,
        change: Change = list,
    ) -> list[str]:
        """Make `count` transactions durable in one commit; `change` may bend their rows."""
        ids: list[str] = []
        halves: list[HalfTransaction] = []
        sent = [Message("paid", f"secret-{number}".encode()) for number in range(messages)]
        for _ in range(count):
            ids.append(new_transaction_id(wall_ms()))
            origin = HalfOrigin(ids[-1], group, 0, immunity_s, wall_ms())
            halves.append(HalfTransaction(origin, sent, [0] * messages, messages))
        # By rows all this takes a second for some thousands, and times of files tell what is due.
        table = half_table(halves) if change is list else bent(halves, change)
        self._half.table.writer.append(table, app_id=self._app_id, number=next(self._numbers))
        return ids

    def claim(
        self, ids: Sequence[str], kind: ClaimKind, *, group: str = GROUP, **columns: Any
    ) -> None:
        """One commit of claims."""
        source = columns.pop("source", ClaimSource.PRODUCER)
        now_ms = columns.pop("op_timestamp_ms", self.clock.now_ms())
        rows = [OpRow(key, kind, group, source, now_ms, **columns) for key in ids]
        self._op.append(rows, 0, app_id=self._app_id, number=next(self._numbers))

    def claims(self, kind: ClaimKind | None = None) -> list[dict[str, Any]]:
        """All rows of the op log, or those of one kind, in their order."""
        op = self.store.tables.op_log()
        rows = op.between(-1, op.table.version)
        rows = rows.sort_by([("_commit_version", "ascending"), ("ordinal", "ascending")])
        return [row for row in rows.to_pylist() if kind is None or row["kind"] == kind.value]

    def half_rows(self) -> int:
        table = self.store.tables.half_log().table
        return int(table.rows.read(table.files.all(), ["transaction_id"]).num_rows)

    def listener(self, answer: Answer | LocalTransactionState = UNKNOWN) -> JournalListener:
        """A listener that always gives one answer, or the one that a function tells."""
        said = answer if callable(answer) else lambda _: answer
        return JournalListener(self.folder / f"journal-{uuid.uuid4()}", said)
