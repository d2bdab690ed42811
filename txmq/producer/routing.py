"""The way in for a message, whichever way it is sent.

The message is checked, gets the stored name of its topic, is refused where the topic does not take
it, and goes to a queue.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from txmq.errors import (
    InvalidBodyError,
    InvalidMessageError,
    TopicConflictError,
    shown,
)
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.ground.sessions import spark_room
from txmq.message.body_schema import BodySchema
from txmq.message.codec import BodyCodec, check_stored_size, checked_codec, encoded
from txmq.message.ids import message_id
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
from txmq.message.names import check_readable_topic, check_topic, unwrapped, wrapped
from txmq.store.catalog import TopicCatalog, clashing_names, spellings_of_topics
from txmq.store.config import Config

if TYPE_CHECKING:
    from txmq.delta.parquet import NewFile
    from txmq.delta.table import Table
    from txmq.ground.sessions import DataFrame
    from txmq.message.message import LocalTransactionState
    from txmq.store.half import HalfOrigin
    from txmq.store.store import Store

QueueSelector = Callable[[Message, int], int]


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of `send`: its messages are durable and committed.

    Attributes:
        message_ids: in the order of the messages; `recall` takes them.
        transaction_ids: one, or several for a batch above `max_transaction_size_bytes`.
    """

    message_ids: tuple[str, ...]
    transaction_ids: tuple[str, ...]

    @property
    def message_id(self) -> str:
        """The id of the first message."""
        return self.message_ids[0]


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The result of `send_message_in_transaction`.

    Attributes:
        transaction_id: the id of the transaction.
        message_id: the id of its message.
        local_transaction_state: the answer of the listener; after UNKNOWN the check service asks
            for the end.
    """

    transaction_id: str
    message_id: str
    local_transaction_state: LocalTransactionState


class RoutedMessage(NamedTuple):
    """A message and the queue that its sender chose; None: by its sharding key, or in turn."""

    message: Message
    queue_id: int | None = None
    size_bytes: int = 0


class PlannedSend(NamedTuple):
    """One transaction and the messages that are sent in it.

    Attributes:
        since: as in AskedEnds; None for a transaction that another process may have begun.
        stored: the messages as they are stored, where a codec has encoded them already.
        immunity_s: the least time before the first check.
    """

    transaction_id: str
    routed: Sequence[RoutedMessage]
    since: int | None = None
    stored: Sequence[Message] | None = None
    immunity_s: float = 0.0

    @property
    def messages(self) -> list[Message]:
        """The messages, in their order in the transaction."""
        if len(self.routed) == 1:
            return [self.routed[0].message]
        return [routed.message for routed in self.routed]

    @property
    def size_bytes(self) -> int:
        """The bytes of the messages."""
        if len(self.routed) == 1:
            return self.routed[0].size_bytes
        return sum([routed.size_bytes for routed in self.routed])


@dataclass(frozen=True, slots=True)
class SendLimits:
    """The limits of a row, the number of queues of its topic, and the time of the send."""

    max_message_size_bytes: int
    max_properties_size_bytes: int
    queue_count: int
    timer_max_delay_s: float
    now_ms: int


class DataFrameSend(Protocol):
    """A checked DataFrame and its topic, not computed yet; the room `spark` makes it."""

    @property
    def topic(self) -> str:
        """The stored name of the topic."""
        ...

    @property
    def body_schema(self) -> BodySchema | None:
        """The schema of the bodies in a typed topic."""
        ...

    def write(
        self, half: Table, origin: HalfOrigin, first_sequence: int, limits: SendLimits
    ) -> list[NewFile]:
        """Compute the DataFrame once and write its halves beside the half log; 0 commits."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows of a DataFrame whose halves are written already; fills DataFrameSend."""

    topic: str
    body_schema: BodySchema | None
    files: Sequence[NewFile]

    def write(self, *_: object) -> list[NewFile]:
        """Return the files; 0 commits."""
        return list(self.files)


class MessageRouter:
    """Takes messages into the topics of one namespace. Safe for many threads.

    Attributes:
        catalog: the settings of topics by which messages are accepted.
        codec: encodes the bodies; None stores them as they are.
    """

    def __init__(
        self,
        store: Store,
        namespace: str | None = None,
        clock: Clock | None = None,
        codec: BodyCodec | None = None,
    ) -> None:
        """Look at the store's topics only when a topic is new. Raises: ConfigError."""
        self._store, self._namespace = store, namespace
        self.codec: BodyCodec | None = checked_codec(codec)
        self._clock: Clock = clock or SystemClock()
        self._turn = itertools.count()
        self._spelled: dict[str, str] = {}
        self._folders: dict[str, list[str]] = {}
        self.catalog = TopicCatalog(store)

    def accept(
        self,
        message: object,
        *,
        is_transactional: bool,
        queue_id: object = None,
        queue_selector: QueueSelector | None = None,
    ) -> RoutedMessage:
        """Return the message as it is stored, and the queue that its sender chose; 0 commits.

        Raises: InvalidMessageError, MessageTooLargeError, MessageTooLargeError,
            InvalidMessageError, InvalidMessageError; TopicConflictError, TopicNotFoundError,
            TopicKindError, TopicReadOnlyError, InvalidBodyError where its topic does not take it;
            InvalidMessageError where the topic has no such queue, or a sharding key says another;
            StorageError.
        """
        checked = _checked_message(message, self._store.config, self._clock.now_ms())
        stored = self._stored(checked)
        self._check_taken(stored, is_transactional=is_transactional)
        return self._routed(stored, queue_id, queue_selector)

    def accept_all(
        self,
        messages: Sequence[object],
        queue_id: object = None,
        queue_selector: QueueSelector | None = None,
        *,
        is_transactional: bool,
    ) -> list[RoutedMessage]:
        """Accept several as `accept` does. All are checked before `queue_selector` is called."""
        now_ms = self._clock.now_ms()
        checked = [_checked_message(message, self._store.config, now_ms) for message in messages]
        stored = [self._stored(message) for message in checked]
        for message in stored:
            self._check_taken(message, is_transactional=is_transactional)
        return [self._routed(message, queue_id, queue_selector) for message in stored]

    def accept_batch(
        self, messages: object, queue_id: object = None, queue_selector: QueueSelector | None = None
    ) -> Iterator[list[RoutedMessage]]:
        """Accept ordinary messages to one topic, as transactions of at most the allowed size.

        Raises: as `accept`; InvalidMessageError, InvalidMessageError where these are no batch.
        """
        batch = _batch(messages)
        return self._split(self.accept_all(batch, queue_id, queue_selector, is_transactional=False))

    def _split(self, batch: Sequence[RoutedMessage]) -> Iterator[list[RoutedMessage]]:
        """Split a batch, in its order, into transactions of at most the allowed size."""
        limit = self._store.config.max_transaction_size_bytes
        transaction: list[RoutedMessage] = []
        size_bytes = 0
        for routed in batch:
            message_bytes = routed.size_bytes
            if transaction and size_bytes + message_bytes > limit:
                yield transaction
                transaction, size_bytes = [], 0
            transaction.append(routed)
            size_bytes += message_bytes
        yield transaction

    def accept_dataframe(self, dataframe: DataFrame, topic: str) -> DataFrameSend:
        """Accept a DataFrame whose rows are messages to a topic here; compute nothing.

        Raises: SchemaMismatchError; as `accept_rows`.
        """
        stored = self._topic_of_rows(topic)
        send: DataFrameSend = spark_room().dataframe_send(
            dataframe, stored, self.body_schema(stored)
        )
        self.accept_rows(topic, dataframe.columns, is_transactional=True)
        return send

    def accept_rows(self, topic: str, columns: Collection[str], *, is_transactional: bool) -> str:
        """Return the stored name of a topic that takes rows with these columns.

        Raises: InvalidNameError, InvalidMessageError, TopicConflictError, TopicNotFoundError,
            TopicKindError, TopicReadOnlyError, StorageError.
        """
        stored = self._topic_of_rows(topic)
        self.check_topic(stored)
        self.catalog.check_writable(stored)
        self.catalog.check_kind(
            stored,
            is_transactional=is_transactional,
            is_delayed=not {"delay_s", "deliver_timestamp"}.isdisjoint(columns),
            has_sharding_key="sharding_key" in columns,
        )
        return stored

    def _topic_of_rows(self, topic: str) -> str:
        stored = check_readable_topic(self._stored_topic(check_topic(topic)))
        if self.codec is not None:
            problem = "are sent by Spark, where no body codec runs; send them by another producer"
            raise InvalidMessageError("rows of a DataFrame", problem)
        return stored

    def _stored(self, message: Message) -> Message:
        if self._namespace is None:
            return message
        return message.to_stored_topic(self._stored_topic(message.topic))

    def _stored_topic(self, topic: str) -> str:
        return wrapped(topic, self._namespace)

    def _check_taken(self, message: Message, *, is_transactional: bool) -> None:
        self.check_topic(message.topic)
        if self.catalog.takes_anything(message.topic):
            return
        self.catalog.check_writable(message.topic)
        self.catalog.check_kind(
            message.topic,
            is_transactional=is_transactional,
            is_delayed=message.is_delayed,
            has_sharding_key=message.sharding_key is not None,
        )
        if self.codec is not None and self.catalog.body_schema(message.topic) is not None:
            problem = f"of topic {shown(message.topic)} are columns, which a body codec would hide"
            raise InvalidBodyError("body", f"{problem}; use another topic or no codec")
        self.catalog.check_body(message.topic, message.body)

    def _routed(
        self, message: Message, queue_id: object, queue_selector: QueueSelector | None
    ) -> RoutedMessage:
        if queue_id is None and queue_selector is None:
            return RoutedMessage(message, None, message.size_bytes)
        count = self.catalog.queue_count(message.topic)
        if queue_selector is not None:
            _check_one_choice(message, queue_id)
            if not callable(queue_selector):
                problem = f"must be callable, not {type(queue_selector).__name__}"
                raise InvalidMessageError("queue_selector", problem)
            queue_id = queue_selector(_as_sent(message), count)
        _check_one_choice(message, None)
        return RoutedMessage(message, _checked_queue(queue_id, count), message.size_bytes)

    def encoding(self, send: PlannedSend) -> PlannedSend:
        """Return the send with its messages as they are stored, in the caller's thread.

        Raises: as `encoded`.
        """
        if self.codec is None:
            return send
        return send._replace(stored=self.encoded(send.messages, send.transaction_id))

    def encoded(self, messages: Sequence[Message], transaction_id: str) -> Sequence[Message]:
        """Return the messages of a transaction with the bodies that are stored.

        Raises: BodyCodecError, MessageTooLargeError.
        """
        if self.codec is None:
            return messages
        stored = [
            encoded(message, self.codec, transaction_id, sequence)
            for sequence, message in enumerate(messages)
        ]
        for message in stored:
            check_stored_size(message, self._store.config.max_message_size_bytes)
        return stored

    def send_limits(self, topic: str) -> SendLimits:
        """Return what a row of a DataFrame for a topic may hold."""
        config = self._store.config
        return SendLimits(
            config.max_message_size_bytes,
            config.max_properties_size_bytes,
            self.catalog.queue_count(topic),
            config.timer_max_delay_s,
            self._clock.now_ms(),
        )

    def queues_of(self, routed: Sequence[RoutedMessage], *, in_turn: bool) -> list[int]:
        """Return a queue for each message.

        It is the chosen one; else the sharding key chooses; else messages take turns, or queues
        follow from their places here.
        """
        turns: Iterator[int] = self._turn if in_turn else itertools.count()
        if len(routed) == 1:
            return [self._queue_of(routed[0], turns)]
        return [self._queue_of(message, turns) for message in routed]

    def _queue_of(self, routed: RoutedMessage, turns: Iterator[int]) -> int:
        if routed.queue_id is not None:
            return routed.queue_id
        count = self.catalog.queue_count(routed.message.topic)
        key = routed.message.sharding_key
        if key is None:
            return next(turns) % count
        return queue_of_key(key, count)

    def queue_count(self, topic: str) -> int:
        """Return how many queues a topic has, or would have."""
        return self.catalog.queue_count(topic)

    def check_writable(self, topic: str) -> None:
        """Raise TopicReadOnlyError for a topic that takes no messages now."""
        self.catalog.check_writable(topic)

    def body_schema(self, topic: str) -> BodySchema | None:
        """Return the schema of the bodies of a topic; None if they may be any bytes."""
        return self.catalog.body_schema(topic)

    def check_topic(self, topic: str) -> None:
        """Raise TopicConflictError for a second spelling, TopicNotFoundError for an unknown one."""
        folded = topic.lower()
        is_known = self._spelled.get(folded) == topic
        if not is_known:
            self._check_spelling(folded, topic)
        self.catalog.check_is_there(topic)
        if not is_known:
            self._spelled[folded] = topic

    def _check_spelling(self, folded: str, topic: str) -> None:
        spelling = self._spelled.get(folded)
        if spelling is None and self._folders.get(folded) != [topic]:
            # One listing knows all topics that are there by then.
            self._folders = spellings_of_topics(self._store)
            spelling = clashing_names(self._store, [topic], self._folders).get(topic)
        if spelling not in (None, topic):
            rule = f"the topic {spelling} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)


def queue_of_key(sharding_key: str, queue_count: int) -> int:
    """Return the queue of all messages with a sharding key, whoever sends them."""
    return zlib.crc32(sharding_key.encode()) % queue_count


def send_result(sends: Sequence[PlannedSend]) -> SendResult:
    """Return the addresses of messages that were sent without a local transaction."""
    ids = [
        message_id(send.transaction_id, sequence)
        for send in sends
        for sequence in range(len(send.routed))
    ]
    return SendResult(tuple(ids), tuple([send.transaction_id for send in sends]))


def _checked_message(message: object, config: Config, now_ms: int) -> Message:
    if not isinstance(message, Message):
        problem = f"must be a Message, not {type(message).__name__}"
        raise InvalidMessageError("message", problem)
    message.check_sizes(
        max_message_size_bytes=config.max_message_size_bytes,
        max_properties_size_bytes=config.max_properties_size_bytes,
    )
    _check_immunity(message, config)
    _check_delay(message, config, now_ms)
    return message


def _check_immunity(message: Message, config: Config) -> None:
    if CHECK_IMMUNITY_TIME_IN_SECONDS in message.properties:
        immunity_s = message.immunity_time_s(0.0)
        check_immunity_s("property", CHECK_IMMUNITY_TIME_IN_SECONDS, immunity_s, config)


def check_immunity_s(field: str, name: str, immunity_s: object, config: Config) -> float:
    """Return the time before the first check. Raises: InvalidMessageError for one of no use."""
    reserved_s = config.file_reserved_time_h * 3600
    if isinstance(immunity_s, bool) or not isinstance(immunity_s, int | float):
        raise InvalidMessageError(field, f"{name} must be a number of seconds")
    if not 0 <= immunity_s <= reserved_s:
        problem = f"{name} is {immunity_s:,}, not within 0 and file_reserved_time_h"
        raise InvalidMessageError(field, f"{problem} ({reserved_s:,.0f} s)")
    return float(immunity_s)


def _check_delay(message: Message, config: Config, now_ms: int) -> None:
    if not message.is_delayed:
        return
    max_s = config.timer_max_delay_s
    limit = f"above timer_max_delay_s ({max_s:,.0f} s)"
    if (message.delay_s or 0) > max_s:
        raise InvalidMessageError("delay_s", f"is {message.delay_s:,}, {limit}")
    due = message.deliver_timestamp
    if due is not None and due > timestamp(now_ms) + timedelta(seconds=max_s):
        raise InvalidMessageError("deliver_timestamp", f"is {due.isoformat()}, {limit} from now")


def _as_sent(message: Message) -> Message:
    """Return the message with the name of its topic as its sender wrote it."""
    return message.to_stored_topic(unwrapped(message.topic))


def _check_one_choice(message: Message, queue_id: object) -> None:
    if message.sharding_key is not None:
        problem = "cannot be chosen for a message with a sharding_key; leave one of them out"
        raise InvalidMessageError("queue_id", problem)
    if queue_id is not None:
        raise InvalidMessageError("queue_id", "and queue_selector are both given; pass one")


def _checked_queue(queue_id: object, count: int) -> int:
    # bool is an int in Python.
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise InvalidMessageError("queue_id", f"must be an int, not {type(queue_id).__name__}")
    if not 0 <= queue_id < count:
        raise InvalidMessageError(
            "queue_id", f"must be from 0 to {count - 1}, not {shown(queue_id)}"
        )
    return queue_id


def _batch(messages: object) -> list[Message]:
    """Return the messages as a list. All must go to one topic (R96)."""
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, str | bytes) or not hasattr(messages, "__iter__"):
        problem = f"must be a Message or several of them, not {type(messages).__name__}"
        raise InvalidMessageError("messages", problem)
    batch = list(messages)
    if not batch:
        raise InvalidMessageError("messages", "must hold at least one message")
    topics = {message.topic for message in batch if isinstance(message, Message)}
    if len(topics) > 1:
        problem = "of a batch must go to one topic; for several use begin_transaction()"
        raise InvalidMessageError("messages", problem)
    return batch
