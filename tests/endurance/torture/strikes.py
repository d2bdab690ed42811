"""Faults of the vocabulary that hit a process under torture, beside the kill that ends it."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltalake.exceptions import DeltaError

from tests.endurance.torture.place import Place
from tests.kit.fault_vocabulary import PASSED_BY, WRITTEN_BY, Fault
from txmq.errors import ClosedError
from txmq.ground.fail_points import FailPoint, arm
from txmq.store.store import Store
from txmq.testing.faults import _around_commits

# What a process can meet without an end; kills are drawn by `plan.kills`.
STRIKING = (Fault.STOP, Fault.NO_SPACE, Fault.IO_ERROR, Fault.LOST_ANSWER, Fault.FORK)
# The crew without Spark, and the role of each in the vocabulary.
ROLES = {
    "producer": "producer", "publisher": "publisher", "checker": "check", "delayer": "delay",
    "maintainer": "maintenance",
}  # fmt: skip
NUMBERS = {Fault.NO_SPACE: errno.ENOSPC, Fault.IO_ERROR: errno.EIO}
# So many commits in a row find no space.
LASTS_HITS = 4
HITS_MAX = 3
NOTES = "struck.log"


@dataclass(frozen=True)
class Strike:
    """A fault, the place of a process's way where it strikes, and at which time of passing it."""

    fault: Fault
    place: str
    hit: int

    def __str__(self) -> str:
        return f"{self.fault.name}:{self.place}:{self.hit}"

    @classmethod
    def of(cls, text: str) -> Strike:
        """The strike of this text."""
        fault, place, hit = text.split(":")
        return cls(Fault[fault], place, int(hit))

    def is_hit(self, count: int) -> bool:
        """Whether it strikes at this time of passing its place."""
        lasts = LASTS_HITS if self.fault in NUMBERS else 1
        return self.hit <= count < self.hit + lasts


def strikes_of(seed: int, round_number: int, actors: Sequence[str]) -> dict[str, list[Strike]]:
    """The two or three faults of a round, by the actor that meets them."""
    draw = random.Random(f"{seed}/{round_number}/strikes")
    strikes: defaultdict[str, list[Strike]] = defaultdict(list)
    for fault in draw.sample(STRIKING, draw.choice((2, 2, 3))):
        actor = draw.choice(list(actors))
        place = draw.choice(_places(fault, ROLES[actor]))
        strikes[actor].append(Strike(fault, place, draw.randint(1, HITS_MAX)))
    return dict(strikes)


def _places(fault: Fault, role: str) -> Sequence[str]:
    before, after = (
        [f"{when} {name}" for name in WRITTEN_BY[role]] for when in ("before", "after")
    )
    if fault in NUMBERS:
        return before
    # Points beyond these are passed once in a while only, or in days.
    often = [point for point in PASSED_BY[role] if point not in _SELDOM]
    return after if fault is Fault.LOST_ANSWER else [*before, *map(str, often)]


_SELDOM = frozenset([
    FailPoint.TOPIC_PARKED, FailPoint.EXPIRY_CLAIMED, FailPoint.DAYS_FORGOTTEN,
    FailPoint.HALF_DAYS_REMOVED, FailPoint.DUE_DAYS_REMOVED,
])  # fmt: skip


@contextmanager
def struck(folder: Path, texts: Sequence[str]) -> Iterator[None]:
    """Let these strikes hit this process."""
    way = _Way(folder, [Strike.of(text) for text in texts])
    disarm = arm(lambda point: way.reached(str(point)))
    try:
        with _around_commits(way.around):
            yield
    finally:
        disarm()


class _Way:
    """The way of one process, and what hits it there."""

    def __init__(self, folder: Path, strikes: Sequence[Strike]) -> None:
        self._folder, self._strikes = folder, strikes
        self._passed: Counter[Strike] = Counter()
        self._lock = threading.Lock()

    def around(self, location: str, commit: Callable[[], None]) -> None:
        table = location.rstrip("/").rpartition("/store/")[2]
        self.reached(f"before {table}")
        commit()
        self.reached(f"after {table}")

    def reached(self, place: str) -> None:
        for strike in self._strikes:
            if place.startswith(strike.place):
                with self._lock:
                    self._passed[strike] += 1
                    is_hit = strike.is_hit(self._passed[strike])
                if is_hit:
                    self._hit(strike)

    def _hit(self, strike: Strike) -> None:
        note(self._folder, str(strike))
        if strike.fault in NUMBERS:
            number = NUMBERS[strike.fault]
            raise OSError(number, os.strerror(number))
        if strike.fault is Fault.LOST_ANSWER:
            problem = "the answer is lost"
            raise DeltaError(problem)
        if strike.fault is Fault.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif os.fork() == 0:
            _end_forked(self._folder)


def _end_forked(folder: Path) -> None:
    """What a forked process may do: hear that it cannot use the store, and end."""
    outcome = "nothing was refused"
    try:
        Store.open(Place.read(folder).location).topics()
    except ClosedError:
        outcome = ""
    except BaseException as error:  # noqa: BLE001 - a panic is what it must not meet
        outcome = f"{type(error).__name__}: {error}"
    if outcome:
        note(folder, f"forked: {outcome}")
    os._exit(0)


def note(folder: Path, text: str) -> None:
    """Add a line for the driver; lines of several processes do not mix."""
    number = os.open(folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(number, f"{text}\n".encode())
    finally:
        os.close(number)


def notes(folder: Path) -> list[str]:
    """All lines so far."""
    path = folder / NOTES
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def by_fault(lines: Sequence[str]) -> Mapping[str, int]:
    """How often each fault has struck."""
    names = {fault.name for fault in STRIKING}
    return dict(
        sorted(Counter(n for n in (line.split(":")[0] for line in lines) if n in names).items())
    )
