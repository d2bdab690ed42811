"""Retry and dead-letter topics of consumer groups: their names, and what their messages carry."""

from __future__ import annotations

RETRY_PREFIX = "RETRY_"
DEAD_LETTER_PREFIX = "DLQ_"
# RocketMQ's names where it has them; users cannot set any of these.
ORIGIN_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_QUEUE_ID = "ORIGIN_QUEUE_ID"
ORIGIN_QUEUE_OFFSET = "ORIGIN_QUEUE_OFFSET"
RECONSUME_TIMES = "RECONSUME_TIMES"
RECONSUME_REASON = "RECONSUME_REASON"
DEAD_LETTER_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
RETRY_PROPERTIES = frozenset(
    [
        ORIGIN_TOPIC,
        ORIGIN_MESSAGE_ID,
        ORIGIN_QUEUE_ID,
        ORIGIN_QUEUE_OFFSET,
        RECONSUME_TIMES,
        RECONSUME_REASON,
        DEAD_LETTER_ORIGIN_TOPIC,
        DEAD_LETTER_ORIGIN_MESSAGE_ID,
    ]
)


def retry_topic(consumer_group: str) -> str:
    """Where the failed messages of a group wait for their next try; both are stored names."""
    return RETRY_PREFIX + consumer_group


def dead_letter_topic(consumer_group: str) -> str:
    """Where a group's messages are that failed too often; both are stored names."""
    return DEAD_LETTER_PREFIX + consumer_group


def is_group_topic(topic: str) -> bool:
    """Whether a topic is one of these; they have one queue, whatever the settings say."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
