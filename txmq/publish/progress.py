"""How far a store is published: the low-water mark and the parked topics, one small value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txmq.delta.storage import Table
from txmq.errors import SourceRestoredError
from txmq.store.settled import NOTHING, SettledLog

MAX_DOUBLINGS = 5
FINGERPRINT_HEX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class ParkedTopic:
    """A topic that cannot be written now; it catches up from `from_version`."""

    from_version: int
    reason: str
    since_ms: int
    attempts: int

    def is_due(self, now_ms: int, retry_interval_s: float) -> bool:
        """Whether it is time to try again: the pause grows with the attempts, up to 32 times."""
        pause_ms = retry_interval_s * 1000 * (1 << min(self.attempts - 1, MAX_DOUBLINGS))
        return now_ms >= self.since_ms + pause_ms


@dataclass(frozen=True, slots=True)
class Progress:
    """Every topic with messages up to `low_water_version` has them, or is parked.

    `op_commit_sha256` is the hash of the op log's commit file of that version: an op log that was
    restored or made anew has another, and would else skip claims in silence.
    """

    op_table_id: str
    low_water_version: int = NOTHING
    op_commit_sha256: str | None = None
    parked: Mapping[str, ParkedTopic] = field(default_factory=dict)

    @classmethod
    def from_value(cls, value: Mapping[str, Any], op: Table) -> Progress:
        """What the register holds, checked against the op log as it is now.

        Raises: SourceRestoredError.
        """
        if not value:
            return cls(op.table_id)
        parked = {name: ParkedTopic(**facts) for name, facts in value["parked"].items()}
        kept = cls(
            value["op_table_id"], value["low_water_version"], value["op_commit_sha256"], parked
        )
        kept.check_source(op)
        return kept

    def to_value(self) -> dict[str, Any]:
        """As the register stores it."""
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
        """Raise SourceRestoredError where the op log is not the one that was followed so far."""
        if self.op_table_id != op.table_id:
            raise SourceRestoredError("op", "was made anew; " + _RESTORED)
        if self.low_water_version > op.version:
            raise SourceRestoredError("op", f"ends at version {op.version}; " + _RESTORED)
        now = commit_sha256(op, self.low_water_version)
        if now is not None and self.op_commit_sha256 not in (None, now):
            problem = f"has another commit {self.low_water_version}; "
            raise SourceRestoredError("op", problem + _RESTORED)

    def advanced(self, version: int, op: Table) -> Progress:
        """The same with a higher low-water mark; it never goes back."""
        if version <= self.low_water_version:
            return self
        sha256 = commit_sha256(op, version)
        return replace(self, low_water_version=version, op_commit_sha256=sha256)

    def with_parked(self, topic: str, parked: ParkedTopic) -> Progress:
        """The same with one topic set aside."""
        return replace(self, parked={**self.parked, topic: parked})

    def without_parked(self, topic: str) -> Progress:
        """The same with one topic back in line."""
        return replace(self, parked={n: p for n, p in self.parked.items() if n != topic})


_RESTORED = "stop, and restore the topics and the settled log with it or make a new store"


def check_followed(op: Table, settled: SettledLog) -> None:
    """Raise SourceRestoredError where what was settled is not what the op log holds now.

    Reads: the op log's commit at the settled log's mark. Both handles must be fresh.
    """
    if settled.mark > op.version:
        raise SourceRestoredError("op", f"ends at {op.version}, but more was settled; {_RESTORED}")
    now, then = commit_fingerprint(op, settled.mark), settled.fingerprint
    if now is not None and then not in (None, now):
        raise SourceRestoredError("op", f"has another commit {settled.mark}; {_RESTORED}")


def commit_fingerprint(op: Table, version: int) -> int | None:
    """The front of a commit's hash as a number that Delta can keep; None where it was cleaned."""
    sha256 = commit_sha256(op, version)
    return None if sha256 is None else int(sha256[:FINGERPRINT_HEX_DIGITS], 16)


def commit_sha256(op: Table, version: int) -> str | None:
    """The hash of a commit file of the op log; None where it was cleaned away."""
    content = op.commit_bytes(version) if version >= 0 else None
    return None if content is None else hashlib.sha256(content).hexdigest()
