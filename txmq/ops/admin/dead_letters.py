"""Dead letters of a consumer group: list, show, send again, purge.

A message cannot be removed from the middle of a topic, whose offsets have no gaps. So the offset of
a purged message is notes in `state/dead_letters_<group>`, which hides it. A file leaves the table
once all messages up to its end are purged.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.consumer.arguments import check_max_messages
from txmq.consumer.send_back import RETRY_GROUP
from txmq.delta.files import DataFile
from txmq.delta.table import Table
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    ConfigError,
    InvalidMessageError,
    shown,
)
from txmq.ground.clock import Clock, SystemClock, milliseconds
from txmq.ground.columns import python_rows, python_values
from txmq.ground.results import Plain, plain
from txmq.maintenance.retention import published_up_to, tell_topic_begin
from txmq.message.codec import without_erased
from txmq.message.ids import REPLAY, message_address
from txmq.message.message import Message
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
    DEAD_LETTER_PREFIX,
    EFFECT_TABLES,
    FIRST_PLACES,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE_ID,
    ORIGIN_TOPIC,
    RECONSUME_REASON,
    RECONSUME_TIMES,
    RETRY_PROPERTIES,
    dead_letter_topic,
    retry_topic,
    shown_name,
    stored_group,
)
from txmq.message.reasons import signed_reason
from txmq.message.received import (
    first_places,
    first_places_text,
    number_in,
    origin_place,
    sent_back_times,
)
from txmq.ops.admin.dead_letter_notes import (
    PURGED,
    REPLAYED,
    Chosen,
    DeadLetterNotes,
    Notes,
    Offsets,
    check_chosen,
    offsets_of,
)
from txmq.ops.admin.messages import body_values
from txmq.producer.once import KeyedMessage, OnceSender
from txmq.producer.routing import MessageRouter, RoutedMessage
from txmq.store.store import Store, check_store
from txmq.store.topic import REBUILD_MARK, remove_messages

MESSAGES_A_COMMIT = 5_000
BYTES_A_COMMIT = 64 * 1024 * 1024
_COLUMNS = (
    "message_id",
    "queue_offset",
    "store_timestamp",
    "tags",
    "keys",
    "properties",
    "sharding_key",
    "born_timestamp",
    "body",
)
_PLACE = ("message_id", "queue_offset", "store_timestamp")
_CONTENT = (*_PLACE, "tags", "keys", "properties", "sharding_key", "born_timestamp")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group could not handle.

    Attributes:
        origin_topic, origin_message_id: those of the first message; None where another program
            than txmq wrote the dead letter.
        reconsume_times: how often it was sent back; None where its properties do not say it.
        reason: why it was sent back the last time.
        store_timestamp: when it became a dead letter.
        is_replayed: whether it was sent again.
        body: None unless it was asked for.
    """

    message_id: str
    queue_offset: int
    origin_topic: str | None
    origin_message_id: str | None
    reconsume_times: int | None
    reason: str | None
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: str | None
    born_timestamp: datetime
    store_timestamp: datetime
    is_replayed: bool
    body: bytes | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; a body that is not UTF-8 text is in base64."""
        values = plain(replace(self, body=None))
        del values["body"]
        return values if self.body is None else {**values, **body_values(self.body)}


class ReplayTarget(enum.StrEnum):
    """Where dead letters are sent again: to their group alone, or to all readers of the topic."""

    RETRY = "retry"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did, or would do.

    Attributes:
        topics: how many messages went to each topic.
        skipped: how many of the chosen messages an earlier replay has sent.
    """

    consumer_group: str
    reason: str
    topics: Mapping[str, int]
    skipped: int
    is_written: bool

    @property
    def messages(self) -> int:
        """How many were sent, or would be."""
        return sum(self.topics.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**plain(self), "messages": self.messages}


@dataclass(frozen=True, slots=True)
class PurgeResult(Plain):
    """What a purge did, or would do; `files` counts the files that left the table."""

    consumer_group: str
    reason: str
    messages: int
    files: int
    is_written: bool


class DeadLetters:
    """Lists, shows, sends again and purges the dead letters of one consumer group; needs no Spark.

    Args:
        store: the store of the group.
        consumer_group: the name of the group; `tenant%name` in a namespace.
        clock: the time for rows and notes that are written.

    Example:
        >>> dead_letters = DeadLetters(store, "billing")
        >>> dead_letters.all()
        ()
        >>> dead_letters.purge(Chosen(everything=True), reason="tests of June").messages
        0
    """

    def __init__(self, store: Store, consumer_group: str, *, clock: Clock | None = None) -> None:
        """Open nothing yet. Raises: InvalidNameError."""
        check_store(store)
        self.consumer_group = stored_group(consumer_group)
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._topic = dead_letter_topic(self.consumer_group)
        self._table = store.tables.table_at(f"topics/{self._topic}")
        self._notes = DeadLetterNotes(store, self.consumer_group)

    # --- queries ------------------------------------------------------------------------------

    def all(self, *, max_count: int | None = None) -> tuple[DeadLetter, ...]:
        """List the dead letters that were not purged, without their bodies.

        Args:
            max_count: the first so many only.

        Returns:
            The dead letters, oldest first.

        Reads: topics/DLQ_<group>, state/dead_letters_<group>. Commits: 0.

        Raises: StorageError; ConfigError for a wrong `max_count`.
        """
        if max_count is not None:
            check_max_messages(max_count, "max_count")
        notes = self._notes.read()
        rows = self._rows(notes, _CONTENT).slice(0, max_count)
        return tuple(_letters(rows, notes))

    def between(self, start: int, end: int) -> tuple[DeadLetter, ...]:
        """List those of `all` from the offset `start` on and below `end`; for pages of a long list.

        Reads: of topics/DLQ_<group> the files that may hold them. Commits: 0.

        Raises: StorageError; ConfigError for an offset that is no whole number.
        """
        if type(start) is not int or type(end) is not int:
            problem = f"offsets must be whole numbers, not {shown(start)} and {shown(end)}"
            raise ConfigError([problem])
        if not self._table.exists():
            return ()
        notes, offsets = self._notes.read(), pa.array(range(start, end), pa.int64())
        rows = self._table.refresh().search.rows_of("queue_offset", offsets, _CONTENT)
        return tuple(_letters(self._visible(rows, notes), notes))

    def first_offset(self, start: int) -> int:
        """Return the first offset from `start` on that was not purged.

        Reads: state/dead_letters_<group>. Commits: 0. Raises: StorageError.
        """
        return self._notes.read().purged.end_of(start)

    def count(self) -> int:
        """Count the dead letters that were not purged. Reads, commits, raises: as `all`."""
        return int(self._rows(self._notes.read(), _PLACE).num_rows)

    def show(self, message_id: str, *, with_body: bool = False) -> DeadLetter:
        """Read one dead letter, with its body if `with_body`.

        Reads, commits: as `all`.

        Raises:
            MessageNotFoundError: it is no dead letter of this group, or it was purged.
            TransactionNotFoundError: `message_id` is not a message id.
            StorageError: a table cannot be read.
        """
        notes = self._notes.read()
        columns = (*_CONTENT, "body") if with_body else _CONTENT
        files = self._files_of([message_address(message_id)[0]])
        rows = Chosen((message_id,)).of(self._visible(self._read(files, columns), notes))
        return next(_letters(rows, notes))

    def audit(self) -> tuple[Mapping[str, Any], ...]:
        """Read the last hundred changes by operators, oldest first.

        Each has `what` (purged or replayed), `at`, `reason` with the name of the OS user, and
        `messages`, their number. Reads: state/dead_letters_<group>. Commits: 0. Raises:
        StorageError.
        """
        return tuple(self._notes.read().audit)

    # --- changes ------------------------------------------------------------------------------

    def replay(
        self,
        chosen: Chosen,
        *,
        reason: str,
        to: ReplayTarget = ReplayTarget.RETRY,
        apply: bool = False,
    ) -> ReplayResult:
        """Send dead letters again; a dry run unless `apply`.

        Each dead letter is sent once, also where two operators replay it or a call is repeated
        after a failure: messages that were sent stay sent, and a repeated call sends the rest.

        Args:
            chosen: which dead letters.
            reason: one line, which is stored with the claims.
            to: RETRY sends to the retry topic of the group, with all retries again. TOPIC sends to
                the first topic, where every group that reads it sees them, with ORIGIN_MESSAGE_ID.
            apply: send them; without it they are only counted.

        Reads: topics/DLQ_<group>, half, settled, op. Writes: half, op (source operator, with
        `reason` and the name of the OS user), state/dead_letters_<group>. Commits: with `apply`
        one to each for 5,000 messages or 64 MiB, else 0.

        Returns:
            How many messages went to each topic, and how many had been replayed before.

        Raises:
            MessageNotFoundError, TransactionNotFoundError: a chosen id is no dead letter.
            InvalidReasonError: a wrong reason.
            InvalidMessageError: a dead letter does not name its first topic; replay it to RETRY.
            TopicNotFoundError, InvalidBodyError: the first topic is gone, or refuses the body.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        check_chosen(chosen)
        signed, notes = signed_reason(reason), self._notes.read()
        # Nothing is left of an erased one, so there is nothing to send.
        rows = without_erased(chosen.of(self._rows(notes, (*_PLACE, "properties"))))
        waiting = rows.filter(pa.array(~notes.replayed.holding(offsets_of(rows))))
        replay = Replay(self._store, self.consumer_group, self._table, to, self._clock)
        properties = python_values(waiting["properties"])
        topics = Counter(shown_name(replay.topic_of(dict(pairs or ()))) for pairs in properties)
        if apply and waiting.num_rows:
            for offsets in replay.send(offsets_of(waiting), signed):
                self._note(REPLAYED, offsets, signed)
        skipped = rows.num_rows - waiting.num_rows
        group = shown_name(self.consumer_group)
        return ReplayResult(group, signed, dict(topics), skipped, is_written=apply)

    def purge(self, chosen: Chosen, *, reason: str, apply: bool = False) -> PurgeResult:
        """Hide dead letters for good; a dry run unless `apply`.

        They are hidden at once. Their rows leave the table together with their file, once all
        messages before them are purged too. Half and schedule keep their rows until retention.

        Args:
            chosen: which dead letters.
            reason: one line, which is stored in the audit.
            apply: purge them; without it they are only counted.

        Reads: topics/DLQ_<group>, state/publisher. Writes: state/dead_letters_<group>; where files
        leave, state/maintenance and topics/DLQ_<group>. Commits: with `apply` one to each, else 0.
        A repeated call purges what is left and removes files that an earlier call could not.

        Returns:
            How many messages were purged, and how many files left the table.

        Raises:
            MessageNotFoundError, TransactionNotFoundError: a chosen id is no dead letter.
            InvalidReasonError: a wrong reason.
            CommitConflictError, StorageError: a table cannot be read or written.
        """
        check_chosen(chosen)
        signed, notes = signed_reason(reason), self._notes.read()
        offsets = offsets_of(chosen.of(self._rows(notes, _PLACE)))
        files = 0
        if apply:
            if len(offsets):
                self._note(PURGED, offsets, signed)
            files = self._drop_files()
        group = shown_name(self.consumer_group)
        return PurgeResult(group, signed, len(offsets), files, is_written=apply)

    def _note(self, what: str, offsets: Offsets, reason: str) -> None:
        """Add notes; take them back where a rebuild gave these offsets to other letters meanwhile.

        Raises: CommitConflictError, StorageError.
        """
        rebuilds, now_ms = self._table.log.mark(REBUILD_MARK), self._clock.now_ms()
        self._notes.add(what, offsets, reason, now_ms)
        if self._table.refresh().log.mark(REBUILD_MARK) != rebuilds:
            self._notes.forget_from(int(offsets.min()), now_ms)
            raise CommitConflictError(self._topic, "was rebuilt meanwhile; run it again")

    # --- reading ------------------------------------------------------------------------------

    def _rows(self, notes: Notes, columns: Sequence[str]) -> pa.Table:
        files = self._table.refresh().files.all() if self._table.exists() else []
        return self._visible(self._read(files, columns), notes)

    def _read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        if not self._table.exists():
            return pa.schema(
                [self._table.schema.columns.field(name) for name in columns]
            ).empty_table()
        return self._table.rows.read(files, columns)

    def _files_of(self, transaction_ids: Sequence[str]) -> list[DataFile]:
        if not self._table.exists():
            return []
        ids = pa.array(transaction_ids, pa.string())
        return self._table.refresh().files.holding("transaction_id", ids)

    def _visible(self, rows: pa.Table, notes: Notes) -> pa.Table:
        rows = rows.filter(pa.array(~notes.purged.holding(offsets_of(rows))))
        return rows.sort_by("queue_offset")

    # --- purge --------------------------------------------------------------------------------

    def _drop_files(self) -> int:
        """Remove the files before the first kept message; return how many."""
        if not self._table.exists():
            return 0
        self._table.refresh()
        purged = self._purged_files(published_up_to(self._store))
        if not purged:
            return 0
        op_version = max(high for _, high in purged)
        try:
            # Recorded before files are removed, so that verify never meets an unexplained gap.
            begins = {self._topic: op_version}
            told = tell_topic_begin(self._store, begins, self._clock.now_ms())[self._topic]
            remove_messages(self._table, [file for file, _ in purged], told.before, told.begin)
        except CommitRefusedError:
            # Maintenance was faster; the next purge removes them.
            return 0
        return len(purged)

    def _purged_files(self, published: int) -> list[tuple[DataFile, int]]:
        """List the files up to the first kept message, each with its newest op version."""
        offsets = self._table.files.ranges("queue_offset")
        if not offsets or any(span.low is None or span.high is None for span in offsets):
            return []
        end = self._notes.read().purged.end_of(min(span.low for span in offsets))
        versions = {span.file.path: span.high for span in self._table.files.ranges("op_version")}
        return [
            (span.file, versions[span.file.path])
            for span in offsets
            if span.high < end and (versions[span.file.path] or published) < published
        ]


def _letters(rows: pa.Table, notes: Notes) -> Iterator[DeadLetter]:
    is_replayed = notes.replayed.holding(offsets_of(rows)).tolist()
    for row, flag in zip(python_rows(rows), is_replayed, strict=True):
        properties = dict(row["properties"] or ())
        origin = properties.get(ORIGIN_TOPIC)
        yield DeadLetter(
            **{**row, "properties": properties},
            origin_topic=None if origin is None else shown_name(origin),
            origin_message_id=properties.get(ORIGIN_MESSAGE_ID),
            reconsume_times=sent_back_times(properties),
            reason=properties.get(RECONSUME_REASON),
            is_replayed=flag,
        )


def groups_with_dead_letters(store: Store) -> list[str]:
    """List the stored names of consumer groups that have a dead-letter topic. Commits: 0."""
    topics = store.topics()
    return [
        name.removeprefix(DEAD_LETTER_PREFIX)
        for name in topics
        if name.startswith(DEAD_LETTER_PREFIX)
    ]


# --- replay ---------------------------------------------------------------------------------------


class Replay:
    """Sends dead letters of one group to one target; each message once, whoever repeats it."""

    def __init__(
        self,
        store: Store,
        consumer_group: str,
        dead_letters: Table,
        target: ReplayTarget,
        clock: Clock,
    ) -> None:
        """Open nothing yet. `dead_letters` is the dead-letter topic of the stored group name."""
        self._store, self._group, self._table = store, consumer_group, dead_letters
        self._target, self._clock = target, clock

    def topic_of(self, properties: Mapping[str, str]) -> str:
        """Return the stored name of the topic that a dead letter with these properties goes to.

        Raises: InvalidMessageError where the letter does not name its first topic.
        """
        if self._target is ReplayTarget.RETRY:
            return retry_topic(self._group)
        origin = properties.get(ORIGIN_TOPIC)
        if origin is None:
            problem = "is missing, so the first topic is unknown; replay it to the retry topic"
            raise InvalidMessageError(ORIGIN_TOPIC, problem)
        return origin

    def send(self, offsets: Offsets, operator_reason: str) -> Iterator[Offsets]:
        """Send the messages at `offsets`; yield the offsets that each pair of commits sent.

        Commits: one to half and one to op for 5,000 messages or 64 MiB. Raises: as
        `DeadLetters.replay`; a repeated call sends only what is missing.
        """
        sender = OnceSender(self._store, self._group, RETRY_GROUP, self._clock)
        router = MessageRouter(self._store)
        for rows in self._batches(offsets):
            messages = [self._keyed_message(row, router) for row in python_rows(rows)]
            sender.send(messages, operator_reason=operator_reason)
            yield offsets_of(rows)

    def _batches(self, offsets: Offsets) -> Iterator[pa.Table]:
        """Read the rows at these offsets with their bodies, in batches of one commit."""
        values = pa.array(offsets)
        ranges = self._table.files.ranges("queue_offset")
        for span in sorted(ranges, key=lambda span: -1 if span.low is None else span.low):
            rows = self._table.rows.read([span.file], _COLUMNS)
            rows = rows.filter(pc.is_in(rows["queue_offset"], value_set=values))
            yield from _batches_of(rows.sort_by("queue_offset"))

    def _keyed_message(self, row: Mapping[str, Any], router: MessageRouter) -> KeyedMessage:
        properties = dict(row["properties"] or ())
        message = Message.as_stored(
            topic=self.topic_of(properties),
            body=row["body"],
            tags=row["tags"],
            keys=row["keys"],
            properties=self._replayed_properties(properties),
            sharding_key=row["sharding_key"],
        )
        is_retry = self._target is ReplayTarget.RETRY
        return KeyedMessage(
            f"{REPLAY}{row['message_id']}",
            milliseconds(row["store_timestamp"]),
            message,
            0 if is_retry else _queue(message, properties, router),
            milliseconds(row["born_timestamp"]),
        )

    def _replayed_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        if self._target is ReplayTarget.TOPIC:
            own = _without(properties, RETRY_PROPERTIES - {ORIGIN_MESSAGE_ID, EFFECT_TABLES})
            return {**own, **self._first_places(properties)}
        own = _without(properties, {DEAD_LETTER_ORIGIN_TOPIC, DEAD_LETTER_ORIGIN_MESSAGE_ID})
        # A replayed message starts again with all of its retries.
        return {**own, RECONSUME_TIMES: "0"}

    def _first_places(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Add the place where this group had the message; other groups have not had it there."""
        places, origin = first_places(properties), origin_place(properties)
        if origin is not None:
            places.setdefault(self._group, origin)
        return {FIRST_PLACES: first_places_text(places)} if places else {}


def _without(properties: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def _batches_of(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut rows, in their order, where one commit would exceed its count or its bytes."""
    sizes = pc.fill_null(pc.binary_length(rows["body"]), 0).to_numpy()
    batch = np.maximum(
        np.cumsum(sizes) // BYTES_A_COMMIT, np.arange(len(sizes)) // MESSAGES_A_COMMIT
    )
    for number in np.unique(batch):
        yield rows.filter(pa.array(batch == number))


def _queue(message: Message, properties: Mapping[str, str], router: MessageRouter) -> int:
    """Return the queue of its sharding key, else its first one. Raises: as `DeadLetters.replay`."""
    router.check_topic(message.topic)
    router.check_writable(message.topic)
    schema = router.body_schema(message.topic)
    if schema is not None:
        schema.check(message.topic, message.body)
    if message.sharding_key is not None:
        return router.queues_of([RoutedMessage(message)], in_turn=False)[0]
    origin = number_in(properties.get(ORIGIN_QUEUE_ID, ""))
    return 0 if origin is None else origin % router.queue_count(message.topic)
