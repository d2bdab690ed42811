"""Schemas of bodies, and bodies, for tests of typed topics."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

from txmq.message.body_schema import BodySchema


def record(*fields: dict[str, Any], name: str = "Paid") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


def json_schema(*fields: dict[str, Any]) -> BodySchema:
    return BodySchema.parse({"encoding": "json", "schema": record(*fields)})


def avro_schema(*fields: dict[str, Any]) -> BodySchema:
    return BodySchema.parse({"encoding": "avro", "schema": record(*fields)})


def json_body(**values: Any) -> bytes:
    return json.dumps(values).encode()


def avro_body(schema: BodySchema, **values: Any) -> bytes:
    """A body as a foreign producer writes it: by fastavro, logical types and all."""
    from fastavro import parse_schema, schemaless_writer

    stream = BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(schema.schema_json)), values)
    return stream.getvalue()


# A topic's bodies before and after an operator has added a field.
GIFTLESS, WITH_GIFT = (
    {"encoding": "json", "schema": record(*fields, name="Order")}
    for fields in (
        [field("order", "long")],
        [field("order", "long"), field("gift", ["null", "string"])],
    )
)

# One of everything that real orders have.
ORDER = record(
    field("order_number", "long", doc="the shop's own"),
    field("customer", "string"),
    field("amount", logical("bytes", "decimal", precision=12, scale=2)),
    field("ordered", logical("long", "timestamp-micros")),
    field("due", ["null", logical("int", "date")], default=None),
    field("status", {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}, default="NEW"),
    field(
        "lines",
        {
            "type": "array",
            "items": record(field("item", "string"), field("pieces", "int"), name="Line"),
        },
        default=[],
    ),
    field("labels", {"type": "map", "values": "string"}, default={}),
    field("file", ["null", "string"], doc="a name that readers of files use too"),
    name="Order",
)
