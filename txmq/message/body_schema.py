"""Typed topics: the schema of a topic's bodies, the check of a body, and the columns of its fields.

The schema is an Avro record for both encodings. Nothing here reads or writes a table.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any, Self

import pyarrow as pa

from txmq.delta.schemas import TOPIC
from txmq.errors import BodySchemaError, EnvironmentProblemError, InvalidBodyError, shown
from txmq.message.body_parsing import parsed_record
from txmq.message.body_types import RecordOf
from txmq.message.body_values import BodyFaultError, Form

# The schema is a property of the topic's table, so every reader of the table's log reads it.
MAX_SCHEMA_BYTES = 65_536
# Spark and Delta add columns of these names to a table by themselves.
_HIDDEN_COLUMNS = ("_metadata", "_change_type", "_commit_version", "_commit_timestamp")
_KEYS = ("encoding", "schema")
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
    after it.

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
        taken = [*TOPIC.columns.names, *_HIDDEN_COLUMNS]
        record, schema_faults = parsed_record(value.get("schema"), taken)
        faults += [f"schema: {fault}" for fault in schema_faults]
        if faults:
            raise BodySchemaError(faults)
        return cls(BodyEncoding(value["encoding"]), _text_of(value["schema"]), record)

    def to_dict(self) -> dict[str, Any]:
        """The schema as a dict; `parse` takes it."""
        return {"encoding": self.encoding.value, "schema": json.loads(self.schema_json)}

    def to_json(self) -> str:
        """The schema as JSON text; `parse` takes it."""
        return _text_of(self.to_dict())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the JSON text, because the parsed types hold functions."""
        return BodySchema.parse, (self.to_json(),)

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of the fields, which a typed topic has beside TOPIC's; all may be null."""
        return pa.schema([field.arrow for field in self.record.fields])

    def problem(self, body: bytes | None) -> str | None:
        """Why a body does not match this schema; None if it matches.

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
        """The columns of many bodies, one row for each body.

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
    """As `BodySchema.parse`, but parses each text once."""
    return BodySchema.parse(text)


# --- JSON -----------------------------------------------------------------------------------------


def json_value(body: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """The values of a JSON body, with exact numbers. Raises: BodyFaultError."""
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


def _json_object(schema: object) -> Mapping[str, Any]:
    """The schema as an object; it may be given as JSON text."""
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


def _text_of(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# --- Avro -----------------------------------------------------------------------------------------


def avro_decoder(record: RecordOf) -> Callable[[bytes], Any]:
    """A function that decodes the binary form of one record, without header.

    The function raises BodyFaultError. Values of logical types stay numbers and bytes.
    Raises: EnvironmentProblemError if fastavro is not installed.
    """
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError as missing:
        what = "the bodies of this topic are Avro, and fastavro is not installed"
        raise EnvironmentProblemError(what, "Run `pip install 'txmq[avro]'`") from missing
    schema = parse_schema(record.avro())

    def decode(body: bytes) -> Any:
        stream = BytesIO(body)
        try:
            value = schemaless_reader(stream, schema, None)
        except Exception:  # noqa: BLE001 - fastavro raises a dozen kinds of errors for other bytes
            raise BodyFaultError("is not Avro of this schema") from None
        if stream.tell() != len(body):
            raise BodyFaultError("has bytes after its end")
        return value

    return decode
