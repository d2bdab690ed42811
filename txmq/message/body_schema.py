"""Typed topics: the schema of a topic's bodies, the check of a body, and the columns of its fields.

The schema is an Avro record for both encodings. Nothing here reads or writes a table.

The parser of schemas is our own. That of fastavro, which bodies in JSON do not need, stops at the
first fault, and takes most schemas that cannot be columns: types that hold themselves, names that
differ in case alone, unions of several types.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from io import BytesIO
from typing import Any, Self, TypeGuard, cast

import pyarrow as pa

from txmq.errors import (
    BodySchemaError,
    EnvironmentProblemError,
    InvalidBodyError,
    shown,
    step_for_extra,
)
from txmq.message.body_types import (
    MAX_PRECISION,
    MICROS_DIGITS,
    MILLIS_DIGITS,
    BodyFaultError,
    BodyField,
    BodyType,
    Form,
    ListOf,
    MapOf,
    Nullable,
    RecordOf,
    Single,
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

# What a topic's table has beside the fields of a body; a test holds it against the table.
TOPIC_COLUMNS = (
    "message_id", "topic", "queue_id", "queue_offset", "tags", "keys", "body", "properties",
    "sharding_key", "born_timestamp", "producer_group", "transaction_id", "sequence", "life",
    "op_version", "store_timestamp",
)  # fmt: skip
# The schema is a property of the topic's table, so every reader of the table's log reads it.
MAX_SCHEMA_BYTES = 65_536
MAX_DEPTH = 32
# Of all records together; a record that is used twice counts twice.
MAX_FIELDS = 1_000
MAX_FIXED_BYTES = 65_536
# Spark and Delta add columns of these names to a table by themselves.
_HIDDEN_COLUMNS = ("_metadata", "_change_type", "_commit_version", "_commit_timestamp")
_KEYS = ("encoding", "schema")
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
OnProblem = Callable[[int, str], object]


class BodyEncoding(enum.Enum):
    """The encoding of the bodies of a typed topic."""

    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True)
class BodySchema:
    """The schema of a topic's bodies; two schemas are equal if encoding and Avro schema are.

    JSON: one object in UTF-8. A field that may be null or has a default may be missing. A field
    that the schema does not name is refused, and so are duplicate names, NaN and infinities. bytes
    and fixed are base64, a decimal is a number or a number as text, dates and times are text
    (RFC 3339).

    Avro: the binary form of exactly this schema, without header or fingerprint, and without bytes
    after it. Fields at its end that may be null may be missing, as in bodies of an earlier schema.

    Make one by `parse`. It is frozen, and can be sent to another process.

    Args:
        encoding: the encoding of the bodies.
        schema_json: the Avro schema as JSON text, with sorted keys.
        record: the parsed schema.

    Example:
        >>> paid = {"type": "record", "name": "Paid", "fields": [{"name": "order", "type": "long"}]}
        >>> BodySchema.parse({"encoding": "json", "schema": paid}).problem(b"{}")
        'order is missing'
    """

    encoding: BodyEncoding
    schema_json: str
    record: RecordOf = field(compare=False, repr=False)

    @classmethod
    def parse(cls, given: object) -> Self:
        """Parse a schema, and check it.

        Args:
            given: `{"encoding": "json" | "avro", "schema": <Avro record schema>}`, or its JSON
                text, of at most MAX_SCHEMA_BYTES.

        Raises:
            BodySchemaError: lists every fault.
        """
        value = _json_object(given)
        unknown = sorted(str(key) for key in value if key not in _KEYS)
        faults = [f"{shown(key)} is not one of {', '.join(_KEYS)}" for key in unknown]
        encodings = [encoding.value for encoding in BodyEncoding]
        if value.get("encoding") not in encodings:
            faults.append(f"encoding must be one of {', '.join(encodings)}")
        taken = [*TOPIC_COLUMNS, *_HIDDEN_COLUMNS]
        record, schema_faults = parsed_record(value.get("schema"), taken)
        faults += [f"schema: {fault}" for fault in schema_faults]
        if faults:
            raise BodySchemaError(faults)
        return cls(BodyEncoding(value["encoding"]), _text_of(value["schema"]), record)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as a dict; `parse` takes it."""
        return {"encoding": self.encoding.value, "schema": json.loads(self.schema_json)}

    def to_json(self) -> str:
        """Return the schema as JSON text; `parse` takes it."""
        return _text_of(self.to_dict())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the JSON text, because the parsed types hold functions."""
        return BodySchema.parse, (self.to_json(),)

    def differences(self, earlier: BodySchema) -> list[str]:
        """Say what differs from an earlier schema beside new fields that may be null.

        Without differences all bodies of the earlier one have this schema, and readers of its
        columns see what they saw. Name and comment of the top level do not count.
        """
        if self.encoding is not earlier.encoding:
            return [f"its encoding is {self.encoding.value}, and was {earlier.encoding.value}"]
        # Names of types in it mean others then.
        if _namespace_of(self) != _namespace_of(earlier):
            return ["its namespace is not the same"]
        before, after = _fields_of(earlier), _fields_of(self)
        faults = [
            f"{name} is {'not the same' if name in after else 'missing'}"
            for name, value in before.items()
            if value != after.get(name)
        ]
        faults += [
            f"{new.name} is new, so it must be a union of null and a type, with no other default"
            for new in self.record.fields
            if new.name not in before
            and not (isinstance(new.type, Nullable) and new.default is None)
        ]
        if not faults and [*after][: len(before)] != [*before]:
            faults.append("new fields come behind the others, which stay in their order")
        return faults

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the fields, which a typed topic has beside TOPIC's; all may be null."""
        return pa.schema([field.arrow for field in self.record.fields])

    def problem(self, body: bytes | None) -> str | None:
        """Say why a body does not match this schema; None if it matches.

        The text names a field of the schema, and never shows the body.

        Raises:
            EnvironmentProblemError: the bodies are Avro, and fastavro is not installed.
        """
        try:
            self._read(body)
        except BodyFaultError as fault:
            return str(fault)
        return None

    def check(self, topic: str, body: bytes) -> None:
        """Check a body before it is sent.

        Args:
            topic: the name of the topic, for the error.
            body: the body.

        Raises:
            InvalidBodyError: the body does not match this schema; the error never shows the body.
            EnvironmentProblemError: the bodies are Avro, and fastavro is not installed.
        """
        problem = self.problem(body)
        if problem is not None:
            raise InvalidBodyError(
                "body", f"does not match the schema of topic {shown(topic)}: {problem}"
            )

    def decoded(
        self, bodies: pa.ChunkedArray | pa.Array, on_problem: OnProblem | None = None
    ) -> pa.Table:
        """Decode many bodies into columns, one row for each body.

        A body that does not match the schema becomes a row of nulls.

        Args:
            bodies: binary values; null counts as a body that does not match.
            on_problem: called with the number of each such row and the reason.

        Returns: the values of `columns`.

        Raises:
            EnvironmentProblemError: the bodies are Avro, and fastavro is not installed.
        """
        values: list[dict[str, Any] | None] = []
        for number, body in enumerate(bodies.to_pylist()):
            try:
                values.append(self._read(body))
            except BodyFaultError as fault:
                values.append(None)
                if on_problem is not None:
                    on_problem(number, str(fault))
        rows = pa.array(values, pa.struct(list(self.columns)))
        return pa.Table.from_arrays(rows.flatten(), schema=self.columns)

    def _read(self, body: bytes | None) -> dict[str, Any]:
        if body is None:
            raise BodyFaultError("is null")
        form = Form.JSON if self.encoding is BodyEncoding.JSON else Form.AVRO
        return self.record.read(self._decode(body), form)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return json_value if self.encoding is BodyEncoding.JSON else avro_decoder(self.record)


@lru_cache(maxsize=256)
def parsed_schema(text: str) -> BodySchema:
    """Parse as `BodySchema.parse`, each text once."""
    return BodySchema.parse(text)


def _json_object(schema: object) -> Mapping[str, Any]:
    """Return the schema as an object; it may be given as JSON text."""
    try:
        value = json_value(schema.encode(), _PLAIN_JSON) if isinstance(schema, str) else schema
        size_bytes = len(_text_of(value))
    except BodyFaultError as fault:
        raise BodySchemaError([f"it {fault}"]) from None
    except (RecursionError, TypeError, ValueError) as error:
        raise BodySchemaError([f"it cannot be kept as JSON ({type(error).__name__})"]) from None
    if not isinstance(value, Mapping):
        raise BodySchemaError([f"it must be an object with {' and '.join(_KEYS)}"])
    if size_bytes > MAX_SCHEMA_BYTES:
        raise BodySchemaError([f"it has {size_bytes:,} bytes, the limit is {MAX_SCHEMA_BYTES:,}"])
    return value


def _fields_of(schema: BodySchema) -> dict[str, Any]:
    return {value["name"]: value for value in json.loads(schema.schema_json)["fields"]}


def _namespace_of(schema: BodySchema) -> str:
    value = json.loads(schema.schema_json)
    return (_full_name(value, "") or "").rpartition(".")[0]


def _text_of(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# --- JSON -----------------------------------------------------------------------------------------


def json_value(body: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """Return the values of a JSON body, with exact numbers. Raises: BodyFaultError."""
    try:
        return (decoder or _EXACT_JSON).decode(body.decode())
    except UnicodeDecodeError:
        raise BodyFaultError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BodyFaultError(f"is not JSON, from character {error.pos:,} on") from None
    except RecursionError:
        raise BodyFaultError("is nested too deeply") from None
    except (ValueError, ArithmeticError):
        raise BodyFaultError("holds a number that is too large") from None


def _refused_constant(_name: str) -> None:
    raise BodyFaultError("holds NaN or Infinity, which JSON does not have")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise BodyFaultError("has an object with a duplicate name")
    return values


def _decoder(parse_float: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_float=parse_float, parse_constant=_refused_constant, object_pairs_hook=_object
    )


# Made once, because making a decoder takes longer than reading a small body.
_EXACT_JSON, _PLAIN_JSON = _decoder(Decimal), _decoder(float)


# --- Avro -----------------------------------------------------------------------------------------


def avro_decoder(record: RecordOf) -> Callable[[bytes], Any]:
    """Return a function that decodes the binary form of one record, without header.

    The function raises BodyFaultError. Values of logical types stay numbers and bytes. A body may
    end before fields that may be null, if no others follow: it is of an earlier schema.
    Raises: EnvironmentProblemError if fastavro is not installed.
    """
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError as missing:
        what = "the bodies of this topic are Avro, and fastavro is not installed"
        raise EnvironmentProblemError(what, step_for_extra("avro")) from missing
    whole, needed = parse_schema(record.avro()), _needed_fields(record)
    parts = [parse_schema(RecordOf((part,)).avro()) for part in record.fields]

    def shorter(body: bytes, stream: BytesIO) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for number, part in enumerate(parts):
            if number >= needed and stream.tell() == len(body):
                break
            value |= cast("dict[str, Any]", schemaless_reader(stream, part, None))
        return value

    def decode(body: bytes) -> Any:
        stream = BytesIO(body)
        try:
            try:
                value = schemaless_reader(stream, whole, None)
            except EOFError:
                stream = BytesIO(body)
                value = shorter(body, stream)
        except Exception:  # noqa: BLE001 - fastavro raises a dozen kinds of errors for other bytes
            raise BodyFaultError("is not Avro of this schema") from None
        if stream.tell() != len(body):
            raise BodyFaultError("has bytes after its end")
        return value

    return decode


def _needed_fields(record: RecordOf) -> int:
    """Return how many fields a body in Avro needs: all up to the last that may not be null."""
    kinds = enumerate((part.type for part in record.fields), 1)
    return max((place for place, kind in kinds if not isinstance(kind, Nullable)), default=1)


# --- parsing of a schema --------------------------------------------------------------------------


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
        body_fields = [self._field(field, place, namespace, depth) for field in fields]
        record = RecordOf(tuple(field for field in body_fields if field is not None))
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
    """Return the name of a type with its namespace; None if Avro does not allow it."""
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
