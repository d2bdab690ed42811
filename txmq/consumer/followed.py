"""Which commit of a topic a group has followed, kept beside its offsets.

A topic that was restored alone from an older copy gives offsets away again that a group has passed.
Its log has another commit at the place of the one that the group followed, or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from txmq.delta.folder import TableFolder

FINGERPRINT_HEX_DIGITS = 15


class TopicCommit(NamedTuple):
    """A commit of a topic.

    Attributes:
        version: its version of the table.
        fingerprint: the first digits of the hash of its commit file, as a number.
    """

    version: int
    fingerprint: int


class QueueOfTopic(Protocol):
    """A queue of a topic, as the key of its offset."""

    @property
    def topic(self) -> str:
        """The stored name of the topic."""
        ...


Queue = TypeVar("Queue", bound=QueueOfTopic)
Followed = Mapping[str, Mapping[Queue, TopicCommit]]
Commits = Mapping[str, TopicCommit]
NO_COMMITS: Commits = {}


def topic_commit(table: TableFolder, version: int) -> TopicCommit | None:
    """A commit as it stands in the log; None where it is not there, as after log clean-up."""
    content = table.commit_bytes(version)
    if content is None:
        return None
    digits = hashlib.sha256(content).hexdigest()[:FINGERPRINT_HEX_DIGITS]
    return TopicCommit(version, int(digits, 16))


def noted(
    followed: Followed[Queue],
    reader: str,
    queues: Collection[Queue],
    commits: Commits,
) -> Followed[Queue]:
    """What was followed, after a reader committed offsets of these queues.

    A commit that is not known takes the place of one that is: that one is of an older offset.
    """
    kept = {queue: at for queue, at in followed.get(reader, {}).items() if queue not in queues}
    new = {queue: commits[queue.topic] for queue in queues if queue.topic in commits}
    after = {**kept, **new}
    return followed if after == followed.get(reader, {}) else {**followed, reader: after}


def forgotten(followed: Followed[Queue], queues: Collection[Queue]) -> Followed[Queue]:
    """What was followed, without these queues of all readers: their offsets are set anew."""
    return {
        reader: {queue: at for queue, at in commits.items() if queue not in queues}
        for reader, commits in followed.items()
    }
