"""Topics: the visible messages. Each topic is a plain Delta table that any engine reads.

A topic may have a body schema; then its bodies are columns too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.errors import BodySchemaConflictError
from txmq.ground.columns import Flags, integers
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.message.codec import are_erased
from txmq.store.schemas import TOPIC
from txmq.store.settled import NOTHING, fingerprint_id
from txmq.store.topic_settings import MAX_QUEUE_NUMS

logger = logging.getLogger(__name__)

OFFSET_MARK = "txmq-offset/"
_QUEUE = re.compile(rf"{OFFSET_MARK}(0|[1-9][0-9]{{0,3}})", re.ASCII)
REBUILD_MARK = "txmq-rebuild"
# Which offsets a rebuild gave to other messages, see `MovedOffsets`.
MOVED_MARK = "txmq-moved"
# How often messages were appended whose claims lie before the mark.
LATE_MARK = "txmq-late"
# How many messages txmq removed, and up to where `state/maintenance` said then that it might have.
REMOVED_MARK, BEGIN_MARK = "txmq-removed", "txmq-begin"
UNKNOWN_FINGERPRINT = 0
NO_OFFSETS: Mapping[int, int] = {}
BODY_SCHEMA_PROPERTY = "txmq.body_schema"
# Bodies of a batch that get a line each in the program's log.
LOGGED_PROBLEMS = 10


class TopicEnd(NamedTuple):
    """How far a topic is.

    Attributes:
        rebuilds: how often it was rebuilt.
        mark: the op version up to which its messages are complete.
        messages: how many were ever appended.
    """

    rebuilds: int
    mark: int
    messages: int

    def appended(self, mark: int, messages: int) -> TopicEnd:
        """Return the end after one more append."""
        return self._replace(mark=max(self.mark, mark), messages=self.messages + messages)

    def is_behind(self, known: TopicEnd) -> bool:
        """Tell whether a topic that ended at `known` lost messages, and nobody rebuilt it since."""
        if self.rebuilds != known.rebuilds:
            return self.rebuilds < known.rebuilds
        return self.mark < known.mark or self.messages < known.messages


class MovedOffsets(NamedTuple):
    """The offsets that the last rebuild which moved any gave to other messages.

    Attributes:
        version: of the table, with which they moved; 0 if none ever did.
        first: the first one of each queue.
    """

    version: int
    first: Mapping[int, int]

    def are_passed(self, queue_id: int, offset: int, version: int) -> bool:
        """Tell whether messages before an offset that is of an earlier version are others now."""
        return version < self.version and offset > self.first.get(queue_id, offset)


class TopicLog:
    """The table of one topic: its mark, its next offsets, its exactly-once append."""

    def __init__(self, name: str, table: Table, mark_id: str) -> None:
        """Open nothing yet; `mark_id` names the op log whose versions the mark counts."""
        self.name = name
        self.table = table
        self.mark_id = mark_id
        self._fingerprint_id = fingerprint_id(mark_id.partition("/")[2])

    @property
    def mark(self) -> int:
        """The op version up to which this handle's messages are complete."""
        version = self.table.log.mark(self.mark_id)
        return NOTHING if version is None else version

    @property
    def fingerprint(self) -> int | None:
        """The fingerprint of the op log's commit at the mark; None where it is not known."""
        return self.table.log.mark(self._fingerprint_id) or None

    def next_offsets(self, queue_ids: Sequence[int]) -> dict[int, int]:
        """Return the offset of the next message of each queue; retention does not change it."""
        return {queue: self.table.log.mark(f"{OFFSET_MARK}{queue}") or 0 for queue in queue_ids}

    @property
    def end(self) -> TopicEnd:
        """How far this handle's version is."""
        rebuilds = self.table.log.mark(REBUILD_MARK) or 0
        messages = sum(queue_ends(self.table.log.marks(OFFSET_MARK)).values())
        return TopicEnd(rebuilds, self.mark, messages)

    @property
    def late_writes(self) -> int:
        """How often messages came that the mark had passed; whoever follows by marks missed them.

        A rebuild counts too.
        """
        return (self.table.log.mark(LATE_MARK) or 0) + (self.table.log.mark(REBUILD_MARK) or 0)

    def lost(self, begin: int) -> int:
        """Count the messages that are gone and that txmq did not remove; 0 if nobody can tell.

        `begin` is `begin_of` the topic now; an earlier txmq removed rows without counting them.
        """
        if not _knows(self.table, begin):
            return 0
        return max(0, _missing(self.table) - _removed(self.table))

    @property
    def may_have_lost(self) -> bool:
        """Whether `lost` is worth a look at `begin_of`."""
        return _missing(self.table) > _removed(self.table)

    def swap(self, rows: pa.Table, mark: int, next_offsets: Mapping[int, int]) -> None:
        """Append messages and set mark and offsets, in one commit.

        Raises: CommitRefusedError if another publisher was faster.
        """
        self.table.writer.swap(rows, self._marks(mark, next_offsets))

    def swap_files(
        self,
        files: Sequence[NewFile],
        mark: int,
        next_offsets: Mapping[int, int],
        fingerprint: int | None = None,
        *,
        is_late: bool = False,
    ) -> None:
        """Append files that are written already, as `swap`.

        `fingerprint` is of the op log at `mark`; `is_late` says that claims of these messages lie
        before the mark that the topic had.
        """
        late = self._late_mark() if is_late else {}
        self.table.writer.swap_files(
            files, {**self._marks(mark, next_offsets, fingerprint), **late}
        )

    def add_files(self, files: Sequence[NewFile], next_offsets: Mapping[int, int]) -> None:
        """Append messages whose claims lie before the mark, which stays, in one commit.

        Raises: CommitRefusedError if another publisher wrote to one of these queues.
        """
        self.table.writer.swap_files(files, {**_offset_marks(next_offsets), **self._late_mark()})

    def replace_files(  # noqa: PLR0913, PLR0917 - all that a rebuild changes
        self,
        files: Sequence[NewFile],
        mark: int,
        next_offsets: Mapping[int, int],
        known: TopicEnd | None = None,
        begin: int = NOTHING,
        moved_from: Mapping[int, int] = NO_OFFSETS,
    ) -> None:
        """Replace all files of the topic by these, as `swap_files`; marks may go back.

        Where it is known to have been further it is an older copy, whose next versions are those
        that streams of Spark have passed: it becomes another table, and they are told.

        Args:
            files: all rows of the topic.
            mark: the version of the op log up to which they are complete.
            next_offsets: by queue.
            known: how far publishers have seen the topic.
            begin: as in `lost`.
            moved_from: by queue the first offset that is another message's now, if any.
        """
        is_older = known is not None and self.end.is_behind(known)
        rebuilds = 0 if known is None else known.rebuilds
        rebuilt = max(self.table.log.mark(REBUILD_MARK) or 0, rebuilds) + 1
        ends = {**self.table.log.marks(OFFSET_MARK), **_offset_marks(next_offsets)}
        removed = sum(ends.values()) - sum(file.num_records for file in files)
        counts = {REMOVED_MARK: max(0, removed), BEGIN_MARK: begin}
        moved = _moved_marks(self.table.version + 1, ends, moved_from)
        marks = {**self._marks(mark, next_offsets), REBUILD_MARK: rebuilt, **counts, **moved}
        self.table.writer.replace_files(files, marks, is_another_table=is_older)

    def _late_mark(self) -> dict[str, int]:
        return {LATE_MARK: (self.table.log.mark(LATE_MARK) or 0) + 1}

    def _marks(
        self, mark: int, next_offsets: Mapping[int, int], fingerprint: int | None = None
    ) -> dict[str, int]:
        # Always written, so that none stays that belongs to an older mark.
        fingerprints = {self._fingerprint_id: fingerprint or UNKNOWN_FINGERPRINT}
        return {self.mark_id: mark, **fingerprints, **_offset_marks(next_offsets)}


def remove_messages(table: Table, files: Sequence[DataFile], before: int, begin: int) -> None:
    """Remove whole files of a topic, and count their messages as removed by txmq: one commit.

    Args:
        table: of the topic.
        files: what is removed.
        before: `begin_of` the topic before this removal was told.
        begin: `begin_of` the topic now.

    Raises: CommitRefusedError.
    """
    is_counted = _knows(table, before) and len(files) < len(table.files.all())
    # Where an earlier txmq has removed some, or all go, nobody misses what another program took.
    removed = _removed(table) if is_counted else max(0, _missing(table))
    removed += sum(file.num_records for file in files)
    table.writer.remove(files, {REMOVED_MARK: removed, BEGIN_MARK: begin})


def _missing(table: Table) -> int:
    """Count the messages that a topic had and does not show; 0 where a file does not say."""
    counts = [file.num_records for file in table.files.all()]
    return sum(table.log.marks(OFFSET_MARK).values()) - sum(counts) if all(counts) else 0


def _removed(table: Table) -> int:
    return table.log.mark(REMOVED_MARK) or 0


def _knows(table: Table, begin: int) -> bool:
    mark = table.log.mark(BEGIN_MARK)
    return begin == (NOTHING if mark is None else mark)


def _offset_marks(next_offsets: Mapping[int, int]) -> dict[str, int]:
    return {f"{OFFSET_MARK}{queue}": offset for queue, offset in next_offsets.items()}


def _moved_marks(
    version: int, ends: Mapping[str, int], moved_from: Mapping[int, int]
) -> dict[str, int]:
    """Return the marks of a rebuild that moves offsets, for each queue; none if it moves none."""
    if not moved_from:
        return {}
    # All of a queue stays that no offset of it has moved in.
    first = {**queue_ends(ends), **moved_from}
    return {MOVED_MARK: version, **{f"{MOVED_MARK}/{q}": offset for q, offset in first.items()}}


def moved_offsets(table: Table) -> MovedOffsets:
    """Return which offsets the rebuilds of a topic moved, by its pinned version."""
    prefix = f"{MOVED_MARK}/"
    marks = {
        OFFSET_MARK + name.removeprefix(prefix): n for name, n in table.log.marks(prefix).items()
    }
    return MovedOffsets(table.log.mark(MOVED_MARK) or 0, queue_ends(marks))


def queue_ends(marks: Mapping[str, int]) -> dict[int, int]:
    """Return the next offset of each queue that the marks of a topic name.

    Other programs may write rows and marks for any queue; the marks of publishers tell which have
    messages.
    """
    queues = ((_QUEUE.fullmatch(name), offset) for name, offset in marks.items())
    ends = {int(queue[1]): offset for queue, offset in queues if queue}
    return {queue: offset for queue, offset in ends.items() if queue < MAX_QUEUE_NUMS}


def are_queues(queue_ids: pa.ChunkedArray) -> Flags:
    """Tell of each number if a topic can have this queue; other programs write any, and null."""
    numbers = integers(queue_ids, -1)
    are_small: Flags = (numbers >= 0) & (numbers < MAX_QUEUE_NUMS)
    return are_small


def offsets_in_order(
    queue_ids: pa.ChunkedArray, start: Mapping[int, int]
) -> tuple[npt.NDArray[np.int64], dict[int, int]]:
    """Return gap-free offsets for rows in their order, and the next offset of each queue."""
    queues = integers(queue_ids, 0)
    order = np.argsort(queues, kind="stable")
    ordered = queues[order]
    names, first, counts = np.unique(ordered, return_index=True, return_counts=True)
    begin = np.array([start.get(int(name), 0) for name in names], dtype=np.int64)
    offsets = np.empty(len(queues), dtype=np.int64)
    offsets[order] = np.arange(len(queues)) - np.repeat(first, counts) + np.repeat(begin, counts)
    ends = (begin + counts).tolist()
    after = {int(name): int(end) for name, end in zip(names, ends, strict=True)}
    return offsets, after


# --- topics with a body schema --------------------------------------------------------------------


def typed_schema(body: BodySchema) -> TableSchema:
    """Return the schema of a topic's table with the columns of its bodies."""
    return replace(TOPIC, columns=typed_columns(body))


def typed_columns(body: BodySchema) -> pa.Schema:
    """Return all columns of a typed topic."""
    return pa.schema([*TOPIC.columns, *body.columns])


def set_body_schema(
    table: Table, topic: str, read: Callable[[], BodySchema | None], *, exactly: bool = False
) -> None:
    """Make a topic take the bodies that `read` tells: up to two commits.

    One that has messages takes those of a wider schema, see `BodySchema.differences`. Earlier
    columns stay and are null. Each commit is computed anew, and refused where anybody was faster:
    messages may come in between. `read` is called for each, and once more at the end.

    Args:
        table: of the topic.
        topic: its name, for errors.
        read: the schema now; None takes any bytes.
        exactly: whether a topic without messages, which takes these bodies and others, changes.

    Raises: as `check_body_schema`; CommitConflictError.
    """

    def compute() -> bool:
        """Make the next commit, if there is one to make. Tell whether it was the last one."""
        body = read()
        columns = [] if body is None else list(body.columns)
        if not _must_change(table, topic, body, exactly=exactly):
            return True
        if table.writer.check_columns(columns):
            table.writer.add_columns(columns, directly=True)
            return False
        text = "" if body is None else body.to_json()
        table.writer.set_properties({BODY_SCHEMA_PROPERTY: text}, directly=True)
        return body == read()

    while not until_committed(table, compute):
        pass


def check_body_schema(table: Table, topic: str, body: BodySchema | None) -> bool:
    """Tell whether a topic's table must change to take these bodies; None takes any bytes.

    Raises: BodySchemaConflictError if the topic has messages of other bodies; StorageError if an
        earlier column has the same name and another type.
    """
    return _must_change(table.refresh(), topic, body, exactly=True)


def _must_change(table: Table, topic: str, body: BodySchema | None, *, exactly: bool) -> bool:
    """Do as `check_body_schema`, by the pinned version; `exactly` as in `set_body_schema`."""
    before, has_messages = body_schema_in(table), bool(table.files.all())
    takes_it = before is not None and body is not None and not before.differences(body)
    if before == body or (takes_it and (has_messages or not exactly)):
        return False
    if has_messages and (problem := _problem_of_change(before, body)):
        raise BodySchemaConflictError(topic, f"{problem}; choose another topic")
    table.writer.check_columns([] if body is None else list(body.columns))
    return True


def _problem_of_change(before: BodySchema | None, after: BodySchema | None) -> str | None:
    if before is None or after is None:
        return "has messages, so its body schema cannot change"
    differences = after.differences(before)
    if not differences:
        return None
    rule = "its body schema cannot change but for new fields that may be null"
    return f"has messages, so {rule}: {', '.join(differences)}"


def body_schema_in(table: Table) -> BodySchema | None:
    """Read the body schema in a topic's table; None takes any bytes.

    Raises: BodySchemaError if another program changed it to one that cannot be read.
    """
    text = body_schema_text(table)
    return None if text is None else parsed_schema(text)


def body_schema_text(table: Table) -> str | None:
    """Return the property of a topic's table that is its body schema; None takes any bytes."""
    return table.log.properties().get(BODY_SCHEMA_PROPERTY) or None


def with_body_columns(rows: Iterable[pa.Table], body: BodySchema) -> Iterator[pa.Table]:
    """Extend rows of TOPIC by the columns of their bodies.

    A body without the schema did not come through a producer. Its columns are null and a warning
    names it; the other messages are not held up. Those of an erased message are null too.
    """
    columns = typed_columns(body)
    for batch in rows:
        problems: dict[int, str] = {}
        decoded = body.decoded(batch["body"], problems.__setitem__)
        _warn_of(batch, _without_erased(batch, problems))
        yield pa.table([*batch.columns, *decoded.columns], schema=columns)


def _without_erased(batch: pa.Table, problems: dict[int, str]) -> dict[int, str]:
    erased = are_erased(batch["properties"]) if problems else None
    if erased is None:
        return problems
    return {row: problem for row, problem in problems.items() if not erased[row]}


def _warn_of(batch: pa.Table, problems: dict[int, str]) -> None:
    for place, problem in list(problems.items())[:LOGGED_PROBLEMS]:
        row = batch.slice(place, 1).select(["topic", "message_id"]).to_pylist()[0]
        text = (
            "topic %s: the body of %s does not have the topic's schema, so its columns are null: %s"
        )
        logger.warning(text, row["topic"], row["message_id"], problem)
    if len(problems) > LOGGED_PROBLEMS:
        logger.warning("and %d more bodies", len(problems) - LOGGED_PROBLEMS)
