"""Erases the messages of one key, for good, and proves it (decision 0060).

A row keeps its place and its ids; tags, keys, body, properties and sharding key go, in every table
that has them. Readers of older versions need the old files for a while; log clean-up removes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from txmq.delta.actions import LOG_FOLDER
from txmq.delta.failures import read_errors
from txmq.delta.file_rows import BATCH_BYTES
from txmq.delta.files import DataFile, FilePart
from txmq.delta.folder import UNFINISHED
from txmq.delta.log_files import log_files, named_by
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.errors import (
    BackupError,
    CommitConflictError,
    CommitRefusedError,
    ErasureRefusedError,
    InvalidBodyError,
    InvalidMessageError,
    StorageError,
)
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.ground.columns import Flags, flags
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.results import plain
from txmq.maintenance.compaction import ROW_GROUP_BYTES, replace_files, stored_columns, written_anew
from txmq.maintenance.retention import published_up_to
from txmq.message.codec import CONTENT, erased
from txmq.message.lifecycle import FINAL_STATES
from txmq.message.message import KEY_SEPARATOR
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_TOPIC,
    ORIGIN_TOPIC,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    stored_topic,
)
from txmq.message.reasons import signed_reason
from txmq.ops.admin.messages import has_key, is_one_key
from txmq.ops.backup.place import STORE_FOLDER, Place, is_of_backup
from txmq.producer.trace import decoded
from txmq.store.known import MaintenanceValue
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store, check_store

logger = logging.getLogger(__name__)
_FINAL = pa.array([state.value for state in FINAL_STATES])
_SHOWN = 5
HALF, TOPICS = "half", "topics/"
TRACES = TOPICS + TRACE_TOPIC
_BATCH_ROWS = 65_536
_ID_CHARACTERS = 36
# Also those that a killed process had not finished: of object_store, and of a restore.
_DATA_NAME = re.compile(rf"\.parquet(#\d+|\.[^/]*{re.escape(UNFINISHED)})?$", re.ASCII)
_ORIGINS = (ORIGIN_TOPIC, DEAD_LETTER_ORIGIN_TOPIC)
AUDIT = "erasures"
AUDIT_ENTRIES = 100
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """What one table holds of the key.

    Attributes:
        messages: rows in its newest version; after an erasure those that were erased.
        version: the commit that erased them; None where there was none.
        old_files: files on disk that only older versions name, or none, and that hold the key.
        unreadable: files of no commit that cannot be read, so that nobody knows what they hold.
        gone_after: maintenance removes the old files in its first round after this time; None
            where there are none, or where `--apply` must first close their log.
    """

    table: str
    messages: int = 0
    version: int | None = None
    old_files: int = 0
    unreadable: int = 0
    gone_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What an erasure found, or did.

    Attributes:
        tables: each table that holds the key or held it, half first.
        on_their_way: transactions whose messages a publisher was just writing; run it again.
    """

    tables: tuple[ErasedTable, ...]
    is_written: bool
    reason: str | None = None
    on_their_way: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Rows in all tables: to erase, or erased."""
        return sum(table.messages for table in self.tables)

    @property
    def old_files(self) -> int:
        """Old files that still hold the key."""
        return sum(table.old_files for table in self.tables)

    @property
    def is_gone(self) -> bool:
        """Whether no file of the store's tables holds the key; a look alone can say so."""
        unreadable = sum(table.unreadable for table in self.tables)
        return not (self.is_written or self.messages or self.old_files or unreadable)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = {"messages": self.messages, "old_files": self.old_files, "is_gone": self.is_gone}
        return {**plain(self), **counts}


class Erasure:
    """Erases the messages that have a key, such as the id of a customer.

    Not safe for several threads.

    Args:
        store: the store to erase in.
        key: one of the keys of the messages, without a space.
        topic: only messages to this topic, and their retries and dead letters.
        clock: the clock of the audit.

    Raises: InvalidMessageError, InvalidNameError.

    Example:
        >>> Erasure(store, "customer-7").look().is_gone
        True
    """

    def __init__(
        self, store: Store, key: str, *, topic: str | None = None, clock: Clock | None = None
    ) -> None:
        """Check the arguments; read nothing; 0 commits."""
        check_store(store)
        if not is_one_key(key):
            raise InvalidMessageError("keys", "must be one key, without a space")
        self._store, self._clock = store, clock or SystemClock()
        self._wanted = Wanted(key, None if topic is None else stored_topic(topic))

    def look(self) -> ErasureReport:
        """Search each file of half, schedule and topics for the key: live ones and old ones.

        This is the proof after an erasure: it says 0 messages at once, and 0 old files once log
        clean-up has passed. Reads: the keys in all of these files. Commits: 0.

        Raises: StorageError where a live file cannot be read.
        """
        tables = message_tables(self._store)
        wanted, matches = self._search(tables)
        counts = [ErasedTable(path, matches[path].messages) for path in tables]
        rows = [self._with_old_files(row, tables, wanted) for row in counts]
        return ErasureReport(_worth_showing(rows), is_written=False)

    def apply(self, *, reason: str) -> ErasureReport:
        """Erase them; a call that was killed is finished by the next one.

        Messages that are sent after the call began are left: call it again. A consumer that has a
        message in hand may still send it back, which is such a message.

        Reads: the keys of all messages, settled, op, state/publisher. Writes: half, the schedule,
        topics, state/maintenance (an audit, without the key). Commits: for each table one that
        rewrites files, or none of them, and at most one that closes its log; one for the audit.

        Args:
            reason: one line, which is kept with the name of the OS user.

        Raises:
            BackupError: the store is the copy in a backup; nothing was erased.
            ErasureRefusedError: transactions with such messages are open or not published yet;
                nothing was erased.
            InvalidReasonError: a wrong reason.
            CommitConflictError: other writers won every try; call it again.
            StorageError: a table cannot be read or written.
        """
        signed = signed_reason(reason)
        refuse_backup(self._store)
        tables = message_tables(self._store)
        wanted, matches = self._search(tables)
        ids = frozenset().union(*(of_table.transactions for of_table in matches.values()))
        refuse_open(self._store, matches[HALF].transactions)
        if ids:
            self._note(signed, matches)
        chosen = replace(wanted, transactions=ids)
        rows = [self._erase(HALF, tables[HALF], chosen, matches[HALF].messages)]
        # Tables that are made from now on are filled from an emptied half.
        tables = message_tables(self._store)
        rows += self._erase_copies(tables, chosen, matches)
        # What is published by now is found below; what is claimed later may come after that look.
        published = published_up_to(self._store)
        rows += self._erase_again(tables, chosen)
        waiting = on_their_way(self._store, ids, published)
        self._close(tables, wanted)
        rows = [self._with_old_files(row, tables, wanted) for row in rows]
        logger.info("%d messages were erased", sum(row.messages for row in rows))
        return ErasureReport(
            _worth_showing(rows), is_written=True, reason=signed, on_their_way=waiting
        )

    def audit(self) -> tuple[Mapping[str, Any], ...]:
        """Read the last hundred erasures, oldest first: `at`, `reason`, rows by table."""
        register = self._store.tables.register("maintenance", MaintenanceValue)
        return tuple(register.read().value.get(AUDIT, ()))

    # --- finding ------------------------------------------------------------------------------

    def _search(self, tables: Mapping[str, Table]) -> tuple[Wanted, dict[str, Matches]]:
        """Find what is wanted, and then the traces of it; return both with their tables."""
        matches = {path: matches_in(path, table, self._wanted) for path, table in tables.items()}
        ids = frozenset().union(*(of_table.transactions for of_table in matches.values()))
        if TRACES not in tables or not ids:
            return self._wanted, matches
        wanted = replace(self._wanted, traced=ids)
        with_traces = {path: matches_in(path, tables[path], wanted) for path in (HALF, TRACES)}
        return wanted, {**matches, **with_traces}

    def _with_old_files(
        self, row: ErasedTable, tables: Mapping[str, Table], wanted: Wanted
    ) -> ErasedTable:
        table = tables[row.table]
        old = old_files(table, wanted)
        gone_after = self._gone_after(row.table, table, old)
        return replace(row, old_files=old.count, unreadable=old.unreadable, gone_after=gone_after)

    # --- erasing ------------------------------------------------------------------------------

    def _erase(self, path: str, table: Table, chosen: Wanted, messages: int) -> ErasedTable:
        """Erase the chosen rows of a table: one commit, or none if there are no such rows."""
        if not messages:
            return ErasedTable(path)
        for _ in range(self._store.config.commit_attempts):
            matches = matches_in(path, table, chosen)
            if not matches.files:
                # Another erasure was faster.
                return ErasedTable(path)
            try:
                version = _rewrite(table, [file for file, _ in matches.files], chosen)
            except (CommitRefusedError, FileNotFoundError):
                # Compaction or retention replaced some of the files.
                continue
            return ErasedTable(path, matches.messages, version)
        raise CommitConflictError(path, "other writers won every try; run the erasure again")

    def _erase_copies(
        self, tables: Mapping[str, Table], chosen: Wanted, matches: Mapping[str, Matches]
    ) -> list[ErasedTable]:
        """Erase the chosen rows of all topics; refuse rebuilds that copied them from half before.

        What such a rebuild has committed by then is found again; later it is refused. A topic
        without such rows may be rebuilt too, by what half held before a call that was killed.
        """
        rows: list[ErasedTable] = []
        # Traces soon: those without the key are found by live messages that they are about.
        for path in sorted(tables, key=lambda path: path != TRACES):
            if path == HALF:
                continue
            count = matches[path].messages if path in matches else 0
            rows.append(self._erase(path, tables[path], chosen, count))
            if not count:
                self._rewrite_nothing(tables[path])
        return rows

    def _rewrite_nothing(self, table: Table) -> None:
        attempts = self._store.config.commit_attempts
        until_committed(table, lambda: table.writer.remove(()), attempts)

    def _erase_again(self, tables: Mapping[str, Table], chosen: Wanted) -> list[ErasedTable]:
        """Erase the rows that a publisher copied before their source was erased."""
        matches = {path: matches_in(path, table, chosen) for path, table in tables.items()}
        return [
            self._erase(path, tables[path], chosen, of_table.messages)
            for path, of_table in matches.items()
            if of_table.messages
        ]

    # --- old files ----------------------------------------------------------------------------

    def _close(self, tables: Mapping[str, Table], wanted: Wanted) -> None:
        """Let log clean-up take the old files."""
        for table in tables.values():
            last = old_files(table, wanted).last_commit
            if last is not None:
                self._close_log(table, last)

    def _close_log(self, table: Table, last: int) -> None:
        """Write an empty commit and a checkpoint past the last commit that names old files.

        Log clean-up keeps what the first kept commit names, and an idle table gets no other one.
        """

        def compute() -> None:
            if table.version <= last:
                table.writer.remove(())

        until_committed(table, compute, self._store.config.commit_attempts)
        reached(FailPoint.FILES_REPLACED)
        table.refresh()
        if max(log_files(table.folder).checkpoints, default=-1) <= last:
            table.writer.checkpoint()

    def _gone_after(self, path: str, table: Table, old: OldFiles) -> datetime | None:
        """Tell when the last of the old files may be removed; None if nobody can tell yet."""
        times_ms = list(self._leftovers_ms(table, old))
        if old.last_commit is not None:
            later = [at for at in log_files(table.folder).checkpoints if at > old.last_commit]
            if not later:
                return None
            commits_ms = table.folder.commit_times_ms()
            times_ms.append(commits_ms.get(min(later), 0) + self._log_reserved_ms(path))
        return timestamp(int(max(times_ms))) if times_ms else None

    def _leftovers_ms(self, table: Table, old: OldFiles) -> Iterator[float]:
        reserved_ms = self._store.config.orphan_reserved_time_h * _HOUR_MS
        for written_ms in table.folder.written_ms(old.leftovers).values():
            yield written_ms + reserved_ms

    def _log_reserved_ms(self, path: str) -> float:
        config = self._store.config
        if path.startswith(TOPICS):
            return config.topic_log_reserved_time_h * _HOUR_MS
        return config.log_reserved_time_s * 1000

    # --- audit --------------------------------------------------------------------------------

    def _note(self, reason: str, matches: Mapping[str, Matches]) -> None:
        """Note the erasure before it is done: one commit. The key, which names a person, is not."""
        at = timestamp(self._clock.now_ms()).isoformat()
        counts = {path: of_table.messages for path, of_table in matches.items()}
        rows = {path: count for path, count in counts.items() if count}
        entry = {"at": at, "reason": reason, "messages": rows}
        register = self._store.tables.register("maintenance", MaintenanceValue)

        def compute() -> None:
            seen = register.read_pinned()
            entries = [*seen.value.get(AUDIT, ()), entry][-AUDIT_ENTRIES:]
            register.swap(seen, {**seen.value, AUDIT: entries}, self._clock.now_ms())

        until_committed(register.table, compute, self._store.config.commit_attempts)


def _rewrite(table: Table, files: Sequence[DataFile], chosen: Wanted) -> int:
    """Replace files by files without the content of the chosen rows; return the version."""
    new = [
        written_anew(table, _emptied_rows(table, file, chosen), file.partition) for file in files
    ]
    return replace_files(table, files, new)


def _emptied_rows(table: Table, file: DataFile, chosen: Wanted) -> Iterator[pa.Table]:
    names = stored_columns(table)
    # What a typed topic has beyond its schema is decoded from bodies.
    columns = [name for name in names if name not in table.schema.columns.names]
    for rows, _ in table.rows.windows(FilePart(file, {}, {}), names, ROW_GROUP_BYTES):
        yield erased(rows, chosen.are_wanted(rows, table), (*CONTENT, *columns))


def _worth_showing(rows: Sequence[ErasedTable]) -> tuple[ErasedTable, ...]:
    return tuple(row for row in rows if row.messages or row.old_files or row.unreadable)


# --- what is refused ------------------------------------------------------------------------------


def refuse_backup(store: Store) -> None:
    """Refuse a store that is the copy in a backup: a restore goes by its manifest; 0 commits.

    Raises: BackupError.
    """
    parent, _, name = store.location.rpartition("/")
    if name != STORE_FOLDER:
        return
    try:
        names = Place(parent or "/", store.storage_options).names()
    except StorageError:
        # Who may not list what lies beside a store may erase in it.
        return
    if any(map(is_of_backup, names)):
        problem = (
            "lies in a backup, and a restore would bring the messages back; nothing was erased"
        )
        step = "erase in the store, and once a look says that all is gone back it up again to"
        raise BackupError(store.location, f"{problem}: {step} {parent} (docs/erasure.md)")


def refuse_open(store: Store, transaction_ids: Collection[str]) -> None:
    """Refuse transactions that are open, or whose messages a publisher may be copying; 0 commits.

    Raises: ErasureRefusedError, StorageError.
    """
    logs = store.tables.logs()
    ids = pa.array(sorted(transaction_ids), pa.string())
    logs.refresh()
    if removals := logs.settled.half_removals(logs.half.table):
        problem = f"another program removed rows of half in commit {removals[0]}"
        problem = f"{problem}, which a broker puts back: run one (txmq serve), then try again"
        raise ErasureRefusedError(ids.to_pylist(), problem)
    facts = logs.settled.facts_of(ids)
    # Read after the facts: what is published now was settled before.
    version = published_up_to(store)
    final = facts.filter(pc.is_in(facts["state"], value_set=_FINAL))
    ended = set(final["transaction_id"].to_pylist())
    unpublished = set(
        final.filter(pc.greater(final["op_version"], version))["transaction_id"].to_pylist()
    )
    aside = set(read_set_aside(store.tables, logs.settled.set_aside_count).transactions)
    open_ids = [own_id for own_id in ids.to_pylist() if own_id not in ended]
    way_out = "end them (txmq show, txmq resolve) or let the publisher catch up, then try again"
    _refuse_any(open_ids, f"open, or their end is not settled: {way_out}")
    _refuse_any(
        sorted(unpublished), "not published yet: let the publisher catch up, then try again"
    )
    way_out = "restore their file or give them up (txmq resolve --give-up), then try again"
    _refuse_any(sorted(aside & set(ids.to_pylist())), f"set aside: {way_out}")
    _refuse_any(on_their_way(store, transaction_ids, version), "being published: try again")


def on_their_way(store: Store, transaction_ids: Collection[str], after: int) -> tuple[str, ...]:
    """List those whose messages a publisher may hold in memory, by claims beyond a version.

    Commits: 0. Raises: StorageError.
    """
    op = store.tables.op_log()
    through = op.refresh().table.version
    if after >= through or not transaction_ids:
        return ()
    claimed = pc.unique(op.between(after, through)["transaction_id"])
    ids = pa.array(sorted(transaction_ids), pa.string())
    return tuple(ids.filter(pc.is_in(ids, value_set=claimed)).to_pylist())


def _refuse_any(transaction_ids: Sequence[str], state: str) -> None:
    if not transaction_ids:
        return
    more = len(transaction_ids) - _SHOWN
    ids = ", ".join(transaction_ids[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    count = f"{len(transaction_ids):,} transactions with these messages are {state}"
    raise ErasureRefusedError(transaction_ids, f"{count}; nothing was erased: {ids}")


# --- the search -----------------------------------------------------------------------------------


def message_tables(store: Store) -> dict[str, Table]:
    """Return all tables that hold messages, in the order in which they are to be erased.

    What is copied comes before its copy: half, the schedule, the topics.
    """
    paths = [path for path in store.tables.table_paths() if path.startswith(TOPICS)]
    paths.sort(key=lambda path: path != TOPICS + SCHEDULE_TOPIC)
    return {path: store.tables.table_at(path) for path in (HALF, *paths)}


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
        """List the columns that `are_wanted` reads of a file: bodies if it has traces with the key.

        Raises: FileNotFoundError, OSError, pyarrow's errors.
        """
        origin = [] if self.topic is None else ["properties"]
        names = ["transaction_id", "keys", _topic_column(table), *origin]
        if not self._reads_traces(table):
            return names
        keys = _batches(table, file, ["keys", _topic_column(table)])
        return (
            [*names, "body"]
            if any(self._keyed_traces(rows, table).any() for rows in keys)
            else names
        )

    def are_wanted(self, rows: pa.Table, table: Table) -> Flags:
        """Tell of each row whether it is wanted."""
        topics = rows[_topic_column(table)]
        is_wanted = flags(has_key(rows["keys"], self.key)) & self._is_of_topic(rows, topics)
        if self.traced:
            is_wanted |= self._is_trace(rows["keys"], topics)
        if self._reads_traces(table):
            is_wanted |= self._are_traces_of_topic(rows, table)
        if self.transactions is not None:
            ids = pa.array(list(self.transactions), pa.string())
            is_wanted &= flags(pc.is_in(rows["transaction_id"], value_set=ids))
        return is_wanted

    def _reads_traces(self, table: Table) -> bool:
        """Tell whether bodies of traces say of which topic they are."""
        return self.topic is not None and table.name in {HALF, TRACES}

    def _keyed_traces(self, rows: pa.Table, table: Table) -> Flags:
        """Find the rows that are traces with the key."""
        is_trace = _are(rows[_topic_column(table)], TRACE_TOPIC)
        return flags(has_key(rows["keys"], self.key)) & is_trace

    def _is_of_topic(self, rows: pa.Table, topics: pa.ChunkedArray) -> Flags:
        if self.topic is None:
            return np.ones(rows.num_rows, dtype=bool)
        properties = rows["properties"].combine_chunks()
        origins = [pc.map_lookup(properties, pa.scalar(name), "first") for name in _ORIGINS]
        return reduce(or_, (_are(texts, self.topic) for texts in (topics, *origins)))

    def _is_trace(self, keys: pa.ChunkedArray, topics: pa.ChunkedArray) -> Flags:
        """Find traces of the wanted transactions; the key of a trace begins with their id."""
        about = pc.utf8_slice_codeunits(keys, 0, _ID_CHARACTERS)
        traced = pa.array(list(self.traced), pa.string())
        is_about = flags(pc.is_in(about, value_set=traced))
        return is_about & _are(topics, TRACE_TOPIC)

    def _are_traces_of_topic(self, rows: pa.Table, table: Table) -> Flags:
        """Find traces of messages that are erased already, or that were written after it."""
        is_trace = self._keyed_traces(rows, table)
        for place in np.flatnonzero(is_trace):
            is_trace[place] = self._is_about_topic(rows["body"][int(place)].as_py())
        return is_trace

    def _is_about_topic(self, trace: bytes) -> bool:
        """Tell whether a trace is of a message to the topic; one that does not say is."""
        try:
            messages = decoded(trace).messages
        except InvalidBodyError:
            return True
        topics = {
            message.topic
            for message in messages
            if self.key in (message.keys or "").split(KEY_SEPARATOR)
        }
        return not topics or self.topic in topics


@dataclass(slots=True)
class Matches:
    """The wanted rows of one table.

    Attributes:
        files: the live files with wanted rows, and how many each has.
        transactions: of these rows.
    """

    path: str
    table: Table
    files: list[tuple[DataFile, int]] = field(default_factory=list)
    transactions: set[str] = field(default_factory=set)

    @property
    def messages(self) -> int:
        """How many rows were found."""
        return sum(count for _, count in self.files)


def matches_in(path: str, table: Table, wanted: Wanted) -> Matches:
    """Find the wanted rows in the newest version of a table; 0 commits. Raises: StorageError."""
    matches = Matches(path, table)
    for file in table.refresh().files.all():
        count = 0
        with read_errors(table.name):
            names = wanted.columns(table, file)
        for rows in _rows(table, file, names):
            wanted_rows = rows.filter(pa.array(wanted.are_wanted(rows, table)))
            count += wanted_rows.num_rows
            matches.transactions.update(wanted_rows["transaction_id"].to_pylist())
        if count:
            matches.files.append((file, count))
    return matches


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


def old_files(table: Table, wanted: Wanted) -> OldFiles:
    """Find the old files with wanted rows, on disk now; 0 commits. Raises: StorageError."""
    with read_errors(table.name):
        infos = table.folder.filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    live = {file.path for file in table.refresh().files.all()}
    paths = [info.path for info in infos if _is_data(info) and info.path not in live]
    holding, unreadable = _holding(table, paths, wanted)
    by_commit = {at: named_by(table.folder, [at]) for at in log_files(table.folder).commits_ms}
    named: set[str] = set().union(*by_commit.values())
    last = [at for at, names in by_commit.items() if not names.isdisjoint(holding)]
    return OldFiles(
        tuple(path for path in holding if path in named),
        tuple(path for path in holding if path not in named),
        unreadable,
        max(last, default=None),
    )


def _holding(table: Table, paths: Sequence[str], wanted: Wanted) -> tuple[list[str], int]:
    """Return those of these files that hold wanted rows, and how many cannot be read."""
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
    return any(wanted.are_wanted(rows, table).any() for rows in _batches(table, file, names))


def _batches(table: Table, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    for batch in table.rows.batches(file, columns, _BATCH_ROWS):
        yield pa.Table.from_batches([batch])


def _rows(table: Table, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    with read_errors(table.name):
        for rows, _ in table.rows.windows(FilePart(file, {}, {}), columns, BATCH_BYTES):
            yield rows


def _is_data(info: pa_fs.FileInfo) -> bool:
    is_file = info.type is pa_fs.FileType.File and _DATA_NAME.search(info.path) is not None
    return bool(is_file) and not info.path.startswith(f"{LOG_FOLDER}/")


def _are(texts: pa.ChunkedArray | pa.Array, text: str) -> Flags:
    return flags(pc.fill_null(pc.equal(texts, text), False))  # noqa: FBT003


def _topic_column(table: Table) -> str:
    return "real_topic" if table.schema.name == HALF else "topic"
