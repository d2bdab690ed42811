"""The progress of a store's publishers: the low-water mark and the parked topics, in one value.

Beside it: the checks that no log was restored behind a publisher, the pauses between retries, and
how long messages took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.log_files import commit_fingerprint, commit_sha256
from txmq.delta.table import Table
from txmq.errors import SourceRestoredError
from txmq.ground.columns import times_ms
from txmq.ground.histogram import NO_DURATIONS, Histogram
from txmq.message.ids import transaction_times_ms
from txmq.message.lifecycle import TransactionState
from txmq.store.settled import NOTHING, SettledLog
from txmq.store.shapes import LATER, Moment
from txmq.store.topic import TopicEnd

MAX_DOUBLINGS = 5
RESTORED = "stop, then restore the topics and the settled log too, or make a new store"
_ENDS = pa.array([TransactionState.COMMITTED.value, TransactionState.ROLLED_BACK.value])


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Every topic has its messages up to `low_water_version` of the op log, or is parked.

    `op_commit_sha256` is the hash of the op log's commit of that version. An op log that was
    restored or made anew has another hash; without it, claims would be skipped silently. `ends`
    tells how far each topic was when a publisher wrote it last; one that is behind was restored.
    """

    op_table_id: str
    low_water_version: int = NOTHING
    op_commit_sha256: str | None = None
    parked: Mapping[str, ParkedTopic] = field(default_factory=dict)
    ends: Annotated[Mapping[str, TopicEnd], LATER] = field(default_factory=dict)

    @classmethod
    def from_value(cls, value: Mapping[str, Any], op: Table) -> PublishProgress:
        """Read the value of the register, and check it against the op log.

        An empty value is a new store's.

        Raises: SourceRestoredError if the op log was restored or made anew.
        """
        if not value:
            return cls(op.log.table_id)
        parked = {name: ParkedTopic(**topic) for name, topic in value["parked"].items()}
        ends = {name: TopicEnd(*end) for name, end in value.get("ends", {}).items()}
        progress = cls(
            value["op_table_id"],
            value["low_water_version"],
            value["op_commit_sha256"],
            parked,
            ends,
        )
        progress.check_source(op)
        return progress

    def to_value(self) -> dict[str, Any]:
        """Return the value for the register."""
        return {
            "op_table_id": self.op_table_id,
            "low_water_version": self.low_water_version,
            "op_commit_sha256": self.op_commit_sha256,
            "parked": {name: asdict(topic) for name, topic in self.parked.items()},
            "ends": {name: list(end) for name, end in self.ends.items()},
        }

    def check_source(self, op: Table) -> None:
        """Raise SourceRestoredError if the op log was restored or made anew."""
        if self.op_table_id != op.log.table_id:
            raise SourceRestoredError("op", "was made anew; " + RESTORED)
        if self.low_water_version > op.version:
            raise SourceRestoredError("op", f"ends at version {op.version}; " + RESTORED)
        sha256 = commit_sha256(op, self.low_water_version)
        if sha256 is not None and self.op_commit_sha256 not in (None, sha256):
            problem = f"has another commit {self.low_water_version}; "
            raise SourceRestoredError("op", problem + RESTORED)

    def advanced(self, version: int, op: Table) -> PublishProgress:
        """Return the progress with a higher low-water mark; a lower one changes nothing."""
        if version <= self.low_water_version:
            return self
        sha256 = commit_sha256(op, version)
        return replace(self, low_water_version=version, op_commit_sha256=sha256)

    def with_parked(self, topic: str, parked: ParkedTopic) -> PublishProgress:
        """Return the progress with one more parked topic."""
        return replace(self, parked={**self.parked, topic: parked})

    def without_parked(self, topic: str) -> PublishProgress:
        """Return the progress with one parked topic less."""
        parked = {name: other for name, other in self.parked.items() if name != topic}
        return replace(self, parked=parked)

    def with_ends(self, ends: Mapping[str, TopicEnd]) -> PublishProgress:
        """Return the progress with the ends of these topics that are further; none goes back."""
        further = {
            name: end
            for name, end in ends.items()
            if name not in self.ends or not end.is_behind(self.ends[name])
        }
        return replace(self, ends={**self.ends, **further})


@dataclass(frozen=True, slots=True)
class ParkedTopic:
    """A topic that could not be written; it lacks messages after `from_version` of the op log.

    `since_ms` is the first attempt, by the clock of the publisher that made it: for display only.
    """

    from_version: int
    reason: str
    since_ms: Moment
    attempts: int

    @classmethod
    def after(cls, before: Self | None, from_version: int, reason: str, now_ms: int) -> Self:
        """Park it for one more reason; what it lacks, and since when, stays that of the first."""
        if before is None:
            return cls(from_version, reason, now_ms, 1)
        return cls(before.from_version, reason, before.since_ms, before.attempts + 1)


def merged_progress(progress: PublishProgress, value: dict[str, Any], op: Table) -> PublishProgress:
    """Join this publisher's progress with another one's.

    Both are true, so the higher low-water mark counts, the parked topics of both, and the further
    end of each topic.
    """
    other = PublishProgress.from_value(value, op)
    further = progress if progress.low_water_version >= other.low_water_version else other
    merged = replace(further, parked={**other.parked, **progress.parked}, ends=other.ends)
    return merged.with_ends(progress.ends)


def check_followed(op: Table, settled: SettledLog) -> None:
    """Raise SourceRestoredError if the settled log follows another op log than this one.

    Both handles must be fresh. Reads: the op log's commit at the settled log's mark. Commits: 0.
    """
    if settled.mark > op.version:
        raise SourceRestoredError("op", f"ends at {op.version}, but more was settled; {RESTORED}")
    fingerprint = commit_fingerprint(op, settled.mark)
    if fingerprint is not None and settled.fingerprint not in (None, fingerprint):
        raise SourceRestoredError("op", f"has another commit {settled.mark}; {RESTORED}")


def check_half(half: Table, settled: SettledLog) -> None:
    """Raise SourceRestoredError if the half log is older than the one that was settled by.

    Claims about what it lacks would have no effect, though their callers were told otherwise.

    Reads: the half log's commit at the settled log's mark. Commits: 0.
    """
    seen, seen_fingerprint, _ = settled.half_seen
    if seen > half.version and seen > half.refresh().version:
        raise SourceRestoredError(
            "half", f"ends at {half.version}, but {seen} was read; {RESTORED}"
        )
    # A commit that lost its content holds up its own messages and nobody else's.
    is_lost = seen >= 0 and not (half.folder.commit_bytes(seen) or b"").strip()
    fingerprint = None if is_lost else commit_fingerprint(half, seen)
    if fingerprint is not None and seen_fingerprint not in (None, fingerprint):
        raise SourceRestoredError("half", f"has another commit {seen}; {RESTORED}")


class RetryPauses:
    """The pauses between tries of several things, by one clock that is compared with itself only.

    A time stamp of another process may lie in the future, so none is believed.
    """

    def __init__(self, interval_s: float) -> None:
        """Begin with nothing tried; the pause doubles with each attempt, up to 32 intervals."""
        self._interval_ms = interval_s * 1000
        self._tried_ms: dict[str, int] = {}

    def is_due(self, name: str, attempts: int, now_ms: int) -> bool:
        """Tell whether to try again: at once if it was never tried or if the clock went back."""
        if name not in self._tried_ms:
            return True
        passed_ms = now_ms - self._tried_ms[name]
        pause_ms = self._interval_ms * (1 << min(max(attempts, 1) - 1, MAX_DOUBLINGS))
        return not 0 <= passed_ms < pause_ms

    def tried(self, name: str, now_ms: int) -> None:
        """Note that it was tried now, and failed."""
        self._tried_ms[name] = now_ms

    def forget(self, name: str) -> None:
        """Forget what has succeeded."""
        self._tried_ms.pop(name, None)


def end_latency(facts: pa.Table) -> Histogram:
    """Measure from half messages to their COMMIT or ROLLBACK, by their writers' clocks (R86).

    Args:
        facts: transaction_id, state and op_timestamp of new facts.
    """
    ends = facts.filter(pc.is_in(facts["state"], value_set=_ENDS))
    if not ends.num_rows:
        return NO_DURATIONS
    return Histogram.of(
        times_ms(ends["op_timestamp"]) - transaction_times_ms(ends["transaction_id"])
    )


def publish_latency(facts: pa.Table, now_ms: int) -> Histogram:
    """Measure from claims, by the clocks of their writers, to the messages that are visible now.

    Args:
        facts: op_timestamp of facts whose messages were just shown.
        now_ms: the store's time.
    """
    if not facts.num_rows:
        return NO_DURATIONS
    return Histogram.of(now_ms - times_ms(facts["op_timestamp"]))
