"""Who had which message when: order, and nobody served twice at the same moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.endurance.groups.crew import Deed, Event
from tests.endurance.groups.journal import Call, CallEnd

Queue = tuple[str, int]
_NEVER = float("inf")


def by_queue(calls: Iterable[Call]) -> dict[Queue, list[Call]]:
    """Each queue's calls as they began; those of one moment by offset."""
    found: dict[Queue, list[Call]] = {}
    for call in sorted(calls, key=lambda call: call.begin_s):
        found.setdefault((call.topic, call.queue_id), []).append(call)
    return found


def disordered(calls: Sequence[Call]) -> list[str]:
    """Calls of one queue: what was first handed out after something that stands behind it."""
    seen, highest, found = set[int](), -1, []
    for call in calls:
        if call.offset not in seen and call.offset < highest:
            found.append(f"{_place(call)} after {highest}, by {call.member}")
        seen.add(call.offset)
        highest = max(highest, call.offset)
    return found


@dataclass(frozen=True)
class Interruptions:
    """When members were killed and stopped."""

    events: Sequence[Event]

    def end_of(self, call: Call) -> float:
        """Until when the message was in somebody's hands.

        Who was stopped is not served: a call that was on its way then ends with the stop, and so
        does one of a member that died.
        """
        end_s = _NEVER if call.end_s is None else call.end_s
        for event in self._of(call.member):
            # Between the look at the clock and its death a member may still begin a call.
            moment_s = event.end_s if event.deed is Deed.KILL else event.begin_s
            if call.begin_s <= moment_s < end_s:
                end_s = moment_s
        return end_s

    def explain(self, call: Call, until_s: float) -> bool:
        """Whether a member may have forgotten what it did since this call."""
        return any(
            call.begin_s <= event.end_s and event.begin_s <= until_s
            for event in self._of(call.member)
        )

    def _of(self, member: str) -> list[Event]:
        deeds = (Deed.KILL, Deed.STOP)
        return [own for own in self.events if own.member == member and own.deed in deeds]


def together(calls: Sequence[Call], interruptions: Interruptions) -> list[str]:
    """Calls of one queue by two members at the same moment."""
    return [
        f"{_place(other)} by {other.member} while {one.member} had {one.offset}, "
        f"{interruptions.end_of(one) - other.begin_s:.3f} s"
        for one, other in pairwise(calls)
        if one.member != other.member and interruptions.end_of(one) > other.begin_s
    ]


def handed_again(calls: Sequence[Call], interruptions: Interruptions) -> tuple[int, list[str]]:
    """How often a queue went back, and where nothing explains it."""
    back = [(one, other) for one, other in pairwise(calls) if other.offset <= one.offset]
    unexplained = [
        f"{_place(other)} by {other.member} after {one.offset} by {one.member}"
        for one, other in back
        if not (_was_cut(one, other) or interruptions.explain(one, other.begin_s))
    ]
    return len(back), unexplained


def _was_cut(one: Call, other: Call) -> bool:
    """A batch that failed is tried again in halves, by the same member."""
    is_batch = one.member.endswith("-spark")
    return is_batch and one.member == other.member and one.end is not CallEnd.DONE


def _place(call: Call) -> str:
    return f"{call.topic}/{call.queue_id}/{call.offset}"
