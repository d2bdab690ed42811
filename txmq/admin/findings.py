"""What a look at a store found."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.results import Plain


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """One thing that needs a hand.

    Attributes:
        where: the table, the setting, or the part of the machine.
        problem: what is wrong.
        next_step: what to do about it.
    """

    where: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Diagnosis(Plain):
    """What a look at a store found.

    Attributes:
        location: the store.
        tables: how many tables were looked at.
        findings: what needs a hand; empty if all is well.
        ignored_settings: the kept settings that could act and were not taken, as YAML for a
            settings file; empty if there are none.
    """

    location: str
    tables: int
    findings: tuple[Finding, ...]
    ignored_settings: str
