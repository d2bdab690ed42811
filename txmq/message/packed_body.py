"""Bodies that are made of columns: their schema from that of a DataFrame, and their bytes.

A body in JSON is one object. A null is left out, as Spark's `to_json` does; dates and times are
text (RFC 3339), decimals too, bytes are base64. That is what a BodySchema reads.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import Any

import pyarrow as pa

from txmq.errors import BodySchemaError, EnvironmentProblemError, shown, step_for_extra
from txmq.message.body_schema import BodyEncoding, BodySchema

Pack = Callable[[Mapping[str, Any]], bytes]
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)", re.ASCII)
_AVRO: Mapping[str, Any] = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long",
    "float": "float", "double": "double", "string": "string", "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}  # fmt: skip


# --- the schema -----------------------------------------------------------------------------------


def schema_of_columns(schema: object, without: Sequence[str]) -> dict[str, Any]:
    """Return the schema of bodies in JSON that hold the columns of a DataFrame.

    Args:
        schema: `DataFrame.schema`.
        without: names of columns that are fields of a message, and not of its body.

    Returns: what `BodySchema.parse` takes.

    Raises: BodySchemaError for what is no schema of Spark, and each column without an Avro type.
    """
    as_json = getattr(schema, "jsonValue", None)
    value = as_json() if callable(as_json) else None
    if not isinstance(value, Mapping) or value.get("type") != "struct":
        raise BodySchemaError([f"it must be the schema of a DataFrame, not {shown(schema)}"])
    fields = [field for field in value["fields"] if field["name"] not in without]
    faults: list[str] = []
    record = _record({"fields": fields}, "Body", faults)
    if faults:
        raise BodySchemaError(faults)
    return {"encoding": BodyEncoding.JSON.value, "schema": record}


def _record(struct: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, Any]:
    fields = [
        {
            "name": field["name"],
            "type": _type(
                field["type"], f"{name}_{field['name']}", faults, may_be_null=field["nullable"]
            ),
        }
        for field in struct["fields"]
    ]
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: Any, name: str, faults: list[str], *, may_be_null: bool) -> Any:
    """Return the Avro type of a type of Spark's schema in JSON; `name` is that of a record."""
    avro = _of_text(kind) if isinstance(kind, str) else _of_parts(kind, name, faults)
    if avro is None:
        place = name.partition("_")[2]
        faults.append(f"{place}: the type {shown(kind)} has no Avro type; cast it, as to string")
        return "string"
    return ["null", avro] if may_be_null else avro


def _of_text(kind: str) -> Any:
    if match := _DECIMAL.fullmatch(kind):
        precision, scale = int(match[1]), int(match[2])
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return _AVRO.get(kind)


def _of_parts(kind: Mapping[str, Any], name: str, faults: list[str]) -> Any:
    if kind["type"] == "struct":
        return _record(kind, name, faults)
    if kind["type"] == "array":
        inner, may_be_null = kind["elementType"], kind["containsNull"]
        return {"type": "array", "items": _type(inner, name, faults, may_be_null=may_be_null)}
    if kind["type"] == "map" and kind["keyType"] == "string":
        inner, may_be_null = kind["valueType"], kind["valueContainsNull"]
        return {"type": "map", "values": _type(inner, name, faults, may_be_null=may_be_null)}
    return None


# --- the bytes ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def packer(schema: BodySchema | None) -> Pack:
    """Return a function that makes the body of a row; it raises ValueError for one it cannot make.

    It is made once for each schema.

    Args:
        schema: of a typed topic; None makes JSON of any columns.

    Raises: EnvironmentProblemError if the bodies are Avro, and fastavro is not installed.
    """
    if schema is None or schema.encoding is BodyEncoding.JSON:
        return _json
    try:
        from fastavro import parse_schema, schemaless_writer
    except ImportError as missing:
        what = "the bodies of this topic are Avro, and fastavro is not installed"
        raise EnvironmentProblemError(what, step_for_extra("avro")) from missing
    parsed = parse_schema(json.loads(schema.schema_json))

    def pack(values: Mapping[str, Any]) -> bytes:
        stream = BytesIO()
        try:
            schemaless_writer(stream, parsed, values)
        except Exception as error:  # noqa: BLE001 - fastavro raises a dozen kinds of errors
            raise ValueError(type(error).__name__) from None
        return stream.getvalue()

    return pack


def _json(values: Mapping[str, Any]) -> bytes:
    there = {name: value for name, value in values.items() if value is not None}
    text = json.dumps(
        there, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_text
    )
    return text.encode()


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise ValueError(type(value).__name__)


def python_column(column: pa.Array) -> list[Any]:
    """Return a column of rows as `packer` takes its values: maps are dicts, at any depth."""
    values = column.to_pylist()
    return [_plain(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return bool(pa.types.is_map(kind)) or any(map(_has_map, inner))


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {name: _plain(item, kind.field(name).type) for name, item in value.items()}
    return [_plain(item, kind.value_type) for item in value]
