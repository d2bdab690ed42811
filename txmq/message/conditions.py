"""What a filter asks of a message: a small tree of conditions, which engines evaluate. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Comparison(enum.StrEnum):
    """How a property is compared with a literal."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


# Code that tells them apart asks for bool first: a bool is an int in Python.
Literal = bool | float | str


@dataclass(frozen=True, slots=True)
class Always:
    """TRUE or FALSE for every message."""

    value: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a message has no such property."""

    name: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A property against a literal; the literal's type says how the property's text is read."""

    name: str
    comparison: Comparison
    literal: Literal


@dataclass(frozen=True, slots=True)
class IsOneOf:
    """A property against several texts."""

    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT."""

    term: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND over two or more terms."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR over two or more terms."""

    terms: tuple[Condition, ...]


PropertyTest = IsNull | Compare | IsOneOf
Condition = Always | PropertyTest | Negation | AllOf | AnyOf
