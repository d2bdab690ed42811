"""A small value that processes share by compare-and-swap, such as publisher state or a lease."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from txmq.delta.failures import pause
from txmq.delta.files import DataFile
from txmq.delta.log import begin_anew, newest_version
from txmq.delta.storage import Table
from txmq.errors import (
    CommitRefusedError,
    StorageError,
    StoreFormatError,
    TxmqError,
    UnreadableFileError,
)
from txmq.ground.clock import timestamp
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.printable import printable
from txmq.store.schemas import REGISTER

# --- value_shapes:

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


# --- register:

REVISION_MARK = "txmq-register"
_RESTORE = "restore it from a backup"
SWAP_ATTEMPTS = 50
# A value is read whole, by every process that shares it.
VALUE_BYTES_MAX = 64 * 1024 * 1024
# What broken text can raise: no JSON, too deep, no text at all.
_UNREADABLE = (ValueError, RecursionError, TypeError)
# What a value of another shape can raise where it becomes an object.
_MISFITS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Registered:
    """A value and the number of swaps so far; revision 0 has no value yet."""

    revision: int
    value: dict[str, Any]


class Register:
    """One JSON value in a Delta table of one row."""

    def __init__(self, table: Table, form: Any = None) -> None:
        """Open nothing yet; the store makes the table. `form` describes its value."""
        self.table, self._form = table, form

    @property
    def exists(self) -> bool:
        """Whether its table exists."""
        return self.table.exists()

    def read(self) -> Registered:
        """The newest value; 0 commits.

        Raises:
            StoreNotFoundError: the table does not exist.
            StoreFormatError: it holds more than VALUE_BYTES_MAX, no JSON object, or one that txmq
                does not write, and the error names the place in it; its newest commit is empty.
        """
        self.table.refresh()
        if (lost := self.table.emptied_commit) is not None:
            # The value before it would count again, and what was promised since would not.
            problem = f"its newest change, {lost}, is empty; put that file back from a backup"
            raise StoreFormatError(self._place, f"{problem}, or remove it to undo that change")
        files = self.table.files()
        self._check_size(files)
        rows = self.table.read(files, ("revision", "value")).to_pylist()
        if not rows:
            return Registered(0, {})
        newest = max(rows, key=lambda row: row["revision"] or 0)
        return Registered(newest["revision"] or 0, self._parsed(newest["value"]))

    def read_unseen(self) -> Registered:
        """No value, to replace one that cannot be read; 0 commits. Raises: StorageError."""
        self.table.refresh()
        return Registered(self.table.mark(REVISION_MARK) or 0, {})

    def newest_version(self) -> int:
        """The newest version of its table, also of one that cannot be read; StorageError."""
        return newest_version(self.table)

    def begin_anew(self, value: dict[str, Any], after: int, now_ms: int, interval: int) -> bool:
        """Put a value in the place of all that cannot be read; see `begin_anew` of the table.

        Each swap is a commit, so the version is above all revisions before it.
        """
        rows = _row(after + 1, json.dumps(value, sort_keys=True), now_ms)
        return begin_anew(self.table, rows, {REVISION_MARK: after + 1}, after, interval)

    def _check_size(self, files: Sequence[DataFile]) -> None:
        sizes = [self.table.footer_sizes(file, ("value",)) for file in files]
        # A repeated value may be stored once.
        size_bytes = sum(size.bytes * max(size.rows, 1) for size in sizes)
        if size_bytes > VALUE_BYTES_MAX:
            problem = f"holds {size_bytes:,} bytes, the limit is {VALUE_BYTES_MAX:,}"
            raise StoreFormatError(self._place, f"{problem}; {_RESTORE}")

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except _UNREADABLE as error:
            raise self._strange(error) from error
        if not isinstance(value, dict):
            raise StoreFormatError(self._place, f"holds no JSON object; {_RESTORE}")
        problem = problem_of_value(self._place.rpartition("/")[2], value)
        if problem is not None:
            raise StoreFormatError(self._place, f"{printable(problem)}; {_RESTORE}")
        return value

    def _strange(self, error: Exception) -> StoreFormatError:
        return StoreFormatError(self._place, f"holds no JSON ({type(error).__name__}); {_RESTORE}")

    @property
    def _place(self) -> str:
        return self.table.name

    def swap(self, seen: Registered, value: dict[str, Any], now_ms: int) -> Registered:
        """Replace `seen` by `value` in one commit.

        Raises: CommitRefusedError if another process swapped it, or if this object did not read
            `seen` last.
        """
        if (self.table.mark(REVISION_MARK) or 0) != seen.revision:
            problem = "was changed by another process; read it again"
            raise CommitRefusedError(self._place, problem)
        revision = seen.revision + 1
        text = json.dumps(value, sort_keys=True)
        if len(text) > VALUE_BYTES_MAX:
            problem = f"would hold {len(text):,} bytes, the limit is {VALUE_BYTES_MAX:,}"
            raise StorageError(self._place, f"{problem}; nothing was written")
        strange = problem_of_value(self._place.rpartition("/")[2], json.loads(text))
        if strange is not None:
            # Who reads it would refuse it, for ever.
            problem = f"would be strange: {printable(strange)}; nothing was written"
            raise StorageError(self._place, problem)
        self.table.replace(_row(revision, text, now_ms), {REVISION_MARK: revision})
        reached(FailPoint.REGISTER_SWAPPED)
        return Registered(revision, value)


def _row(revision: int, text: str, now_ms: int) -> pa.Table:
    row = {"revision": [revision], "value": [text], "updated_timestamp": [timestamp(now_ms)]}
    return pa.table(row, schema=REGISTER.columns)


class SharedValue(Generic[Value]):
    """A register whose value is a frozen object. Not safe for several threads."""

    def __init__(
        self,
        register: Register,
        name: str,
        from_value: Callable[[Mapping[str, Any]], Value],
        to_value: Callable[[Value], dict[str, Any]],
    ) -> None:
        """Open nothing yet.

        Args:
            register: holds the value.
            name: of the value, for errors.
            from_value: makes the object from the plain value.
            to_value: the inverse of `from_value`.
        """
        self._register, self._name = register, name
        self._from_value, self._to_value = from_value, to_value

    @property
    def exists(self) -> bool:
        """Whether its table exists."""
        return self._register.exists

    def has_news(self) -> bool:
        """Whether there is a newer version; this checks for one file name."""
        return self._register.table.has_news()

    def read(self) -> Value:
        """The newest value; 0 commits. Raises: StoreFormatError if its shape is another one."""
        return self._shaped(self._register.read().value)

    def _shaped(self, value: Mapping[str, Any]) -> Value:
        try:
            return self._from_value(value)
        except TxmqError:
            raise
        except _MISFITS as error:
            problem = f"have a shape that txmq does not write ({type(error).__name__}); {_RESTORE}"
            raise StoreFormatError(self._name, problem) from error

    def change(
        self,
        change: Callable[[Value], Value],
        now_ms: int,
        unreadable: Callable[[StorageError], None] | None = None,
    ) -> Value:
        """Replace the newest value by `change` of it: one commit, none if it stays the same.

        `change` is called again after each lost race. With `unreadable`, which is told of it, a
        value that cannot be read is taken for an empty one, and so replaced. Raises:
        CommitRefusedError after SWAP_ATTEMPTS lost races.
        """
        for attempt in range(SWAP_ATTEMPTS):
            seen, before = self._seen(unreadable)
            after = change(before)
            if after == before:
                return before
            try:
                self._register.swap(seen, self._to_value(after), now_ms)
            except CommitRefusedError:
                pause(min(attempt, 3))
                continue
            return after
        problem = f"other processes were faster {SWAP_ATTEMPTS} times; try again"
        raise CommitRefusedError(self._name, problem)

    def newest_version(self) -> int:
        """As that of the register."""
        return self._register.newest_version()

    def begin_anew(self, after: Value, version: int, now_ms: int, interval: int) -> bool:
        """Put this in the place of all that cannot be read, unless another writer was faster."""
        return self._register.begin_anew(self._to_value(after), version, now_ms, interval)

    def _seen(self, unreadable: Callable[[StorageError], None] | None) -> tuple[Registered, Value]:
        try:
            seen = self._register.read()
            return seen, self._shaped(seen.value)
        except (StoreFormatError, UnreadableFileError) as error:
            if unreadable is None:
                raise
            seen = self._register.read_unseen()
            unreadable(error)
            return seen, self._shaped(seen.value)
