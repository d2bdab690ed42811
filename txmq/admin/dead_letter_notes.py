"""What operators did with the dead letters of a group: one value in `state/`, swapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txmq.admin.offset_ranges import OffsetRanges, Offsets
from txmq.clock import timestamp
from txmq.delta.pinned import pause
from txmq.errors import CommitConflictError, CommitRefusedError
from txmq.store.store import Store

PURGED, REPLAYED = "purged", "replayed"
AUDIT_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Noted:
    """The offsets that were purged, those that were sent again, and who did it last."""

    purged: OffsetRanges
    replayed: OffsetRanges
    audit: Sequence[dict[str, Any]]


class DeadLetterNotes:
    """Reads and adds; the table is made with the first note."""

    def __init__(self, store: Store, consumer_group: str) -> None:
        """`consumer_group` is its stored name; open nothing yet."""
        self._store, self._group = store, consumer_group

    def read(self) -> Noted:
        """All that was noted; 0 commits. Raises: StorageError."""
        register = self._store.dead_letter_register(self._group)
        value = {} if register is None else register.read().value
        return Noted(
            OffsetRanges.from_value(value.get(PURGED, ())),
            OffsetRanges.from_value(value.get(REPLAYED, ())),
            value.get("audit", ()),
        )

    def add(self, what: str, offsets: Offsets, reason: str, now_ms: int) -> None:
        """Note PURGED or REPLAYED offsets: one commit.

        Raises: CommitConflictError, StorageError.
        """
        register = self._store.made_dead_letter_register(self._group)
        for attempt in range(self._store.config.commit_attempts):
            seen = register.read()
            try:
                register.swap(seen, _with(seen.value, what, offsets, reason, now_ms), now_ms)
            except CommitRefusedError:
                pause(attempt)
            else:
                return
        raise CommitConflictError(f"state of {self._group}", "other operators won all the time")


def _with(
    value: dict[str, Any], what: str, offsets: Offsets, reason: str, now_ms: int
) -> dict[str, Any]:
    known = OffsetRanges.from_value(value.get(what, ()))
    entry = {
        "what": what,
        "at": timestamp(now_ms).isoformat(),
        "reason": reason,
        "messages": len(offsets),
    }
    audit = [*value.get("audit", ()), entry][-AUDIT_ENTRIES:]
    return {**value, what: known.with_offsets(offsets).to_value(), "audit": audit}
