"""The members of all groups as processes: killed, stopped, continued, added, removed."""

from __future__ import annotations

import enum
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.endurance.groups.member import main
from tests.endurance.groups.world import Group, journal_of, mark_of
from tests.kit.forked import Forked

MEMBERS, MOST, LEAST = 3, 4, 2
RESTART_MAX_S, END_WAIT_S = 2.0, 120.0
# Of a lease: long enough that others take over.
STOP_LEASES = (1.3, 2.5)


class Deed(enum.StrEnum):
    """What the run does to a member."""

    KILL = "kills"
    STOP = "stops"
    JOIN = "joins"
    LEAVE = "leaves"


@dataclass(frozen=True)
class Event:
    """What happened to a member; a stop has an end."""

    deed: Deed
    member: str
    begin_s: float
    end_s: float


@dataclass
class Member:
    """One process."""

    name: str
    group: Group
    with_spark: bool
    process: Forked
    continue_s: float | None = None
    stopped_s: float = 0.0


@dataclass
class Crew:
    """Draws who is next; all of it follows from the seed but for the machine's pace."""

    folder: Path
    location: str
    groups: Sequence[Group]
    lease_s: float
    draw: random.Random
    members: list[Member] = field(default_factory=list)
    leaving: list[Member] = field(default_factory=list)
    restarts: list[tuple[float, Group, bool]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    starts: int = 0

    def begin(self, *, with_spark: bool) -> None:
        for group in self.groups:
            for number in range(MEMBERS):
                self._start(group, with_spark=with_spark and group.with_spark and not number)

    def is_ready(self) -> bool:
        return not self.restarts and all(self._has_joined(own) for own in self.members)

    def do(self, deed: Deed) -> bool:
        """Whether there was somebody to do it to."""
        deeds: dict[Deed, Callable[[], Member | None]] = {
            Deed.KILL: self._kill,
            Deed.STOP: self._stop,
            Deed.JOIN: self._join,
            Deed.LEAVE: self._leave,
        }
        return deeds[deed]() is not None

    def keep(self) -> None:
        """Continue who slept long enough, start anew who was killed, note who ended by itself."""
        now_s = time.monotonic()
        for own in self.members:
            if own.continue_s is not None and now_s >= own.continue_s:
                self._continue(own)
        for restart in [one for one in self.restarts if now_s >= one[0]]:
            self.restarts.remove(restart)
            self._start(restart[1], with_spark=restart[2])
        for own in [one for one in self.members if one.process.poll() is not None]:
            self.members.remove(own)
            self.ended.append(f"{own.name} ended with {own.process.returncode}")

    def stop(self) -> None:
        """All leave as they should."""
        self.restarts.clear()
        for own in list(self.members):
            if own.continue_s is not None:
                self._continue(own)
            self._ask_to_leave(own)
        for own in self.leaving:
            try:
                returned = own.process.wait(END_WAIT_S)
            except TimeoutError:
                own.process.kill()
                returned = own.process.returncode
            if returned:
                self.ended.append(f"{own.name} left with {returned}")
        self.leaving.clear()

    def counts(self) -> dict[str, int]:
        found = Counter(event.deed for event in self.events)
        return {deed.value: found[deed] for deed in Deed}

    # --- deeds ------------------------------------------------------------------------------

    def _kill(self) -> Member | None:
        own = self._one_that_serves()
        if own is not None:
            self.members.remove(own)
            begin_s = time.monotonic()
            own.process.kill()
            self._note(Deed.KILL, own, begin_s)
            at_s = time.monotonic() + self.draw.uniform(0, RESTART_MAX_S)
            self.restarts.append((at_s, own.group, own.with_spark))
        return own

    def _stop(self) -> Member | None:
        own = self._one_that_serves()
        if own is not None:
            own.process.send_signal(signal.SIGSTOP)
            own.process.wait_until_stopped()
            own.stopped_s = time.monotonic()
            own.continue_s = own.stopped_s + self.lease_s * self.draw.uniform(*STOP_LEASES)
        return own

    def _continue(self, own: Member) -> None:
        own.continue_s = None
        self._note(Deed.STOP, own, own.stopped_s)
        own.process.send_signal(signal.SIGCONT)

    def _join(self) -> Member | None:
        group = min(self.groups, key=lambda one: (self._size(one), self.draw.random()))
        if self._size(group) >= MOST:
            return None
        self._start(group, with_spark=False)
        self._note(Deed.JOIN, self.members[-1], time.monotonic())
        return self.members[-1]

    def _leave(self) -> Member | None:
        group = max(self.groups, key=lambda one: (self._size(one), self.draw.random()))
        own = self._one_that_serves(group)
        if own is None or self._size(group) <= LEAST:
            return None
        self._note(Deed.LEAVE, own, time.monotonic())
        self._ask_to_leave(own)
        return own

    def _ask_to_leave(self, own: Member) -> None:
        # Before it has joined it does not know the signal.
        while own.process.poll() is None and not self._has_joined(own):
            time.sleep(0.01)
        self.members.remove(own)
        own.process.send_signal(signal.SIGTERM)
        self.leaving.append(own)

    # --- helpers ------------------------------------------------------------------------------

    def _start(self, group: Group, *, with_spark: bool) -> None:
        self.starts += 1
        how = "spark" if with_spark else "pull"
        name = f"{group.name}-{self.starts}-{how}"
        arguments = self.location, str(self.folder), group.name, name, how
        process = Forked(main, *arguments, faults="", log=self.folder / f"{name}.log")
        self.members.append(Member(name, group, with_spark, process))

    def _note(self, deed: Deed, own: Member, begin_s: float) -> None:
        self.events.append(Event(deed, own.name, begin_s, time.monotonic()))

    def _size(self, group: Group) -> int:
        waiting = [one for _, one, _ in self.restarts]
        return sum(one == group for one in [*waiting, *(own.group for own in self.members)])

    def _has_joined(self, own: Member) -> bool:
        return mark_of(self.folder, own.name).exists()

    def _has_messages(self, own: Member) -> bool:
        journal = journal_of(self.folder, own.name)
        return self._has_joined(own) and journal.stat().st_size > 0

    def _one_that_serves(self, group: Group | None = None) -> Member | None:
        found = [
            own
            for own in self.members
            if self._has_messages(own)
            and own.continue_s is None
            and (group is None or group == own.group)
        ]
        return self.draw.choice(found) if found else None


def journals(folder: Path, group: str) -> list[Path]:
    return sorted(folder.glob(journal_of(Path(), f"{group}-*").name))
