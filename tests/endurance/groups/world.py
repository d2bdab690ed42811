"""What is sent, who reads what of it, and which tries fail: the same for all processes of a run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txmq.message.received import ReceivedMessage

TOPICS = ("orders", "payments")
TAGS = ("paid", "shipped", "returned")
REGIONS = ("eu", "us", "asia")
POISON = "poison"
EARLY, LATE = 0.04, 0.05
MAX_RECONSUME_TIMES = 3
Note = Mapping[str, Any]


class PoisonError(Exception):
    """No try of this message ever succeeds."""


class FlakyError(Exception):
    """This try of a message fails."""


@dataclass(frozen=True)
class Delivery:
    """What of a message the run looks at, whoever hands it out."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    origin_message_id: str
    reconsume_times: int
    is_poison: bool

    @classmethod
    def of(cls, message: ReceivedMessage) -> Delivery:
        return cls(
            message.topic, message.queue_id, message.queue_offset, message.message_id,
            message.origin_message_id, message.reconsume_times, POISON in message.properties,
        )  # fmt: skip


@dataclass(frozen=True)
class Group:
    """What one consumer group reads, as txmq is told and as the run compares."""

    name: str
    filter: str
    lets_through: Callable[[Note], bool]
    with_spark: bool = False

    @property
    def topics(self) -> dict[str, str]:
        return dict.fromkeys(TOPICS, self.filter)


def _is_for_fraud(note: Note) -> bool:
    return int(note["amount"]) > 50 and note["region"] in {"eu", "us"}


GROUPS = {
    own.name: own
    for own in (
        Group("audit", "*", lambda _: True, with_spark=True),
        Group("shipping", "paid || shipped", lambda note: note["tag"] in {"paid", "shipped"}),
        Group(
            "fraud", "sql:amount > 50 AND region IN ('eu', 'us')", _is_for_fraud, with_spark=True
        ),
        Group("billing", "*", lambda _: True),
    )
}


def chance(group: str, message_id: str) -> float:
    """The same for each try of one message, another one for its retry: 0 to 1."""
    return zlib.crc32(f"{group} {message_id}".encode()) / 2**32


def fails_early(group: str, message_id: str) -> bool:
    return chance(group, message_id) < EARLY


def fails_late(group: str, message_id: str, times: int) -> bool:
    """After the effect was committed: the retry must have none."""
    return times == 0 and EARLY <= chance(group, message_id) < LATE


def journal_of(folder: Path, member: str) -> Path:
    return folder / f"{member}.journal"


def mark_of(folder: Path, member: str) -> Path:
    """There once the member has joined."""
    return folder / f"{member}.ready"
