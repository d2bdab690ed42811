"""Finds messages by their id, by a key or by their transaction (R92). Read-only."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.consumer.arguments import check_max_messages
from txmq.errors import InvalidBodyError, InvalidNameError, MessageIdError, UnsupportedTableError
from txmq.ground.columns import integers, python_rows, sound_rows
from txmq.ground.results import plain
from txmq.maintenance.retention import topic_begins
from txmq.message.ids import (
    check_transaction_id,
    first_transaction_id,
    message_address,
    message_id,
    transaction_time_ms,
)
from txmq.message.lifecycle import DeliveryState, TransactionState
from txmq.message.message import KEY_SEPARATOR
from txmq.message.names import (
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    check_readable_topic,
)
from txmq.producer.trace import TraceRecord, TraceType, decoded, encoded
from txmq.store.known import Known, KnownReader, known_by_message, no_message, no_transaction
from txmq.store.schemas import PLACE_LIMITS
from txmq.store.settled import NOTHING
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    from txmq.delta.files import FileRange
    from txmq.delta.table import Table
    from txmq.store.settled import SettledLog


PLACE_COLUMNS = ("queue_id", "queue_offset", "life", "op_version", "store_timestamp")
_UNPUBLISHED = {
    TransactionState.PENDING: "half",
    TransactionState.COMMITTED: "committed, not published yet",
    TransactionState.ROLLED_BACK: "rolled back",
    TransactionState.DISCARDED: "discarded",
    TransactionState.INCOMPLETE: "incomplete",
    TransactionState.EXPIRED: "expired",
}
_UNDELIVERED = {
    DeliveryState.SCHEDULED: "scheduled",
    DeliveryState.DELIVERED: "delivered, not published yet",
    DeliveryState.RECALLED: "recalled",
}
_KEY_COLUMNS = ("keys", "message_id", "op_version", "queue_offset")
# RocketMQ's queryMsgByKey.
MAX_COUNT = 64
# Records of a message may come from a machine whose clock is behind.
CLOCK_SLACK_MS = 3_600_000
_CONTENT = (
    "message_id", "transaction_id", "sequence", "producer_group", "tags", "keys", "properties",
    "sharding_key", "born_timestamp",
)  # fmt: skip
_HALF_COLUMNS = (*_CONTENT, "real_topic", "delay_s", "deliver_timestamp", "ordinary")
_TOPIC_COLUMNS = (*_CONTENT, "topic", *PLACE_COLUMNS)
_INTERNAL = frozenset({SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC})


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A row of a topic that holds a message."""

    topic: str
    queue_id: int
    queue_offset: int
    life: int
    op_version: int
    store_timestamp: datetime


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message, and where it is.

    Attributes:
        topic: the stored name of its topic; see `txmq.message.names`.
        body: None unless it was asked for.
        is_half: whether its half message still exists.
        ordinary: whether it was sent without a local transaction; None without a half.
        state: the state of its transaction; None where only a dead letter is left.
        source: who wrote the claim that led to that state; None where only its row in a topic is
            left.
        is_removed: whether it was published, and its topic's retention, a purge or a deletion of
            the topic took it.
        delivery: the settled state of a delayed message; None for other messages.
        due: when a delayed message becomes visible; None where that is unknown.
        places: its rows in topics, where consumers see it.
        dead_letters: its rows among the dead letters of discarded transactions.
        trace: trace records about it, oldest first.
    """

    message_id: str
    transaction_id: str
    sequence: int
    producer_group: str
    topic: str
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: str | None
    born_timestamp: datetime
    is_half: bool
    ordinary: bool | None
    state: TransactionState | None
    source: str | None
    delivery: DeliveryState | None
    delay_s: int | None
    due: datetime | None
    is_removed: bool = False
    places: tuple[MessagePlace, ...] = ()
    dead_letters: tuple[MessagePlace, ...] = ()
    trace: tuple[TraceRecord, ...] = ()
    body: bytes | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """Where the message is now, in a few words."""
        if self.places:
            return "visible"
        if self.is_removed:
            return "removed from its topic"
        if self.delivery is not None:
            return _UNDELIVERED[self.delivery]
        if self.state is None:
            return "dead letter" if self.dead_letters else "unknown"
        return _UNPUBLISHED[self.state]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; a body that is not UTF-8 text is in base64."""
        values = plain(replace(self, body=None, trace=()))
        del values["body"]
        body = {} if self.body is None else body_values(self.body)
        trace = [json.loads(encoded(record)) for record in self.trace]
        return {"where": self.where, **values, "trace": trace, **body}


@dataclass(frozen=True, slots=True)
class KeySearch:
    """What a search with a bound found.

    Attributes:
        messages: the newest first.
        rows: of so many messages the keys were read.
        is_complete: whether all messages were searched that could be among the newest.
    """

    messages: tuple[FoundMessage, ...]
    rows: int
    is_complete: bool


class MessageQuery:
    """Looks for messages in all tables of a store; needs no Spark, commits nothing.

    Args:
        store: the store to search.

    Attributes:
        unusable: why topics cannot be used, by topic; searches over all topics pass them over.

    Example:
        >>> MessageQuery(store).by_key("order-42", topic="order-paid")
        ()
    """

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        check_store(store)
        self._store = store
        self.unusable: dict[str, str] = {}

    def by_id(
        self, message_id: str, *, with_body: bool = False, with_trace: bool = True
    ) -> FoundMessage:
        """Read one message and its trace.

        Reads: of half, op, settled, the schedule and the topics the files that may hold its
        transaction; the keys of the trace topic. Commits: 0.

        Args:
            message_id: `transaction id:sequence`, as a send returned it.
            with_body: read the body too.
            with_trace: read its trace, which the whole trace topic may hold.

        Raises:
            MessageNotFoundError: no table holds the message.
            MessageIdError: `message_id` is not a message id.
            StorageError: a table cannot be read.
        """
        transaction_id, _ = message_address(message_id)
        messages = self._messages(
            [transaction_id], [message_id], with_body=with_body, with_trace=with_trace
        )
        if not messages:
            raise no_message(self._store, message_id)
        return messages[0]

    def by_transaction(
        self, transaction_id: str, *, max_count: int = MAX_COUNT, with_body: bool = False
    ) -> tuple[FoundMessage, ...]:
        """Read the messages of a transaction in their order, and their trace.

        Args:
            transaction_id: the transaction.
            max_count: the first so many messages.
            with_body: read the bodies too.

        Reads, commits: as `by_id`.

        Raises: TransactionNotFoundError, StorageError; ConfigError for a wrong `max_count`.
        """
        transaction_id = check_transaction_id(transaction_id)
        check_max_messages(max_count, "max_count")
        ids = self._message_ids(transaction_id)
        if not ids:
            raise no_transaction(self._store, transaction_id)
        return self._messages(
            [transaction_id], ids[:max_count], with_body=with_body, with_trace=True
        )

    def by_key(
        self,
        key: str,
        *,
        topic: str | None = None,
        max_count: int = MAX_COUNT,
        with_body: bool = False,
    ) -> tuple[FoundMessage, ...]:
        """Read the messages with `key` among their keys, newest first, without their trace.

        Half messages are not searched. Keys have no index, so the key column is read, of the
        newest files first, until `max_count` messages are found.

        Args:
            key: one key, without a space.
            topic: search this topic only; without it all topics but the trace topic, the schedule
                and the dead letters too.
            max_count: the newest so many messages.
            with_body: read the bodies too.

        Reads: the keys of the topics; then as `by_id`. Commits: 0.

        Raises: InvalidNameError, TopicNotFoundError, StorageError; ConfigError for a wrong number.
        """
        return self._newest(key, topic, max_count, RowBudget(), with_body=with_body)

    def newest_by_key(
        self, key: str, *, topic: str | None = None, max_count: int = MAX_COUNT, max_rows: int
    ) -> KeySearch:
        """Search as `by_key`, but only the newest files: `max_rows` rows in all at most.

        Args:
            key, topic, max_count: as of `by_key`.
            max_rows: of so many messages the keys are read.

        Reads, commits, raises: as `by_key`.
        """
        check_max_messages(max_rows, "max_rows")
        budget = RowBudget(max_rows)
        messages = self._newest(key, topic, max_count, budget, with_body=False)
        return KeySearch(messages, max_rows - int(budget.rows), budget.was_enough)

    # --- by key ------------------------------------------------------------------------------

    def _newest(
        self, key: str, topic: str | None, max_count: int, budget: RowBudget, *, with_body: bool
    ) -> tuple[FoundMessage, ...]:
        names = self._topics_to_search(key, topic)
        check_max_messages(max_count, "max_count")
        hits = [
            hit
            for name in names
            if topic is not None or self._is_usable(name)
            for hit in hits_of(self._table(name), key, max_count, budget)
        ]
        newest = dict.fromkeys(hit.message_id for hit in sorted(hits, reverse=True))
        message_ids = list(newest)[:max_count]
        ids = list(dict.fromkeys(message_address(message_id)[0] for message_id in message_ids))
        return self._messages(ids, message_ids, with_body=with_body)

    def _topics_to_search(self, key: str, topic: str | None) -> list[str]:
        """List the topics to search. Raises: InvalidNameError, TopicNotFoundError."""
        if not is_one_key(key):
            raise InvalidNameError("key", key, "pass one key, without a space")
        if topic is None:
            return self._all_topics()
        self._store.topic_location(topic)
        return [check_readable_topic(topic)]

    # --- the messages of some ids ----------------------------------------------------------------

    def _messages(
        self,
        transaction_ids: Sequence[str],
        message_ids: Sequence[str],
        *,
        with_body: bool,
        with_trace: bool = False,
    ) -> tuple[FoundMessage, ...]:
        """Read those of the messages that any table holds, in the order of `message_ids`."""
        ids, body = pa.array(transaction_ids, pa.string()), (("body",) if with_body else ())
        logs = self._store.tables.logs()
        half_rows = logs.half.table.search.rows_of("transaction_id", ids, (*_HALF_COLUMNS, *body))
        halves = _by_id(half_rows, message_ids)
        rows: dict[str, list[dict[str, Any]]] = {}
        for topic in self._topics_of(halves, message_ids):
            for row in self._rows_in(topic, ids, message_ids, body):
                rows.setdefault(row["message_id"], []).append({**row, "in": topic})
        known = KnownReader(logs).of_all(transaction_ids)
        deliveries = _deliveries(logs.settled, ids)
        begins = topic_begins(self._store)
        trace = {key: self._trace(key) for key in transaction_ids if with_trace}
        return tuple(
            _found_message(
                halves.get(message_id),
                rows.get(message_id, []),
                known[message_address(message_id)[0]],
                deliveries.get(message_id),
                begins,
                _about(trace.get(message_address(message_id)[0], ()), message_id),
            )
            for message_id in message_ids
            if message_id in halves or message_id in rows
        )

    def _message_ids(self, transaction_id: str) -> list[str]:
        """Read the ids of all messages of a transaction, in their order."""
        ids = pa.array([transaction_id], pa.string())
        half = self._store.tables.half_log().table
        rows = half.search.rows_of("transaction_id", ids, ("sequence", "real_topic"))
        rows = rows.filter(pc.is_valid(rows["real_topic"])).select(["sequence"])
        if not rows.num_rows:
            tables = [self._table(name) for name in self._all_topics() if self._is_usable(name)]
            by_topic = [t.search.rows_of("transaction_id", ids, ("sequence",)) for t in tables]
            rows = pa.concat_tables([rows, *by_topic])
        # Not the ids in the rows: other programs write any.
        sequences = np.unique(integers(rows["sequence"], -1))
        return [message_id(transaction_id, each) for each in sequences[sequences >= 0].tolist()]

    def _topics_of(
        self, halves: Mapping[str, Mapping[str, Any]], message_ids: Sequence[str]
    ) -> list[str]:
        """List the topics that may hold these messages; one without a half may be in any."""
        if any(message_id not in halves for message_id in message_ids):
            return list(filter(self._is_usable, self._all_topics()))
        topics = {half["real_topic"] for half in halves.values()} | _INTERNAL
        return sorted(name for name in topics if self._is_there(name) and self._is_usable(name))

    def _all_topics(self) -> list[str]:
        return [name for name in self._store.topics() if name != TRACE_TOPIC]

    def _rows_in(
        self, topic: str, ids: pa.Array, message_ids: Sequence[str], body: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        due = ("deliver_timestamp",) if topic == SCHEDULE_TOPIC else ()
        columns = (*_TOPIC_COLUMNS, *due, *body)
        rows = self._table(topic).search.rows_of("transaction_id", ids, columns)
        yield from python_rows(rows.filter(_is_one_of(rows, message_ids)))

    def _is_there(self, topic: str) -> bool:
        try:
            return self._table(topic).exists()
        except InvalidNameError:
            # A half that another program wrote may name anything.
            return False

    def _is_usable(self, topic: str) -> bool:
        """Tell whether a topic can be read; keep why not."""
        try:
            self._table(topic).log.open()
        except UnsupportedTableError as error:
            self.unusable[topic] = str(error)
        return topic not in self.unusable

    def _table(self, topic: str) -> Table:
        return self._store.tables.table_at(f"topics/{topic}")

    # --- the trace ---------------------------------------------------------------------------

    def _trace(self, transaction_id: str) -> list[TraceRecord]:
        """Read the trace records of one transaction, oldest first."""
        table = self._table(TRACE_TOPIC)
        if not table.exists():
            return []
        first = first_transaction_id(transaction_time_ms(transaction_id) - CLOCK_SLACK_MS)
        records: list[TraceRecord] = []
        for file in table.files.beyond("transaction_id", first):
            is_about = has_key(table.rows.read([file], ("keys",))["keys"], transaction_id)
            if pc.any(is_about).as_py():
                bodies = table.rows.read([file], ("body",)).filter(is_about)["body"]
                records += _decoded(bodies.to_pylist())
        return sorted(records, key=record_moment)


# --- one message ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The state of a delayed message, and the commit of the op log that led to it."""

    state: DeliveryState
    op_version: float = inf


def _deliveries(settled: SettledLog, ids: pa.Array) -> dict[str, _Delivery]:
    return {
        f"{row['transaction_id']}:{sequence}": _Delivery(
            DeliveryState(row["state"]), row["op_version"]
        )
        for row in settled.deliveries_of(ids).to_pylist()
        for sequence in row["sequences"]
    }


def _found_message(  # noqa: PLR0913, PLR0917 - the parts of a message
    half: Mapping[str, Any] | None,
    rows: Sequence[Mapping[str, Any]],
    known: Known,
    delivery: _Delivery | None,
    begins: Mapping[str, int],
    trace: tuple[TraceRecord, ...],
) -> FoundMessage:
    row = half or rows[0]
    scheduled = next((place for place in rows if place["in"] == SCHEDULE_TOPIC), None)
    due = (scheduled or half or {}).get("deliver_timestamp")
    delay_s = half["delay_s"] if half else None
    dead = [place for place in rows if place["in"] == TRANS_CHECK_MAX_TIME_TOPIC]
    visible = [place for place in rows if place["in"] not in _INTERNAL]
    proof = [*visible, *([scheduled] if scheduled else [])]
    known = known_by_message(known, proof[0]) if proof else known
    is_committed = known.state is TransactionState.COMMITTED
    if delivery is None and is_committed and (scheduled or due or delay_s is not None):
        delivery = _Delivery(DeliveryState.SCHEDULED)
    topic = half["real_topic"] if half else rows[0]["topic"]
    return FoundMessage(
        **{name: row[name] for name in _CONTENT if name != "properties"},
        properties=dict(row["properties"] or ()),
        topic=topic,
        is_half=half is not None,
        ordinary=half["ordinary"] if half else None,
        state=known.state,
        source=known.source,
        delivery=None if delivery is None else delivery.state,
        is_removed=not visible and _shown_at(known, delivery) <= begins.get(topic, NOTHING),
        delay_s=delay_s,
        due=due,
        places=tuple(map(message_place, visible)),
        dead_letters=tuple(map(message_place, dead)),
        trace=trace,
        body=row.get("body"),
    )


def _shown_at(known: Known, delivery: _Delivery | None) -> float:
    """Return the op version whose publishing made the message visible; infinite if none has."""
    if known.state is not TransactionState.COMMITTED:
        return inf
    if delivery is None:
        return inf if known.op_version is None else known.op_version
    return delivery.op_version if delivery.state is DeliveryState.DELIVERED else inf


def _by_id(rows: pa.Table, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the first half of each message; a retried append may have written it twice."""
    rows = rows.filter(pc.and_(_is_one_of(rows, message_ids), pc.is_valid(rows["real_topic"])))
    halves: dict[str, dict[str, Any]] = {}
    for row in python_rows(rows):
        halves.setdefault(row["message_id"], row)
    return halves


def _is_one_of(rows: pa.Table, message_ids: Sequence[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["message_id"], value_set=pa.array(message_ids, pa.string()))


def message_place(row: Mapping[str, Any]) -> MessagePlace:
    """Return the place of a row of a topic; `row["in"]` names that topic."""
    return MessagePlace(topic=row["in"], **{name: row[name] for name in PLACE_COLUMNS})


def body_values(body: bytes) -> dict[str, str]:
    """Make a body fit for JSON: as text, or in base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


# --- search by key --------------------------------------------------------------------------------


@dataclass(slots=True)
class RowBudget:
    """How many rows may still be read."""

    rows: float = inf
    was_enough: bool = True

    def take(self, rows: int) -> bool:
        """Take so many rows; return False if they may not be read any more."""
        if rows > self.rows:
            self.was_enough = False
            return False
        self.rows -= rows
        return True


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """A message that has the key; newer ones are greater."""

    op_version: int
    queue_offset: int
    message_id: str


def hits_of(table: Table, key: str, max_count: int, budget: RowBudget) -> list[Hit]:
    """Find the newest messages of a topic that have the key, as far as the budget allows."""
    hits: list[Hit] = []
    for span in sorted(table.files.ranges("op_version"), key=_newest_first):
        is_full = len(hits) >= max_count and span.high is not None
        if is_full and span.high < hits[max_count - 1].op_version:
            break
        if not budget.take(span.file.num_records):
            break
        more = _hits_in(table.rows.read([span.file], _KEY_COLUMNS), key)
        hits = sorted([*hits, *more], reverse=True)
    return hits[:max_count]


def _newest_first(span: FileRange) -> tuple[bool, int]:
    """Return the sort key of files; a file without statistics comes first."""
    return span.high is not None, -(span.high or 0)


def _hits_in(rows: pa.Table, key: str) -> list[Hit]:
    hits: list[Hit] = []
    rows = sound_rows(rows.filter(has_key(rows["keys"], key)), _KEY_COLUMNS, PLACE_LIMITS)
    for row in rows.to_pylist():
        # Another program may have given it any id.
        with suppress(MessageIdError):
            message_address(row["message_id"])
            hits.append(Hit(row["op_version"], row["queue_offset"], row["message_id"]))
    return hits


def is_one_key(key: object) -> bool:
    """Tell whether a message may have this as one of its keys."""
    is_key = isinstance(key, str) and bool(key) and KEY_SEPARATOR not in key
    # No text has half of a surrogate pair, and Arrow takes none.
    return is_key and not any("\ud800" <= letter <= "\udfff" for letter in str(key))


def has_key(keys: pa.ChunkedArray, key: str) -> pa.ChunkedArray:
    """Tell of each text whether it has `key` as one of its words."""
    padded = pc.binary_join_element_wise("", pc.fill_null(keys, ""), "", KEY_SEPARATOR)
    return pc.match_substring(padded, f"{KEY_SEPARATOR}{key}{KEY_SEPARATOR}")


# --- trace ----------------------------------------------------------------------------------------


def _about(records: Iterable[TraceRecord], message_id: str) -> tuple[TraceRecord, ...]:
    """Choose the records that name the message or are about its whole transaction."""
    return tuple(
        record
        for record in records
        if record.trace_type is TraceType.END_TRANSACTION
        or not record.messages
        or any(message.message_id == message_id for message in record.messages)
    )


def _decoded(bodies: Iterable[bytes]) -> Iterator[TraceRecord]:
    for body in bodies:
        try:
            yield decoded(body)
        except InvalidBodyError:
            # Other programs may append to the topic.
            continue


def record_moment(record: TraceRecord) -> tuple[int, bool]:
    """Return the sort key of a trace record: its time; at the same time an end comes last."""
    return record.time_ms, record.trace_type is TraceType.END_TRANSACTION
