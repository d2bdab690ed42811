"""Due transactions as Arrow tables: a round of a hundred thousand is one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.rules import DueRow
from txmq.columns import Groups, place_in_group
from txmq.delta.schemas import MICROSECONDS_UTC

# The fields of DueRow.
DUE = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("deadline_ms", pa.int64()),
        pa.field("check_times", pa.int32()),
        pa.field("life", pa.int32()),
        pa.field("ordinary", pa.bool_()),
        pa.field("has_returned", pa.bool_()),
    ]
)


def due_table(rows: Sequence[DueRow]) -> pa.Table:
    """Due rows as DUE."""
    columns = zip(*map(astuple, rows), strict=True) if rows else [[] for _ in DUE]
    return pa.table(list(map(pa.array, columns, DUE.types)), DUE)


def due_row(row: dict[str, Any]) -> DueRow:
    """One row of DUE, for the rules."""
    return DueRow(**{name: row[name] for name in DUE.names})


def milliseconds_of(moments: Any) -> Any:
    """A column of times as milliseconds since 1970; Python cannot represent all of them."""
    microseconds = moments.cast(MICROSECONDS_UTC).cast(pa.int64()).cast(pa.float64(), safe=False)
    return pc.round(pc.divide(microseconds, 1000.0)).cast(pa.int64())


def rounds_of(dues: pa.Table, limit_of: Callable[[str], int]) -> Iterator[pa.Table]:
    """Split due rows into rounds, the most urgent first, with at most `limit_of(group)` of a group.

    So a group with many due rows takes more rounds, and takes no room from other groups.
    """
    ordered = dues.sort_by([("deadline_ms", "ascending"), ("transaction_id", "ascending")])
    groups = Groups.of(ordered["producer_group"])
    limits = np.array([limit_of(name) for name in groups.keys.to_pylist()], dtype=np.int64)
    round_of_row = place_in_group(ordered["producer_group"]) // limits[groups.place]
    for number in range(int(round_of_row.max(initial=-1)) + 1):
        yield ordered.filter(pa.array(round_of_row == number))
