"""A topic as operators see it: its settings, size and offsets as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from txmq.clock import timestamp
from txmq.publish.progress import ParkedTopic
from txmq.results import plain
from txmq.store.topic_settings import TopicSettings


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        is_registered: whether an operator created or altered it; else its first message created it.
        is_system: whether it is a topic of txmq itself.
        is_parked: whether it cannot be written now; the other topics are published without it.
    """

    topic: str
    settings: TopicSettings
    is_registered: bool
    is_system: bool
    rows: int
    size_bytes: int
    is_parked: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = plain(self)
        del values["settings"]
        return {"topic": values.pop("topic"), **self.settings.to_value(), **values}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Settings, size and offsets of one topic.

    Attributes:
        files: how many files hold its rows.
        next_offsets: for each queue the offset of its next message.
        oldest, newest: when its first and its last message became visible.
        op_version: its messages are complete up to this version of the op log; NOTHING before the
            first.
        begin: retention may have removed messages up to this version; None where it removed none.
        parked: why it cannot be written; None where it can.
    """

    summary: TopicSummary
    files: int
    next_offsets: Mapping[int, int]
    oldest: datetime | None
    newest: datetime | None
    op_version: int
    begin: int | None
    parked: ParkedTopic | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = plain(self)
        del values["summary"]
        parked = None if self.parked is None else _parked_value(self.parked)
        return {**self.summary.to_dict(), **values, "parked": parked}


def _parked_value(parked: ParkedTopic) -> dict[str, Any]:
    return {
        "from_version": parked.from_version,
        "reason": parked.reason,
        "since": timestamp(parked.since_ms).isoformat(),
        "attempts": parked.attempts,
    }
