"""Results of calls: their values for JSON, and the sum of several results."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import Field, fields, is_dataclass
from datetime import date, datetime
from typing import Any, ClassVar, Self


def plain(value: Any) -> Any:
    """Return the value as JSON can hold it.

    A dataclass becomes a dict of its fields, an enum its value, a date or time its ISO text, a
    tuple a list, and a set a sorted list.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = {spec.name: getattr(value, spec.name) for spec in fields(value)}
    match value:
        case enum.Enum():
            return value.value
        case datetime() | date():
            return value.isoformat()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case AbstractSet():
            return sorted(map(plain, value))
        case _:
            return value


class Plain:
    """A dataclass whose fields are its values for JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values: dict[str, Any] = plain(self)
        return values


class Sum:
    """A dataclass of counts that `+` adds field by field; of two mappings it makes one."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __add__(self, other: Self) -> Self:
        """Add two results."""
        sums = {
            spec.name: _added(getattr(self, spec.name), getattr(other, spec.name))
            for spec in fields(self)
        }
        return type(self)(**sums)


def _added(first: Any, second: Any) -> Any:
    return first | second if isinstance(first, Mapping | AbstractSet) else first + second
