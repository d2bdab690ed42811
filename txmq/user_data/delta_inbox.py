"""One effect for each message in a user's Delta table, however often the message comes.

The table keeps how far the messages of each queue have taken effect: a mark of Delta in the same
commit that changes the table. So effect and mark are committed together, or neither is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from txmq.delta.actions import DAMAGES, EMPTY_COMMIT, CommitActions, commit_actions
from txmq.delta.failures import pause
from txmq.delta.pinned import commit_properties
from txmq.errors import CommitConflictError, CommitRefusedError, InboxError, StorageError, shown
from txmq.ground.sessions import spark_room
from txmq.message.names import stored_group
from txmq.message.received import (
    ReceivedMessage,
    effects_of,
    first_places,
    note_effect,
    origin_place,
)
from txmq.user_data.delta_marker import (
    APP_ID_OPTION,
    APP_ID_SETTING,
    VERSION_OPTION,
    VERSION_SETTING,
    MarkedStatement,
    MarkedTable,
    SqlStatement,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.ground.sessions import SparkSession

APPLY_ATTEMPTS = 20
MAX_NAME_CHARACTERS = 200
_BY_OPTIONS = "Mark a write of a DataFrame by batch_options(), or run the statement on a cluster"
_QUEUE_MARK = "txmq-inbox/{group}/{topic}/{queue}"
_BATCH_MARK = "txmq-inbox-batch/{group}/{checkpoint}"


class Place(NamedTuple):
    """Where a message was first: the mark of its queue, and its offset there."""

    mark: str
    offset: int


class DeltaInbox:
    """Keeps how far the messages of a consumer group have taken effect in one Delta table.

    A member of a group uses `apply` or `delta_rs`. It must pass the messages of a queue in their
    order, and all earlier messages must have taken effect or been sent back: messages before the
    last one count as done. A retry is a message of the retry topic with its own offset; it carries
    that the message took effect before its handler failed, and the commits of the table name their
    messages, also those of a handler that hung and went on after its message was sent back.

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
        self._table = InboxTable("the inbox's table", os.fspath(location), storage_options)

    # --- members ------------------------------------------------------------------------------

    def fresh(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages that have not taken effect, in their order; 0 commits.

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
                return self._noted(messages, table, 0)
            rows, marks = effect(new), self._marks(new, table)
            try:
                table.append_rows(rows, marks, self._names(new))
            except CommitRefusedError:
                pause(attempt)
            except StorageError:
                # The answer of a commit may be lost; a retry would be another message.
                if not self._has_landed(marks):
                    raise
                return self._noted(messages, table, len(new))
            else:
                return self._noted(messages, table, len(new))
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
        marks = self._marks(new, table)
        try:
            yield table.handle, new, commit_properties(marks, self._names(new))
        except BaseException:
            # The answer of the block's commit may be lost, or something failed after it.
            with suppress(StorageError):
                self._note_if_landed(messages, table, marks)
            raise
        if not self._note_if_landed(messages, table, marks):
            problem = (
                "the block ended without a write of these messages; write through the DeltaTable "
                "with commit_properties="
            )
            raise InboxError(table.location, problem)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue that has not taken effect; 0 commits.

        Args:
            topic: the name of the topic, as messages show it.
            queue_id: the queue of the topic.

        Raises: InboxError, StorageError.
        """
        return self._opened().mark(self._queue_mark(topic, queue_id)) or 0

    # --- micro-batches ------------------------------------------------------------------------

    def batch_options(self, batch_id: int, *, checkpoint: str) -> dict[str, str]:
        """Return the options for the Spark write of a micro-batch; 0 commits.

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

        Raises: as `batch_options`; InboxError for a second statement; EnvironmentProblemError if
            the session refuses the marker's settings, as on serverless compute.
        """
        name = self._next_batch(batch_id, checkpoint)
        problem = "one batch_sql block marks one statement; Spark would skip a second one"
        second = InboxError(self._table.location, problem)
        settings = {APP_ID_SETTING: name, VERSION_SETTING: str(batch_id)}
        with spark_room().session_settings(spark, settings, way_out=_BY_OPTIONS):
            yield MarkedStatement(spark, second)

    def is_done(self, batch_id: int, *, checkpoint: str) -> bool:
        """Tell whether a micro-batch has taken effect; 0 commits.

        Args:
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query.

        Raises: InboxError, StorageError.
        """
        done = self._opened().mark(self._batch_mark(batch_id, checkpoint))
        return done is not None and done >= batch_id

    # --- helpers ------------------------------------------------------------------------------

    def _opened(self) -> InboxTable:
        table = self._table.reopen()
        if table.marker_retention_s is not None:
            problem = (
                "unset delta.setTransactionRetentionDuration: with it the table forgets which "
                "messages have taken effect"
            )
            raise InboxError(table.location, problem)
        return table

    def _fresh(
        self, messages: Sequence[ReceivedMessage], table: InboxTable
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
        news: dict[Place, ReceivedMessage] = {}
        for message in messages:
            is_done = message.queue_offset < done[self._mark_of(message)]
            if not is_done and not self._took_effect(message, table):
                # Of two tries of one message the first one counts.
                news.setdefault(self._first(message), message)
        return list(news.values())

    def _took_effect(self, message: ReceivedMessage, table: InboxTable) -> bool:
        """Tell whether the message that a retry comes from is known to have taken effect."""
        if self._effect_id(table) in effects_of(message):
            return True
        first = self._first_of(message)
        # A handler that hung may have made it after the message was sent back.
        return first is not None and table.names(first)

    def _first_of(self, message: ReceivedMessage) -> Place | None:
        """Return where the message of a retry or a replay was first; None if it is neither."""
        place = first_places(message.properties).get(self.consumer_group)
        place = place or origin_place(message.properties)
        if place is None:
            return None
        return Place(self._queue_mark(message.origin_topic, place[0]), place[1])

    def _names(self, messages: Iterable[ReceivedMessage]) -> str:
        """Name messages for a commit; a retry stands for the message it comes from."""
        return names_of(map(self._first, messages))

    def _first(self, message: ReceivedMessage) -> Place:
        return self._first_of(message) or self._place(message)

    def _place(self, message: ReceivedMessage) -> Place:
        return Place(self._mark_of(message), message.queue_offset)

    def _has_landed(self, marks: Mapping[str, int]) -> bool:
        table = self._table.reopen()
        return all((table.mark(name) or 0) >= offset for name, offset in marks.items())

    def _note_if_landed(
        self, messages: Iterable[ReceivedMessage], table: InboxTable, marks: Mapping[str, int]
    ) -> bool:
        is_landed = self._has_landed(marks)
        if is_landed:
            self._noted(messages, table, len(marks))
        return is_landed

    def _noted(self, messages: Iterable[ReceivedMessage], table: InboxTable, count: int) -> int:
        """Note that all messages have taken effect, so that a later failure does not repeat it."""
        for message in messages:
            note_effect(message, self._effect_id(table))
        return count

    def _effect_id(self, table: InboxTable) -> str:
        """Name the effect that a message carries to its retry; two groups may share a table."""
        return f"{self.consumer_group}/{table.table_id}"

    def _marks(self, messages: Sequence[ReceivedMessage], table: InboxTable) -> dict[str, int]:
        """Return the next offset of each queue after these messages, by the name of its mark.

        A retry moves the mark of its first queue too, or sets it once more: then no other try of
        the same message, such as a handler that still hangs, takes effect at the same time.
        """
        firsts = [first for message in messages if (first := self._first_of(message))]
        nexts = {first.mark: table.mark(first.mark) or 0 for first in firsts}
        for mark, offset in (*firsts, *map(self._place, messages)):
            nexts[mark] = max(nexts.get(mark, 0), offset + 1)
        return nexts

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
        """Return the name of the mark of a batch, which must not lie before the last batch done."""
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


class InboxTable(MarkedTable):
    """The user's table with the marks of the inbox."""

    missing = "{} is no Delta table; pass the table that the messages change"

    def names(self, place: Place) -> bool:
        """Tell whether a commit since the queue came to this message names it.

        Reads: commits backwards, up to the first one at which the queue was not yet there.
        """
        mark = self.mark(place.mark) or 0
        if mark <= place.offset + 1:
            return mark == place.offset + 1
        for version in range(self.version, -1, -1):
            commit = self._commit(version)
            if commit is None or commit.marks.get(place.mark, mark) <= place.offset:
                return False
            if names(commit.note, place):
                return True
        return False

    def _commit(self, version: int) -> CommitActions | None:
        """Read what a commit says; nothing if another program wrote it in another shape."""
        content = self.folder.commit_bytes(version)
        try:
            return None if content is None else commit_actions(content)
        except DAMAGES:
            return EMPTY_COMMIT


def names_of(places: Iterable[Place]) -> str:
    """Name messages in a commit, as a text of JSON: `{"mark": [[first, last], …]}`."""
    by_mark = groupby(sorted(set(places)), lambda place: place.mark)
    return json.dumps(
        {mark: _ranges(place.offset for place in group) for mark, group in by_mark},
        separators=(",", ":"),
    )


def names(text: str, place: Place) -> bool:
    """Tell whether the text of a commit names a message; false for a text that others wrote."""
    try:
        ranges = json.loads(text).get(place.mark, ())
        return any(first <= place.offset <= last for first, last in ranges)
    except DAMAGES:
        return False


def _ranges(offsets: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return ranges
