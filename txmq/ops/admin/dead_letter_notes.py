"""Which dead letters of a group are meant, and the notes about them: what was purged and replayed.

The notes of a group are one JSON value in `state/dead_letters_<group>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.until_committed import until_committed
from txmq.errors import InvalidMessageError, MessageNotFoundError
from txmq.ground.clock import timestamp
from txmq.message.ids import message_address
from txmq.message.names import check_stored_group
from txmq.store.store import Store
from txmq.store.tables import DEAD_LETTERS

Offsets = npt.NDArray[np.int64]
PURGED, REPLAYED = _RANGES = "purged", "replayed"
AUDIT_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice of dead letters: some ids, or all before a time, or all.

    Raises: InvalidMessageError unless exactly one of the three is given.
    """

    message_ids: tuple[str, ...] = ()
    before: datetime | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        """Require exactly one, so that a forgotten argument never means "purge all"."""
        if bool(self.message_ids) + (self.before is not None) + self.everything != 1:
            problem = "must say which: message_ids, before a time, or everything"
            raise InvalidMessageError("chosen", problem)
        if self.before is not None and self.before.tzinfo is None:
            raise InvalidMessageError("before", "has no time zone; write datetime(..., tzinfo=UTC)")

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the chosen rows. Raises: MessageNotFoundError, TransactionNotFoundError."""
        if self.everything:
            return rows
        if self.before is not None:
            return rows.filter(pc.less(rows["store_timestamp"], pa.scalar(self.before)))
        stored = set(rows["message_id"].to_pylist())
        for message_id in self.message_ids:
            message_address(message_id)
            if message_id not in stored:
                raise MessageNotFoundError(message_id)
        return rows.filter(pc.is_in(rows["message_id"], value_set=pa.array(self.message_ids)))


def check_chosen(chosen: object) -> None:
    """Refuse what is no Chosen. Raises: InvalidMessageError."""
    if not isinstance(chosen, Chosen):
        raise InvalidMessageError("chosen", f"must be a Chosen, not {type(chosen).__name__}")


class DeadLettersValue(TypedDict):
    """The value of the register of the dead letters of a group."""

    purged: NotRequired[Sequence[tuple[int, int]]]
    replayed: NotRequired[Sequence[tuple[int, int]]]
    audit: NotRequired[Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Notes:
    """The offsets that were purged, the offsets that were replayed, and the last changes."""

    purged: OffsetRanges
    replayed: OffsetRanges
    audit: Sequence[dict[str, Any]]

    def reach(self, offset: int) -> bool:
        """Tell whether one of them is of a letter at this offset or beyond."""
        ranges = (*self.purged.ranges, *self.replayed.ranges)
        return any(end > offset for _, end in ranges)


class DeadLetterNotes:
    """Reads and adds notes; the first note creates the table."""

    def __init__(self, store: Store, consumer_group: str) -> None:
        """Open nothing yet; `consumer_group` is a stored name. Raises: InvalidNameError."""
        self._store = store
        self._name = DEAD_LETTERS + check_stored_group(consumer_group, "consumer_group")

    def read(self) -> Notes:
        """Read all notes; 0 commits. Raises: StorageError."""
        register = self._store.tables.register(self._name, DeadLettersValue)
        value = register.read().value if register.exists else {}
        return Notes(
            OffsetRanges.from_value(value.get(PURGED, ())),
            OffsetRanges.from_value(value.get(REPLAYED, ())),
            value.get("audit", ()),
        )

    def add(self, what: str, offsets: Offsets, reason: str, now_ms: int) -> None:
        """Note PURGED or REPLAYED offsets: one commit.

        Raises: CommitConflictError, StorageError.
        """
        register = self._store.tables.register(self._name, DeadLettersValue, create=True)

        def compute() -> None:
            seen = register.read_pinned()
            register.swap(seen, _with(seen.value, what, offsets, reason, now_ms), now_ms)

        until_committed(register.table, compute, self._store.config.commit_attempts)

    def forget_from(self, offset: int, now_ms: int) -> None:
        """Take the notes of letters from an offset on away: one commit, or none.

        Raises: CommitConflictError, StorageError.
        """
        register = self._store.tables.register(self._name, DeadLettersValue)

        def compute() -> None:
            seen = register.read_pinned()
            value = dict(seen.value)
            ranges = {name: OffsetRanges.from_value(value.get(name, ())) for name in _RANGES}
            kept = {name: of_name.below(offset).to_value() for name, of_name in ranges.items()}
            register.swap(seen, {**value, **kept}, now_ms)

        if self.read().reach(offset):
            until_committed(register.table, compute, self._store.config.commit_attempts)


def _with(
    value: dict[str, Any], what: str, offsets: Offsets, reason: str, now_ms: int
) -> dict[str, Any]:
    ranges = OffsetRanges.from_value(value.get(what, ()))
    entry = {
        "what": what,
        "at": timestamp(now_ms).isoformat(),
        "reason": reason,
        "messages": len(offsets),
    }
    audit = [*value.get("audit", ()), entry][-AUDIT_ENTRIES:]
    return {**value, what: ranges.with_offsets(offsets).to_value(), "audit": audit}


def offsets_of(rows: pa.Table) -> Offsets:
    """Return the column `queue_offset` of `rows`."""
    offsets: Offsets = rows["queue_offset"].to_numpy().astype(np.int64)
    return offsets


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ordered ranges of offsets with gaps between them; each ends before its second number."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_value(cls, value: Iterable[Sequence[int]]) -> OffsetRanges:
        """Read what `to_value` returned."""
        return cls(tuple((int(first), int(end)) for first, end in value))

    def to_value(self) -> list[list[int]]:
        """Return plain values, for JSON."""
        return [list(bounds) for bounds in self.ranges]

    def with_offsets(self, offsets: Offsets) -> OffsetRanges:
        """Add offsets in any order."""
        if not len(offsets):
            return self
        ordered = np.unique(offsets)
        begins = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) > 1)
        ends = np.append(begins[1:], len(ordered)) - 1
        runs = zip(ordered[begins].tolist(), (ordered[ends] + 1).tolist(), strict=True)
        return OffsetRanges(_merged(sorted([*self.ranges, *runs])))

    def below(self, offset: int) -> OffsetRanges:
        """Leave out this offset and those beyond it."""
        kept = ((first, min(end, offset)) for first, end in self.ranges if first < offset)
        return OffsetRanges(tuple(kept))

    def holding(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Tell of each of `offsets` whether it is in a range."""
        if not self.ranges:
            return np.zeros(len(offsets), dtype=np.bool_)
        first, end = np.array(self.ranges, dtype=np.int64).T
        place = np.searchsorted(first, offsets, side="right") - 1
        is_in_range: npt.NDArray[np.bool_] = (place >= 0) & (offsets < end[place])
        return is_in_range

    def end_of(self, offset: int) -> int:
        """Return the first offset from `offset` on that is in no range."""
        return next((end for first, end in self.ranges if first <= offset < end), offset)


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged = [ranges[0]]
    for first, end in ranges[1:]:
        last_first, last_end = merged[-1]
        if first <= last_end:
            merged[-1] = (last_first, max(end, last_end))
        else:
            merged.append((first, end))
    return tuple(merged)
