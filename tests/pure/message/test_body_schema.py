from __future__ import annotations

import base64
import json
import math
import pickle
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.bodies import (
    ORDER,
    avro_body,
    avro_schema,
    field,
    json_body,
    json_schema,
    logical,
    record,
)
from txmq.errors import BodySchemaError, EnvironmentProblemError, InvalidBodyError
from txmq.message.body_schema import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_SCHEMA_BYTES,
    BodyEncoding,
    BodySchema,
)
from txmq.store.schemas import TOPIC

DECIMAL = logical("bytes", "decimal", precision=5, scale=2)
FIXED = {"type": "fixed", "name": "Two", "size": 2}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def read(schema: BodySchema, *bodies: bytes | None) -> list[dict[str, Any]]:
    """What the columns hold; every body must be right."""
    found: dict[int, str] = {}
    rows = schema.decoded(pa.chunked_array([list(bodies)], pa.binary()), found.__setitem__)
    assert not found
    assert rows.schema.equals(schema.columns)
    return list(rows.to_pylist())


def value_of(kind: Any, value: Any) -> Any:
    """What the column of a field of this type shows of a JSON value."""
    return read(json_schema(field("x", kind)), json_body(x=value))[0]["x"]


def problem_with(kind: Any, value: Any) -> str | None:
    return json_schema(field("x", kind)).problem(json_body(x=value))


def faults_of(schema: Any, encoding: str = "json") -> tuple[str, ...]:
    with pytest.raises(BodySchemaError) as caught:
        BodySchema.parse({"encoding": encoding, "schema": schema})
    return caught.value.faults


# --- JSON bodies ------------------------------------------------------------------------------

VALUES = [
    ("boolean", True, True),
    ("int", -(2**31), -(2**31)),
    ("long", 2**63 - 1, 2**63 - 1),
    ("float", 1.5, 1.5),
    ("double", 3, 3.0),
    ("double", 1e308, 1e308),
    ("string", "žluťoučký 🐎", "žluťoučký 🐎"),
    ("string", "", ""),
    ("bytes", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
    (FIXED, base64.b64encode(b"ab").decode(), b"ab"),
    (COLOUR, "BLUE", "BLUE"),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
    ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
    (record(field("y", "int"), name="Inner"), {"y": 1}, {"y": 1}),
    (["null", "int"], None, None),
    (["int", "null"], 7, 7),
    (DECIMAL, "-123.45", Decimal("-123.45")),
    (DECIMAL, 123.4, Decimal("123.40")),
    (DECIMAL, "1e2", Decimal("100.00")),
    (logical("int", "date"), "2026-01-31", date(2026, 1, 31)),
    (logical("int", "date"), "0001-01-01", date.min),
    (logical("int", "time-millis"), "23:59:59.5", "23:59:59.500000"),
    (logical("long", "time-micros"), "00:00:00", "00:00:00.000000"),
    (logical("long", "timestamp-micros"), "2026-01-31T12:00:00.123456Z", NOON),
    (logical("long", "timestamp-micros"), "2026-01-31T14:00:00.123456+02:00", NOON),
    (logical("long", "timestamp-millis"), "9999-12-31T23:59:59.999Z",
     datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    (logical("string", "uuid"), "0190AE6F-8F53-7C00-8000-000000000001",
     "0190ae6f-8f53-7c00-8000-000000000001"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "shown"), VALUES)
def test_value_of_every_type_becomes_its_column(kind: Any, value: Any, shown: Any) -> None:
    assert value_of(kind, value) == shown


PROBLEMS = [
    ("boolean", 1, "x is not true or false"),
    ("int", 2**31, "x is out of the range of 32 bits"),
    ("long", -(2**63) - 1, "x is out of the range of 64 bits"),
    ("int", True, "x is not a whole number"),
    ("int", 1.0, "x is not a whole number"),
    ("int", None, "x is not a whole number"),
    ("float", 3.5e38, "x is out of the range of 32 bits"),
    ("double", 10**400, "x is out of the range of 64 bits"),
    ("double", "1", "x is not a number"),
    ("double", True, "x is not a number"),
    ("string", 7, "x is not text"),
    ("string", "\ud800", "x is not valid Unicode (a lone surrogate)"),
    ("bytes", "a", "x is not base64"),
    ("bytes", "ÿÿÿÿ", "x is not base64"),
    ("bytes", 7, "x is not text that encodes bytes"),
    (FIXED, base64.b64encode(b"abc").decode(), "x is not 2 bytes long"),
    (COLOUR, "GREEN", "x is not one of the symbols of its enum"),
    (COLOUR, 0, "x is not one of the symbols of its enum"),
    ({"type": "array", "items": "int"}, [1, "2"], "x[1] is not a whole number"),
    ({"type": "array", "items": "int"}, {"0": 1}, "x is not an array"),
    ({"type": "map", "values": "int"}, {"secret": "s"}, "x[…] is not a whole number"),
    ({"type": "map", "values": "int"}, [], "x is not an object"),
    (record(field("y", "int"), name="Inner"), {}, "x.y is missing"),
    (record(field("y", "int"), name="Inner"), {"y": 1, "secret": 2},
     "x has a field that the schema does not name"),
    (["null", "int"], "7", "x is not a whole number"),
    (DECIMAL, "1000.00", "x has more digits than decimal(5, 2)"),
    (DECIMAL, "0.001", "x has more digits than decimal(5, 2)"),
    (DECIMAL, "1_0", "x is neither a number nor a number as text"),
    (DECIMAL, "NaN", "x is neither a number nor a number as text"),
    (DECIMAL, False, "x is neither a number nor a number as text"),
    (DECIMAL, 10**300, "x has more digits than decimal(5, 2)"),
    (logical("int", "date"), "2026-02-30", "x is not a date such as 2026-01-31"),
    (logical("int", "date"), "20260131", "x is not a date such as 2026-01-31"),
    (logical("int", "date"), 20_000, "x is not a date such as 2026-01-31"),
    (logical("int", "time-millis"), "23:59:59.9999", "x is not a time such as 23:59:59.999"),
    (logical("long", "time-micros"), "24:00:00", "x is not a time such as 23:59:59.999999"),
    (logical("long", "timestamp-millis"), "2026-01-31T12:00:00",
     "x is not a time with a time zone, such as 2026-01-31T23:59:59.999Z"),
    (logical("long", "timestamp-micros"), "0001-01-01T00:00:00+01:00",
     "x is not in the years 1 to 9999 in UTC"),
    (logical("string", "uuid"), "0190ae6f8f537c008000000000000001",
     "x is not a uuid of 36 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "problem"), PROBLEMS)
def test_what_is_wrong_is_told_by_its_place(kind: Any, value: Any, problem: str) -> None:
    assert problem_with(kind, value) == problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON, from character 0 on"),
        (b'{"x": 1} {}', "is not JSON, from character 9 on"),
        (b"[1]", "is not an object"),
        (b"null", "is not an object"),
        (b'{"x": "\xff"}', "is not UTF-8"),
        ("\ufeff{}".encode(), "is not JSON, from character 0 on"),
        ('{"x": 1}'.encode("utf-16"), "is not UTF-8"),
        (b'{"x": 1, "x": 1}', "has an object with a duplicate name"),
        (b'{"x": NaN}', "holds NaN or Infinity, which JSON does not have"),
        (b'{"x": -Infinity}', "holds NaN or Infinity, which JSON does not have"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "holds a number that is too large"),
        (b'{"x": 1e400}', "x is out of the range of 64 bits"),
        (b'{"x": 1e99999999999999999999}', "holds a number that is too large"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"y": 1}', "has a field that the schema does not name"),
        (b"{}", "x is missing"),
        (None, "is null"),
    ],
)
def test_body_that_is_no_such_json_is_told_without_being_shown(
    body: bytes | None, problem: str
) -> None:
    assert json_schema(field("x", "double")).problem(body) == problem


def test_what_may_be_missing_gets_its_default_or_null() -> None:
    schema = json_schema(
        field("a", ["null", "int"]),
        field("b", ["null", "int"], default=None),
        field("c", ["int", "null"], default=3),
        field("d", "string", default="none"),
        field("e", "bytes", default="\u00ff"),
        field("f", logical("int", "date"), default=1),
        field("g", DECIMAL, default="\u0001"),
        field("h", record(field("i", "int", default=1), field("j", "int"), name="In"),
              default={"j": 2}),
        field("k", {"type": "array", "items": "int"}, default=[]),
        field("l", {"type": "map", "values": "int"}, default={"m": 1}),
        field("n", logical("long", "timestamp-millis"), default=1_000),
        field("o", "double", default=0.5),
    )  # fmt: skip

    assert read(schema, b"{}") == [
        {
            "a": None, "b": None, "c": 3, "d": "none", "e": b"\xff", "f": date(1970, 1, 2),
            "g": Decimal("0.01"), "h": {"i": 1, "j": 2}, "k": [], "l": [("m", 1)],
            "n": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "o": 0.5,
        }
    ]  # fmt: skip


def test_bodies_without_the_schema_become_rows_of_nulls_and_are_told_by_number() -> None:
    schema = json_schema(field("x", "int"), field("y", ["null", "string"]))
    told: dict[int, str] = {}

    rows = schema.decoded(pa.array([b'{"x": 1}', b"secret", None]), told.__setitem__)

    assert rows.to_pylist() == [{"x": 1, "y": None}, *[{"x": None, "y": None}] * 2]
    assert told == {1: "is not JSON, from character 0 on", 2: "is null"}


def test_no_bodies_become_no_rows_of_the_same_columns() -> None:
    schema = json_schema(field("x", "int"))

    assert schema.decoded(pa.chunked_array([], pa.binary())).schema.equals(schema.columns)


def test_refusal_names_the_topic_and_the_place_and_never_the_body() -> None:
    schema = json_schema(field("x", "int"))

    with pytest.raises(InvalidBodyError, match="topic 'paid': x is not a whole number") as caught:
        schema.check("paid", b'{"x": "a secret"}')

    assert "secret" not in str(caught.value)
    schema.check("paid", b'{"x": 1}')


# --- Avro bodies ------------------------------------------------------------------------------

AVRO_VALUES = [
    ("boolean", False, False),
    ("int", -(2**31), -(2**31)),
    ("long", 2**63 - 1, 2**63 - 1),
    ("float", 1.5, 1.5),
    ("double", math.inf, math.inf),
    ("string", "🐎", "🐎"),
    ("bytes", b"\x00", b"\x00"),
    (FIXED, b"ab", b"ab"),
    (COLOUR, "BLUE", "BLUE"),
    ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
    ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
    (record(field("y", "int"), name="Inner"), {"y": 1}, {"y": 1}),
    (["int", "null"], None, None),
    (DECIMAL, Decimal("-123.45"), Decimal("-123.45")),
    (logical("fixed", "decimal", name="D", size=4, precision=9, scale=4), Decimal("1.5"),
     Decimal("1.5000")),
    (logical("int", "date"), date(2026, 1, 31), date(2026, 1, 31)),
    (logical("long", "timestamp-micros"), NOON, NOON),
    (logical("long", "timestamp-millis"), NOON, NOON.replace(microsecond=123000)),
    (logical("long", "timestamp-micros"), NOON.astimezone(timezone(timedelta(hours=5))), NOON),
    (logical("int", "time-millis"), NOON.time(), "12:00:00.123000"),
    (logical("long", "time-micros"), NOON.time(), "12:00:00.123456"),
    (logical("string", "uuid"), "0190ae6f-8f53-7c00-8000-000000000001",
     "0190ae6f-8f53-7c00-8000-000000000001"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "shown"), AVRO_VALUES)
def test_value_of_every_avro_type_becomes_the_same_column(
    kind: Any, value: Any, shown: Any
) -> None:
    schema = avro_schema(field("x", kind))

    assert read(schema, avro_body(schema, x=value)) == [{"x": shown}]
    assert schema.columns.equals(json_schema(field("x", kind)).columns)


@pytest.mark.parametrize(
    ("kind", "written_as", "value", "problem"),
    [
        ("int", "long", 2**31, "x is out of the range of 32 bits"),
        ("string", "bytes", b"\xff", "is not Avro of this schema"),
        (COLOUR, "int", 2, "x is not one of the symbols of its enum"),
        (COLOUR, "int", -1, "x is not one of the symbols of its enum"),
        (["null", "int"], "int", 2, "is not Avro of this schema"),
        (logical("int", "date"), "int", 2**31 - 1, "x is not a date in the years 1 to 9999"),
        (logical("long", "timestamp-micros"), "long", 2**63 - 1,
         "x is not in the years 1 to 9999 in UTC"),
        (logical("int", "time-millis"), "int", 86_400_000, "x is not a time of day"),
        (DECIMAL, "bytes", b"\x01" * 4, "x has more digits than decimal(5, 2)"),
        (DECIMAL, "bytes", b"\x01" * 40, "x has more than 38 digits"),
        (logical("string", "uuid"), "string", "7", "x is not a uuid of 36 characters"),
        ("bytes", "long", -3, "is not Avro of this schema"),
        ({"type": "array", "items": "int"}, "long", 2**60, "is not Avro of this schema"),
    ],
)  # fmt: skip
def test_avro_of_another_schema_is_told(
    kind: Any, written_as: Any, value: Any, problem: str
) -> None:
    body = avro_body(avro_schema(field("x", written_as)), x=value)

    assert avro_schema(field("x", kind)).problem(body) == problem


def test_avro_must_end_where_its_schema_ends() -> None:
    schema = avro_schema(field("x", "string"))
    body = avro_body(schema, x="secret")

    assert schema.problem(body + b"\x00") == "has bytes after its end"
    assert schema.problem(body[:-1]) == "is not Avro of this schema"
    assert schema.problem(b"") == "is not Avro of this schema"


def test_without_fastavro_json_works_and_avro_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)

    assert json_schema(field("x", "int")).problem(b'{"x": 1}') is None
    with pytest.raises(EnvironmentProblemError, match=r"extra avro"):
        avro_schema(field("x", "int")).problem(b"\x02")


# --- schemas ----------------------------------------------------------------------------------


def test_schema_of_orders_has_a_column_for_each_field() -> None:
    columns = BodySchema.parse({"encoding": "json", "schema": ORDER}).columns

    line = pa.struct([("item", pa.string()), ("pieces", pa.int32())])
    assert {column.name: column.type for column in columns} == {
        "order_number": pa.int64(),
        "customer": pa.string(),
        "amount": pa.decimal128(12, 2),
        "ordered": pa.timestamp("us", tz="UTC"),
        "due": pa.date32(),
        "status": pa.string(),
        "lines": pa.list_(line),
        "labels": pa.map_(pa.string(), pa.string()),
        "file": pa.string(),
    }
    assert all(column.nullable for column in columns)
    assert columns.field("order_number").metadata == {b"comment": b"the shop's own"}


def test_schema_is_the_same_after_text_dict_and_pickle() -> None:
    schema = BodySchema.parse({"encoding": "json", "schema": ORDER})

    again = [
        BodySchema.parse(schema.to_json()),
        BodySchema.parse(schema.to_dict()),
        pickle.loads(pickle.dumps(schema)),  # noqa: S301
    ]
    assert again == [schema] * 3
    assert schema != BodySchema.parse({"encoding": "avro", "schema": ORDER})
    assert schema.encoding is BodyEncoding.JSON
    assert json.loads(schema.schema_json) == ORDER


def test_named_types_are_known_by_their_names_and_namespaces() -> None:
    inner = {"type": "record", "name": "Inner", "namespace": "b", "fields": [field("y", "int")]}
    schema = {
        "type": "record",
        "name": "a.Outer",
        "fields": [field("one", inner), field("two", "b.Inner"), field("three", COLOUR),
                   field("four", ["null", "Colour"]), field("five", "a.Colour")],
    }  # fmt: skip
    columns = BodySchema.parse({"encoding": "avro", "schema": schema}).columns

    assert columns.field("one").type == columns.field("two").type
    assert [columns.field(name).type for name in ("three", "four", "five")] == [pa.string()] * 3


FAULTS = [
    ("int", "its top level must be a record"),
    ([], "its top level must be a record"),
    (None, "its top level must be a record"),
    (record(), "the record: a record needs fields"),
    (record(field("x", "text")), "x: type 'text' is not known; define it before its use"),
    (record(field("x", 7)), "x: 7 is not a type"),
    (record({"name": "x"}), "x: has no type"),
    (record(field("a-b", "int")),
     "the record: 'a-b' is not a field name; use letters, digits and _"),
    (record(field("x", "null")), "x: null alone has no column; write a union of null and a type"),
    (record(field("x", ["int", "string"])), "x: a union must be of null and one other type"),
    (record(field("x", ["int"])), "x: a union must be of null and one other type"),
    (record(field("x", ["null", ["null", "int"]])), "x: a union may not hold a union"),
    (record(field("x", "int"), field("X", "int")),
     "x: occurs twice; names must differ in more than upper and lower case"),
    (record(field("x", "Paid")), "x: type 'Paid' holds itself, which no column can"),
    (record(field("x", {"type": "enum", "name": "E", "symbols": []})),
     "x: an enum needs symbols of letters, digits and _"),
    (record(field("x", {"type": "enum", "name": "E", "symbols": ["A", "A"]})),
     "x: a symbol occurs twice"),
    (record(field("x", {"type": "fixed", "name": "F", "size": 0})),
     "x: the size of a fixed must be from 1 to 65,536"),
    (record(field("x", {"type": "fixed", "name": "F", "size": True})),
     "x: the size of a fixed must be from 1 to 65,536"),
    (record(field("x", {"type": "fixed", "name": "int", "size": 1})),
     "x: fixed needs a name of letters, digits and _"),
    (record(field("x", FIXED), field("y", FIXED)), "y: type 'Two' is defined twice"),
    (record(field("x", logical("bytes", "decimal", precision=39))),
     "x: the precision must be from 1 to 38"),
    (record(field("x", logical("bytes", "decimal", precision=2, scale=3))),
     "x: the scale must be from 0 to the precision"),
    (record(field("x", logical("fixed", "decimal", name="F", size=1, precision=3))),
     "x: 1 bytes cannot hold 3 digits"),
    (record(field("x", logical("fixed", "duration", name="F", size=12))),
     "x: the logical type 'duration' is not supported"),
    (record(field("x", logical("long", "local-timestamp-micros"))),
     "x: the logical type 'local-timestamp-micros' of 'long' is not supported"),
    (record(field("x", logical("int", "uuid"))),
     "x: the logical type 'uuid' of 'int' is not supported"),
    (record(field("x", "int", default="1")), "x: its default is not a whole number"),
    (record(field("x", "bytes", default="🐎")), "x: its default has characters above U+00FF"),
    (record(field("Body", "string")), "Body: the topic has a column of this name; choose another"),
    (record(field("_metadata", "string")),
     "_metadata: the topic has a column of this name; choose another"),
    (record(*(field(f"x{number}", "int") for number in range(MAX_FIELDS + 1))),
     "the record: has more than 1,000 fields"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fault"), FAULTS)
def test_schema_that_cannot_be_columns_is_refused(schema: Any, fault: str) -> None:
    assert faults_of(schema) == (f"schema: {fault}",)
    assert faults_of(schema, "avro") == (f"schema: {fault}",)


@pytest.mark.parametrize("name", TOPIC.columns.names)
def test_no_field_may_have_the_name_of_a_column_of_topics(name: str) -> None:
    assert faults_of(record(field(name.upper(), "int")))


def test_names_inside_of_records_are_free() -> None:
    inner = record(field("body", "int"), name="Inner")

    assert value_of(inner, {"body": 1}) == {"body": 1}


def test_all_faults_are_told_at_once() -> None:
    broken = record(field("x", "text"), field("body", "int"), field("y", ["null"], default=3))

    with pytest.raises(BodySchemaError) as caught:
        BodySchema.parse({"encoding": "xml", "schema": broken, "more": 1})

    assert caught.value.faults == (
        "'more' is not one of encoding, schema",
        "encoding must be one of json, avro",
        "schema: x: type 'text' is not known; define it before its use",
        "schema: y: a union must be of null and one other type",
        "schema: body: the topic has a column of this name; choose another",
    )


def nested(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return record(field("x", kind))


def doubling(levels: int) -> Any:
    """Small as text, two to the power of `levels` columns."""
    kind: Any = record(field("a", "int"), field("b", "int"), name="T0")
    for level in range(1, levels):
        kind = record(field("a", kind), field("b", f"T{level - 1}"), name=f"T{level}")
    return kind


@pytest.mark.parametrize(
    "schema", [nested(MAX_DEPTH), nested(200), doubling(20)], ids=["deep", "deeper", "wide"]
)
def test_schema_without_end_is_refused(schema: Any) -> None:
    assert faults_of(schema)


@pytest.mark.parametrize(
    "given",
    [None, 7, [], "", "[]", "{", '{"encoding": NaN}', {"encoding": math.nan}, {1: 2, "a": 3},
     {"schema": {"type": "record", "name": "A", "fields": [], "doc": "x" * MAX_SCHEMA_BYTES}},
     '{"encoding": "json", "encoding": "json"}', "[" * 100_000, {"encoding": object()}],
    ids=lambda given: str(given)[:20].partition(" object")[0],
)  # fmt: skip
def test_what_is_no_schema_at_all_is_refused_by_the_same_error(given: Any) -> None:
    with pytest.raises(BodySchemaError):
        BodySchema.parse(given)


# --- a schema that gets wider -------------------------------------------------------------------

ORDER_FIELD, NOTE_FIELD = field("order", "long"), field("note", ["null", "string"])


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ([ORDER_FIELD], "note is missing"),
        ([field("order", "int"), NOTE_FIELD], "order is not the same"),
        ([field("order", ["null", "long"]), NOTE_FIELD], "order is not the same"),
        ([NOTE_FIELD, ORDER_FIELD], "new fields come behind the others"),
        ([ORDER_FIELD, field("new", ["null", "int"]), NOTE_FIELD], "new fields come behind"),
        ([ORDER_FIELD, NOTE_FIELD, field("new", "int")], "new is new, so it must be a union"),
        ([ORDER_FIELD, NOTE_FIELD, field("new", "int", default=1)], "new is new, so it must be"),
        ([ORDER_FIELD, NOTE_FIELD, field("new", ["int", "null"], default=1)], "no other default"),
        ([ORDER_FIELD, field("text", ["null", "string"])], "note is missing"),
    ],
)
def test_what_is_not_a_wider_schema_is_told_by_its_field(fields: Any, difference: str) -> None:
    for schema in (json_schema, avro_schema):
        before, after = schema(ORDER_FIELD, NOTE_FIELD), schema(*fields)
        assert difference in ", ".join(after.differences(before))


def test_wider_schema_has_no_differences() -> None:
    more = [field("new", ["null", "int"], default=None), field("more", [COLOUR, "null"])]
    before, after = (json_schema(ORDER_FIELD, *added) for added in ([], more))
    renamed = BodySchema.parse({"encoding": "json", "schema": record(ORDER_FIELD, name="Other")})

    assert after.differences(before) == after.differences(after) == []
    assert renamed.differences(before) == before.differences(renamed) == []
    assert avro_schema(ORDER_FIELD).differences(before) == ["its encoding is avro, and was json"]


def test_another_namespace_makes_names_mean_other_types() -> None:
    colours = [
        field("a", {"type": "enum", "name": "Colour", "symbols": ["RED"]}),
        field("b", {"type": "enum", "name": "Colour", "namespace": "n", "symbols": ["UP"]}),
        field("c", "Colour"),
    ]
    colours[0]["type"]["namespace"] = ""
    before, spaced, dotted = (
        BodySchema.parse({"encoding": "json", "schema": {**record(*colours), **more}})
        for more in ({}, {"namespace": "n"}, {"name": "n.Paid"})
    )

    assert spaced.differences(before) == dotted.differences(before)
    assert spaced.differences(before) == ["its namespace is not the same"]
    assert spaced.differences(dotted) == []
