"""The schedule: committed messages that wait for their time (RocketMQ's SCHEDULE_TOPIC_XXXX)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile
from txmq.delta.schemas import SCHEDULE
from txmq.delta.storage import Table
from txmq.store.half import HalfLog

MESSAGE_COLUMNS = ("transaction_id", "sequence", "producer_group")


class ScheduleLog:
    """Reads the schedule; the publisher appends to it as to any topic.

    Its table is made with the first delayed message: until then there is nothing in it.
    """

    def __init__(self, table: Table) -> None:
        """Hold a table of our own; nothing is opened yet."""
        self.table = table
        self.is_there = False
        # Listing files costs milliseconds, and those of a version never change.
        self._files: dict[int, list[DataFile]] = {}

    def refresh(self) -> ScheduleLog:
        """Move to the newest version; the object itself is returned."""
        self.is_there = self.is_there or self.table.exists()
        if self.is_there:
            self.table.refresh()
        return self

    def has_news(self) -> bool:
        """Whether it has a newer version than this object shows."""
        return self.table.has_news() if self.is_there else self.table.exists()

    def messages_of(self, transaction_ids: pa.Array) -> pa.Table:
        """MESSAGE_COLUMNS of all messages of these transactions; 0 commits."""
        if not self.is_there:
            return pa.schema(
                [SCHEDULE.columns.field(name) for name in MESSAGE_COLUMNS]
            ).empty_table()
        return self.table.rows_of("transaction_id", transaction_ids, MESSAGE_COLUMNS)

    def due_dates(self) -> set[date]:
        """The due dates of all messages in it; 0 reads."""
        if not self.is_there:
            return set()
        return {file.partition["due_date"] for file in self._all_files()}

    def read(self, day: date, after: int, columns: Sequence[str]) -> pa.Table:
        """Columns of the messages of one due date, of files with claims beyond `after`.

        Rows of earlier claims may be among them.
        """
        is_all = not self.is_there or after < 0
        files = self._all_files() if is_all else self.table.files_beyond("op_version", after)
        return self.table.read(
            [each for each in files if each.partition["due_date"] == day], columns
        )

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

    Halves go before the schedule's rows do, so what is in neither cannot be delivered any more.
    """
    own = half.delayed_of(transaction_ids)
    if schedule is None:
        return own
    known = pc.is_in(transaction_ids, value_set=pc.unique(own["transaction_id"]))
    others = transaction_ids.filter(pc.invert(known))
    if not len(others):
        return own
    return pa.concat_tables([own, schedule.refresh().messages_of(others)])
