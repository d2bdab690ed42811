"""The types of a body's fields, as a tree: how each type reads a value, and its column.

Every type is an Avro type. Delta has no types for times of day, uuids, enums and fixed bytes: the
columns of the first three are text, of fixed bytes binary.
"""

from __future__ import annotations

import base64
import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa

INT_BITS, LONG_BITS = 32, 64
MILLIS_DIGITS, MICROS_DIGITS = 3, 6
MAX_PRECISION = 38
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
# The years 1 to 9999, which every engine can show.
_DAYS = range(date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY + 1)
_MOMENTS_US = range(_DAYS.start * _DAY_US, _DAYS.stop * _DAY_US)
_MAX_FLOAT = {INT_BITS: math.ldexp(2 - 2**-23, 127), LONG_BITS: math.ldexp(2 - 2**-52, 1023)}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,6}))?", re.ASCII)
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:\.([0-9]{1,6}))?(?:Z|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
_NUMBER = re.compile(r"-?[0-9]{1,76}(?:\.[0-9]{1,76})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_EXACT = Context(prec=2 * MAX_PRECISION, traps=[Inexact, InvalidOperation])


class Form(enum.Enum):
    """The source of a value: a JSON body, an Avro body, or a default in the schema."""

    JSON = "json"
    AVRO = "avro"
    DEFAULT = "default"


class BodyFaultError(Exception):
    """A body does not match its schema; the text names a field and never shows the body."""

    def __init__(self, problem: str, place: str = "") -> None:
        """Name the path to the value in the body: .name for a field, [number] for an item."""
        self.problem, self.place = problem, place
        super().__init__(f"{place.removeprefix('.')} {problem}".lstrip())

    def inside(self, place: str) -> BodyFaultError:
        """Return the same fault, with the path of the enclosing value in front."""
        return BodyFaultError(self.problem, place + self.place)


Reader = Callable[[Any, Form], Any]


class BodyType(ABC):
    """One type; `body_parsing` bounds its depth and its weight."""

    arrow: pa.DataType

    @property
    def depth(self) -> int:
        """The number of levels of the tree from this type down."""
        return 1

    @property
    def weight(self) -> int:
        """The number of fields from this type down; a type that is used twice counts twice."""
        return 1

    @abstractmethod
    def read(self, value: Any, form: Form) -> Any:
        """Read a value as its column takes it. Raises: BodyFaultError."""

    @abstractmethod
    def avro(self, numbers: Iterator[int]) -> Any:
        """Make an Avro schema of the same form, without logical types; `numbers` name types."""


@dataclass(frozen=True)
class Single(BodyType):
    """A type without inner types; `avro_type` is a name, or the schema of a fixed without name."""

    arrow: pa.DataType
    reader: Reader
    avro_type: str | Mapping[str, Any]

    def read(self, value: Any, form: Form) -> Any:
        """See BodyType."""
        return self.reader(value, form)

    def avro(self, numbers: Iterator[int]) -> Any:
        """See BodyType."""
        if isinstance(self.avro_type, str):
            return self.avro_type
        return {"name": _name(numbers), **self.avro_type}


class _Wrapping(BodyType):
    """A type with one inner type."""

    item: BodyType

    @cached_property
    def depth(self) -> int:
        """One more than the inner type."""
        return 1 + self.item.depth

    @cached_property
    def weight(self) -> int:
        """As the inner type."""
        return self.item.weight


@dataclass(frozen=True)
class Nullable(_Wrapping):
    """A union of null and one other type; a plain value or null in JSON."""

    item: BodyType
    is_null_first: bool

    @cached_property
    def arrow(self) -> pa.DataType:
        """As the inner type, because every column may be null."""
        return self.item.arrow

    def read(self, value: Any, form: Form) -> Any:
        """See BodyType."""
        return None if value is None else self.item.read(value, form)

    def avro(self, numbers: Iterator[int]) -> list[Any]:
        """See BodyType."""
        inner = self.item.avro(numbers)
        return ["null", inner] if self.is_null_first else [inner, "null"]


@dataclass(frozen=True)
class ListOf(_Wrapping):
    """Avro's array."""

    item: BodyType

    @cached_property
    def arrow(self) -> pa.DataType:
        """A list."""
        return pa.list_(self.item.arrow)

    def read(self, value: Any, form: Form) -> list[Any]:
        """See BodyType."""
        if not isinstance(value, list):
            raise BodyFaultError("is not an array")
        items: list[Any] = []
        try:
            for item in value:
                items.append(self.item.read(item, form))  # noqa: PERF401 - a fault needs the number
        except BodyFaultError as fault:
            raise fault.inside(f"[{len(items)}]") from None
        return items

    def avro(self, numbers: Iterator[int]) -> dict[str, Any]:
        """See BodyType."""
        return {"type": "array", "items": self.item.avro(numbers)}


@dataclass(frozen=True)
class MapOf(_Wrapping):
    """Avro's map; its keys belong to the body, so a fault never shows a key."""

    item: BodyType

    @cached_property
    def arrow(self) -> pa.DataType:
        """A map with text keys."""
        return pa.map_(pa.string(), self.item.arrow)

    def read(self, value: Any, form: Form) -> list[tuple[str, Any]]:
        """See BodyType."""
        if not isinstance(value, dict):
            raise BodyFaultError("is not an object")
        try:
            return [(read_text(k, form), self.item.read(item, form)) for k, item in value.items()]
        except BodyFaultError as fault:
            raise fault.inside("[…]") from None

    def avro(self, numbers: Iterator[int]) -> dict[str, Any]:
        """See BodyType."""
        return {"type": "map", "values": self.item.avro(numbers)}


@dataclass(frozen=True)
class BodyField:
    """A field of a record; a field that may be missing has a default, as its column takes it."""

    name: str
    type: BodyType
    comment: str | None = None
    may_be_missing: bool = False
    default: Any = None

    @property
    def arrow(self) -> pa.Field:
        """The column of the field."""
        metadata = {"comment": self.comment} if self.comment else None
        return pa.field(self.name, self.type.arrow, metadata=metadata)

    def read_from(self, record: Mapping[str, Any], form: Form) -> Any:
        """Read the value of the field in a record, or its default. Raises: BodyFaultError."""
        if self.name not in record:
            if self.may_be_missing:
                return self.default
            raise BodyFaultError("is missing", f".{self.name}")
        try:
            return self.type.read(record[self.name], form)
        except BodyFaultError as fault:
            raise fault.inside(f".{self.name}") from None


@dataclass(frozen=True)
class RecordOf(BodyType):
    """Avro's record; in JSON an object that holds no other fields than the schema names."""

    fields: tuple[BodyField, ...]

    @cached_property
    def arrow(self) -> pa.DataType:
        """A struct."""
        return pa.struct([field.arrow for field in self.fields])

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the fields."""
        return frozenset(field.name for field in self.fields)

    @cached_property
    def depth(self) -> int:
        """One more than the deepest field."""
        return 1 + max(field.type.depth for field in self.fields)

    @cached_property
    def weight(self) -> int:
        """The record itself and all fields in it."""
        return 1 + sum(field.type.weight for field in self.fields)

    def read(self, value: Any, form: Form) -> dict[str, Any]:
        """See BodyType."""
        if not isinstance(value, dict):
            raise BodyFaultError("is not an object")
        if not value.keys() <= self.names:
            raise BodyFaultError("has a field that the schema does not name")
        return {field.name: field.read_from(value, form) for field in self.fields}

    def avro(self, numbers: Iterator[int] | None = None) -> dict[str, Any]:
        """See BodyType."""
        numbers = count() if numbers is None else numbers
        fields = [{"name": f.name, "type": f.type.avro(numbers)} for f in self.fields]
        return {"type": "record", "name": _name(numbers), "fields": fields}


def _name(numbers: Iterator[int]) -> str:
    return f"type_{next(numbers)}"


# --- how a type reads a value ---------------------------------------------------------------------


def read_flag(value: Any, _form: Form) -> bool:
    """Read a boolean."""
    if not isinstance(value, bool):
        raise BodyFaultError("is not true or false")
    return value


def read_int(value: Any, _form: Form) -> int:
    """Read an int: 32 bits."""
    return _whole_number(value, INT_BITS)


def read_long(value: Any, _form: Form) -> int:
    """Read a long: 64 bits."""
    return _whole_number(value, LONG_BITS)


def read_float(value: Any, form: Form) -> float:
    """Read a float; only Avro bodies may hold NaN and infinities."""
    return _floating(value, form, INT_BITS)


def read_double(value: Any, form: Form) -> float:
    """Read a double; only Avro bodies may hold NaN and infinities."""
    return _floating(value, form, LONG_BITS)


def read_text(value: Any, _form: Form) -> str:
    """Read a string; it must be valid Unicode."""
    if not isinstance(value, str):
        raise BodyFaultError("is not text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BodyFaultError("is not valid Unicode (a lone surrogate)") from None
    return value


def read_uuid(value: Any, _form: Form) -> str:
    """Read a string with the logical type uuid; the result is in lower case."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise BodyFaultError("is not a uuid of 36 characters")
    return value.lower()


def read_symbol(symbols: Sequence[str], value: Any, form: Form) -> str:
    """Read an enum: its symbol, or in an Avro body the number of the symbol."""
    if form is Form.AVRO:
        value = symbols[value] if value in range(len(symbols)) else None
    if not isinstance(value, str) or value not in symbols:
        raise BodyFaultError("is not one of the symbols of its enum")
    return value


def read_bytes(value: Any, form: Form) -> bytes:
    """Read bytes: base64 in JSON; in a default one code point for each byte, as Avro defines."""
    if form is Form.AVRO and isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise BodyFaultError("is not text that encodes bytes")
    if form is Form.JSON:
        octets: bytes = _converted(_from_base64, value, "is not base64")
    else:
        octets = _converted(_from_code_points, value, "has characters above U+00FF")
    return octets


def read_fixed(size: int, value: Any, form: Form) -> bytes:
    """Read fixed: bytes of a fixed size."""
    octets = read_bytes(value, form)
    if len(octets) != size:
        raise BodyFaultError(f"is not {size:,} bytes long")
    return octets


def read_decimal(precision: int, scale: int, size: int | None, value: Any, form: Form) -> Decimal:
    """Read bytes or fixed with the logical type decimal; in JSON a number, or a number as text."""
    if form is not Form.JSON:
        octets = read_bytes(value, form) if size is None else read_fixed(size, value, form)
        value = _unscaled(octets, scale)
    elif not _is_number(value):
        raise BodyFaultError("is neither a number nor a number as text")
    problem = f"has more digits than decimal({precision}, {scale})"
    try:
        number = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except ArithmeticError:
        raise BodyFaultError(problem) from None
    if len(number.as_tuple().digits) > precision:
        raise BodyFaultError(problem)
    return number


def read_day(value: Any, form: Form) -> int:
    """Read an int with the logical type date, 2026-01-31 in JSON, as days since 1970-01-01."""
    days = _days(value) if form is Form.JSON else _whole_number(value, INT_BITS)
    if days not in _DAYS:
        raise BodyFaultError("is not a date in the years 1 to 9999")
    return days


def read_time(digits: int, value: Any, form: Form) -> str:
    """Read an int with time-millis or a long with time-micros, as text like 23:59:59.999999.

    The text always has six digits after the point, so it sorts by time.
    """
    if form is Form.JSON:
        return _checked_time(value, digits)
    number = _whole_number(value, LONG_BITS) * 10 ** (MICROS_DIGITS - digits)
    if not 0 <= number < _DAY_US:
        raise BodyFaultError("is not a time of day")
    return f"{_EPOCH + number * _MICROSECOND:%H:%M:%S.%f}"


def read_moment(digits: int, value: Any, form: Form) -> int:
    """Read a long with timestamp-millis or -micros, RFC 3339 in JSON, as microseconds since 1970.

    The result is in UTC.
    """
    if form is Form.JSON:
        moment_us = _microseconds(value, digits)
    else:
        moment_us = _whole_number(value, LONG_BITS) * 10 ** (MICROS_DIGITS - digits)
    if moment_us not in _MOMENTS_US:
        raise BodyFaultError("is not in the years 1 to 9999 in UTC")
    return moment_us


# --- checks and conversions -----------------------------------------------------------------------


def _whole_number(value: Any, bits: int) -> int:
    # bool is an int in Python.
    if not isinstance(value, int) or isinstance(value, bool):
        raise BodyFaultError("is not a whole number")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise BodyFaultError(f"is out of the range of {bits} bits")
    return value


def _floating(value: Any, form: Form, bits: int) -> float:
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        raise BodyFaultError("is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # `not <=` also refuses NaN.
    if form is not Form.AVRO and not abs(number) <= _MAX_FLOAT[bits]:
        raise BodyFaultError(f"is out of the range of {bits} bits")
    return number


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_code_points(text: str) -> bytes:
    return text.encode("latin-1")


def _unscaled(octets: bytes, scale: int) -> Decimal:
    number = int.from_bytes(octets, "big", signed=True)
    if abs(number) >= 10**MAX_PRECISION:
        raise BodyFaultError(f"has more than {MAX_PRECISION} digits")
    return Decimal(number).scaleb(-scale, context=_EXACT)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and not isinstance(value, bool)


def _days(value: Any) -> int:
    problem = "is not a date such as 2026-01-31"
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise BodyFaultError(problem)
    day: date = _converted(date.fromisoformat, value, problem)
    return day.toordinal() - _EPOCH_DAY


def _checked_time(value: Any, digits: int) -> str:
    time = _TIME.fullmatch(value) if isinstance(value, str) else None
    if time is None or len(time[4] or "") > digits:
        raise BodyFaultError(f"is not a time such as 23:59:59.{'9' * digits}")
    return f"{time[1]}:{time[2]}:{time[3]}.{time[4] or '':0<6}"


def _microseconds(value: Any, digits: int) -> int:
    problem = f"is not a time with a time zone, such as 2026-01-31T23:59:59.{'9' * digits}Z"
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or len(match[1] or "") > digits:
        raise BodyFaultError(problem)
    moment: datetime = _converted(datetime.fromisoformat, value, problem)
    return (moment - _EPOCH) // _MICROSECOND


def _converted(convert: Callable[[str], Any], text: str, problem: str) -> Any:
    """Convert a text; a ValueError, which may show the text, becomes a BodyFaultError."""
    try:
        return convert(text)
    except ValueError:
        raise BodyFaultError(problem) from None
