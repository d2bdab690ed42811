"""Finds the messages of one key in every file that may hold them: live ones, and old ones.

Only keys are read, a few at a time. Old files are those that readers may still need, and leftovers
of killed processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from txmq.admin.key_search import has_key
from txmq.columns import Flags, flags
from txmq.delta.actions import LOG_FOLDER
from txmq.delta.batches import BATCH_BYTES
from txmq.delta.failures import read_errors
from txmq.delta.files import DataFile, FilePart
from txmq.delta.log import log_files, named_by
from txmq.delta.objects import UNFINISHED
from txmq.delta.storage import Table
from txmq.errors import InvalidBodyError
from txmq.message.message import KEY_SEPARATOR
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_TOPIC,
    ORIGIN_TOPIC,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
)
from txmq.producer.trace_records import decoded
from txmq.store.store import Store

HALF, TOPICS = "half", "topics/"
TRACES = TOPICS + TRACE_TOPIC
_BATCH_ROWS = 65_536
_ID_CHARACTERS = 36
# Also those that a killed process had not finished: of object_store, and of a restore.
_DATA_NAME = re.compile(rf"\.parquet(#\d+|\.[^/]*{re.escape(UNFINISHED)})?$", re.ASCII)
_ORIGINS = (ORIGIN_TOPIC, DEAD_LETTER_ORIGIN_TOPIC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are looked for.

    Attributes:
        key: one of their keys.
        topic: the stored name of the topic to which they, or what they are a retry of, were sent;
            None for all topics.
        transactions: those of rows that may be chosen; None for all.
        traced: traces of these transactions are looked for too.
    """

    key: str
    topic: str | None = None
    transactions: frozenset[str] | None = None
    traced: frozenset[str] = frozenset()

    def columns(self, table: Table, file: DataFile) -> list[str]:
        """What `chosen` needs of a file: bodies where it holds traces that have the key.

        Raises: FileNotFoundError, OSError, pyarrow's errors.
        """
        origin = [] if self.topic is None else ["properties"]
        names = ["transaction_id", "keys", _topic_column(table), *origin]
        if not self._reads_traces(table):
            return names
        keys = _batches(table, file, ["keys", _topic_column(table)])
        return [*names, "body"] if any(self._keyed_traces(k, table).any() for k in keys) else names

    def _reads_traces(self, table: Table) -> bool:
        """Whether bodies of traces say of which topic they are."""
        return self.topic is not None and table.name in {HALF, TRACES}

    def _keyed_traces(self, rows: pa.Table, table: Table) -> Flags:
        """Which rows are traces that have the key."""
        is_trace = _are(rows[_topic_column(table)], TRACE_TOPIC)
        return flags(has_key(rows["keys"], self.key)) & is_trace

    def chosen(self, rows: pa.Table, table: Table) -> Flags:
        """Which of the rows are wanted."""
        topics = rows[_topic_column(table)]
        is_chosen = flags(has_key(rows["keys"], self.key)) & self._is_of_topic(rows, topics)
        if self.traced:
            is_chosen |= self._is_trace(rows["keys"], topics)
        if self._reads_traces(table):
            is_chosen |= self._are_traces_of_topic(rows, table)
        if self.transactions is not None:
            known = pa.array(list(self.transactions), pa.string())
            is_chosen &= flags(pc.is_in(rows["transaction_id"], value_set=known))
        return is_chosen

    def _is_of_topic(self, rows: pa.Table, topics: pa.ChunkedArray) -> Flags:
        if self.topic is None:
            return np.ones(rows.num_rows, dtype=bool)
        properties = rows["properties"].combine_chunks()
        origins = [pc.map_lookup(properties, pa.scalar(name), "first") for name in _ORIGINS]
        return reduce(or_, (_are(texts, self.topic) for texts in (topics, *origins)))

    def _is_trace(self, keys: pa.ChunkedArray, topics: pa.ChunkedArray) -> Flags:
        """A trace names its transaction first."""
        about = pc.utf8_slice_codeunits(keys, 0, _ID_CHARACTERS)
        traced = pa.array(list(self.traced), pa.string())
        is_about = flags(pc.is_in(about, value_set=traced))
        return is_about & _are(topics, TRACE_TOPIC)

    def _are_traces_of_topic(self, rows: pa.Table, table: Table) -> Flags:
        """Traces of messages that are erased already, or that were written after it."""
        found = self._keyed_traces(rows, table)
        for place in np.flatnonzero(found):
            found[place] = self._is_of(rows["body"][int(place)].as_py())
        return found

    def _is_of(self, trace: bytes) -> bool:
        """Whether a trace is of a message to the topic; one that does not tell is."""
        try:
            messages = decoded(trace).messages
        except InvalidBodyError:
            return True
        topics = {
            one.topic for one in messages if self.key in (one.keys or "").split(KEY_SEPARATOR)
        }
        return not topics or self.topic in topics


@dataclass(slots=True)
class Found:
    """What was found in one table.

    Attributes:
        files: the live files with wanted rows, and how many each has.
        transactions: of these rows.
        topics: the topics to which these rows were sent, by their stored names.
    """

    path: str
    table: Table
    files: list[tuple[DataFile, int]] = field(default_factory=list)
    transactions: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    @property
    def messages(self) -> int:
        """How many rows were found."""
        return sum(count for _, count in self.files)


@dataclass(frozen=True, slots=True)
class OldFiles:
    """Files with wanted rows that the newest version of a table does not name.

    Attributes:
        named: those that kept commits name.
        leftovers: those that no commit names.
        unreadable: files that no commit names and that cannot be read.
        last_commit: the newest commit that names one of them; None where none does.
    """

    named: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    unreadable: int = 0
    last_commit: int | None = None

    @property
    def count(self) -> int:
        """How many are known to hold wanted rows."""
        return len(self.named) + len(self.leftovers)


def message_tables(store: Store) -> dict[str, Table]:
    """All tables that hold messages, in the order in which they are to be erased.

    What is copied comes before its copy: half, the schedule, the topics.
    """
    paths = [path for path in store.tables.table_paths() if path.startswith(TOPICS)]
    paths.sort(key=lambda path: path != TOPICS + SCHEDULE_TOPIC)
    return {path: store.tables.table_at(path) for path in (HALF, *paths)}


def found_in(path: str, table: Table, wanted: Wanted) -> Found:
    """The wanted rows of the newest version of a table; 0 commits. Raises: StorageError."""
    found = Found(path, table)
    for file in table.refresh().files():
        count = 0
        with read_errors(table.name):
            names = wanted.columns(table, file)
        for rows in _rows(table, file, names):
            chosen = rows.filter(pa.array(wanted.chosen(rows, table)))
            count += chosen.num_rows
            found.transactions.update(chosen["transaction_id"].to_pylist())
            found.topics.update(chosen[_topic_column(table)].to_pylist())
        if count:
            found.files.append((file, count))
    return found


def old_files(table: Table, wanted: Wanted) -> OldFiles:
    """The old files of a table with wanted rows, on disk now; 0 commits. Raises: StorageError."""
    with read_errors(table.name):
        listed = table.filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    live = {file.path for file in table.refresh().files()}
    paths = [info.path for info in listed if _is_data(info) and info.path not in live]
    holding, unreadable = _holding(table, paths, wanted)
    by_commit = {at: named_by(table, [at]) for at in log_files(table).commits_ms}
    all_named: set[str] = set().union(*by_commit.values())
    last = [at for at, names in by_commit.items() if not names.isdisjoint(holding)]
    return OldFiles(
        tuple(path for path in holding if path in all_named),
        tuple(path for path in holding if path not in all_named),
        unreadable,
        max(last, default=None),
    )


def _holding(table: Table, paths: Sequence[str], wanted: Wanted) -> tuple[list[str], int]:
    """Which of these files hold wanted rows, and how many cannot be read."""
    holding, unreadable = [], 0
    for path in paths:
        try:
            if _has_any(table, DataFile(path, 0, 0, {}), wanted):
                holding.append(path)
        except FileNotFoundError:
            # Maintenance was faster.
            continue
        except (OSError, pa.ArrowException, KeyError):
            unreadable += 1
    return holding, unreadable


def _has_any(table: Table, file: DataFile, wanted: Wanted) -> bool:
    names = wanted.columns(table, file)
    return any(wanted.chosen(rows, table).any() for rows in _batches(table, file, names))


def _batches(table: Table, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    for one in table.batches(file, columns, _BATCH_ROWS):
        yield pa.Table.from_batches([one])


def _rows(table: Table, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    with read_errors(table.name):
        for rows, _ in table.windows(FilePart(file, {}, {}), columns, BATCH_BYTES):
            yield rows


def _is_data(info: pa_fs.FileInfo) -> bool:
    is_file = info.type is pa_fs.FileType.File and _DATA_NAME.search(info.path) is not None
    return bool(is_file) and not info.path.startswith(f"{LOG_FOLDER}/")


def _are(texts: pa.ChunkedArray | pa.Array, text: str) -> Flags:
    return flags(pc.fill_null(pc.equal(texts, text), False))  # noqa: FBT003


def _topic_column(table: Table) -> str:
    return "real_topic" if table.schema.name == HALF else "topic"
