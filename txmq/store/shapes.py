"""The shape of a JSON value, read from the annotations of the class that describes it.

A room that keeps a value in a register states its form once, as a class, and hands the class down.
The register then refuses a value of another shape and names the place in it.

    dataclass, TypedDict         an object with these keys; a later txmq may write more
    NamedTuple, tuple[X, Y]      a list with one part of each type
    tuple[X, ...], Sequence[X]   a list of any length
    Mapping[K, X]                an object with any keys, which are names of the users
    str, int, float              text, a whole number of 64 bits, a number
    Any                          anything; its reader checks it
    X | None                     X or null
    NotRequired[X]               in a TypedDict: the key may be missing
    Annotated[X, LATER]          in a dataclass: the key may be missing
    Annotated[X, AtMost(n)]      a list or an object with n entries at most
    Annotated[X, shape]          what this shape takes, such as `moment`
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

# The problems of a value at a place: pairs of the place and what it must be.
Problem = tuple[str, str]
Shape = Callable[[str, object], Iterator[Problem]]
# Offsets, versions and times are columns of 64 bits.
_NUMBERS = range(-(2**63), 2**63)
# Up to the last day of the year 9999.
_MOMENTS_MS = range(253_402_214_400_000)
_QUEUE_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
# Of what programs call themselves; it is shown in one line.
NAME_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Later:
    """Marks a key that an earlier txmq did not write."""


LATER = Later()


@dataclass(frozen=True, slots=True)
class AtMost:
    """Bounds the number of entries of a list or an object."""

    entries: int


def problem_of_value(form: Any, value: Mapping[str, Any]) -> str | None:
    """Return the first problem of a value with its place; None if there is none.

    Args:
        form: the class that describes the value; None if nothing is known of it.
        value: the value. An empty one, which a new store has, is one that nobody has written.
    """
    if form is None or not value:
        return None
    problem = next(shape_of(form)("", value), None)
    return None if problem is None else f"{problem[0].removeprefix('.')} {problem[1]}"


@cache
def shape_of(form: Any) -> Shape:
    """Return the check of the JSON values that a class or an annotation describes."""
    if get_origin(form) is not Annotated:
        return _shape_of(form, None)
    inner, *marks = get_args(form)
    shapes: list[Shape] = [mark for mark in marks if callable(mark)]
    bound = next((mark.entries for mark in marks if isinstance(mark, AtMost)), None)
    return shapes[0] if shapes else _shape_of(inner, bound)


def _shape_of(form: Any, entries_max: int | None) -> Shape:
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        (not_none,) = (kind for kind in inner if kind is not NoneType)
        return optional(shape_of(not_none))
    if origin is Mapping:
        key, entry = map(shape_of, inner)
        return _mapping(key, entry, entries_max)
    if origin is Sequence or (origin is tuple and inner[-1] is Ellipsis):
        return sequence(shape_of(inner[0]), entries_max)
    if origin is tuple:
        return _row([shape_of(kind) for kind in inner])
    return _PLAIN[form] if form in _PLAIN else _shape_of_class(form)


def _shape_of_class(form: Any) -> Shape:
    hints = get_type_hints(form, include_extras=True)
    if issubclass(form, tuple):
        return _row([shape_of(hint) for hint in hints.values()])
    return _record(hints)


def _record(hints: Mapping[str, Any]) -> Shape:
    """Return the shape of an object with these keys, by the annotations of a class."""
    later = {key for key, hint in hints.items() if _may_be_missing(hint)}
    shapes = {key: shape_of(_required(hint)) for key, hint in hints.items()}

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place, "must be an object"
            return
        for key, shape in shapes.items():
            if key in value:
                yield from shape(f"{place}.{key}", value[key])
            elif key not in later:
                yield f"{place}.{key}", "is missing"

    return check


def _may_be_missing(hint: Any) -> bool:
    return get_origin(hint) is NotRequired or LATER in get_args(hint)


def _required(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint


def _mapping(key_shape: Shape, shape: Shape, entries_max: int | None) -> Shape:
    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place, "must be an object"
            return
        if entries_max is not None and len(value) > entries_max:
            yield place, f"must have {entries_max:,} entries at most, not {len(value):,}"
            return
        for key, entry in value.items():
            yield from key_shape(f"{place}.{key}", key)
            yield from shape(f"{place}.{key}", entry)

    return check


def _row(shapes: Sequence[Shape]) -> Shape:
    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, list) or len(value) != len(shapes):
            yield place, f"must be a list of {len(shapes)}"
            return
        for index, (shape, entry) in enumerate(zip(shapes, value, strict=True)):
            yield from shape(f"{place}.{index}", entry)

    return check


# --- shapes, also for annotations -----------------------------------------------------------------


def sequence(shape: Shape, entries_max: int | None = None) -> Shape:
    """Return the shape of a list of any length, or of this one at most."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield place, "must be a list"
            return
        if entries_max is not None and len(value) > entries_max:
            yield place, f"must be a list of {entries_max} at most"
            return
        for index, entry in enumerate(value):
            yield from shape(f"{place}.{index}", entry)

    return check


def optional(shape: Shape) -> Shape:
    """Return the shape that also takes null."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if value is not None:
            yield from shape(place, value)

    return check


def json_text(shape: Shape) -> Shape:
    """Return the shape of a text of JSON whose value has this shape."""

    def check(place: str, value: object) -> Iterator[Problem]:
        try:
            inner = json.loads(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RecursionError):
            yield place, "must be a text of JSON"
            return
        yield from shape(place, inner)

    return check


def number(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is no whole number of 64 bits."""
    # In Python a bool is an int.
    if type(value) is not int or value not in _NUMBERS:
        yield place, "must be a whole number"


def real(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is no number."""
    if type(value) not in (int, float):
        yield place, "must be a number"


def text(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is no text."""
    if not isinstance(value, str):
        yield place, "must be text"


def anything(place: str, value: object) -> Iterator[Problem]:
    """Refuse nothing."""
    del place, value
    yield from ()


def moment(place: str, value: object) -> Iterator[Problem]:
    """Refuse what are no milliseconds since 1970, as Python can show them."""
    if type(value) is not int or value not in _MOMENTS_MS:
        yield place, "must be a time in milliseconds"


def name(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is no text of NAME_CHARACTERS_MAX at most."""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX:
        yield (
            place[:NAME_CHARACTERS_MAX],
            f"must be text of {NAME_CHARACTERS_MAX} characters at most",
        )


def queue_number(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is not the number of a queue as a key of JSON, which is a text."""
    if not (isinstance(value, str) and _QUEUE_NUMBER.fullmatch(value)):
        yield place, "must be the number of a queue"


def day(place: str, value: object) -> Iterator[Problem]:
    """Refuse what is no date as `date.isoformat` writes it."""
    try:
        date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        yield place, "must be a date such as 2026-01-31"


_PLAIN: Mapping[Any, Shape] = {str: text, int: number, float: real, Any: anything}
Moment = Annotated[int, moment]
Name = Annotated[str, name]
QueueNumber = Annotated[str, queue_number]
Day = Annotated[str, day]
