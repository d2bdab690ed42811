"""Erases the messages of one key, for good, and proves it (decision 0060).

A row keeps its place and its ids; tags, keys, body, properties and sharding key go, in every table
that has them. Readers of older versions need the old files for a while; log clean-up removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txmq.admin.erasure_gate import on_their_way, refuse_backup, refuse_open
from txmq.admin.erasure_scan import (
    HALF,
    TOPICS,
    TRACES,
    Found,
    OldFiles,
    Wanted,
    found_in,
    message_tables,
    old_files,
)
from txmq.admin.key_search import is_one_key
from txmq.clock import Clock, SystemClock, timestamp
from txmq.delta.files import DataFile, FilePart
from txmq.delta.log import log_files
from txmq.delta.parquet import NewFile
from txmq.delta.storage import Table
from txmq.errors import CommitConflictError, CommitRefusedError, InvalidMessageError
from txmq.fail_points import FailPoint, reached
from txmq.maintenance.retention import published_up_to
from txmq.maintenance.rewriting import (
    ROW_GROUP_BYTES,
    replace_files,
    stored_columns,
    written_anew,
)
from txmq.message.erased import CONTENT, erased
from txmq.message.names import stored_topic
from txmq.message.reasons import signed_reason
from txmq.results import plain
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

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
        """Plain values, for JSON."""
        counts = {"messages": self.messages, "old_files": self.old_files, "is_gone": self.is_gone}
        return {**plain(self), **counts}


class Erasure:
    """The messages that have a key, such as the id of a customer. Not safe for several threads.

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
        """Check the arguments; nothing is read; 0 commits."""
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
        wanted, found = self._search(tables)
        rows = [self._shown(path, table, wanted, found[path]) for path, table in tables.items()]
        return ErasureReport(_worth_showing(rows), is_written=False)

    def apply(self, *, reason: str) -> ErasureReport:
        """Erase them; a call that was killed is finished by the next one.

        Messages that are sent after the call began are left: call it again. A consumer that has a
        message in hand may still send it back, which is such a message.

        Reads: the keys of all messages, settled, op, state/publisher. Writes: half, the schedule,
        topics, state/maintenance (an audit, without the key). Commits: for each table one that
        rewrites files and at most one that closes its log; one for the audit.

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
        wanted, found = self._search(tables)
        ids = frozenset().union(*(one.transactions for one in found.values()))
        refuse_open(self._store, found[HALF].transactions)
        if ids:
            self._note(signed, found)
        chosen = replace(wanted, transactions=ids)
        # Traces soon: those without the key are found by live messages that they are about.
        order = sorted(tables, key=lambda path: (path != HALF, path != TRACES))
        done = {
            path: self._erased(path, tables[path], chosen, found[path].messages) for path in order
        }
        rows = [done[path] for path in tables]
        # What is published by now is found below; what is claimed later may come after that look.
        published = published_up_to(self._store)
        rows += self._appeared_since(tables, chosen)
        waiting = on_their_way(self._store, ids, published)
        self._close(tables, wanted, found[HALF].topics)
        rows = [self._with_old_files(row, tables, wanted) for row in rows]
        logger.info("%d messages were erased", sum(row.messages for row in rows))
        return ErasureReport(
            _worth_showing(rows), is_written=True, reason=signed, on_their_way=waiting
        )

    def audit(self) -> tuple[Mapping[str, Any], ...]:
        """The last hundred erasures, oldest first: `at`, `reason` and rows by table; 0 commits."""
        return tuple(self._store.tables.register("maintenance").read().value.get(AUDIT, ()))

    # --- finding ------------------------------------------------------------------------------

    def _search(self, tables: Mapping[str, Table]) -> tuple[Wanted, dict[str, Found]]:
        """What is wanted, traces of what was found included, and where it is."""
        found = {path: found_in(path, table, self._wanted) for path, table in tables.items()}
        ids = frozenset().union(*(one.transactions for one in found.values()))
        if TRACES not in tables or not ids:
            return self._wanted, found
        wanted = replace(self._wanted, traced=ids)
        again = {path: found_in(path, tables[path], wanted) for path in (HALF, TRACES)}
        return wanted, {**found, **again}

    def _shown(self, path: str, table: Table, wanted: Wanted, found: Found) -> ErasedTable:
        row = ErasedTable(path, found.messages)
        return self._with_old_files(row, {path: table}, wanted)

    def _with_old_files(
        self, row: ErasedTable, tables: Mapping[str, Table], wanted: Wanted
    ) -> ErasedTable:
        table = tables[row.table]
        old = old_files(table, wanted)
        gone_after = self._gone_after(row.table, table, old)
        return replace(row, old_files=old.count, unreadable=old.unreadable, gone_after=gone_after)

    # --- erasing ------------------------------------------------------------------------------

    def _erased(self, path: str, table: Table, chosen: Wanted, messages: int) -> ErasedTable:
        """Erase the chosen rows of a table: one commit, none where there are none."""
        if not messages:
            return ErasedTable(path)
        for _ in range(self._store.config.commit_attempts):
            found = found_in(path, table, chosen)
            if not found.files:
                # Another erasure was faster.
                return ErasedTable(path)
            try:
                version = _rewritten(table, [file for file, _ in found.files], chosen)
            except (CommitRefusedError, FileNotFoundError):
                # Compaction or retention replaced some of the files.
                continue
            return ErasedTable(path, found.messages, version)
        raise CommitConflictError(path, "other writers won every try; run the erasure again")

    def _appeared_since(self, tables: Mapping[str, Table], chosen: Wanted) -> list[ErasedTable]:
        """Rows that a publisher copied before their source was erased."""
        again = {path: found_in(path, table, chosen) for path, table in tables.items()}
        return [
            self._erased(path, tables[path], chosen, one.messages)
            for path, one in again.items()
            if one.messages
        ]

    # --- old files ----------------------------------------------------------------------------

    def _close(self, tables: Mapping[str, Table], wanted: Wanted, topics: set[str]) -> None:
        """Let log clean-up take the old files, and refuse rebuilds that read them."""
        for path, table in tables.items():
            last = old_files(table, wanted).last_commit
            if last is not None or path.removeprefix(TOPICS) in topics:
                self._close_log(table, table.refresh().version if last is None else last)

    def _close_log(self, table: Table, last: int) -> None:
        """A commit and a checkpoint after the last commit that names old files.

        Log clean-up keeps what the first kept commit names, and an idle table gets no other one.
        """
        for _ in range(self._store.config.commit_attempts):
            if table.refresh().version > last:
                break
            try:
                table.remove(())
            except CommitRefusedError:
                continue
            break
        else:
            raise CommitConflictError(table.name, "other writers won every try; run it again")
        reached(FailPoint.FILES_REPLACED)
        table.refresh()
        if max(log_files(table).checkpoints, default=-1) <= last:
            table.checkpoint()

    def _gone_after(self, path: str, table: Table, old: OldFiles) -> datetime | None:
        """When the last of the old files may be removed; None where nobody can tell yet."""
        times_ms = list(self._leftovers_ms(table, old))
        if old.last_commit is not None:
            closed = [at for at in log_files(table).checkpoints if at > old.last_commit]
            if not closed:
                return None
            commits_ms = table.commit_times_ms()
            times_ms.append(commits_ms.get(min(closed), 0) + self._log_reserved_ms(path))
        return timestamp(int(max(times_ms))) if times_ms else None

    def _leftovers_ms(self, table: Table, old: OldFiles) -> Iterator[float]:
        reserved_ms = self._store.config.orphan_reserved_time_h * _HOUR_MS
        for written_ms in table.written_ms(old.leftovers).values():
            yield written_ms + reserved_ms

    def _log_reserved_ms(self, path: str) -> float:
        config = self._store.config
        if path.startswith(TOPICS):
            return config.topic_log_reserved_time_h * _HOUR_MS
        return config.log_reserved_time_s * 1000

    # --- audit --------------------------------------------------------------------------------

    def _note(self, reason: str, found: Mapping[str, Found]) -> None:
        """Note it before it is done: one commit. The key is not noted: it names a person."""
        at = timestamp(self._clock.now_ms()).isoformat()
        rows = {path: one.messages for path, one in found.items() if one.messages}
        entry = {"at": at, "reason": reason, "messages": rows}
        register = self._store.tables.register("maintenance")
        for _ in range(self._store.config.commit_attempts):
            seen = register.read()
            entries = [*seen.value.get(AUDIT, ()), entry][-AUDIT_ENTRIES:]
            try:
                register.swap(seen, {**seen.value, AUDIT: entries}, self._clock.now_ms())
            except CommitRefusedError:
                continue
            return
        raise CommitConflictError("state/maintenance", "other writers won every try; try again")


def _rewritten(table: Table, files: Sequence[DataFile], chosen: Wanted) -> int:
    """Replace files by files without the content of the chosen rows: the version."""
    new = [_without_content(table, file, chosen) for file in files]
    return replace_files(table, files, new)


def _without_content(table: Table, file: DataFile, chosen: Wanted) -> NewFile:
    return written_anew(table, _emptied_rows(table, file, chosen), file.partition)


def _emptied_rows(table: Table, file: DataFile, chosen: Wanted) -> Iterator[pa.Table]:
    names = stored_columns(table)
    # What a typed topic has beyond its schema is decoded from bodies.
    decoded = [name for name in names if name not in table.schema.columns.names]
    for rows, _ in table.windows(FilePart(file, {}, {}), names, ROW_GROUP_BYTES):
        yield erased(rows, chosen.chosen(rows, table), (*CONTENT, *decoded))


def _worth_showing(rows: Sequence[ErasedTable]) -> tuple[ErasedTable, ...]:
    return tuple(row for row in rows if row.messages or row.old_files or row.unreadable)
