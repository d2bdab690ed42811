"""One effect for each message in a user's Delta table, however often the message comes.

The table keeps how far the messages of each queue have taken effect: a mark of Delta in the same
commit that changes the table. So effect and mark are committed together, or neither is. What a
retry does ahead of its queue stands in marks of its own, which are used again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from txmq.delta.actions import BY_TIME, DAMAGES, USER_METADATA, CommitActions
from txmq.delta.failures import pause
from txmq.delta.pinned import commit_properties
from txmq.delta.until_committed import until_committed
from txmq.errors import CommitConflictError, CommitRefusedError, InboxError, StorageError, shown
from txmq.ground.sessions import spark_room
from txmq.message.names import stored_group
from txmq.message.received import (
    ReceivedMessage,
    effects_of,
    first_places,
    note_effect,
    origin_place,
    receipt_of,
)
from txmq.user_data.delta_marker import MarkedTable, PastCommit
from txmq.user_data.markers import (
    APP_ID_OPTION,
    APP_ID_SETTING,
    USER_METADATA_SETTING,
    VERSION_OPTION,
    VERSION_SETTING,
    MarkedStatement,
    Restore,
    SqlStatement,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.ground.sessions import DataFrame, SparkSession

APPLY_ATTEMPTS = 20
MAX_NAME_CHARACTERS = 200
# After so many commits without a mark of a group it is asked whether the table has any.
FEW_COMMITS = 16
_BY_OPTIONS = "Mark a write of a DataFrame by batch_options(), or run the statement on a cluster"
_MARKS, _BATCH_MARKS = "txmq-inbox/{group}/", "txmq-inbox-batch/{group}/"
_QUEUE_MARK = _MARKS + "{topic}/{queue}"
_BATCH_MARK = _BATCH_MARKS + "{checkpoint}"
_FOLLOWED_MARK = _MARKS + "restore"
# Begins what a write of Spark says of its batch: a text of JSON, as the note of other writes.
_BATCH_SAID = "txmq "
_NAME = "the inbox's table"
# The number of a mark whose commits are all undone.
_NONE = -1
# What a commit says beside the messages that it names: the version that its writer had read, and
# of a batch its mark, its number and the digest of its rows.
_READ, _MARK, _BATCH, _ROWS = "read", "mark", "batch", "rows"


class Place(NamedTuple):
    """Where a message was first: the mark of its queue, and its offset there."""

    mark: str
    offset: int


class DeltaInbox:
    """Keeps how far the messages of a consumer group have taken effect in one Delta table.

    A member of a group uses `apply` or `delta_rs`. It must pass the messages of a queue in their
    order, and all earlier messages must have taken effect or been sent back: messages before the
    last one count as done. A retry is a message of the retry topic with its own offset; it says
    nothing of the messages that came before its first place. It carries that the message took
    effect before its handler failed, and the commits of the table name their messages, also those
    of a handler that hung and went on after its message was sent back (decision 0064).

    `foreachBatch` uses `batch_options` or `batch_sql`, also for a table that only Spark can open:
    by its name in a catalog, managed by it, without credentials of this process.

    Not safe for several threads.

    Args:
        consumer_group: the name of the group, `tenant%name` inside a namespace.
        location: the location of the table, or with `spark` its name in a catalog. It must not have
            the property `delta.setTransactionRetentionDuration`.
        storage_options: the options to reach the location.
        spark: reads the marks, by the history of the table; then micro-batches alone can use the
            inbox.

    Raises: InvalidNameError; UnsupportedPlaceError for a name without a session.

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
        spark: SparkSession | None = None,
    ) -> None:
        """Check the name; nothing is opened; 0 commits."""
        self.consumer_group = stored_group(consumer_group)
        self._location, self._spark = os.fspath(location), spark
        if spark is None:
            self._table = InboxTable(_NAME, self._location, storage_options)
            self._batches: BatchMarks = self._table
        else:
            self._batches = spark_room().batch_marks(spark, _NAME, self._location)

    # --- members ------------------------------------------------------------------------------

    def fresh(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages that have not taken effect, in their order; 0 commits.

        Args:
            messages: messages of one or more queues, each queue in its order.

        Raises:
            InboxError: messages of a queue are out of order, the table may forget its marks, or a
                RESTORE undid effects of the group; see `follow_restore`.
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
            rows, progress = effect(new), self._progress(new, table)
            try:
                table.append_rows(rows, progress.marks, progress.note)
            except CommitRefusedError:
                pause(attempt)
                continue
            except StorageError:
                # The answer of a commit may be lost; a retry would be another message.
                if not self._table.reopen().has_commit(progress):
                    raise
            self._note(new, table)
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
        progress = self._progress(new, table)
        try:
            yield table.handle, new, commit_properties(progress.marks, progress.note)
        except BaseException:
            # The answer of the block's commit may be lost, or something failed after it.
            with suppress(StorageError):
                self._note_if_landed(new, table, progress)
            raise
        if new and not self._note_if_landed(new, table, progress):
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
        return self._opened().queue(self._queue_mark(topic, queue_id)).next_offset

    # --- RESTORE ------------------------------------------------------------------------------

    def follow_restore(self) -> dict[str, int]:
        """Put the marks back to where a RESTORE took the table: what it undid counts as not done.

        Until then each call of the inbox raises InboxError. Messages whose effects are to be made
        again must come again: let the group go back before you call it (`txmq offsets reset`), or
        start the query again with the checkpoint of that time.

        Commits: one to the table, none if no RESTORE undid an effect of the group. A retry after an
        error finds nothing to do if the marks were put back.

        Returns:
            The marks that were put back, with their numbers: of a queue its next offset, -1 if
            nothing of it is done.

        Raises:
            InboxError: the RESTORE was to a time; do it once more, by version.
            CommitConflictError: other writers were faster; nothing was done.
            StorageError: the table cannot be read or written, or its log does not have the version
                of the RESTORE any more.
        """
        self._refuse_members()
        table = self._table.reopen()

        def compute() -> dict[str, int]:
            undone, marks = self._undone(table), dict[str, int]()
            undone.pop(self._followed_mark, None)
            for restore in set(undone.values()):
                if restore.target == BY_TIME:
                    raise InboxError(table.location, str(restore))
                names = [name for name, by in undone.items() if by == restore]
                numbers = table.marks_in(restore.target, names)
                marks |= {name: _NONE if at is None else at for name, at in numbers.items()}
            if marks:
                note = names_of((), table.version)
                table.commit_marks({**marks, self._followed_mark: table.version}, note)
            return marks

        return until_committed(table, compute)

    # --- micro-batches ------------------------------------------------------------------------

    def batch_options(
        self, batch_id: int, *, checkpoint: str, rows: DataFrame | None = None
    ) -> dict[str, str]:
        """Return the options for the Spark write of a micro-batch; 0 commits.

        Spark skips the write if the batch comes again, so a retry repeats no effect. The options
        are for one write. Spark knows a batch by its number alone, and the checkpoint that is one
        batch older gives that number to other rows. So pass the rows too: the write carries a
        digest of them, and other rows are refused. It reads them once more, of messages the ids.

        The write says in its `userMetadata` which version was looked at. With another text in its
        place each later look reads the whole log for a RESTORE.

        Args:
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query. A new checkpoint begins with batch 0
                again, and an older one an earlier batch, so it needs a new name; its messages have
                their effects again.
            rows: the rows of the batch, which are the same in every run.

        Raises:
            InboxError: an argument cannot be used, a later batch of this checkpoint is done, or
                this batch with other rows.
            StorageError: the table cannot be read.
        """
        name, said = self._next_batch(batch_id, checkpoint, rows)
        return {APP_ID_OPTION: name, VERSION_OPTION: str(batch_id), USER_METADATA: said}

    @contextmanager
    def batch_sql(
        self,
        spark: SparkSession,
        batch_id: int,
        *,
        checkpoint: str,
        rows: DataFrame | None = None,
    ) -> Iterator[SqlStatement]:
        """Mark one SQL statement that changes the table, such as MERGE; see `batch_options`.

        The value of the `with` statement runs the statement, as `spark.sql` does.

        Args:
            spark: the session of the micro-batch.
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query.
            rows: as in `batch_options`.

        Raises: as `batch_options`; InboxError for a second statement; EnvironmentProblemError if
            the session refuses the marker's settings, as on serverless compute.
        """
        name, said = self._next_batch(batch_id, checkpoint, rows)
        problem = "one batch_sql block marks one statement; Spark would skip a second one"
        second = InboxError(self._location, problem)
        settings = {
            APP_ID_SETTING: name,
            VERSION_SETTING: str(batch_id),
            USER_METADATA_SETTING: said,
        }
        with spark_room().session_settings(spark, settings, way_out=_BY_OPTIONS):
            yield MarkedStatement(spark, second)

    def is_done(self, batch_id: int, *, checkpoint: str) -> bool:
        """Tell whether a micro-batch has taken effect; 0 commits.

        Args:
            batch_id: the number that `foreachBatch` passes.
            checkpoint: a name for the checkpoint of the query.

        Raises: InboxError, StorageError.
        """
        name = self._batch_mark(batch_id, checkpoint)
        done = self._batches_of(name).mark(name)
        return done is not None and done >= batch_id

    # --- helpers ------------------------------------------------------------------------------

    def _opened(self) -> InboxTable:
        self._refuse_members()
        table = self._table.reopen()
        _check_keeps_marks(table)
        way_out = "let the group go back, if they are to be made again, and call follow_restore()"
        what = "effects of this group"
        _refuse_undone(table, self._undone(table), what, f"{way_out} of the inbox")
        return table

    def _refuse_members(self) -> None:
        if self._spark is not None:
            problem = (
                "Spark reads its marks, and members write by delta-rs; use batch_options() or "
                "batch_sql(), or give the path of the table without spark="
            )
            raise InboxError(self._location, problem)

    def _undone(self, table: InboxTable) -> dict[str, Restore]:
        patterns = (_MARKS, _BATCH_MARKS)
        prefixes = tuple(pattern.format(group=self.consumer_group) for pattern in patterns)
        return undone_marks(table, lambda name: name.startswith(prefixes))

    def _batches_of(self, mark: str) -> BatchMarks:
        """Open the table for the batches of one checkpoint."""
        if self._spark is None:
            return self._opened()
        table = self._batches.reopen()
        _check_keeps_marks(table)
        way_out = "give the checkpoint of that time another name, and its later messages have their"
        undone = undone_marks(table, mark.__eq__)
        _refuse_undone(table, undone, "batches of this checkpoint", f"{way_out} effects again")
        return table

    @property
    def _followed_mark(self) -> str:
        return _FOLLOWED_MARK.format(group=self.consumer_group)

    def _fresh(
        self, messages: Sequence[ReceivedMessage], table: InboxTable
    ) -> list[ReceivedMessage]:
        if any(receipt_of(message) for message in messages):
            problem = (
                "messages of a SimpleConsumer come again behind later ones of their queue, and this"
                " inbox rests on their order; use a DatabaseInbox, a MERGE by message_id, or a"
                " PullConsumer"
            )
            raise InboxError(table.location, problem)
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
            if is_done and message.reconsume_times and table.has(self._first(message)):
                # Tried again in its place, it may end among the dead letters all the same.
                note_effect(message, self._effect_id(table))
            if not is_done and not self._took_effect(message, table):
                # Of two tries of one message the first one counts.
                news.setdefault(self._first(message), message)
        return list(news.values())

    def _took_effect(self, message: ReceivedMessage, table: InboxTable) -> bool:
        """Tell whether a message that its queue has not passed took effect by another try."""
        is_noted = self._effect_id(table) in effects_of(message)
        if is_noted and table.mark(self._followed_mark) is None:
            return True
        # A handler that hung may have made it after the message was sent back.
        return table.has(self._first(message))

    def _first_of(self, message: ReceivedMessage) -> Place | None:
        """Return where the message of a retry or a replay was first; None if it is neither."""
        place = first_places(message.properties).get(self.consumer_group)
        place = place or origin_place(message.properties)
        if place is None:
            return None
        return Place(self._queue_mark(message.origin_topic, place[0]), place[1])

    def _first(self, message: ReceivedMessage) -> Place:
        return self._first_of(message) or self._place(message)

    def _place(self, message: ReceivedMessage) -> Place:
        return Place(self._mark_of(message), message.queue_offset)

    def _note_if_landed(
        self, new: Sequence[ReceivedMessage], table: InboxTable, progress: Progress
    ) -> bool:
        is_landed = table.reopen().has_commit(progress)
        if is_landed:
            self._note(new, table)
        return is_landed

    def _note(self, new: Iterable[ReceivedMessage], table: InboxTable) -> None:
        """Note that messages have taken effect, so that a later failure does not repeat it.

        Not of those that their queue has passed: they may have been sent back without an effect.
        """
        for message in new:
            note_effect(message, self._effect_id(table))

    def _effect_id(self, table: InboxTable) -> str:
        """Name the effect that a message carries to its retry; two groups may share a table."""
        return f"{self.consumer_group}/{table.table_id}"

    def _progress(self, new: Sequence[ReceivedMessage], table: InboxTable) -> Progress:
        """Return what a commit with the effects of these messages says.

        A message moves the mark of the queue that handed it out. A retry leaves the mark of its
        first queue where it is, but sets it once more: then no other try of the same message, such
        as a handler that still hangs, takes effect at the same time.
        """
        places = {self._first(message) for message in new}
        done = {self._mark_of(message): message.queue_offset + 1 for message in new}
        marks: dict[str, int] = {}
        for mark in done.keys() | {place.mark for place in places}:
            queue = table.queue(mark)
            offsets = {place.offset for place in places if place.mark == mark}
            after = queue.after(done.get(mark, 0), offsets)
            marks |= after.marks_since(queue)
            # Their slots are free now, so the commit names them.
            places |= {Place(mark, passed) for passed in queue.ahead - after.ahead}
        return Progress(marks, names_of(places, table.version), table.version)

    def _mark_of(self, message: ReceivedMessage) -> str:
        return self._queue_mark(message.topic, message.queue_id)

    def _queue_mark(self, topic: str, queue_id: int) -> str:
        return _QUEUE_MARK.format(group=self.consumer_group, topic=topic, queue=queue_id)

    def _batch_mark(self, batch_id: object, checkpoint: object) -> str:
        where = self._location
        # bool is an int in Python.
        if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
            problem = f"batch_id must be the number that foreachBatch passes, not {shown(batch_id)}"
            raise InboxError(where, problem)
        if not _is_name(checkpoint):
            limit = f"1 to {MAX_NAME_CHARACTERS} printable characters"
            raise InboxError(where, f"checkpoint must be {limit}, not {shown(checkpoint)}")
        return _BATCH_MARK.format(group=self.consumer_group, checkpoint=checkpoint)

    def _next_batch(
        self, batch_id: int, checkpoint: str, rows: DataFrame | None
    ) -> tuple[str, str]:
        """Return the mark of a batch and what its write says; refuse what was done otherwise."""
        name = self._batch_mark(batch_id, checkpoint)
        table = self._batches_of(name)
        done = table.mark(name)
        if done is not None and done > batch_id:
            problem = (
                f"batch {batch_id:,} comes after batch {done:,}, so the query has another "
                "checkpoint; give that checkpoint another name"
            )
            raise InboxError(self._location, problem)
        said: dict[str, object] = {_READ: table.version, _MARK: name, _BATCH: batch_id}
        if rows is not None:
            said[_ROWS] = digest = spark_room().digest_of(rows)
            self._refuse_other_rows(batch_id, digest, rows_of_batch(table, name, batch_id))
        return name, _BATCH_SAID + json.dumps(said)

    def _refuse_other_rows(self, batch_id: int, digest: str, done: str) -> None:
        if done not in ("", digest):
            problem = (
                f"batch {batch_id:,} is done with other rows (the table has {done}, the query "
                f"{digest}), so the query has an older or another checkpoint; give that checkpoint "
                "another name, and its messages have their effects again"
            )
            raise InboxError(self._location, problem)


def _check_keeps_marks(table: BatchMarks) -> None:
    if table.marker_retention_s is not None:
        problem = (
            "unset delta.setTransactionRetentionDuration: with it the table forgets which "
            "messages have taken effect"
        )
        raise InboxError(table.location, problem)


def _refuse_undone(
    table: BatchMarks, undone: Mapping[str, Restore], what: str, way_out: str
) -> None:
    for restore in undone.values():
        raise InboxError(table.location, f"{what} are undone: {restore}; then {way_out}")


def _is_name(value: object) -> bool:
    is_text = isinstance(value, str) and value.isprintable()
    return is_text and 0 < len(str(value).strip()) <= MAX_NAME_CHARACTERS


class Progress(NamedTuple):
    """What a commit with effects says.

    Attributes:
        marks: how far its queues are.
        note: names its messages and the version that its writer had read.
        read_version: that version.
    """

    marks: Mapping[str, int]
    note: str
    read_version: int


class QueueProgress(NamedTuple):
    """How far the messages of a queue have taken effect.

    A message that a retry has done ahead of the queue takes a slot: a mark with its offset. The
    slot is free when the queue has passed it. So a queue has as many slots as it ever had such
    messages at one time: sent back, and done before any later message of the queue was.

    Attributes:
        mark: the mark of the queue; its slots are `mark/0`, `mark/1` and so on.
        next_offset: all messages before it are done or were sent back.
        slots: the offset in each slot.
    """

    mark: str
    next_offset: int
    slots: tuple[int, ...]

    @property
    def ahead(self) -> set[int]:
        """The messages ahead of the queue that are done."""
        return {offset for offset in self.slots if offset >= self.next_offset}

    def after(self, next_offset: int, done: Collection[int]) -> QueueProgress:
        """Return the progress after the queue came to `next_offset` and these messages are done."""
        ahead, following = self.ahead.union(done), max(next_offset, self.next_offset)
        while following in ahead:
            following += 1
        slots = list(self.slots)
        for offset in sorted(ahead - self.ahead):
            if offset > following:
                free = (slot for slot, passed in enumerate(slots) if passed < following)
                slot = next(free, len(slots))
                slots[slot : slot + 1] = [offset]
        return QueueProgress(self.mark, following, tuple(slots))

    def marks_since(self, before: QueueProgress) -> dict[str, int]:
        """Return the marks of a commit that brings the queue here; its own is always among them."""
        slots = enumerate(zip_longest(self.slots, before.slots))
        moved = {f"{self.mark}/{slot}": now for slot, (now, then) in slots if now != then}
        return {self.mark: self.next_offset, **moved}


class InboxTable(MarkedTable):
    """The user's table with the marks of the inbox."""

    missing = "{} is no Delta table; pass the table that the messages change"

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet."""
        super().__init__(name, location, storage_options)
        # The commit at which the marks were read, and the hash of its file.
        self._read_at: tuple[int, bytes] | None = None

    def reopen(self) -> Self:
        """Pin the newest version by a new handle; marks stay known where the log is the same one.

        Reading a mark anew reads all commits since the last checkpoint. Raises: StorageError.
        """
        read_at, marks, marks_of = self._read_at, self._marks, self._marks_of
        super().reopen()
        if read_at and read_at[0] == marks_of and self._hashed(marks_of) == read_at:
            self._marks, self._marks_of = marks, marks_of
        self._read_at = self._hashed(self.version)
        return self

    def _hashed(self, version: int) -> tuple[int, bytes] | None:
        content = self.folder.commit_bytes(version)
        return None if content is None else (version, hashlib.sha256(content).digest())

    def queue(self, mark: str) -> QueueProgress:
        """Return how far a queue has taken effect."""
        slots: list[int] = []
        while (offset := self.mark(f"{mark}/{len(slots)}")) is not None:
            slots.append(offset)
        return QueueProgress(mark, max(self.mark(mark) or 0, 0), tuple(slots))

    def may_have(self, is_wanted: Callable[[str], bool]) -> bool:
        """Tell whether the table may have marks with such names."""
        marks = self._marks_of_log(is_wanted)
        return marks is None or bool(marks)

    def has_commit(self, progress: Progress) -> bool:
        """Tell whether a commit says this; one of another member names other messages.

        Reads: the commits since the version that its writer had read, backwards.
        """
        for past in self.commits_back():
            if past.commit is None or past.version <= progress.read_version:
                return False
            if past.commit.note == progress.note and not past.undone_by:
                return True
        return False

    def has(self, place: Place) -> bool:
        """Tell whether a message took effect, by itself or by its retry.

        Reads: for a message that its queue has passed, commits backwards: the one that names it,
        or the first one at which the queue had not passed it.
        """
        queue = self.queue(place.mark)
        if queue.next_offset <= place.offset + 1:
            return queue.next_offset == place.offset + 1 or place.offset in queue.ahead
        for past in self.commits_back():
            if past.commit is None:
                return False
            if past.undone_by:
                continue
            if past.commit.marks.get(place.mark, queue.next_offset) <= place.offset:
                return False
            if names(past.commit.note, place):
                return True
        return False


class BatchMarks(Protocol):
    """The marks of micro-batches in a user's table, as its files show them or Spark does."""

    location: str

    @property
    def version(self) -> int:
        """The version of the table that is looked at."""
        ...

    @property
    def marker_retention_s(self) -> float | None:
        """The time after which Delta may forget a mark; None if it keeps them for ever."""
        ...

    def reopen(self) -> Self:
        """Look at the newest version from now on. Raises: StorageError."""
        ...

    def mark(self, name: str) -> int | None:
        """Return the number of a mark; None if there is none."""
        ...

    def may_have(self, is_wanted: Callable[[str], bool]) -> bool:
        """Tell whether the table may have marks with such names."""
        ...

    def commits_back(self) -> Iterator[PastCommit]:
        """Yield the commits from this version backwards, as `MarkedTable.commits_back`."""
        ...


def undone_marks(table: BatchMarks, is_wanted: Callable[[str], bool]) -> dict[str, Restore]:
    """Return the wanted marks that a RESTORE left behind although it undid their commits.

    Where it led to a version that an earlier RESTORE had made, the earlier one counts: in that
    version the marks are still those from before it.

    Reads: commits backwards, up to what the writer of the newest one with such marks had read: it
    looked itself before it committed. Where that one does not say what it had read, up to one that
    does. For a new group a few and the newest checkpoint.
    """
    undone: dict[str, Restore] = {}
    seen = -1
    for past in table.commits_back():
        if past.commit is None or (past.undone_by is None and past.version <= seen):
            break
        if past.version == table.version - FEW_COMMITS and not table.may_have(is_wanted):
            break
        marks = [name for name in past.commit.marks if is_wanted(name)]
        if past.undone_by:
            undone |= dict.fromkeys(marks, past.undone_by)
        elif marks:
            seen = max(seen, _read_version(past.commit))
    return undone


def rows_of_batch(table: BatchMarks, mark: str, batch_id: int) -> str:
    """Return the digest of the rows of a batch; empty where nothing is known of them."""
    for past in table.commits_back() if table.mark(mark) == batch_id else ():
        if past.undone_by:
            continue
        if past.commit is None or past.commit.marks.get(mark, batch_id) != batch_id:
            break
        if mark in past.commit.marks:
            return str(_said_in(past.commit).get(_ROWS, ""))
    return ""


def batch_said(text: str) -> dict[str, int]:
    """Return the mark of a micro-batch that a write of Spark says it has; nothing for others."""
    said = _value_of_batch(text)
    mark, number = said.get(_MARK), said.get(_BATCH)
    return {mark: number} if isinstance(mark, str) and type(number) is int else {}


def names_of(places: Iterable[Place], read_version: int) -> str:
    """Name messages in a commit, and the version that its writer had read, as a text of JSON.

    It is `{"read": 12, "mark": [[first, last], …]}`.
    """
    by_mark = groupby(sorted(set(places)), lambda place: place.mark)
    named = {mark: _ranges(place.offset for place in group) for mark, group in by_mark}
    return json.dumps({_READ: read_version, **named}, separators=(",", ":"))


def _read_version(commit: CommitActions) -> int:
    """Return the version that the writer of a commit had read; -1 where it does not say so."""
    version = _said_in(commit).get(_READ)
    return version if type(version) is int else _NONE


def _said_in(commit: CommitActions) -> Mapping[str, Any]:
    """Return what a commit says of its messages or its batch; nothing for what others wrote."""
    return _value_of(commit.note) if commit.note else _value_of_batch(commit.user_metadata)


def _value_of_batch(text: str) -> Mapping[str, Any]:
    return _value_of(text.removeprefix(_BATCH_SAID)) if text.startswith(_BATCH_SAID) else {}


def _value_of(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except DAMAGES:
        return {}
    return value if isinstance(value, dict) else {}


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
