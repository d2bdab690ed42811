"""Parses an Avro schema into the types of a body, and finds all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeGuard

import pyarrow as pa

from txmq.errors import shown
from txmq.message.body_types import BodyField, BodyType, ListOf, MapOf, Nullable, RecordOf, Single
from txmq.message.body_values import (
    MAX_PRECISION,
    MICROS_DIGITS,
    MILLIS_DIGITS,
    BodyFaultError,
    Form,
    read_bytes,
    read_day,
    read_decimal,
    read_double,
    read_fixed,
    read_flag,
    read_float,
    read_int,
    read_long,
    read_moment,
    read_symbol,
    read_text,
    read_time,
    read_uuid,
)

MAX_DEPTH = 32
# Of all records together; a record that is used twice counts twice.
MAX_FIELDS = 1_000
MAX_FIXED_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MOMENTS = pa.timestamp("us", tz="UTC")
_PRIMITIVES: Mapping[str, BodyType] = {
    "boolean": Single(pa.bool_(), read_flag, "boolean"),
    "int": Single(pa.int32(), read_int, "int"),
    "long": Single(pa.int64(), read_long, "long"),
    "float": Single(pa.float32(), read_float, "float"),
    "double": Single(pa.float64(), read_double, "double"),
    "bytes": Single(pa.binary(), read_bytes, "bytes"),
    "string": Single(pa.string(), read_text, "string"),
}
_LOGICAL: Mapping[tuple[str, str], BodyType] = {
    ("int", "date"): Single(pa.date32(), read_day, "int"),
    ("int", "time-millis"): Single(pa.string(), partial(read_time, MILLIS_DIGITS), "int"),
    ("long", "time-micros"): Single(pa.string(), partial(read_time, MICROS_DIGITS), "long"),
    ("long", "timestamp-millis"): Single(_MOMENTS, partial(read_moment, MILLIS_DIGITS), "long"),
    ("long", "timestamp-micros"): Single(_MOMENTS, partial(read_moment, MICROS_DIGITS), "long"),
    ("string", "uuid"): Single(pa.string(), read_uuid, "string"),
}
_UNNAMED = frozenset([*_PRIMITIVES, "null", "array", "map", "record", "enum", "fixed", "union"])
# Takes the place of a type with a fault, so that parsing goes on and finds the other faults.
_STAND_IN = _PRIMITIVES["string"]
_NOTHING = RecordOf(())


def parsed_record(schema: object, taken_names: Iterable[str]) -> tuple[RecordOf, list[str]]:
    """Parse a schema. Returns the record and every fault; use the record only without faults.

    Args:
        schema: an Avro schema as JSON values; its top level must be a record.
        taken_names: names that no field of the top level may have, in upper or lower case.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        return _NOTHING, ["its top level must be a record"]
    parsing = _Parsing()
    record = parsing.parsed(schema, "", "", 1)
    if not isinstance(record, RecordOf):
        return _NOTHING, parsing.faults
    taken = {name.lower() for name in taken_names}
    faults = [
        f"{field.name}: the topic has a column of this name; choose another"
        for field in record.fields
        if field.name.lower() in taken
    ]
    return record, [*parsing.faults, *faults]


class _Parsing:
    """One pass over a schema: the faults and the named types so far."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        # None while a type is being parsed: a type that holds itself has no end.
        self._named: dict[str, BodyType | None] = {}

    def parsed(self, schema: object, place: str, namespace: str, depth: int) -> BodyType:
        if depth > MAX_DEPTH:
            return self._fault(place, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, str):
            return self._by_name(schema, place, namespace)
        if isinstance(schema, list):
            return self._union(schema, place, namespace, depth)
        if isinstance(schema, Mapping):
            return self._complex(schema, place, namespace, depth)
        return self._fault(place, f"{shown(schema)} is not a type")

    def _fault(self, place: str, problem: str) -> BodyType:
        self.faults.append(f"{place or 'the record'}: {problem}")
        return _STAND_IN

    # --- names and unions -------------------------------------------------------------------

    def _by_name(self, name: str, place: str, namespace: str) -> BodyType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name == "null":
            return self._fault(place, "null alone has no column; write a union of null and a type")
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        key = full_name if full_name in self._named else name
        if key not in self._named:
            return self._fault(place, f"type {shown(name)} is not known; define it before its use")
        body_type = self._named[key]
        if body_type is None:
            return self._fault(place, f"type {shown(name)} holds itself, which no column can")
        return body_type

    def _union(self, options: list[Any], place: str, namespace: str, depth: int) -> BodyType:
        types = [option for option in options if option != "null"]
        if len(options) != 2 or len(types) != 1:  # noqa: PLR2004 - null and one type
            return self._fault(place, "a union must be of null and one other type")
        if isinstance(types[0], list):
            return self._fault(place, "a union may not hold a union")
        item = self.parsed(types[0], place, namespace, depth + 1)
        return Nullable(item, is_null_first=options[0] == "null")

    # --- types with attributes ----------------------------------------------------------------

    def _complex(
        self, schema: Mapping[str, Any], place: str, namespace: str, depth: int
    ) -> BodyType:
        kind = schema.get("type")
        if kind == "array":
            return ListOf(self.parsed(schema.get("items"), f"{place}[]", namespace, depth + 1))
        if kind == "map":
            return MapOf(self.parsed(schema.get("values"), f"{place}[…]", namespace, depth + 1))
        if kind in ("record", "enum", "fixed"):
            return self._definition(schema, place, namespace, depth)
        if not isinstance(kind, str):
            return self.parsed(kind, place, namespace, depth + 1)
        if "logicalType" in schema:
            return self._logical(kind, schema, place)
        return self._by_name(kind, place, namespace)

    def _logical(self, kind: str, schema: Mapping[str, Any], place: str) -> BodyType:
        logical = schema["logicalType"]
        if logical == "decimal" and kind == "bytes":
            return self._decimal(schema, place, None)
        body_type = _LOGICAL.get((kind, logical)) if isinstance(logical, str) else None
        if body_type is None:
            problem = f"the logical type {shown(logical)} of {shown(kind)} is not supported"
            return self._fault(place, problem)
        return body_type

    def _decimal(self, schema: Mapping[str, Any], place: str, size: int | None) -> BodyType:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not _is_count(precision, 1, MAX_PRECISION):
            return self._fault(place, f"the precision must be from 1 to {MAX_PRECISION}")
        if not _is_count(scale, 0, precision):
            return self._fault(place, "the scale must be from 0 to the precision")
        if size is not None and 10**precision > 1 << (8 * size - 1):
            return self._fault(place, f"{size} bytes cannot hold {precision} digits")
        octets: Any = "bytes" if size is None else {"type": "fixed", "size": size}
        return Single(
            pa.decimal128(precision, scale), partial(read_decimal, precision, scale, size), octets
        )

    # --- types with names -----------------------------------------------------------------------

    def _definition(
        self, schema: Mapping[str, Any], place: str, namespace: str, depth: int
    ) -> BodyType:
        full_name = _full_name(schema, namespace)
        if full_name is None:
            return self._fault(place, f"{schema['type']} needs a name of letters, digits and _")
        if full_name in self._named:
            return self._fault(place, f"type {shown(full_name)} is defined twice")
        self._named[full_name] = None
        inner_namespace = full_name.rpartition(".")[0]
        if schema["type"] == "record":
            body_type = self._record(schema, place, inner_namespace, depth)
        elif schema["type"] == "enum":
            body_type = self._enum(schema, place)
        else:
            body_type = self._fixed(schema, place)
        self._named[full_name] = body_type
        return body_type

    def _enum(self, schema: Mapping[str, Any], place: str) -> BodyType:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(map(_is_name, symbols)):
            return self._fault(place, "an enum needs symbols of letters, digits and _")
        if len(set(symbols)) != len(symbols):
            return self._fault(place, "a symbol occurs twice")
        # In binary form an enum is the number of its symbol.
        return Single(pa.string(), partial(read_symbol, tuple(symbols)), "int")

    def _fixed(self, schema: Mapping[str, Any], place: str) -> BodyType:
        size, logical = schema.get("size"), schema.get("logicalType")
        if not _is_count(size, 1, MAX_FIXED_BYTES):
            return self._fault(place, f"the size of a fixed must be from 1 to {MAX_FIXED_BYTES:,}")
        if logical == "decimal":
            return self._decimal(schema, place, size)
        if logical is not None:
            return self._fault(place, f"the logical type {shown(logical)} is not supported")
        return Single(pa.binary(), partial(read_fixed, size), {"type": "fixed", "size": size})

    def _record(
        self, schema: Mapping[str, Any], place: str, namespace: str, depth: int
    ) -> BodyType:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            return self._fault(place, "a record needs fields")
        if len(fields) > MAX_FIELDS:
            return self._fault(place, f"has more than {MAX_FIELDS:,} fields")
        parsed = [self._field(field, place, namespace, depth) for field in fields]
        record = RecordOf(tuple(field for field in parsed if field is not None))
        names = [field.name.lower() for field in record.fields]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problem = "occurs twice; names must differ in more than upper and lower case"
            self._fault(_inside(place, name), problem)
        if not record.fields:
            return _STAND_IN
        if record.weight > MAX_FIELDS or record.depth > MAX_DEPTH:
            limits = f"{MAX_FIELDS:,} fields or {MAX_DEPTH} levels"
            return self._fault(place, f"has more than {limits}, with those of its types")
        return record

    def _field(self, field: object, place: str, namespace: str, depth: int) -> BodyField | None:
        name = field.get("name") if isinstance(field, Mapping) else None
        if not isinstance(field, Mapping) or not _is_name(name):
            problem = f"{shown(name)} is not a field name; use letters, digits and _"
            self._fault(place, problem)
            return None
        path = _inside(place, str(name))
        if "type" not in field:
            self._fault(path, "has no type")
            return None
        body_type = self.parsed(field["type"], path, namespace, depth + 1)
        comment = field.get("doc") if isinstance(field.get("doc"), str) else None
        if "default" in field:
            default = self._default(body_type, field["default"], path)
            return BodyField(str(name), body_type, comment, may_be_missing=True, default=default)
        may_be_missing = isinstance(body_type, Nullable)
        return BodyField(str(name), body_type, comment, may_be_missing=may_be_missing)

    def _default(self, body_type: BodyType, value: object, place: str) -> Any:
        try:
            return body_type.read(value, Form.DEFAULT)
        except BodyFaultError as fault:
            # A stand-in has a fault already; its default would be a second fault about the same.
            if body_type is not _STAND_IN or not self.faults:
                self._fault(place, f"its default {fault}")
            return None


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _full_name(schema: Mapping[str, Any], namespace: str) -> str | None:
    """The name of a type with its namespace; None if Avro does not allow it."""
    name, space = schema.get("name"), schema.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(space, str) or name in _UNNAMED:
        return None
    full_name = name if "." in name or not space else f"{space}.{name}"
    return full_name if all(map(_is_name, full_name.split("."))) else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_count(value: object, low: int, high: int) -> TypeGuard[int]:
    # bool is an int in Python.
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
