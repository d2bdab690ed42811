"""A small value that processes share by compare-and-swap, such as publisher state or a lease."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from txmq.delta.files import DataFile
from txmq.delta.log_files import begin_anew, newest_version
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    StorageError,
    StoreFormatError,
    TxmqError,
    UnreadableFileError,
)
from txmq.ground.clock import timestamp
from txmq.ground.columns import python_rows
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.printable import printable
from txmq.store.schemas import REGISTER
from txmq.store.shapes import problem_of_value

REVISION_MARK = "txmq-register"
_RESTORE = "restore it from a backup"
SWAP_ATTEMPTS = 50
# A value is read whole, by every process that shares it.
VALUE_BYTES_MAX = 64 * 1024 * 1024
# What broken text can raise: no JSON, too deep, no text at all.
_UNREADABLE = (ValueError, RecursionError, TypeError)
# What a value of another shape can raise where it becomes an object.
_MISFITS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Registered:
    """A value and the number of swaps so far; revision 0 has no value yet."""

    revision: int
    value: dict[str, Any]


class Register:
    """One JSON value in a Delta table of one row."""

    def __init__(self, table: Table, form: Any = None) -> None:
        """Open nothing yet; the store makes the table.

        `form` is the class that describes the value, see `shapes`; without it any object is taken.
        """
        self.table, self._form = table, form

    @property
    def exists(self) -> bool:
        """Whether its table exists."""
        return self.table.exists()

    def read(self) -> Registered:
        """Return the newest value; 0 commits.

        Raises:
            StoreNotFoundError: the table does not exist.
            StoreFormatError: it holds more than VALUE_BYTES_MAX, or no JSON object of its form, and
                the error names the place in it; its newest commit is empty; or its rows are not
                those of its newest change.
        """
        self.table.refresh()
        return self.read_pinned()

    def read_pinned(self) -> Registered:
        """Return the value of the version that the table is pinned to. Raises: as `read`."""
        if (lost := self.table.log.emptied_commit) is not None:
            # The value before it would count again, and what was promised since would not.
            problem = f"its newest change, {lost}, is empty; put that file back from a backup"
            raise StoreFormatError(self.table.name, f"{problem}, or remove it to undo that change")
        files = self.table.files.all()
        self._check_size(files)
        rows = python_rows(self.table.rows.read(files, ("revision", "value")))
        newest: dict[str, Any] = max(rows, key=lambda row: row["revision"] or 0, default={})
        revision, logged = newest.get("revision") or 0, self.table.log.mark(REVISION_MARK) or 0
        values = {row["value"] for row in rows if row["revision"] == revision}
        if revision != logged or len(values) > 1:
            # A change on top of it would be refused for ever, and an older value count again.
            holds = f"holds revision {revision:,} in {len(values):,} forms"
            problem = f"{holds}, and its log says {logged:,}"
            cause = "another program changed its rows (DELETE, RESTORE or an append)"
            raise StoreFormatError(self.table.name, f"{problem}: {cause}; {_RESTORE}")
        return Registered(revision, self._parsed(newest["value"]) if rows else {})

    def swap(self, seen: Registered, value: dict[str, Any], now_ms: int) -> Registered:
        """Replace `seen` by `value` in one commit. Return what is registered now.

        Raises: CommitRefusedError if another process swapped it, or if this object did not read
            `seen` last.
        """
        if (self.table.log.mark(REVISION_MARK) or 0) != seen.revision:
            problem = "was changed by another process; read it again"
            raise CommitRefusedError(self.table.name, problem)
        revision = seen.revision + 1
        text = json.dumps(value, sort_keys=True)
        if len(text) > VALUE_BYTES_MAX:
            problem = f"would hold {len(text):,} bytes, the limit is {VALUE_BYTES_MAX:,}"
            raise StorageError(self.table.name, f"{problem}; nothing was written")
        strange = problem_of_value(self._form, json.loads(text))
        if strange is not None:
            # Who reads it would refuse it, for ever.
            problem = f"would be strange: {printable(strange)}; nothing was written"
            raise StorageError(self.table.name, problem)
        self.table.writer.replace(_row(revision, text, now_ms), {REVISION_MARK: revision})
        reached(FailPoint.REGISTER_SWAPPED)
        return Registered(revision, value)

    def read_unseen(self) -> Registered:
        """Return no value, to replace the pinned one that cannot be read; 0 commits.

        The table is not refreshed: a value that another process has put there since is not lost.

        Raises: StorageError.
        """
        return Registered(self.table.log.mark(REVISION_MARK) or 0, {})

    def newest_version(self) -> int:
        """Return the newest version of its table, which may be unreadable. Raises: StorageError."""
        return newest_version(self.table.folder)

    def begin_anew(self, value: dict[str, Any], after: int, now_ms: int, interval: int) -> bool:
        """Put a value in the place of all that cannot be read: one commit, see `delta.log`.

        Returns False if another writer was faster. Each swap is a commit, so the version `after`
        is above all revisions before it.
        """
        rows = _row(after + 1, json.dumps(value, sort_keys=True), now_ms)
        return begin_anew(self.table, rows, {REVISION_MARK: after + 1}, after, interval)

    def _check_size(self, files: Sequence[DataFile]) -> None:
        sizes = [self.table.rows.footer_sizes(file, ("value",)) for file in files]
        # A repeated value may be stored once.
        size_bytes = sum(size.bytes * max(size.rows, 1) for size in sizes)
        if size_bytes > VALUE_BYTES_MAX:
            problem = f"holds {size_bytes:,} bytes, the limit is {VALUE_BYTES_MAX:,}"
            raise StoreFormatError(self.table.name, f"{problem}; {_RESTORE}")

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except _UNREADABLE as error:
            problem = f"holds no JSON ({type(error).__name__}); {_RESTORE}"
            raise StoreFormatError(self.table.name, problem) from error
        if not isinstance(value, dict):
            raise StoreFormatError(self.table.name, f"holds no JSON object; {_RESTORE}")
        strange = problem_of_value(self._form, value)
        if strange is not None:
            raise StoreFormatError(self.table.name, f"{printable(strange)}; {_RESTORE}")
        return value


def _row(revision: int, text: str, now_ms: int) -> pa.Table:
    row = {"revision": [revision], "value": [text], "updated_timestamp": [timestamp(now_ms)]}
    return pa.table(row, schema=REGISTER.columns)


class SharedValue(Generic[Value]):
    """A register whose value is a frozen object. Not safe for several threads."""

    def __init__(
        self,
        register: Register,
        name: str,
        from_value: Callable[[Mapping[str, Any]], Value],
        to_value: Callable[[Value], dict[str, Any]],
    ) -> None:
        """Open nothing yet.

        Args:
            register: holds the value.
            name: of the value, for errors.
            from_value: makes the object from the plain value.
            to_value: the inverse of `from_value`.
        """
        self._register, self._name = register, name
        self._from_value, self._to_value = from_value, to_value

    @property
    def exists(self) -> bool:
        """Whether its table exists."""
        return self._register.exists

    def has_news(self) -> bool:
        """Tell whether there is a newer version; this looks for one file name."""
        return self._register.table.log.has_news()

    def read(self) -> Value:
        """Return the newest value; 0 commits. Raises: StoreFormatError if it has another shape."""
        return self._shaped(self._register.read().value)

    def _shaped(self, value: Mapping[str, Any]) -> Value:
        try:
            return self._from_value(value)
        except TxmqError:
            raise
        except _MISFITS as error:
            problem = f"have a shape that txmq does not write ({type(error).__name__}); {_RESTORE}"
            raise StoreFormatError(self._name, problem) from error

    def change(
        self,
        change: Callable[[Value], Value],
        now_ms: int,
        unreadable: Callable[[StorageError], None] | None = None,
    ) -> Value:
        """Replace the newest value by `change` of it: one commit, none if it stays the same.

        `change` is called again after each lost race, as `until_committed` says. If `unreadable` is
        given, it is told of a value that cannot be read, which is then taken for an empty one and
        replaced.

        Raises: CommitRefusedError after SWAP_ATTEMPTS lost races.
        """

        def compute() -> Value:
            seen, before = self._seen(unreadable)
            after = change(before)
            if after == before:
                return before
            self._register.swap(seen, self._to_value(after), now_ms)
            return after

        try:
            return until_committed(self._register.table, compute, SWAP_ATTEMPTS)
        except CommitConflictError as error:
            problem = f"other processes were faster {SWAP_ATTEMPTS} times; try again"
            raise CommitRefusedError(self._name, problem) from error

    def newest_version(self) -> int:
        """Return the newest version of its table, as the register does."""
        return self._register.newest_version()

    def begin_anew(self, after: Value, version: int, now_ms: int, interval: int) -> bool:
        """Put this in the place of all that cannot be read, as the register does."""
        return self._register.begin_anew(self._to_value(after), version, now_ms, interval)

    def _seen(self, unreadable: Callable[[StorageError], None] | None) -> tuple[Registered, Value]:
        try:
            seen = self._register.read_pinned()
            return seen, self._shaped(seen.value)
        except (StoreFormatError, UnreadableFileError) as error:
            if unreadable is None:
                raise
            seen = self._register.read_unseen()
            unreadable(error)
            return seen, self._shaped(seen.value)
