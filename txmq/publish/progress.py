"""The progress of a store's publishers: the low-water mark and the parked topics, in one value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txmq.delta.storage import Table
from txmq.errors import SourceRestoredError
from txmq.store.settled import NOTHING, SettledLog

FINGERPRINT_HEX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class ParkedTopic:
    """A topic that could not be written; it lacks messages after `from_version` of the op log.

    `since_ms` is the clock of the publisher that parked it, for display only.
    """

    from_version: int
    reason: str
    since_ms: int
    attempts: int


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Every topic has its messages up to `low_water_version` of the op log, or is parked.

    `op_commit_sha256` is the hash of the op log's commit of that version. An op log that was
    restored or made anew has another hash; without it, claims would be skipped silently.
    """

    op_table_id: str
    low_water_version: int = NOTHING
    op_commit_sha256: str | None = None
    parked: Mapping[str, ParkedTopic] = field(default_factory=dict)

    @classmethod
    def from_value(cls, value: Mapping[str, Any], op: Table) -> PublishProgress:
        """The value of the register, checked against the op log; an empty value is a new store's.

        Raises: SourceRestoredError if the op log was restored or made anew.
        """
        if not value:
            return cls(op.table_id)
        parked = {name: ParkedTopic(**topic) for name, topic in value["parked"].items()}
        progress = cls(
            value["op_table_id"], value["low_water_version"], value["op_commit_sha256"], parked
        )
        progress.check_source(op)
        return progress

    def to_value(self) -> dict[str, Any]:
        """The value for the register."""
        parked = {
            name: {
                "from_version": topic.from_version,
                "reason": topic.reason,
                "since_ms": topic.since_ms,
                "attempts": topic.attempts,
            }
            for name, topic in self.parked.items()
        }
        return {
            "op_table_id": self.op_table_id,
            "low_water_version": self.low_water_version,
            "op_commit_sha256": self.op_commit_sha256,
            "parked": parked,
        }

    def check_source(self, op: Table) -> None:
        """Raise SourceRestoredError if the op log was restored or made anew."""
        if self.op_table_id != op.table_id:
            raise SourceRestoredError("op", "was made anew; " + RESTORED)
        if self.low_water_version > op.version:
            raise SourceRestoredError("op", f"ends at version {op.version}; " + RESTORED)
        sha256 = commit_sha256(op, self.low_water_version)
        if sha256 is not None and self.op_commit_sha256 not in (None, sha256):
            problem = f"has another commit {self.low_water_version}; "
            raise SourceRestoredError("op", problem + RESTORED)

    def advanced(self, version: int, op: Table) -> PublishProgress:
        """The progress with a higher low-water mark; a lower one changes nothing."""
        if version <= self.low_water_version:
            return self
        sha256 = commit_sha256(op, version)
        return replace(self, low_water_version=version, op_commit_sha256=sha256)

    def with_parked(self, topic: str, parked: ParkedTopic) -> PublishProgress:
        """The progress with one more parked topic."""
        return replace(self, parked={**self.parked, topic: parked})

    def without_parked(self, topic: str) -> PublishProgress:
        """The progress with one parked topic less."""
        parked = {name: other for name, other in self.parked.items() if name != topic}
        return replace(self, parked=parked)


RESTORED = "stop, then restore the topics and the settled log too, or make a new store"


def check_followed(op: Table, settled: SettledLog) -> None:
    """Raise SourceRestoredError if the settled log follows another op log than this one.

    Both handles must be fresh. Reads: the op log's commit at the settled log's mark. Commits: 0.
    """
    if settled.mark > op.version:
        raise SourceRestoredError("op", f"ends at {op.version}, but more was settled; {RESTORED}")
    fingerprint = commit_fingerprint(op, settled.mark)
    if fingerprint is not None and settled.fingerprint not in (None, fingerprint):
        raise SourceRestoredError("op", f"has another commit {settled.mark}; {RESTORED}")


def commit_fingerprint(op: Table, version: int) -> int | None:
    """The first digits of a commit's hash as a number, for a mark; None if the commit is gone."""
    sha256 = commit_sha256(op, version)
    return None if sha256 is None else int(sha256[:FINGERPRINT_HEX_DIGITS], 16)


def commit_sha256(op: Table, version: int) -> str | None:
    """The hash of a commit of the op log; None if log clean-up has removed the commit."""
    content = op.commit_bytes(version) if version >= 0 else None
    return None if content is None else hashlib.sha256(content).hexdigest()
