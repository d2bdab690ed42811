"""A run as a list of steps: a function of its seed alone, and plain values in a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tests.kit.fault_vocabulary import Fault


@dataclass(frozen=True)
class Strike:
    """A fault that hits one step at a place of its way.

    Attributes:
        hit: at which time of passing the place it strikes.
        meanwhile: what others do while the step stands still.
    """

    fault: Fault
    place: str
    hit: int = 1
    meanwhile: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Step:
    """One deed of one process; what a number means is the deed's own.

    Attributes:
        do: a deed of `deeds.DEEDS`.
        who: the process, such as publisher1.
    """

    do: str
    who: str = ""
    what: int = 0
    strike: Strike | None = None
    meanwhile: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All steps of a run; after them everything heals and is given time."""

    seed: int
    faults: tuple[Fault, ...]
    steps: tuple[Step, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_steps(self, steps: Sequence[Step]) -> Self:
        return replace(self, steps=tuple(steps))

    @property
    def size(self) -> int:
        """Steps, those that others do meanwhile too, and strikes."""
        return sum(map(_size, self.steps))

    @property
    def kinds_left(self) -> tuple[Fault, ...]:
        """The faults that its steps still hold."""
        struck = {step.strike.fault for step in all_steps(self.steps) if step.strike}
        return tuple(sorted({*struck, *_lasting(self.steps)}))

    def story(self) -> list[str]:
        """The steps in words, a line for each."""
        return list(_lines(self.steps, ""))

    def to_json(self) -> str:
        """Plain values; `from_json` gives the same plan."""
        value = {
            "seed": self.seed,
            "faults": [fault.name for fault in self.faults],
            "settings": dict(self.settings),
            "steps": [_plain(step) for step in self.steps],
        }
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan of `to_json`."""
        value = json.loads(text)
        faults = tuple(Fault[name] for name in value["faults"])
        steps = tuple(map(_step, value["steps"]))
        return cls(value["seed"], faults, steps, value["settings"])


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step, and what others do meanwhile."""
    for step in steps:
        yield step
        yield from all_steps(step.meanwhile)
        if step.strike:
            yield from all_steps(step.strike.meanwhile)


def drawn_seed(first: int, number: int) -> int:
    """The seed of a run of a series."""
    return random.Random(f"{first}/{number}").getrandbits(32)


_DEEDS_OF_FAULTS = {
    "clock": Fault.CLOCK, "no space": Fault.NO_SPACE, "io error": Fault.IO_ERROR,
    "empty": Fault.FILE_EMPTIED, "remove": Fault.FILE_REMOVED, "restore": Fault.OLDER_STORE,
    "restore table": Fault.OLDER_TABLE, "maintain": Fault.RETENTION, "rebuild": Fault.REBUILD,
    "configure": Fault.CONFIGURATION, "other engine": Fault.OTHER_ENGINE,
    "foreign row": Fault.FOREIGN_ROW, "lose answer": Fault.LOST_ANSWER,
    "lose rows": Fault.OTHER_ENGINE,
    "renew": Fault.SLOW_CHANGE, "verify": Fault.WITNESSES, "doctor": Fault.WITNESSES,
}  # fmt: skip


def _lasting(steps: Sequence[Step]) -> Iterator[Fault]:
    for step in all_steps(steps):
        if step.do in _DEEDS_OF_FAULTS:
            yield _DEEDS_OF_FAULTS[step.do]


def _size(step: Step) -> int:
    strike = step.strike
    inner = (*step.meanwhile, *(strike.meanwhile if strike else ()))
    return 1 + bool(strike) + sum(map(_size, inner))


def _lines(steps: Sequence[Step], margin: str) -> Iterator[str]:
    for step in steps:
        yield f"{margin}{step.who or 'somebody'}: {step.do} {step.what}"
        yield from _lines(step.meanwhile, margin + "    meanwhile ")
        if step.strike:
            strike = step.strike
            yield f"{margin}  at {strike.place!r}, time {strike.hit}: {strike.fault}"
            yield from _lines(strike.meanwhile, margin + "    meanwhile ")


def _plain(step: Step) -> dict[str, Any]:
    value: dict[str, Any] = {"do": step.do, "who": step.who, "what": step.what}
    if step.meanwhile:
        value["meanwhile"] = [_plain(inner) for inner in step.meanwhile]
    if step.strike:
        strike = step.strike
        value["strike"] = {
            "fault": strike.fault.name, "place": strike.place, "hit": strike.hit,
            "meanwhile": [_plain(inner) for inner in strike.meanwhile],
        }  # fmt: skip
    return value


def _step(value: Mapping[str, Any]) -> Step:
    strike = value.get("strike")
    return Step(
        value["do"], value["who"], value["what"], None if strike is None else _strike(strike),
        tuple(map(_step, value.get("meanwhile", ()))),
    )  # fmt: skip


def _strike(value: Mapping[str, Any]) -> Strike:
    meanwhile = tuple(map(_step, value["meanwhile"]))
    return Strike(Fault[value["fault"]], value["place"], value["hit"], meanwhile)
