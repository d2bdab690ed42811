"""One version of a table of txmq, carried forward commit by commit.

delta-rs takes 3 to 4 ms to find what a commit added, and more with a longer log. A follower reads
the commit file itself: it names the new files with their statistics and the new marks.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from txmq.delta.actions import EMPTY_COMMIT, CommitActions, Seen
from txmq.delta.files import Bounds, DataFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

# --- features that a table demands ----------------------------------------------------------------

# As Delta's protocol names them; a test asks delta-rs for each.
WRITABLE_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)

# They ask something of files, of rows, of checkpoints or of clean-up. A commit with marks alone has
# none of these; a time in each commit (`inCommitTimestamp`) is written (decision 0057).
MARKABLE_FEATURES = WRITABLE_FEATURES | {
    "allowColumnDefaults",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
TIMES_IN_COMMITS = "delta.enableInCommitTimestamps"
# Row tracking asks for it in a commit that changes no row.
ROWS_STAY = {"delta.rowTracking.preserved": "true"}
# Before features had names, this version of writers stood for columns that count by themselves.
_WRITER_OF_IDENTITY_COLUMNS = 6

# Data files alone do not say which rows and columns such a table has, or its checkpoints are of
# another kind.
MORE_THAN_FILES = frozenset({"columnMapping", "deletionVectors", "v2Checkpoint"})


def unwritable_features(handle: DeltaTable) -> list[str]:
    """List the features that the table demands and that delta-rs cannot write, sorted."""
    return sorted(_demanded(handle) - WRITABLE_FEATURES)


def unmarkable_features(handle: DeltaTable) -> list[str]:
    """List the features that the table demands and that keep txmq from setting marks, sorted."""
    return sorted(_demanded(handle) - MARKABLE_FEATURES)


def _demanded(handle: DeltaTable) -> set[str]:
    protocol = handle.protocol()
    if protocol.min_writer_version == _WRITER_OF_IDENTITY_COLUMNS:
        return {"identityColumns"}
    return {*(protocol.writer_features or ()), *(protocol.reader_features or ())}


def features_beside_files(demanded: Iterable[str]) -> list[str]:
    """List the features that keep txmq from reading and writing a table file by file, sorted."""
    return sorted(set(demanded) - (WRITABLE_FEATURES - MORE_THAN_FILES))


# --- a version ------------------------------------------------------------------------------------

_MAPPING_MODE = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
# Keys in the metadata of a column, which may be one inside a struct.
_RULES_OF_COLUMNS = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
}
# The newest versions of Delta's protocol; what a table needs beyond them has a name.
READER_VERSION, WRITER_VERSION = 3, 7


@dataclass(frozen=True)
class Definition:
    """What a table's log says of all of its files: two actions, as Delta spells them."""

    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]

    def after(self, actions: CommitActions) -> Definition:
        """Return the definition after a commit; the same object if the commit changes nothing."""
        if not (actions.changes_metadata or self._is_renamed_by(actions) or actions.protocol):
            return self
        return Definition(actions.metadata or self.metadata, actions.protocol or self.protocol)

    def _is_renamed_by(self, actions: CommitActions) -> bool:
        """Tell whether a commit of txmq, which says all else again, gives the table another id."""
        return actions.metadata is not None and actions.metadata.get("id") != self.table_id

    @property
    def table_id(self) -> str:
        """The id of the table; a table that is made again has another."""
        return str(self.metadata["id"])

    @cached_property
    def metadata_action(self) -> dict[str, Any]:
        """The metadata as a commit spells them; a checkpoint keeps maps as pairs, and nulls."""
        kind = self.metadata.get("format") or {"provider": "parquet"}
        spelled = {
            **self.metadata,
            "format": {**kind, "options": dict(kind.get("options") or ())},
            "configuration": dict(self.metadata["configuration"] or ()),
        }
        return {name: value for name, value in spelled.items() if value is not None}

    @cached_property
    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return {key: str(value) for key, value in (self.metadata["configuration"] or {}).items()}

    @cached_property
    def schema(self) -> Schema:
        """The columns of the stored table."""
        return Schema.from_json(self.metadata["schemaString"])

    @cached_property
    def columns(self) -> pa.Schema:
        """As `schema`, for Arrow."""
        return pa.schema(self.schema.to_arrow())

    @cached_property
    def unsupported(self) -> list[str]:
        """The features that keep txmq from using the table, sorted."""
        features = {name for side in ("reader", "writer") for name in self._features(side)}
        # Tables of older protocols map their columns without a feature.
        if self.properties.get(_MAPPING_MODE, "none") != "none":
            features.add("columnMapping")
        return features_beside_files(features) + self._newer_versions()

    @cached_property
    def row_rules(self) -> list[str]:
        """What each new row must obey, by the names of the features and of their subjects."""
        checks = [
            f"checkConstraints ({name.removeprefix(_CONSTRAINT)})"
            for name in sorted(self.properties)
            if name.startswith(_CONSTRAINT)
        ]
        text = str(self.metadata["schemaString"])
        rules = [name for key, name in _RULES_OF_COLUMNS.items() if f'"{key}"' in text]
        return checks + rules

    def _features(self, side: str) -> Sequence[str]:
        return self.protocol.get(f"{side}Features") or ()

    def _newer_versions(self) -> list[str]:
        versions = {"Reader": READER_VERSION, "Writer": WRITER_VERSION}
        demanded = {name: int(self.protocol.get(f"min{name}Version") or 1) for name in versions}
        return [
            f"{name.lower()} version {version}"
            for name, version in demanded.items()
            if version > versions[name]
        ]


class LiveFile:
    """A live data file as the log names it; its statistics are parsed when they are asked for."""

    __slots__ = (
        "_file", "_stats", "log_path", "modified_ms", "partition", "path", "size_bytes",
        "stats_json",
    )  # fmt: skip

    def __init__(
        self,
        log_path: str,
        size_bytes: int,
        modified_ms: int,
        partition: Mapping[str, str | None],
        stats_json: str | None,
    ) -> None:
        """Path and partition values are as Delta writes them."""
        self.log_path, self.path = log_path, unquote(log_path)
        self.size_bytes, self.modified_ms = size_bytes, modified_ms
        self.partition, self.stats_json = partition, stats_json
        self._stats: Mapping[str, Any] | None = None
        self._file: DataFile | None = None

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> LiveFile:
        """Make it of the action that added it."""
        return cls(
            action["path"],
            action["size"],
            action.get("modificationTime") or 0,
            action.get("partitionValues") or {},
            action.get("stats"),
        )

    @property
    def stats(self) -> Mapping[str, Any]:
        """The statistics; empty where there are none that can be read."""
        if self._stats is None:
            self._stats = _stats_of(self.stats_json)
        return self._stats

    @property
    def low(self) -> Mapping[str, Any]:
        """The smallest values, as Delta spells them; without those that are not known."""
        return self._values("minValues")

    @property
    def high(self) -> Mapping[str, Any]:
        """The largest values; as `low`."""
        return self._values("maxValues")

    def _values(self, side: str) -> Mapping[str, Any]:
        values = self.stats.get(side)
        return values if isinstance(values, dict) else {}

    def bounds(self, column: str, as_kind: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the smallest and largest value of a column; None where they are not known."""
        return as_kind(self.low.get(column)), as_kind(self.high.get(column))

    def has_no_null(self, column: str) -> bool:
        """Tell whether a column is known to hold no null."""
        nulls = self.stats.get("nullCount")
        return isinstance(nulls, dict) and _integer(nulls.get(column)) == 0

    def data_file(self, kinds: Mapping[str, pa.DataType]) -> DataFile:
        """Return it as a data file, with values of these types for the partition columns."""
        if self._file is None:
            values = {name: typed(self.partition.get(name), kind) for name, kind in kinds.items()}
            records = _integer(self.stats.get("numRecords")) or 0
            self._file = DataFile(
                self.path, records, self.size_bytes, values, self.modified_ms, self.log_path
            )
        return self._file


def _stats_of(text: str | None) -> Mapping[str, Any]:
    try:
        stats = json.loads(text or "{}")
    except ValueError:
        return {}
    return stats if isinstance(stats, dict) else {}


@lru_cache(4096)
def typed(value: str | None, kind: pa.DataType) -> Any:
    """Turn a partition value as Delta writes it into a value of its column.

    Delta writes null and the empty string alike. A text of other programs that is no such value
    counts as null too: one file must not hide all others.
    """
    return _of_other_kind(value or None, kind)


def as_kind(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what turns a statistic into a value of the column, or None if it is none."""
    if pa.types.is_integer(kind):
        return _integer
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    return lambda value: _of_other_kind(value, kind)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _of_other_kind(value: Any, kind: pa.DataType) -> Any:
    try:
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            time = dt.datetime.fromisoformat(value)
            return time if kind.tz is None or time.tzinfo else time.replace(tzinfo=dt.UTC)
        return pa.scalar(value).cast(kind).as_py()
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


class Marks:
    """The marks of a version: those of a checkpoint, and those of later commits."""

    def __init__(self, names: pa.Array | None = None, numbers: pa.Array | None = None) -> None:
        """Start from a checkpoint's marks; dead producers may have left millions."""
        self._names = pa.array([], pa.string()) if names is None else names
        self._numbers = pa.array([], pa.int64()) if numbers is None else numbers
        # Those of later commits, and those that were looked up.
        self._by_name: dict[str, int | None] = {}

    def take(self, marks: Mapping[str, int]) -> None:
        """Take over the marks of a commit."""
        self._by_name.update(marks)

    def number(self, name: str) -> int | None:
        """Return the newest number of a mark, or None."""
        if name not in self._by_name:
            place = self._names.index(pa.scalar(name, self._names.type)).as_py()
            self._by_name[name] = None if place < 0 else int(self._numbers[place].as_py())
        return self._by_name[name]

    def with_prefix(self, prefix: str) -> dict[str, int]:
        """Return all marks whose names begin so."""
        is_meant = pc.starts_with(self._names, pattern=prefix)
        names, numbers = self._names.filter(is_meant), self._numbers.filter(is_meant)
        later = {
            name: number
            for name, number in self._by_name.items()
            if number is not None and name.startswith(prefix)
        }
        return {**dict(zip(names.to_pylist(), numbers.to_pylist(), strict=True)), **later}


class Snapshot:
    """A version of a table. Not safe for several threads.

    Attributes:
        begin: the version that it was made as; later commits were followed.
        removals: those of them by which another program removed rows.
    """

    def __init__(
        self, seen: Seen, definition: Definition, files: Iterable[LiveFile], marks: Marks
    ) -> None:
        """Hold the version that `seen` names."""
        self.seen, self.definition, self.marks = seen, definition, marks
        self._files = {file.path: file for file in files}
        self._listed: list[LiveFile] | None = None
        # Commits whose files had lost their content.
        self.empty: list[int] = []
        self.begin, self.removals = seen.version, list[int]()
        # For each column that was asked for, the bounds of the files in their order.
        self._bounds: dict[str, list[Bounds]] = {}

    @property
    def version(self) -> int:
        """The version."""
        return self.seen.version

    @property
    def files(self) -> Sequence[LiveFile]:
        """The live files; those of the newest commits come last."""
        if self._listed is None:
            self._listed = list(self._files.values())
            self._bounds.clear()
        return self._listed

    def holds(self, path: str) -> bool:
        """Tell whether a file is live."""
        return path in self._files

    def follow(self, seen: Seen, actions: CommitActions) -> None:
        """Become the version after a commit."""
        # First what may fail: a version is followed as a whole, or not at all.
        removed, added = actions.removed_paths, [LiveFile.of(action) for action in actions.added]
        self.definition = self.definition.after(actions)
        for path in removed:
            if self._files.pop(path, None) is not None:
                self._listed = None
        for file in added:
            self._add(file)
        self.marks.take(actions.marks)
        if actions is EMPTY_COMMIT:
            self.empty.append(seen.version)
        if actions.takes_rows:
            self.removals.append(seen.version)
        self.seen = seen

    def _add(self, file: LiveFile) -> None:
        if file.path in self._files:
            self._listed = None
        elif self._listed is not None:
            self._listed.append(file)
        self._files[file.path] = file

    def bounds(self, column: str) -> Sequence[Bounds]:
        """Return the smallest and the largest value of a column in each of `files`."""
        files = self.files
        bounds = self._bounds.setdefault(column, [])
        if len(bounds) < len(files):
            columns = self.definition.columns
            kind = columns.field(column).type if column in columns.names else pa.null()
            convert = as_kind(kind)
            bounds += [file.bounds(column, convert) for file in files[len(bounds) :]]
        return bounds
