"""One effect for each message in a user's Delta table, however often the message comes.

The table keeps how far the messages of each queue have taken effect: a mark of Delta in the same
commit that changes the table. So effect and mark are committed together, or neither is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.delta.pinned import commit_properties
from txmq.delta.retries import pause
from txmq.errors import CommitConflictError, CommitRefusedError, InboxError, shown
from txmq.message.names import stored_group
from txmq.message.received import ReceivedMessage
from txmq.user_data.delta_marker import (
    APP_ID_OPTION,
    APP_ID_SETTING,
    VERSION_OPTION,
    VERSION_SETTING,
    MarkedStatement,
    MarkedTable,
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
    """The user's table with the marks of the inbox."""

    missing = "is no Delta table; pass the table that the messages change"


class DeltaInbox:
    """Keeps how far the messages of a consumer group have taken effect in one Delta table.

    A member of a group uses `apply` or `delta_rs`. It must pass the messages of a queue in their
    order, and all earlier messages must have taken effect or been sent back: messages before the
    last one count as done. A retry is a message of the retry topic with its own offset.

    `foreachBatch` uses `batch_options` or `batch_sql`.

    Not safe for several threads.

    Args:
        consumer_group: the name of the group, `tenant%name` inside a namespace.
        location: the location of the table, which must not have the property
            `delta.setTransactionRetentionDuration`.
        storage_options: the options to reach the location.

    Raises: InvalidNameError.

    Example:
        >>> inbox = DeltaInbox("billing", "/data/bookings")
        >>> inbox.apply(messages, bookings_of)  # Arrow rows of the messages that are new
        32
    """

    def __init__(
        self,
        consumer_group: str,
        location: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Check the name; nothing is opened; 0 commits."""
        self.consumer_group = stored_group(consumer_group)
        self._table = _InboxTable("the inbox's table", os.fspath(location), storage_options)

    # --- members ------------------------------------------------------------------------------

    def fresh(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """The messages that have not taken effect, in their order; 0 commits.

        Args:
            messages: messages of one or more queues, each queue in its order.

        Raises:
            InboxError: messages of a queue are out of order, or the table may forget its marks.
            StorageError: the table cannot be read.
        """
        return self._fresh(messages, self._opened())

    def apply(
        self,
        messages: Sequence[ReceivedMessage],
        effect: Callable[[Sequence[ReceivedMessage]], pa.Table],
    ) -> int:
        """Append the effect of the new messages to the table.

        Commits: one to the table, also if `effect` returns no rows; none if no message is new. If
        another writer was faster, `effect` is called again, with the messages that are still new.
        A retry after an error repeats no effect.

        Args:
            messages: messages of one or more queues, each queue in its order.
            effect: makes the rows to append of the new messages; it should have no other effect.

        Returns:
            How many messages were new.

        Raises:
            InboxError: as `fresh`.
            CommitConflictError: other writers were faster APPLY_ATTEMPTS times; nothing was done.
            UnsupportedTableError: delta-rs cannot write this table; use `batch_options`.
            StorageError: the table cannot be read or written.
            Exception: the errors of `effect`; nothing was done.
        """
        for attempt in range(APPLY_ATTEMPTS):
            table = self._opened()
            table.check_writable()
            new = self._fresh(messages, table)
            if not new:
                return 0
            try:
                table.append_rows(effect(new), self._marks(new))
            except CommitRefusedError:
                pause(attempt)
            else:
                return len(new)
        problem = f"other writers were faster {APPLY_ATTEMPTS} times; try again"
        raise CommitConflictError(table.name, problem)

    @contextmanager
    def delta_rs(
        self, messages: Sequence[ReceivedMessage]
    ) -> Iterator[tuple[Any, list[ReceivedMessage], Any]]:
        """Mark one write by delta-rs, such as a merge.

        The value of the `with` statement is a DeltaTable, the new messages, and commit properties.
        Write once through this DeltaTable with `commit_properties=` these properties; if no message
        is new, write nothing. If another writer was faster, delta-rs raises CommitFailedError:
        begin again.

        Commits: none but the caller's write. A retry finds the messages done.

        Args:
            messages: messages of one or more queues, each queue in its order.

        Raises:
            InboxError: as `fresh`; also if the block ends without such a write.
            StorageError: the table cannot be read.
        """
        table = self._opened()
        table.check_writable()
        new = self._fresh(messages, table)
        marks = self._marks(new)
        yield table.handle, new, commit_properties(marks)
        table.refresh()
        if any((table.mark(name) or 0) < offset for name, offset in marks.items()):
            problem = (
                "the block ended without a write of these messages; write through the DeltaTable "
                "with commit_properties="
            )
            raise InboxError(table.location, problem)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that has not taken effect; 0 commits.

        Args:
            topic: the name of the topic, as messages show it.
            queue_id: the queue of the topic.

        Raises: InboxError, StorageError.
        """
        return self._opened().mark(self._queue_mark(topic, queue_id)) or 0

    # --- micro-batches ------------------------------------------------------------------------

    def batch_options(self, batch_id: int, *, checkpoint: str) -> dict[str, str]:
        """The options for the Spark write of a micro-batch; 0 commits.

        Spark skips the write if the batch comes again, so a retry repeats no effect. The options
        are for one write.

        Args:
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query. A new checkpoint begins with batch 0
                again, so it needs a new name; its messages have their effects again.

        Raises:
            InboxError: an argument cannot be used, or a later batch of this checkpoint is done.
            StorageError: the table cannot be read.
        """
        name = self._next_batch(batch_id, checkpoint)
        return {APP_ID_OPTION: name, VERSION_OPTION: str(batch_id)}

    @contextmanager
    def batch_sql(
        self, spark: SparkSession, batch_id: int, *, checkpoint: str
    ) -> Iterator[SqlStatement]:
        """Mark one SQL statement that changes the table, such as MERGE; see `batch_options`.

        The value of the `with` statement runs the statement, as `spark.sql` does.

        Args:
            spark: the session of the micro-batch.
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query.

        Raises: as `batch_options`; InboxError for a second statement.
        """
        name = self._next_batch(batch_id, checkpoint)
        problem = "one batch_sql block marks one statement; Spark would skip a second one"
        second = InboxError(self._table.location, problem)
        with session_settings(spark, {APP_ID_SETTING: name, VERSION_SETTING: str(batch_id)}):
            yield MarkedStatement(spark, second)

    def is_done(self, batch_id: int, *, checkpoint: str) -> bool:
        """Whether a micro-batch has taken effect; 0 commits.

        Args:
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query.

        Raises: InboxError, StorageError.
        """
        done = self._opened().mark(self._batch_mark(batch_id, checkpoint))
        return done is not None and done >= batch_id

    # --- helpers ------------------------------------------------------------------------------

    def _opened(self) -> _InboxTable:
        table = self._table.reopen()
        if table.marker_retention_s is not None:
            problem = (
                "unset delta.setTransactionRetentionDuration: with it the table forgets which "
                "messages have taken effect"
            )
            raise InboxError(table.location, problem)
        return table

    def _fresh(
        self, messages: Sequence[ReceivedMessage], table: _InboxTable
    ) -> list[ReceivedMessage]:
        last: dict[str, int] = {}
        for message in messages:
            name, offset = self._mark_of(message), message.queue_offset
            if offset <= last.get(name, -1):
                problem = (
                    f"offset {offset:,} of queue {message.queue_id} comes after {last[name]:,}; "
                    "pass the messages of a queue in their order"
                )
                raise InboxError(table.location, problem)
            last[name] = offset
        done = {name: table.mark(name) or 0 for name in last}
        return [
            message for message in messages if message.queue_offset >= done[self._mark_of(message)]
        ]

    def _marks(self, messages: Sequence[ReceivedMessage]) -> dict[str, int]:
        """The next offset of each queue after these messages, by the name of its mark."""
        return {self._mark_of(message): message.queue_offset + 1 for message in messages}

    def _mark_of(self, message: ReceivedMessage) -> str:
        return self._queue_mark(message.topic, message.queue_id)

    def _queue_mark(self, topic: str, queue_id: int) -> str:
        return _QUEUE_MARK.format(group=self.consumer_group, topic=topic, queue=queue_id)

    def _batch_mark(self, batch_id: object, checkpoint: object) -> str:
        where = self._table.location
        # bool is an int in Python.
        if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
            problem = f"batch_id must be the number that foreachBatch passes, not {shown(batch_id)}"
            raise InboxError(where, problem)
        if not _is_name(checkpoint):
            limit = f"1 to {MAX_NAME_CHARACTERS} printable characters"
            raise InboxError(where, f"checkpoint must be {limit}, not {shown(checkpoint)}")
        return _BATCH_MARK.format(group=self.consumer_group, checkpoint=checkpoint)

    def _next_batch(self, batch_id: int, checkpoint: str) -> str:
        """The name of the mark of a batch, which must not lie before the last batch done."""
        name = self._batch_mark(batch_id, checkpoint)
        done = self._opened().mark(name)
        if done is not None and done > batch_id:
            problem = (
                f"batch {batch_id:,} comes after batch {done:,}, so the query has another "
                "checkpoint; give that checkpoint another name"
            )
            raise InboxError(self._table.location, problem)
        return name


def _is_name(value: object) -> bool:
    is_text = isinstance(value, str) and value.isprintable()
    return is_text and 0 < len(str(value).strip()) <= MAX_NAME_CHARACTERS
