"""Messages that a consumer could not handle: sent back for a later try, or to the dead letters.

A retry is an ordinary delayed message to the group's retry topic (R107, R108). One failed message
is sent back once, whoever tries and whenever it dies; see `producer.once`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txmq.clock import Clock, SystemClock, milliseconds
from txmq.errors import InvalidDelayTypeError, InvalidReasonError
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
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
from txmq.message.received import ReceivedMessage
from txmq.producer.once import KeyedMessage, OnceSender

if TYPE_CHECKING:
    from txmq.store.store import Store

# Users cannot name it, and no listener is asked about its messages.
RETRY_GROUP = "rmq_sys_retry"
FIRST_DELAY_LEVEL = 3
DEAD_LETTER_NOW = -1
_NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that could not be handled, and why.

    Args:
        message: as it was handed out.
        reason: one line that is kept with it; of an exception only its class is kept, for its
            words may repeat the body.
        delay_level: 0 is the next level of the group's retries; above 0 this level; below 0 it is
            a dead letter at once (R107).
        replay: how often its group went back over it on purpose. An earlier send-back of the same
            number stands for this one.

    Raises: InvalidReasonError, InvalidDelayTypeError.
    """

    message: ReceivedMessage
    reason: str | BaseException
    delay_level: int = 0
    replay: int = 0

    def __post_init__(self) -> None:
        """Refuse what could not be kept."""
        if not isinstance(self.reason, str | BaseException):
            raise InvalidReasonError(f"must be a str, not {type(self.reason).__name__}")
        for name in ("delay_level", "replay"):
            value = getattr(self, name)
            # bool is an int in Python.
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidDelayTypeError(name, f"must be an int, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class SentBack:
    """Where a failed message went.

    Attributes:
        topic: `%RETRY%group`, or `%DLQ%group`, as RocketMQ writes it.
        message_id: its new id there.
        reconsume_times: how often it was sent back, this time counted.
    """

    topic: str
    message_id: str
    reconsume_times: int
    is_dead_letter: bool


class SendBack:
    """Sends back for one consumer group; safe for several threads, and no hook is told.

    Args:
        store: where the group reads.
        consumer_group: its stored name.
        clock: whose time the rows have.

    Example:
        >>> sent = SendBack(store, "billing").send_back(message, reason="no such customer")
        >>> sent.topic
        '%RETRY%billing'
    """

    def __init__(self, store: Store, consumer_group: str, clock: Clock | None = None) -> None:
        """Open nothing yet. Raises: InvalidNameError."""
        self._group = check_stored_group(consumer_group, "consumer_group")
        self._max_times = store.config.max_reconsume_times
        self._sender = OnceSender(store, self._group, RETRY_GROUP, clock or SystemClock())

    def send_back(
        self,
        message: ReceivedMessage,
        *,
        reason: str | BaseException,
        delay_level: int = 0,
        replay: int = 0,
    ) -> SentBack:
        """One failed message; see FailedMessage and `send_back_all`."""
        return self.send_back_all([FailedMessage(message, reason, delay_level, replay)])[0]

    def send_back_all(self, failed: Sequence[FailedMessage]) -> list[SentBack]:
        """All of them in two commits, durable when this returns; in the same order.

        Reads: half, settled, op. Writes: half, op. Commits: one to each; none where an earlier try
        has sent all of them.

        Raises: CommitConflictError, IncompleteTransactionError, StorageError.
        """
        messages = [self._keyed(each) for each in failed]
        ids = self._sender.send(messages) if messages else []
        return [self._result(sent, own_id) for sent, own_id in zip(messages, ids, strict=True)]

    def _result(self, keyed: KeyedMessage, own_id: str) -> SentBack:
        topic = keyed.message.topic
        times = int(keyed.message.properties[RECONSUME_TIMES])
        is_dead = topic == dead_letter_topic(self._group)
        return SentBack(shown_name(topic), own_id, times, is_dead)

    def _keyed(self, failed: FailedMessage) -> KeyedMessage:
        message, is_retry = failed.message, self._is_retry(failed.message)
        times = max(message.reconsume_times, 0) if is_retry else 0
        is_dead = failed.delay_level < 0 or times >= self._max_times
        name = dead_letter_topic if is_dead else retry_topic
        sent = Message.as_stored(
            topic=name(self._group),
            body=message.body,
            tags=message.tags,
            keys=message.keys,
            properties=self._properties(failed, times + 1, is_retry=is_retry, is_dead=is_dead),
            sharding_key=message.sharding_key,
            delay_level=None if is_dead else failed.delay_level or FIRST_DELAY_LEVEL + times,
        )
        key = f"send-back\n{message.message_id}\n{failed.replay}"
        born_ms = milliseconds(message.born_timestamp)
        time_ms = milliseconds(message.store_timestamp)
        return KeyedMessage(key, time_ms, sent, queue_id=0, born_ms=born_ms)

    def _properties(
        self, failed: FailedMessage, times: int, *, is_retry: bool, is_dead: bool
    ) -> dict[str, str]:
        message = failed.message
        # It is about the check of the first sender's transaction, and would delay ours.
        own = {k: v for k, v in message.properties.items() if k != CHECK_IMMUNITY_TIME_IN_SECONDS}
        if not is_retry:
            own[ORIGIN_TOPIC] = self._stored(message.topic)
            own[ORIGIN_MESSAGE_ID] = message.message_id
            own[ORIGIN_QUEUE_ID] = str(message.queue_id)
            own[ORIGIN_QUEUE_OFFSET] = str(message.queue_offset)
        own[RECONSUME_TIMES], own[RECONSUME_REASON] = str(times), _reason_text(failed.reason)
        if is_dead:
            own[DEAD_LETTER_ORIGIN_TOPIC] = own.get(ORIGIN_TOPIC, message.topic)
            own[DEAD_LETTER_ORIGIN_MESSAGE_ID] = own.get(ORIGIN_MESSAGE_ID, message.message_id)
        return own

    def _is_retry(self, message: ReceivedMessage) -> bool:
        """Whether it comes from this group's retry topic: only there its properties are ours."""
        return self._stored(message.topic) == retry_topic(self._group)

    def _stored(self, topic: str) -> str:
        return topic_in_namespace(topic, namespace_of(self._group))


def _reason_text(reason: str | BaseException) -> str:
    text = reason if isinstance(reason, str) else type(reason).__name__
    return one_line(text) or _NO_REASON
