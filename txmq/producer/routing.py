"""May this message go to its topic, and to which queue; every way of sending asks here."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from txmq.clock import timestamp
from txmq.errors import (
    InvalidDelayError,
    InvalidMessageTypeError,
    InvalidPropertyError,
    InvalidQueueError,
    TopicConflictError,
    shown,
)
from txmq.message.body_schema import BodySchema
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
from txmq.message.names import unwrapped
from txmq.producer.dataframe import SendLimits
from txmq.store.catalog import TopicCatalog
from txmq.store.config import Config

if TYPE_CHECKING:
    from txmq.store.store import Store

QueueSelector = Callable[[Message, int], int]


def check_message(message: object, config: Config, now_ms: int) -> Message:
    """The message as given.

    Raises: InvalidMessageTypeError, MessageTooLargeError, PropertyLimitError,
        InvalidPropertyError, InvalidDelayError.
    """
    if not isinstance(message, Message):
        problem = f"must be a Message, not {type(message).__name__}"
        raise InvalidMessageTypeError("message", problem)
    message.check_sizes(
        max_message_size_bytes=config.max_message_size_bytes,
        max_properties_size_bytes=config.max_properties_size_bytes,
    )
    _check_immunity(message, config)
    _check_delay(message, config, now_ms)
    return message


def _check_immunity(message: Message, config: Config) -> None:
    if CHECK_IMMUNITY_TIME_IN_SECONDS not in message.properties:
        return
    reserved_s = config.file_reserved_time_h * 3600
    if message.immunity_time_s(0.0) > reserved_s:
        problem = f"{CHECK_IMMUNITY_TIME_IN_SECONDS} is above file_reserved_time_h"
        raise InvalidPropertyError("property", f"{problem} ({reserved_s:,.0f} s)")


def _check_delay(message: Message, config: Config, now_ms: int) -> None:
    if not message.is_delayed:
        return
    max_s = config.timer_max_delay_s
    limit = f"above timer_max_delay_s ({max_s:,.0f} s)"
    if (message.delay_s or 0) > max_s:
        raise InvalidDelayError("delay_s", f"is {message.delay_s:,}, {limit}")
    due = message.deliver_timestamp
    if due is not None and due > timestamp(now_ms) + timedelta(seconds=max_s):
        raise InvalidDelayError("deliver_timestamp", f"is {due.isoformat()}, {limit} from now")


class Routed(NamedTuple):
    """A message and the queue that its sender chose; None: by its sharding key, or in turn."""

    message: Message
    queue_id: int | None = None


class QueueChoice:
    """Which queue of a topic a message goes to, and whether the topic takes it."""

    def __init__(self, store: Store) -> None:
        """Look at the store's topics only when a topic is new."""
        self._store = store
        self._turn = itertools.count()
        self._spelled: dict[str, str] = {}
        self._catalog = TopicCatalog(store)

    def send_limits(self, topic: str, now_ms: int) -> SendLimits:
        """What a row of a DataFrame for a topic may hold."""
        config = self._store.config
        return SendLimits(
            config.max_message_size_bytes,
            config.max_properties_size_bytes,
            self._catalog.queue_count(topic),
            config.timer_max_delay_s,
            now_ms,
        )

    def routed(
        self,
        message: Message,
        queue_id: object = None,
        queue_selector: QueueSelector | None = None,
    ) -> Routed:
        """The message and the queue that its sender chose, if any.

        Raises: InvalidQueueError where the topic has no such queue, or a sharding key says another.
        """
        if queue_id is None and queue_selector is None:
            return Routed(message)
        count = self._catalog.queue_count(message.topic)
        if queue_selector is not None:
            _check_one_choice(message, queue_id)
            if not callable(queue_selector):
                problem = f"must be callable, not {type(queue_selector).__name__}"
                raise InvalidQueueError("queue_selector", problem)
            queue_id = queue_selector(_as_sent(message), count)
        _check_one_choice(message, None)
        return Routed(message, _checked_queue(queue_id, count))

    def queues_of(self, routed: Sequence[Routed], *, in_turn: bool) -> list[int]:
        """As chosen, else by sharding key, else in turn or by the place among these messages."""
        turns = self._turn if in_turn else itertools.count()
        return [self._queue_of(each, turns) for each in routed]

    def _queue_of(self, routed: Routed, turns: Iterator[int]) -> int:
        if routed.queue_id is not None:
            return routed.queue_id
        count = self._catalog.queue_count(routed.message.topic)
        key = routed.message.sharding_key
        if key is None:
            return next(turns) % count
        # Spark's crc32 gives the same number for the same bytes.
        return zlib.crc32(key.encode()) % count

    def check_message(self, message: Message, *, is_transactional: bool) -> None:
        """Raise where its topic does not take it.

        Raises: TopicConflictError, TopicNotFoundError, TopicKindError, InvalidBodyError,
            StorageError.
        """
        self.check_topic(message.topic)
        self._catalog.check_kind(
            message.topic,
            is_transactional=is_transactional,
            is_delayed=message.is_delayed,
            has_sharding_key=message.sharding_key is not None,
        )
        self._catalog.check_body(message.topic, message.body)

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has, or would have."""
        return self._catalog.queue_count(topic)

    def body_schema(self, topic: str) -> BodySchema | None:
        """What the bodies of a topic must be; None if they may be any bytes."""
        return self._catalog.body_schema(topic)

    def check_dataframe(self, topic: str, columns: Sequence[str]) -> None:
        """As `check_message`, for the rows of a DataFrame, which are transactional."""
        self.check_topic(topic)
        self._catalog.check_kind(
            topic,
            is_transactional=True,
            is_delayed=bool({"delay_s", "deliver_timestamp"} & set(columns)),
            has_sharding_key="sharding_key" in columns,
        )

    def check_topic(self, topic: str) -> None:
        """Raise TopicConflictError for a second spelling, TopicNotFoundError for an unknown one."""
        folded = topic.lower()
        if folded not in self._spelled:
            self._spelled.update({name.lower(): name for name in self._store.topics()})
        known = self._spelled.get(folded, topic)
        if known != topic:
            rule = f"the topic {known} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)
        self._catalog.check_is_there(topic)
        self._spelled[folded] = topic


def _as_sent(message: Message) -> Message:
    """With the name of its topic as its sender wrote it."""
    return message.to_stored_topic(unwrapped(message.topic))


def _check_one_choice(message: Message, queue_id: object) -> None:
    if message.sharding_key is not None:
        problem = "cannot be chosen for a message with a sharding_key; leave one of them out"
        raise InvalidQueueError("queue_id", problem)
    if queue_id is not None:
        raise InvalidQueueError("queue_id", "and queue_selector are both given; pass one")


def _checked_queue(queue_id: object, count: int) -> int:
    # bool is an int in Python.
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise InvalidQueueError("queue_id", f"must be an int, not {type(queue_id).__name__}")
    if not 0 <= queue_id < count:
        raise InvalidQueueError("queue_id", f"must be from 0 to {count - 1}, not {shown(queue_id)}")
    return queue_id
