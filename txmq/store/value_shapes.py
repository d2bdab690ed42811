"""The shapes of the state values: what is where, so that a value of others is told by its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any, NamedTuple

# The problems of a value at a place: pairs of the place and what it must be.
Problem = tuple[str, str]
Shape = Callable[[str, object], Iterator[Problem]]
# Offsets, versions and times are columns of 64 bits.
_QUEUE_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_NUMBERS = range(-(2**63), 2**63)
# Up to the last day of the year 9999.
_MOMENTS_MS = range(253_402_214_400_000)
# Of what programs call themselves; it is shown in one line.
NAME_CHARACTERS_MAX = 256
# A group is one value, which each member reads whole and writes again with each renewal.
MEMBERS_MAX = 10_000
SERVICES_MAX = 32


class Field(NamedTuple):
    """A field of a record; an earlier txmq did not write those that may be missing."""

    shape: Shape
    may_be_missing: bool = False


def number(place: str, value: object) -> Iterator[Problem]:
    """A whole number of 64 bits."""
    # In Python a bool is an int.
    if type(value) is not int or value not in _NUMBERS:
        yield place, "must be a whole number"


def moment(place: str, value: object) -> Iterator[Problem]:
    """Milliseconds since 1970, as Python can show them."""
    if type(value) is not int or value not in _MOMENTS_MS:
        yield place, "must be a time in milliseconds"


def real(place: str, value: object) -> Iterator[Problem]:
    """A number."""
    if type(value) not in (int, float):
        yield place, "must be a number"


def text(place: str, value: object) -> Iterator[Problem]:
    """A text."""
    if not isinstance(value, str):
        yield place, "must be text"


def name(place: str, value: object) -> Iterator[Problem]:
    """A text of NAME_CHARACTERS_MAX at most."""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX:
        yield (
            place[:NAME_CHARACTERS_MAX],
            f"must be text of {NAME_CHARACTERS_MAX} characters at most",
        )


def anything(place: str, value: object) -> Iterator[Problem]:
    """What its reader checks by itself."""
    del place, value
    yield from ()


def optional(shape: Shape) -> Shape:
    """This shape, or null."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if value is not None:
            yield from shape(place, value)

    return check


def mapping(shape: Shape, key: Shape = text, items_max: int | None = None) -> Shape:
    """An object whose values have this shape, by names of the users; of any size, or this one."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place, "must be an object"
            return
        if items_max is not None and len(value) > items_max:
            yield place, f"must have {items_max:,} entries at most, not {len(value):,}"
            return
        for name, part in value.items():
            yield from key(f"{place}.{name}", name)
            yield from shape(f"{place}.{name}", part)

    return check


def sequence(shape: Shape, items_max: int | None = None) -> Shape:
    """A list of any length, or of this one at most."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield place, "must be a list"
            return
        if items_max is not None and len(value) > items_max:
            yield place, f"must be a list of {items_max} at most"
            return
        for index, part in enumerate(value):
            yield from shape(f"{place}.{index}", part)

    return check


def row(*shapes: Shape) -> Shape:
    """A list with one part of each shape."""

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, list) or len(value) != len(shapes):
            yield place, f"must be a list of {len(shapes)}"
            return
        for index, (shape, part) in enumerate(zip(shapes, value, strict=True)):
            yield from shape(f"{place}.{index}", part)

    return check


def record(**fields: Shape | Field) -> Shape:
    """An object with these fields; a later txmq may write more."""
    known = {name: at if isinstance(at, Field) else Field(at) for name, at in fields.items()}

    def check(place: str, value: object) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield place, "must be an object"
            return
        for name, at in known.items():
            if name in value:
                yield from at.shape(f"{place}.{name}", value[name])
            elif not at.may_be_missing:
                yield f"{place}.{name}", "is missing"

    return check


def queue_number(place: str, value: object) -> Iterator[Problem]:
    """The number of a queue as a key of JSON, which is a text."""
    if not (isinstance(value, str) and _QUEUE_NUMBER.fullmatch(value)):
        yield place, "must be the number of a queue"


def day(place: str, value: object) -> Iterator[Problem]:
    """A date, as `date.isoformat` writes it."""
    try:
        date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        yield place, "must be a date such as 2026-01-31"


def json_text(shape: Shape) -> Shape:
    """A text of JSON whose value has this shape."""

    def check(place: str, value: object) -> Iterator[Problem]:
        try:
            inner = json.loads(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RecursionError):
            yield place, "must be a text of JSON"
            return
        yield from shape(place, inner)

    return check


def _later(shape: Shape) -> Field:
    return Field(shape, may_be_missing=True)


def _by_queue(shape: Shape) -> Shape:
    return mapping(mapping(shape, queue_number))


_PUBLISHER = record(
    op_table_id=text,
    low_water_version=number,
    op_commit_sha256=optional(text),
    parked=mapping(record(from_version=number, reason=text, since_ms=moment, attempts=number)),
    ends=_later(mapping(row(number, number, number))),
)


def _by_member(shape: Shape) -> Shape:
    return mapping(shape, name, MEMBERS_MAX)


_GROUP = record(
    mode=text,
    subscription=mapping(text),
    queues=mapping(number),
    # In BROADCASTING members that left have offsets too.
    offsets=mapping(_by_queue(number), name),
    members=_by_member(row(number, number)),
    leases=_later(_by_member(number)),
    seen=_later(_by_member(row(number, number, number))),
    owners=_by_queue(row(name, number)),
    replays=_by_queue(number),
    epoch=number,
    followed=_later(mapping(_by_queue(row(number, number)), name)),
)
_CLAIM = record(
    transaction_id=text, ordinal=number, kind=text, source=text, producer_group=text,
    life=optional(number), check_times=optional(number), next_check_timestamp=optional(number),
    reason=optional(text), op_timestamp=optional(number), sequences=optional(sequence(number)),
    signature=_later(optional(text)), _commit_version=number,
)  # fmt: skip
_SET_ASIDE = record(
    transactions=mapping(
        record(
            from_version=number, problem=text, since_ms=moment, claims=sequence(json_text(_CLAIM))
        )
    ),
    late=sequence(text),
    count=_later(number),
)
_REMOTE = record(
    round_id=text,
    asked=mapping(record(check_times=number, client_id=optional(text))),
    taken=mapping(row(text, number)),
    answers=mapping(record(state=optional(text), reason=optional(text))),
    members=mapping(number),
)
_TOPIC_SETTINGS = record(
    kind=text,
    queue_nums=optional(number),
    reserved_time_h=_later(optional(real)),
    body=_later(anything),
    is_read_only=_later(anything),
)
_RANGES = sequence(row(number, number))
_BROKER = record(
    name=name,
    version=name,
    services=sequence(name, SERVICES_MAX),
    started_ms=moment,
    seen_ms=moment,
)
_SHAPES: Mapping[str, Shape] = {
    "brokers": record(brokers=mapping(_BROKER, name)),
    "publisher": _PUBLISHER,
    "check_lease": record(
        holder=_later(optional(text)), renewed_ms=number, asking=_later(mapping(text))
    ),
    "maintenance": record(
        forgotten_before_date=_later(day),
        schedule_forgotten_before_date=_later(day),
        topic_begin=_later(mapping(number)),
        erasures=_later(sequence(mapping(anything))),
    ),
    "delay": record(
        op_table_id=text,
        op_version=number,
        due_ms=number,
        rule=_later(text),
        late_writes=_later(number),
    ),
    "set_aside": _SET_ASIDE,
    "topics": record(settings=_later(mapping(_TOPIC_SETTINGS)), deleted=_later(sequence(text))),
}
# By the beginning of the name; a group is the rest.
_SHAPES_OF_GROUPS: Mapping[str, Shape] = {
    "group_": _GROUP,
    "remote_": _REMOTE,
    "dead_letters_": record(
        purged=_later(_RANGES), replayed=_later(_RANGES), audit=_later(sequence(mapping(anything)))
    ),
}


def problem_of_value(name: str, value: Mapping[str, Any]) -> str | None:
    """The first problem of the value of a register, with its place; None where there is none.

    An empty value, which a new store has, is one that nobody has written.
    """
    shape = _SHAPES.get(name) or _of_group(name)
    if shape is None or not value:
        return None
    problem = next(shape("", value), None)
    return None if problem is None else f"{problem[0].removeprefix('.')} {problem[1]}"


def _of_group(name: str) -> Shape | None:
    shapes = (shape for prefix, shape in _SHAPES_OF_GROUPS.items() if name.startswith(prefix))
    return next(shapes, None)
