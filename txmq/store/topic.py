"""Topics: the visible messages. Each topic is a plain Delta table that any engine reads.

A topic may have a body schema; then its bodies are columns too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.parquet import NewFile
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.errors import BodySchemaConflictError
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.message.codec import are_erased
from txmq.store.schemas import TOPIC
from txmq.store.settled import NOTHING, fingerprint_id

logger = logging.getLogger(__name__)

OFFSET_MARK = "txmq-offset/"
REBUILD_MARK = "txmq-rebuild"
# How often messages were appended whose claims lie before the mark.
LATE_MARK = "txmq-late"
UNKNOWN_FINGERPRINT = 0
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
        messages = sum(self.table.log.marks(OFFSET_MARK).values())
        return TopicEnd(rebuilds, self.mark, messages)

    @property
    def late_writes(self) -> int:
        """How often messages came that the mark had passed; whoever follows by marks missed them.

        A rebuild counts too.
        """
        return (self.table.log.mark(LATE_MARK) or 0) + (self.table.log.mark(REBUILD_MARK) or 0)

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

    def replace_files(
        self,
        files: Sequence[NewFile],
        mark: int,
        next_offsets: Mapping[int, int],
        rebuilds: int = 0,
    ) -> None:
        """Replace all files of the topic by these, as `swap_files`; marks may go back.

        `rebuilds` is how often it is known to have been rebuilt, which an older copy forgot.
        """
        rebuilt = max(self.table.log.mark(REBUILD_MARK) or 0, rebuilds) + 1
        marks = {**self._marks(mark, next_offsets), REBUILD_MARK: rebuilt}
        self.table.writer.replace_files(files, marks)

    def _late_mark(self) -> dict[str, int]:
        return {LATE_MARK: (self.table.log.mark(LATE_MARK) or 0) + 1}

    def _marks(
        self, mark: int, next_offsets: Mapping[int, int], fingerprint: int | None = None
    ) -> dict[str, int]:
        # Always written, so that none stays that belongs to an older mark.
        fingerprints = {self._fingerprint_id: fingerprint or UNKNOWN_FINGERPRINT}
        return {self.mark_id: mark, **fingerprints, **_offset_marks(next_offsets)}


def _offset_marks(next_offsets: Mapping[int, int]) -> dict[str, int]:
    return {f"{OFFSET_MARK}{queue}": offset for queue, offset in next_offsets.items()}


def offsets_in_order(
    queue_ids: pa.ChunkedArray, start: Mapping[int, int]
) -> tuple[npt.NDArray[np.int64], dict[int, int]]:
    """Return gap-free offsets for rows in their order, and the next offset of each queue."""
    queues = pc.fill_null(queue_ids, 0).to_numpy().astype(np.int64)
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


def set_body_schema(table: Table, topic: str, body: BodySchema | None) -> None:
    """Make a topic without messages take these bodies: up to two commits.

    Earlier columns stay and are null. Each commit is computed anew: messages may come in between.

    Raises: as `check_body_schema`; CommitConflictError.
    """
    columns = [] if body is None else list(body.columns)

    def compute() -> bool:
        """Make the next commit, if there is one to make. Tell whether it was the last one."""
        if not _must_change(table, topic, body):
            return True
        if table.writer.check_columns(columns):
            table.writer.add_columns(columns)
            return False
        table.writer.set_properties({BODY_SCHEMA_PROPERTY: "" if body is None else body.to_json()})
        return True

    while not until_committed(table, compute):
        pass


def check_body_schema(table: Table, topic: str, body: BodySchema | None) -> bool:
    """Tell whether a topic's table must change to take these bodies; None takes any bytes.

    Raises: BodySchemaConflictError if the topic has messages; StorageError if an earlier column has
        the same name and another type.
    """
    return _must_change(table.refresh(), topic, body)


def _must_change(table: Table, topic: str, body: BodySchema | None) -> bool:
    """Do as `check_body_schema`, by the pinned version."""
    if body_schema_in(table) == body:
        return False
    if table.files.all():
        problem = "has messages, so its body schema cannot change; choose another topic"
        raise BodySchemaConflictError(topic, problem)
    table.writer.check_columns([] if body is None else list(body.columns))
    return True


def body_schema_in(table: Table) -> BodySchema | None:
    """Read the body schema in a topic's table; None takes any bytes.

    Raises: BodySchemaError if another program changed it to one that cannot be read.
    """
    text = table.log.properties().get(BODY_SCHEMA_PROPERTY)
    return parsed_schema(text) if text else None


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
