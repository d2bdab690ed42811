"""Typed topics: the schema of a topic's bodies, which bodies have it, and the columns they become.

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

# It is a property of the topic's table, which every reader of its log meets.
MAX_SCHEMA_BYTES = 65_536
# Spark and Delta give these to rows by themselves.
_HIDDEN_COLUMNS = ("_metadata", "_change_type", "_commit_version", "_commit_timestamp")
_KEYS = ("encoding", "schema")
OnProblem = Callable[[int, str], object]


class BodyEncoding(enum.Enum):
    """How the bodies of a typed topic are written."""

    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True)
class BodySchema:
    """The schema of a topic's bodies; two are equal if their encoding and Avro schema are.

    JSON: one object in UTF-8. What may be null or has a default may be missing; what the schema
    does not name is refused, as are names that stand twice, NaN and infinities. bytes and fixed
    are base64, a decimal is a number or its text, dates and times are text (RFC 3339).

    Avro: the binary form of exactly this schema and nothing else, without header or fingerprint.

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
        """From `{"encoding": "json" | "avro", "schema": <Avro record schema>}`, or its JSON text.

        Raises: BodySchemaError with every fault.
        """
        value = _json_object(given)
        unknown = sorted(str(key) for key in value if key not in _KEYS)
        faults = [f"{shown(key)} is not one of {', '.join(_KEYS)}" for key in unknown]
        encodings = [encoding.value for encoding in BodyEncoding]
        if value.get("encoding") not in encodings:
            faults.append(f"encoding must be one of {', '.join(encodings)}")
        taken = [*TOPIC.columns.names, *_HIDDEN_COLUMNS]
        record, found = parsed_record(value.get("schema"), taken)
        faults += [f"schema: {fault}" for fault in found]
        if faults:
            raise BodySchemaError(faults)
        return cls(BodyEncoding(value["encoding"]), _text_of(value["schema"]), record)

    def to_dict(self) -> dict[str, Any]:
        """What `parse` takes."""
        return {"encoding": self.encoding.value, "schema": json.loads(self.schema_json)}

    def to_json(self) -> str:
        """What `parse` takes, as text."""
        return _text_of(self.to_dict())

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to other processes as its text."""
        return BodySchema.parse, (self.to_json(),)

    @cached_property
    def columns(self) -> pa.Schema:
        """What a typed topic has beside the columns of TOPIC; every one may be null."""
        return pa.schema([field.arrow for field in self.record.fields])

    def problem(self, body: bytes | None) -> str | None:
        """Why a body does not have this schema, without showing it; None if it has.

        Raises: EnvironmentProblemError where bodies are Avro and fastavro is not installed.
        """
        try:
            self._read(body)
        except BodyFaultError as fault:
            return str(fault)
        return None

    def check(self, topic: str, body: bytes) -> None:
        """Raise InvalidBodyError for a body without this schema."""
        problem = self.problem(body)
        if problem is not None:
            raise InvalidBodyError(
                "body", f"does not have the schema of topic {shown(topic)}: {problem}"
            )

    def decoded(
        self, bodies: pa.ChunkedArray | pa.Array, on_problem: OnProblem | None = None
    ) -> pa.Table:
        """The columns of many bodies, one row each; nulls where a body does not have the schema.

        Args:
            on_problem: gets the number of each such row, and why.
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
    """As `BodySchema.parse`, which need not read the same text again and again."""
    return BodySchema.parse(text)


# --- JSON -----------------------------------------------------------------------------------------


def json_value(body: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """The values of a JSON body, its numbers exact; raises BodyFaultError."""
    try:
        return (decoder or _EXACT_JSON).decode(body.decode())
    except UnicodeDecodeError:
        raise BodyFaultError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BodyFaultError(f"is not JSON, from character {error.pos:,} on") from None
    except RecursionError:
        raise BodyFaultError("is nested too deep") from None
    except (ValueError, ArithmeticError):
        raise BodyFaultError("holds a number that is too large") from None


def _refused_constant(_name: str) -> None:
    raise BodyFaultError("holds NaN or Infinity, which JSON does not have")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BodyFaultError("has an object with a name that stands twice")
    return found


def _decoder(parse_float: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_float=parse_float, parse_constant=_refused_constant, object_pairs_hook=_object
    )


# Made once, for that takes longer than to read a small body.
_EXACT_JSON, _PLAIN_JSON = _decoder(Decimal), _decoder(float)


def _json_object(given: object) -> Mapping[str, Any]:
    """A schema as it was given, read from its text if it is one."""
    try:
        value = json_value(given.encode(), _PLAIN_JSON) if isinstance(given, str) else given
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
    """Reads the binary form of one record, without header; logical types stay numbers.

    Raises: EnvironmentProblemError without fastavro; the reader BodyFaultError.
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
        except Exception:  # noqa: BLE001 - foreign bytes end in any of a dozen kinds
            raise BodyFaultError("is not Avro of this schema") from None
        if stream.tell() != len(body):
            raise BodyFaultError("has bytes behind its end")
        return value

    return decode
