"""One effect for each message in a user's Delta table, however often the message comes.

The table itself keeps how far each queue has taken effect: a mark of Delta in the very commit that
changes it. So effect and mark are there together, or neither is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.delta.pinned import commit_properties, pause
from txmq.errors import CommitConflictError, CommitRefusedError, InboxError
from txmq.message.names import stored_group
from txmq.message.received import ReceivedMessage
from txmq.user_data.delta_marker import (
    APP_ID_OPTION,
    APP_ID_SETTING,
    VERSION_OPTION,
    VERSION_SETTING,
    MarkedTable,
    OneStatement,
    SqlStatement,
    session_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

APPLY_ATTEMPTS = 20
MAX_NAME_CHARACTERS = 200
_QUEUE_MARK = "txmq-inbox/{group}/{topic}/{queue}"
_BATCH_MARK = "txmq-inbox-batch/{group}/{checkpoint}"


class _InboxTable(MarkedTable):
    """The user's table."""

    missing = "is no Delta table; an inbox keeps its marks where the effect is"


class DeltaInbox:
    """How far a consumer group's messages have taken effect in one Delta table.

    For a member of a group: `apply`, or `delta_rs`. Messages of a queue must be given in its order,
    and all that were given before must have taken effect or been sent back: what lies before the
    last one counts as done. A retry has a place of its own in the retry topic.

    For `foreachBatch`: `batch_options`, or `batch_sql`.

    Args:
        consumer_group: its name, `tenant%name` inside a namespace.
        location: of the table; it must not have `delta.setTransactionRetentionDuration`.
        storage_options: how it is reached.

    Example:
        >>> inbox = DeltaInbox("billing", "/data/bookings")
        >>> inbox.apply(messages, bookings_of)  # Arrow rows of the messages that are new
        32

    Not safe for several threads.
    """

    def __init__(
        self,
        consumer_group: str,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet. Raises: InvalidNameError."""
        self.consumer_group = stored_group(consumer_group)
        self._table = _InboxTable("the inbox's table", os.fspath(location), storage_options)

    # --- members ------------------------------------------------------------------------------

    def fresh(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that have not taken effect, in their order; 0 commits.

        Raises: InboxError, StorageError.
        """
        return self._fresh(messages, self._opened())

    def apply(
        self,
        messages: Sequence[ReceivedMessage],
        effect: Callable[[Sequence[ReceivedMessage]], pa.Table],
    ) -> int:
        """Append the effect of the messages that are new; how many those were.

        Commits: one to the table with the rows that `effect` makes of them, which may be none; or
        nothing where all are done. Where another member was faster, `effect` is called again.

        Raises: InboxError, CommitConflictError, StorageError; what `effect` raises.
        """
        for attempt in range(APPLY_ATTEMPTS):
            table = self._opened()
            new = self._fresh(messages, table)
            if not new:
                return 0
            try:
                table.append_rows(effect(new), self._marks(new))
            except CommitRefusedError:
                pause(attempt)
            else:
                return len(new)
        raise CommitConflictError(table.name, f"others won {APPLY_ATTEMPTS} times")

    @contextmanager
    def delta_rs(
        self, messages: Sequence[ReceivedMessage]
    ) -> Iterator[tuple[Any, list[ReceivedMessage], Any]]:
        """For one write by delta-rs, such as a merge: a DeltaTable, the new messages, properties.

        Write through this DeltaTable with `commit_properties=` these properties; where no message
        is new, write nothing. If another member was first, delta-rs raises CommitFailedError: begin
        again.

        Raises: InboxError, also where no such write is there when the block is left in peace;
            StorageError.
        """
        table = self._opened()
        new = self._fresh(messages, table)
        marks = self._marks(new)
        yield table.handle, new, commit_properties(marks)
        table.refresh()
        if any((table.mark(name) or 0) < offset for name, offset in marks.items()):
            problem = "no write of these messages is there; was it made with the properties?"
            raise InboxError(table.location, problem)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that has not taken effect. Raises: StorageError."""
        return self._opened().mark(self._queue_mark(topic, queue_id)) or 0

    # --- micro-batches ------------------------------------------------------------------------

    def batch_options(self, batch_id: int, *, checkpoint: str) -> dict[str, str]:
        """Options for the one Spark write of a micro-batch; Spark skips it when it comes again.

        Args:
            batch_id: what `foreachBatch` passes.
            checkpoint: names the query's checkpoint. Another checkpoint begins with batch 0 again,
                so it needs another name; its messages have their effects again.

        Raises: InboxError, also for a batch before one that is done; StorageError.
        """
        name = self._next_batch(batch_id, checkpoint)
        return {APP_ID_OPTION: name, VERSION_OPTION: str(batch_id)}

    @contextmanager
    def batch_sql(
        self, spark: SparkSession, batch_id: int, *, checkpoint: str
    ) -> Iterator[SqlStatement]:
        """As `batch_options`, for one SQL statement that changes the table, such as MERGE."""
        name = self._next_batch(batch_id, checkpoint)
        second = InboxError(
            self._table.location, "a mark is on one statement, Spark skips the next"
        )
        with session_settings(spark, {APP_ID_SETTING: name, VERSION_SETTING: str(batch_id)}):
            yield OneStatement(spark, second)

    def is_done(self, batch_id: int, *, checkpoint: str) -> bool:
        """Whether a micro-batch has taken effect. Raises: InboxError, StorageError."""
        done = self._opened().mark(self._batch_mark(batch_id, checkpoint))
        return done is not None and done >= batch_id

    # --- helpers ------------------------------------------------------------------------------

    def _opened(self) -> _InboxTable:
        table = self._table.reopen()
        if table.marker_retention_s is not None:
            problem = "unset delta.setTransactionRetentionDuration: it would forget what was done"
            raise InboxError(table.location, problem)
        return table

    def _fresh(
        self, messages: Sequence[ReceivedMessage], table: _InboxTable
    ) -> list[ReceivedMessage]:
        last: dict[str, int] = {}
        for each in messages:
            name = self._queue_mark(each.topic, each.queue_id)
            if each.queue_offset <= last.get(name, -1):
                problem = f"messages of queue {each.queue_id} are not in the order of their offsets"
                raise InboxError(table.location, problem)
            last[name] = each.queue_offset
        done = {name: table.mark(name) or 0 for name in last}
        return [
            each
            for each in messages
            if each.queue_offset >= done[self._queue_mark(each.topic, each.queue_id)]
        ]

    def _marks(self, messages: Sequence[ReceivedMessage]) -> dict[str, int]:
        """The next offset of each queue after these."""
        return {
            self._queue_mark(each.topic, each.queue_id): each.queue_offset + 1 for each in messages
        }

    def _queue_mark(self, topic: str, queue_id: int) -> str:
        return _QUEUE_MARK.format(group=self.consumer_group, topic=topic, queue=queue_id)

    def _batch_mark(self, batch_id: object, checkpoint: object) -> str:
        where = self._table.location
        # bool is an int in Python.
        if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
            raise InboxError(where, "batch_id must be the number that foreachBatch passes")
        if not _is_name(checkpoint):
            limit = f"1 to {MAX_NAME_CHARACTERS} printable characters"
            raise InboxError(where, f"checkpoint must be a name of {limit}")
        return _BATCH_MARK.format(group=self.consumer_group, checkpoint=checkpoint)

    def _next_batch(self, batch_id: int, checkpoint: str) -> str:
        """The mark of a batch that is the last one that was done, or comes after it."""
        name = self._batch_mark(batch_id, checkpoint)
        done = self._opened().mark(name)
        if done is not None and done > batch_id:
            problem = f"batch {batch_id} comes after {done}, so its checkpoint is another one"
            raise InboxError(self._table.location, f"{problem}; give that another name")
        return name


def _is_name(value: object) -> bool:
    is_text = isinstance(value, str) and value.isprintable()
    return is_text and 0 < len(str(value).strip()) <= MAX_NAME_CHARACTERS
