"""Find out whether the members of a group live, by what an observer has seen itself.

A member writes another number with each renewal. Nobody compares that number with a clock: a lease
is over when its number has not changed for the length of the lease, as the observer saw it. So the
clocks of a group need not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from txmq.ground.clock import Clock, elapsed_ms


class Membership(NamedTuple):
    """One member of a group.

    Attributes:
        epoch: the epoch of the group when it joined.
        lease_end_ms: a number that grows with each renewal. It is the end of the lease by the
            member's own clock, which members of earlier versions compare with theirs.
        lease_ms: the length of its lease; 0 where a member of an earlier version wrote the value.
    """

    epoch: int
    lease_end_ms: int
    lease_ms: int = 0


class Sighting(NamedTuple):
    """What a member showed at a time of the storage.

    Attributes:
        epoch: the epoch of its membership.
        lease_end_ms: the number of its last renewal.
        since_ms: the storage's time of the oldest commit that is known to show both.
    """

    epoch: int
    lease_end_ms: int
    since_ms: int

    def is_of(self, membership: Membership) -> bool:
        """Tell whether the member has not renewed its lease since."""
        return (self.epoch, self.lease_end_ms) == (membership.epoch, membership.lease_end_ms)


def sightings(
    members: Mapping[str, Membership], before: Mapping[str, Sighting], stored_ms: int
) -> dict[str, Sighting]:
    """Return a sighting of each member; a member that shows the same as before keeps its time.

    Args:
        members: the members as a commit shows them.
        before: the sightings so far.
        stored_ms: the storage's time of that commit.
    """
    return {
        name: before[name]
        if name in before and before[name].is_of(at)
        else Sighting(at.epoch, at.lease_end_ms, stored_ms)
        for name, at in members.items()
    }


class LeaseWatch:
    """Sees which members are silent. Not safe for several threads.

    Args:
        clock: measures how long.
        lease_ms: the lease of members that do not say theirs.
    """

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        """Begin without having seen anybody."""
        self._clock, self._lease_ms = clock, lease_ms
        self._seen: dict[str, tuple[Membership, int]] = {}

    def look(self, members: Mapping[str, Membership]) -> None:
        """Note what the members show now."""
        now_ms = elapsed_ms(self._clock)
        self._seen = {name: (at, self._since(name, at, now_ms)) for name, at in members.items()}

    def gone(self, members: Mapping[str, Membership]) -> frozenset[str]:
        """Find the members that have shown the same for as long as their lease."""
        self.look(members)
        now_ms = elapsed_ms(self._clock)
        return frozenset(
            name
            for name, (at, since_ms) in self._seen.items()
            if now_ms - since_ms >= (at.lease_ms or self._lease_ms)
        )

    def note_silence(self, members: Mapping[str, Membership], silent_ms: Mapping[str, int]) -> None:
        """Take over how long members have been silent already, by the time of the storage."""
        self.look(members)
        now_ms = elapsed_ms(self._clock)
        for name, (at, since_ms) in list(self._seen.items()):
            self._seen[name] = (at, min(since_ms, now_ms - silent_ms.get(name, 0)))

    def _since(self, name: str, at: Membership, now_ms: int) -> int:
        before = self._seen.get(name)
        # The smaller one: the clock of a test may be set back.
        return now_ms if before is None or before[0] != at else min(before[1], now_ms)


class OwnLease:
    """Measures how long a member may serve: one lease from when it began to write its last renewal.

    Others count from when they see the renewal, which is later. Not safe for several threads.
    """

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        """Begin without a lease."""
        self._clock, self._lease_ms = clock, lease_ms
        self._begun_ms: dict[int, int] = {}
        self._end_ms: int | None = None

    def next_number(self, before: Membership | None) -> int:
        """Return the number of the next renewal, which is larger than the one before."""
        number = self._clock.now_ms() + self._lease_ms
        if before is not None:
            number = max(number, before.lease_end_ms + 1)
        self._begun_ms.setdefault(number, elapsed_ms(self._clock))
        return number

    def adopt(self, membership: Membership | None) -> None:
        """Take over what the group shows of this member; None if it shows nothing."""
        number = -1 if membership is None else membership.lease_end_ms
        begun_ms = self._begun_ms.get(number)
        self._end_ms = None if begun_ms is None else begun_ms + self._lease_ms
        # Later numbers are kept: the answer to their commit may have been lost.
        self._begun_ms = {n: ms for n, ms in self._begun_ms.items() if n >= number}

    @property
    def left_ms(self) -> int:
        """How long it still lasts; 0 or less once it is over."""
        return 0 if self._end_ms is None else self._end_ms - elapsed_ms(self._clock)
