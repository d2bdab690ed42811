"""What a run came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

SHOWN = 50


@dataclass(frozen=True)
class Faults:
    """What is wrong; each list has to be empty.

    Attributes:
        unseen: a filter lets it through, and no member was given it.
        unwanted: no filter lets it through, and a member was given it.
        missing: it has no effect and is no dead letter.
        doubled: it has two effects.
        both: it has an effect and is a dead letter, and no try failed after its effect.
        retries: sent back twice, with a gap, or with a wrong origin or reason.
        dead_letters: there twice, too early, missing, or with a wrong origin or reason.
        disordered: first handed out after one that stands behind it in its queue.
        together: in the hands of two members, or of one that had lost the queue.
        handed_again: though nobody was killed, stopped or failed.
        lag: other than what the tables say, or not 0 at the end.
        ended: members that ended by themselves.
    """

    unseen: Sequence[str] = ()
    unwanted: Sequence[str] = ()
    missing: Sequence[str] = ()
    doubled: Sequence[str] = ()
    both: Sequence[str] = ()
    retries: Sequence[str] = ()
    dead_letters: Sequence[str] = ()
    disordered: Sequence[str] = ()
    together: Sequence[str] = ()
    handed_again: Sequence[str] = ()
    lag: Sequence[str] = ()
    ended: Sequence[str] = ()

    def __add__(self, other: Faults) -> Faults:
        names = [each.name for each in fields(self)]
        return Faults(*([*getattr(self, name), *getattr(other, name)] for name in names))

    @property
    def found(self) -> dict[str, list[str]]:
        """Those that are not empty, cut short."""
        own = {each.name: list(getattr(self, each.name)) for each in fields(self)}
        return {name: several[:SHOWN] for name, several in own.items() if several}


@dataclass(frozen=True)
class GroupFigures:
    """How one group fared."""

    handled: int
    retries: int
    dead_letters: int
    handed_again: int
    commits: int


@dataclass(frozen=True)
class Outcome:
    """It is right where nothing is wrong."""

    messages: int
    poisoned: int
    deeds: Mapping[str, int]
    groups: Mapping[str, GroupFigures]
    seconds: float
    handled_per_s: float
    commits_per_1000_messages: float
    troubles: Mapping[str, int]
    faults: Faults
    verify_violations: int

    @property
    def is_right(self) -> bool:
        return not self.faults.found and not self.verify_violations

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "faults": self.faults.found, "is_right": self.is_right}
