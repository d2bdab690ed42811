"""A small value that processes share by compare-and-swap: publisher state, leases, settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txmq.clock import timestamp
from txmq.errors import CommitRefusedError
from txmq.fail_points import FailPoint, reached
from txmq.schemas import REGISTER
from txmq.storage import Table

REVISION_MARK = "txmq-register"


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

    def read(self) -> Registered:
        """The newest value; 0 commits."""
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
