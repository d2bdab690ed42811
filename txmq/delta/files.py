"""Data files of a table: which may hold some values, how a commit adds and removes them."""

from __future__ import annotations

import bisect
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import AddedFile, RemovedFile
from txmq.delta.parquet import NewFile
from txmq.delta.schemas import SWEPT_PROPERTY
from txmq.errors import UnsupportedTableError

LARGE_FILE_BYTES = 1_000_000
# In a UUIDv7, the time in milliseconds and a dash.
COARSE_LENGTH = 13
COARSE_FROM = 10_000
LARGE_FILE_ROWS = 1_000
# So few values are compared quicker in Python than in Arrow.
FEW_ROWS = 16
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
APPEND_ONLY = "delta.appendOnly"
_WITHOUT_RULES = (
    "txmq computes no expressions of SQL. Drop a constraint by ALTER TABLE … DROP CONSTRAINT; a "
    "table whose columns have rules or are computed has to be made anew"
)
_WITHOUT_APPEND_ONLY = "Unset it: ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly')"
_INT64 = re.compile(r"\d{1,18}", re.ASCII)

# The smallest and the largest value of a column in a file; None where it has no statistics.
Bounds = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live data file.

    Attributes:
        path: relative to the table.
        partition: the partition values by column.
        modified_ms: the writer's clock; of a compacted file the time of the newest file in it.
        log_path: the path as the log spells it; empty for a file that no commit names yet.
    """

    path: str
    num_records: int
    size_bytes: int
    partition: Mapping[str, Any]
    modified_ms: int = 0
    log_path: str = ""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A live file and its range of a column; None where it has no statistics."""

    file: DataFile
    low: Any
    high: Any


@dataclass(frozen=True, slots=True, eq=False)
class FilePart:
    """A data file or one of its row groups, with the known ranges of some columns.

    Attributes:
        rows: the numbers that the rows of a row group have in the file.
        without_nulls: columns that are known to hold no null, of which ranges say nothing.
    """

    file: DataFile
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    row_group: int | None = None
    rows: range = range(0)
    without_nulls: frozenset[str] = frozenset()


def partition_columns(
    rows: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield each partition's values as Delta writes them, and its rows without their columns."""
    if not columns or not rows.num_rows:
        yield from [({}, rows)] if rows.num_rows else []
        return
    # Most appends are of one partition, and grouping costs as much as the rest of a small one.
    values = {name: rows[name][0].as_py() for name in columns}
    if all(_are_all(rows[name], value) for name, value in values.items()):
        yield partition_texts(values), rows.drop_columns(list(columns))
        return
    for key in rows.group_by(list(columns), use_threads=False).aggregate([]).to_pylist():
        part = rows
        for name, value in key.items():
            same = pc.is_null(part[name]) if value is None else pc.equal(part[name], value)
            part = part.filter(same)
        yield partition_texts(key), part.drop_columns(list(columns))


def _are_all(column: pa.ChunkedArray, value: Any) -> bool:
    if len(column) <= FEW_ROWS:
        return bool(column.to_pylist() == [value] * len(column))
    if column.num_chunks == 1 and not column.null_count and _is_fixed(column.type):
        return _repeats(column.chunk(0))
    return bool(pc.all(pc.equal(column, value), skip_nulls=False).as_py())


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind))


def _repeats(values: pa.Array) -> bool:
    """Tell whether all values are the first one, by their bytes.

    Arrow would release the interpreter's lock, for which a commit beside busy threads waits.
    """
    width = values.type.bit_width // 8
    first, last = values.offset * width, (values.offset + len(values)) * width
    content = values.buffers()[1].slice(first, last - first).to_pybytes()
    return bool(content[width:] == content[:-width])


def partition_texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    """Return partition values as Delta writes them."""
    return {name: None if value is None else str(value) for name, value in partition.items()}


def covering(bounds: Sequence[Bounds], values: pa.Array) -> list[bool]:
    """Tell of each file whether it may hold one of `values`, by its bounds."""
    if len(values) > COARSE_FROM and pa.types.is_string(values.type):
        # Ids of one millisecond start alike, and sorting the few starts is much cheaper.
        values = pc.utf8_slice_codeunits(values, 0, COARSE_LENGTH)
        bounds = [(_start(low), _start(high)) for low, high in bounds]
    ordered = sorted(values.unique().drop_null().to_pylist())
    if len(ordered) == 1:
        # A round with one message asks this of all files; a call for each would be most of it.
        (value,) = ordered
        return [low is None or high is None or low <= value <= high for low, high in bounds]
    return [may_hold(low, high, ordered) for low, high in bounds]


def _start(bound: Any) -> Any:
    return None if bound is None else bound[:COARSE_LENGTH]


def may_hold(smallest: Any, largest: Any, ordered: list[Any]) -> bool:
    """Tell whether a file with these bounds may hold one of the sorted values.

    Without bounds it may.
    """
    if smallest is None or largest is None:
        return True
    place = bisect.bisect_left(ordered, smallest)
    return place < len(ordered) and bool(ordered[place] <= largest)


def with_partition(part: pa.Table, file: DataFile, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema`: from the file, else from its partition, else null."""
    stored = set(part.column_names)
    columns = [
        as_type(part[field.name], field.type)
        if field.name in stored
        else pa.repeat(pa.scalar(file.partition.get(field.name), field.type), part.num_rows)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column, unless it has the type: that would cost as much as a real cast."""
    return column if column.type == kind else column.cast(kind)


@dataclass(frozen=True, slots=True, eq=False)
class UnreadableFile:
    """A live file that cannot be read, and the range of a column in it; None where unknown."""

    file: DataFile
    low: Any
    high: Any
    problem: str

    def covers(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Tell of each value whether it may be in the file."""
        if self.low is None or self.high is None:
            return np.ones(len(values), dtype=bool)
        inside = pc.and_(pc.greater_equal(values, self.low), pc.less_equal(values, self.high))
        covered: np.ndarray[Any, Any] = inside.to_numpy(zero_copy_only=False)
        return covered


# --- files in commits ---------------------------------------------------------------------------


class CommitLimits(NamedTuple):
    """What the properties of a table ask of commits.

    Attributes:
        fenced_ms: files that were written up to this time may be gone; -1 for none.
        checkpoint_interval: commits between two checkpoints; 0 for no checkpoints.
        is_append_only: whether no row may be changed or removed.
        row_rules: what each new row must obey and txmq does not compute, by Delta's names.
    """

    fenced_ms: int = -1
    checkpoint_interval: int = 0
    is_append_only: bool = False
    row_rules: tuple[str, ...] = ()

    @classmethod
    def of(cls, properties: Mapping[str, str], row_rules: Iterable[str] = ()) -> Self:
        """Read them from the properties of a table; what another program spoiled is not set."""
        return cls(
            _number(properties.get(SWEPT_PROPERTY), -1),
            _number(properties.get(CHECKPOINT_INTERVAL), 0),
            properties.get(APPEND_ONLY, "").lower() == "true",
            tuple(row_rules),
        )

    def check(self, table: str, added: Iterable[AddedFile], removed: Iterable[RemovedFile]) -> None:
        """Raise UnsupportedTableError for a commit that the table does not allow.

        Rows that were in the table before obey its rules, and may lie in other files.
        """
        if self.row_rules and any(file.is_news for file in added):
            raise UnsupportedTableError(table, self.row_rules, _WITHOUT_RULES)
        if self.is_append_only and any(file.is_news for file in removed):
            raise UnsupportedTableError(table, [APPEND_ONLY], _WITHOUT_APPEND_ONLY)

    def at(self, store_ms: int | None) -> Self:
        """Return them without a fence that lies behind the store's time: maintenance sets none."""
        is_later = store_ms is not None and self.fenced_ms > store_ms
        return self._replace(fenced_ms=-1) if is_later else self

    def is_checkpoint_due(self, before: int, after: int) -> bool:
        """Tell whether these commits passed a multiple of the interval."""
        interval = self.checkpoint_interval
        return bool(interval) and before // interval != after // interval

    def swept(self, written_ms: Mapping[str, int], paths: Iterable[str]) -> list[str]:
        """Return the files that may be gone: they are, or are as old as those that were removed."""
        return [p for p in paths if written_ms.get(p, self.fenced_ms) <= self.fenced_ms]


def _number(text: str | None, unset: int) -> int:
    return int(text) if text is not None and _INT64.fullmatch(text) else unset


def added_file(file: NewFile, compacted_of_ms: int | None = None) -> AddedFile:
    """Describe a new file for a commit.

    With `compacted_of_ms` its rows were in the table before, the newest of them since that time.
    """
    is_news = compacted_of_ms is None
    modified_ms = time.time_ns() // 1_000_000 if compacted_of_ms is None else compacted_of_ms
    partition = dict(file.partition)
    return AddedFile(file.path, file.size_bytes, partition, modified_ms, is_news, file.stats_json)


def removed_file(file: DataFile, *, is_news: bool) -> RemovedFile:
    """Describe a live file that goes for a commit; `is_news` if its rows go with it."""
    removed_ms, partition = time.time_ns() // 1_000_000, partition_texts(file.partition)
    return RemovedFile(file.path, file.size_bytes, partition, removed_ms, is_news, file.log_path)
