"""The types of a body's fields, as a tree: how each type reads a value, and its column.

Every type is an Avro type. Delta has no types for times of day, uuids, enums and fixed bytes: the
columns of the first three are text, of fixed bytes binary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa

from txmq.message.body_values import BodyFaultError, Form, read_text

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
        """An Avro schema of the same binary form, without logical types; `numbers` name types."""


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
