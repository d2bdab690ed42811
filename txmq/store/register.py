"""A small value that processes share by compare-and-swap: publisher state, leases, settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from txmq.clock import timestamp
from txmq.delta.pinned import pause
from txmq.delta.schemas import REGISTER
from txmq.delta.storage import Table
from txmq.errors import CommitRefusedError
from txmq.fail_points import FailPoint, reached

REVISION_MARK = "txmq-register"
SWAP_ATTEMPTS = 50
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Registered:
    """A value and the number of swaps that led to it; revision 0 holds nothing yet."""

    revision: int
    value: dict[str, Any]


class Register:
    """One JSON value in a Delta table of one row."""

    def __init__(self, table: Table) -> None:
        """The table is made by the store."""
        self.table = table

    @property
    def exists(self) -> bool:
        """Whether its table has ever been made."""
        return self.table.exists()

    def read(self) -> Registered:
        """The newest value; 0 commits. Raises: StoreNotFoundError where it is not there."""
        self.table.refresh()
        rows = self.table.read(self.table.files(), REGISTER.columns.names).to_pylist()
        if not rows:
            return Registered(0, {})
        newest = max(rows, key=lambda row: row["revision"])
        return Registered(newest["revision"], json.loads(newest["value"]))

    def swap(self, seen: Registered, value: dict[str, Any], now_ms: int) -> Registered:
        """Put `value` in the place of `seen`: one commit, or CommitRefusedError.

        The handle is the one that `seen` was read from, or it is refused as well.
        """
        if (self.table.mark(REVISION_MARK) or 0) != seen.revision:
            raise CommitRefusedError(self.table.schema.name, "was swapped meanwhile; read it again")
        revision = seen.revision + 1
        row = {
            "revision": [revision],
            "value": [json.dumps(value, sort_keys=True)],
            "updated_timestamp": [timestamp(now_ms)],
        }
        self.table.replace(pa.table(row, schema=REGISTER.columns), {REVISION_MARK: revision})
        reached(FailPoint.REGISTER_SWAPPED)
        return Registered(revision, value)


class SharedValue(Generic[Value]):
    """A register read as a frozen value that its users change. Not safe for several threads."""

    def __init__(
        self,
        register: Register,
        name: str,
        from_value: Callable[[Mapping[str, Any]], Value],
        to_value: Callable[[Value], dict[str, Any]],
    ) -> None:
        """Errors call the value by `name`; the two functions are each other's inverse."""
        self._register, self._name = register, name
        self._from_value, self._to_value = from_value, to_value

    @property
    def exists(self) -> bool:
        """Whether its table has ever been made."""
        return self._register.exists

    def has_news(self) -> bool:
        """One look at one file name."""
        return self._register.table.has_news()

    def read(self) -> Value:
        """The newest value; 0 commits."""
        return self._from_value(self._register.read().value)

    def change(self, change: Callable[[Value], Value], now_ms: int) -> Value:
        """Swap what `change` makes of the newest value: one commit, none if it is the same.

        Raises: CommitRefusedError where others were faster all the time.
        """
        for attempt in range(SWAP_ATTEMPTS):
            seen = self._register.read()
            before = self._from_value(seen.value)
            after = change(before)
            if after == before:
                return before
            try:
                self._register.swap(seen, self._to_value(after), now_ms)
            except CommitRefusedError:
                pause(min(attempt, 3))
                continue
            return after
        raise CommitRefusedError(self._name, f"others were faster {SWAP_ATTEMPTS} times")
