"""The schedule: committed messages that are not due yet (RocketMQ's SCHEDULE_TOPIC_XXXX)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Groups, first_of_each, flags, integers
from txmq.delta.files import DataFile, UnreadableFile
from txmq.delta.schemas import SCHEDULE
from txmq.delta.storage import Table
from txmq.errors import StorageError
from txmq.store.half import NO_SEQUENCE, HalfLog

# How often files are listed again that another process, such as retention, takes away meanwhile.
REPLACED_ATTEMPTS = 5
MESSAGE_COLUMNS = ("transaction_id", "sequence", "producer_group")
_NO_MESSAGES = pa.schema([SCHEDULE.columns.field(name) for name in MESSAGE_COLUMNS]).empty_table()


class ScheduleLog:
    """Reads the schedule; the publisher appends to it as to any topic.

    The first delayed message makes its table; until then the schedule is empty.
    """

    def __init__(self, table: Table) -> None:
        """Open nothing yet; `table` is not shared."""
        self.table = table
        self.is_there = False
        # To list files costs milliseconds, and the files of a version never change.
        self._files: dict[int, list[DataFile]] = {}

    def refresh(self) -> ScheduleLog:
        """Move to the newest version and return this object."""
        self.is_there = self.is_there or self.table.exists()
        if self.is_there:
            self.table.refresh()
        return self

    def has_news(self) -> bool:
        """Whether the table has a newer version than this object shows."""
        return self.table.has_news() if self.is_there else self.table.exists()

    def messages_of(self, transaction_ids: pa.Array) -> pa.Table:
        """MESSAGE_COLUMNS of all messages of these transactions; 0 commits."""
        if not self.is_there:
            return _NO_MESSAGES
        return self.table.rows_of("transaction_id", transaction_ids, MESSAGE_COLUMNS)

    def readable_messages_of(
        self, transaction_ids: pa.Array
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """MESSAGE_COLUMNS of all messages of these transactions; 0 commits.

        Files that cannot be read are left out, and returned.
        """
        if not self.is_there:
            return _NO_MESSAGES, ()
        return self.table.readable_rows_of("transaction_id", transaction_ids, MESSAGE_COLUMNS)

    def due_dates(self) -> set[date]:
        """The due dates of all messages in the schedule; reads no rows."""
        if not self.is_there:
            return set()
        return {file.partition["due_date"] for file in self._all_files()}

    def readable(
        self, day: date, after: int, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Columns of the messages of one due date whose claims are beyond op version `after`.

        Rows of earlier claims may be among them, because whole files are read. Files that cannot be
        read are left out, and returned; a file that another process has replaced is none of them.
        """
        for _ in range(REPLACED_ATTEMPTS):
            rows, unreadable = self._readable(day, after, columns)
            if not unreadable or not self.table.has_replaced(unreadable):
                break
        return rows, unreadable

    def _readable(
        self, day: date, after: int, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        is_all = not self.is_there or after < 0
        files = self._all_files() if is_all else self.table.files_beyond("op_version", after)
        parts, unreadable = [self.table.read([], columns)], []
        for file in files:
            if file.partition["due_date"] != day:
                continue
            rows, problem = self.table.readable(file, partial(self.table.read, [file], columns))
            if rows is None:
                unreadable.append(UnreadableFile(file, None, None, problem))
            else:
                parts.append(rows)
        return pa.concat_tables(parts), tuple(unreadable)

    def _all_files(self) -> list[DataFile]:
        if not self.is_there:
            return []
        version = self.table.version
        if version not in self._files:
            self._files = {version: self.table.files()}
        return self._files[version]


def delayed_messages(
    half: HalfLog, schedule: ScheduleLog | None, transaction_ids: pa.Array
) -> pa.Table:
    """transaction_id, sequence, producer_group of the delayed messages of these transactions.

    Retention removes halves before the rows of the schedule, so a message that is in neither
    cannot be delivered any more.

    Raises: StorageError where a file that may hold them cannot be read.
    """
    messages, unreadable = readable_delayed_messages(half, schedule, transaction_ids)
    if unreadable:
        raise StorageError("half", f"{unreadable[0].problem}; restore this file, then try again")
    return messages


def readable_delayed_messages(
    half: HalfLog, schedule: ScheduleLog | None, transaction_ids: pa.Array
) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
    """As `delayed_messages`, without the files that cannot be read, which are returned."""
    of_half, unreadable = half.readable_delayed_of(transaction_ids)
    if schedule is None:
        return of_half, unreadable
    is_in_half = pc.is_in(transaction_ids, value_set=pc.unique(of_half["transaction_id"]))
    is_whole = flags(is_in_half)
    for file in unreadable:
        is_whole = is_whole & ~file.covers(transaction_ids)
    remaining = transaction_ids.filter(pa.array(~is_whole))
    if not len(remaining):
        return of_half, unreadable
    of_schedule, also_unreadable = schedule.refresh().readable_messages_of(remaining)
    messages = pa.concat_tables([of_half, of_schedule])
    places = Groups.of(messages["transaction_id"]).place
    first = first_of_each(places, integers(messages["sequence"], NO_SEQUENCE))
    return messages.filter(pa.array(first)), (*unreadable, *also_unreadable)
