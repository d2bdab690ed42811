"""Send messages that a consumer could not handle back for a later try, or to the dead letters.

A retry is an ordinary delayed message to the retry topic of the group (R107, R108). Each failure is
sent once, even if several processes try, or die while they try; see `producer/once.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txmq.consumer.group import settings_in
from txmq.errors import InvalidMessageError, InvalidReasonError
from txmq.ground.clock import Clock, SystemClock, milliseconds
from txmq.message.ids import SEND_BACK
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
    EFFECT_TABLES,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE_ID,
    ORIGIN_QUEUE_OFFSET,
    ORIGIN_TOPIC,
    RECONSUME_REASON,
    RECONSUME_TIMES,
    check_stored_group,
    dead_letter_topic,
    namespace_of,
    retry_topic,
    shown_name,
    topic_in_namespace,
)
from txmq.message.reasons import one_line
from txmq.message.received import ReceivedMessage, effects_of
from txmq.producer.once import KeyedMessage, OnceKey, OnceSender
from txmq.store.store import Store, check_store

# The producer group of retries. Users cannot name it, and no listener is asked about its messages.
RETRY_GROUP = "rmq_sys_retry"
FIRST_DELAY_LEVEL = 3
_NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that could not be handled, and the reason.

    Args:
        message: the message as the consumer got it.
        reason: why it failed, in one line that is kept with it. Of an exception only the class is
            kept, because its text may repeat the body.
        delay_level: 0 for the next level of the group's retries; above 0 for this level; below 0
            for the dead letters at once (R107).
        replay: how often the group went back over the message on purpose. A message is sent back
            once for each number.
        tries: how often it has failed in its place before.

    Raises: InvalidReasonError, InvalidMessageError.
    """

    message: ReceivedMessage
    reason: str | BaseException
    delay_level: int = 0
    replay: int = 0
    tries: int = 0

    def __post_init__(self) -> None:
        """Check the types."""
        if not isinstance(self.reason, str | BaseException):
            raise InvalidReasonError(f"must be a str, not {type(self.reason).__name__}")
        for name in ("delay_level", "replay", "tries"):
            value = getattr(self, name)
            # bool is an int in Python.
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidMessageError(name, f"must be an int, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class SentBack:
    """Where a failed message went.

    Attributes:
        topic: `%RETRY%group` or `%DLQ%group`, as RocketMQ writes it.
        message_id: the new id of the message in that topic.
        reconsume_times: how often it was sent back, this time included.
        is_dead_letter: whether it went to the dead letters.
    """

    topic: str
    message_id: str
    reconsume_times: int
    is_dead_letter: bool


class PlacedMessage(NamedTuple):
    """The place of a message, which says whether the message was sent back already.

    Attributes:
        offset: its place in its queue.
        time_ms: when it was stored.
        replay: as in FailedMessage.
    """

    offset: int
    message_id: str
    time_ms: int
    replay: int

    @classmethod
    def of(cls, message: ReceivedMessage, replay: int) -> PlacedMessage:
        """Place a message that a member was handed out."""
        time_ms = milliseconds(message.store_timestamp)
        return cls(message.queue_offset, message.message_id, time_ms, replay)

    @property
    def once_key(self) -> OnceKey:
        """Its key among all that its group sends back."""
        return OnceKey(f"{SEND_BACK}{self.message_id}\n{self.replay}", self.time_ms)


class SendsBack(Protocol):
    """Sends failed messages to a retry topic: `SendBack`, or a substitute in tests."""

    def send_back_all(self, failed: Sequence[FailedMessage]) -> object:
        """Send all failed messages; durable on return."""
        ...


class SendBack:
    """Sends failed messages of one consumer group to its retry topic or its dead letters.

    Safe for several threads. It calls no hooks of producers.

    Args:
        store: the store of the group.
        consumer_group: the stored name of the group.
        clock: the clock of the times in the rows.

    Raises: InvalidNameError.

    Example:
        >>> sent = SendBack(store, "billing").send_back(message, reason="no such customer")
        >>> sent.topic
        '%RETRY%billing'
    """

    def __init__(self, store: Store, consumer_group: str, clock: Clock | None = None) -> None:
        """Check the name, and open nothing; 0 commits."""
        check_store(store)
        self._group = check_stored_group(consumer_group, "consumer_group")
        self._store = store
        self._max_times: int | None = None
        self._sender = OnceSender(store, self._group, RETRY_GROUP, clock or SystemClock())

    def send_back(
        self,
        message: ReceivedMessage,
        *,
        reason: str | BaseException,
        delay_level: int = 0,
        replay: int = 0,
    ) -> SentBack:
        """Send one failed message back; it is durable on return.

        Commits: as `send_back_all`. A retry sends nothing twice.

        Args:
            message: the message as the consumer got it.
            reason: why it failed, in one line; of an exception only the class is kept.
            delay_level: 0 for the next level of the group's retries; above 0 for this level; below
                0 for the dead letters at once.
            replay: how often the group went back over the message on purpose.

        Returns:
            Where the message went.

        Raises: InvalidReasonError, InvalidMessageError; as `send_back_all`.
        """
        return self.send_back_all([FailedMessage(message, reason, delay_level, replay)])[0]

    def send_back_all(self, failed: Sequence[FailedMessage]) -> list[SentBack]:
        """Send failed messages back; all of them are durable on return.

        Reads: half, settled, op. Writes: half, op. Commits: one to `half` and one to `op`, for all
        messages together; none if an earlier try has sent all of them. A retry after an error sends
        nothing twice.

        Args:
            failed: the messages, each with its reason.

        Returns:
            Where the messages went, in the same order.

        Raises: CommitConflictError, IncompleteTransactionError, StorageError.
        """
        messages = [self._keyed_message(message) for message in failed]
        ids = self._sender.send(messages) if messages else []
        return [
            self._result(message, new_id) for message, new_id in zip(messages, ids, strict=True)
        ]

    def are_sent_back(self, messages: Sequence[PlacedMessage]) -> list[bool]:
        """Tell of each of these whether it was sent back already, in the same order; 0 commits.

        Reads: half, settled, op; one look for news if the group never sent anything back.

        Raises: StorageError.
        """
        return self._sender.are_sent([message.once_key for message in messages])

    def have_any(self) -> bool:
        """Tell whether the group has ever sent anything back; 0 commits. Raises: StorageError."""
        return self._sender.has_sent_any()

    def _keyed_message(self, failed: FailedMessage) -> KeyedMessage:
        message, is_retry = failed.message, self._is_retry(failed.message)
        times = message.reconsume_times if is_retry else failed.tries
        is_dead = failed.delay_level < 0 or times >= self._reconsume_times_max()
        name = dead_letter_topic if is_dead else retry_topic
        retry = Message.as_stored(
            topic=name(self._group),
            body=message.stored_body,
            tags=message.tags,
            keys=message.keys,
            properties=self._properties(failed, times + 1, is_retry=is_retry, is_dead=is_dead),
            sharding_key=message.sharding_key,
            delay_level=None if is_dead else failed.delay_level or FIRST_DELAY_LEVEL + times,
        )
        born_ms = milliseconds(message.born_timestamp)
        key = PlacedMessage.of(message, failed.replay).once_key
        return KeyedMessage(key.key, key.time_ms, retry, queue_id=0, born_ms=born_ms)

    def _reconsume_times_max(self) -> int:
        # Not before: whoever never sends back need not read the group.
        if self._max_times is None:
            self._max_times = settings_in(self._store, self._group).max_reconsume_times
        return self._max_times

    def _properties(
        self, failed: FailedMessage, times: int, *, is_retry: bool, is_dead: bool
    ) -> dict[str, str]:
        message = failed.message
        properties = dict(message.properties)
        # The immunity of the first sender's transaction would delay the check of the retry.
        properties.pop(CHECK_IMMUNITY_TIME_IN_SECONDS, None)
        if not is_retry:
            properties[ORIGIN_TOPIC] = self._stored(message.topic)
            # A replay to the topic stands for the first message, as an inbox knows it.
            properties[ORIGIN_MESSAGE_ID] = message.origin_message_id
            properties[ORIGIN_QUEUE_ID] = str(message.queue_id)
            properties[ORIGIN_QUEUE_OFFSET] = str(message.queue_offset)
        if effects := effects_of(message):
            properties[EFFECT_TABLES] = " ".join(sorted(effects))
        properties[RECONSUME_TIMES] = str(times)
        properties[RECONSUME_REASON] = _reason_text(failed.reason)
        if is_dead:
            origin_id = properties.get(ORIGIN_MESSAGE_ID, message.message_id)
            properties[DEAD_LETTER_ORIGIN_TOPIC] = properties.get(ORIGIN_TOPIC, message.topic)
            properties[DEAD_LETTER_ORIGIN_MESSAGE_ID] = origin_id
        return properties

    def _is_retry(self, message: ReceivedMessage) -> bool:
        # Only in the group's retry topic its properties are those of txmq.
        return self._stored(message.topic) == retry_topic(self._group)

    def _stored(self, topic: str) -> str:
        return topic_in_namespace(topic, namespace_of(self._group))

    def _result(self, keyed: KeyedMessage, message_id: str) -> SentBack:
        topic = keyed.message.topic
        times = int(keyed.message.properties[RECONSUME_TIMES])
        is_dead = topic == dead_letter_topic(self._group)
        return SentBack(shown_name(topic), message_id, times, is_dead)


def _reason_text(reason: str | BaseException) -> str:
    text = reason if isinstance(reason, str) else type(reason).__name__
    return one_line(text) or _NO_REASON
