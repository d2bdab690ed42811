# ruff: noqa: PT017
"""Bodies for any schema: what is written is what the columns show, and nothing else gets in."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.bodies import ORDER, avro_body, avro_schema, field, json_schema, logical, record
from txmq.errors import BodySchemaError
from txmq.message.body_schema import BodySchema

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).map(lambda name: f"x_{name}")
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
DAYS = st.dates()
TIMES = st.times()


def decimals(precision: int, scale: int) -> Any:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda number: Decimal(number).scaleb(-scale, Context(prec=50))
    )


def single(kind: Any, values: Any, to_json: Any = lambda value: value, shown: Any = None) -> Any:
    """A type, its values, how JSON has them, and what the column shows."""
    return st.just((kind, values, to_json, shown or (lambda value: value)))


def in_utc(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def in_base64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


SINGLES = st.one_of(
    single("boolean", st.booleans()),
    single("int", st.integers(-(2**31), 2**31 - 1)),
    single("long", st.integers(-(2**63), 2**63 - 1)),
    single("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    single("double", st.floats(allow_nan=False, allow_infinity=False)),
    single("string", TEXT),
    single("bytes", st.binary(max_size=8), in_base64),
    single(logical("bytes", "decimal", precision=38, scale=9), decimals(38, 9), str),
    single(logical("bytes", "decimal", precision=5, scale=0), decimals(5, 0), int),
    single(logical("int", "date"), DAYS, date.isoformat),
    single(logical("long", "timestamp-micros"), MOMENTS, in_utc),
    single(logical("long", "time-micros"), TIMES, lambda time: time.isoformat(),
           lambda time: time.isoformat(timespec="microseconds")),
    single(logical("string", "uuid"), st.uuids().map(str), str.upper),
)  # fmt: skip


def nullable(inner: Any) -> Any:
    kind, values, to_json, shown = inner
    return (
        ["null", kind],
        st.none() | values,
        lambda value: None if value is None else to_json(value),
        lambda value: None if value is None else shown(value),
    )


def listed(inner: Any) -> Any:
    kind, values, to_json, shown = inner
    return (
        {"type": "array", "items": kind},
        st.lists(values, max_size=3),
        lambda many: [to_json(value) for value in many],
        lambda many: [shown(value) for value in many],
    )


def mapped(inner: Any) -> Any:
    kind, values, to_json, shown = inner
    return (
        {"type": "map", "values": kind},
        st.dictionaries(TEXT, values, max_size=3),
        lambda many: {key: to_json(value) for key, value in many.items()},
        lambda many: [(key, shown(value)) for key, value in many.items()],
    )


def is_no_union(inner: Any) -> bool:
    return not isinstance(inner[0], list)


KINDS = st.recursive(
    SINGLES,
    lambda inner: inner.map(listed) | inner.map(mapped) | inner.filter(is_no_union).map(nullable),
    max_leaves=3,
)


@st.composite
def typed(draw: Any) -> Any:
    """Fields, values for them, the same as JSON, and as the columns show them."""
    kinds = draw(st.dictionaries(NAMES, KINDS, min_size=1, max_size=4))
    values = {name: draw(kind[1]) for name, kind in kinds.items()}
    fields = [field(name, kind[0]) for name, kind in kinds.items()]
    as_json = {name: kinds[name][2](value) for name, value in values.items()}
    return fields, values, as_json, {name: kinds[name][3](v) for name, v in values.items()}


def read(schema: BodySchema, body: bytes) -> list[dict[str, Any]]:
    assert schema.problem(body) is None
    return list(schema.decoded(pa.array([body])).to_pylist())


@given(typed())
def test_json_and_avro_of_the_same_values_become_the_same_columns(case: Any) -> None:
    fields, values, as_json, shown = case
    of_json, of_avro = json_schema(*fields), avro_schema(*fields)
    body = json.dumps(as_json, ensure_ascii=False).encode()

    assert read(of_json, body) == [shown]
    assert read(of_avro, avro_body(of_avro, **values)) == [shown]
    assert of_json.columns.equals(of_avro.columns)


ORDERS = {
    encoding: BodySchema.parse({"encoding": encoding, "schema": ORDER})
    for encoding in ("json", "avro")
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["order_number", "amount", "lines", "due", "x"]), inner)
    ),
    max_leaves=6,
)
GOOD = {"order_number": 1, "customer": "c", "amount": "1.50", "ordered": "2026-01-31T00:00:00Z"}


@given(st.sampled_from(["json", "avro"]), st.binary(max_size=64))
def test_any_bytes_are_a_body_or_a_problem_that_does_not_show_them(
    encoding: str, body: bytes
) -> None:
    schema = ORDERS[encoding]

    problem = schema.problem(body)
    rows = schema.decoded(pa.array([body]))

    assert rows.num_rows == 1
    assert (problem is None) or all(value is None for value in rows.to_pylist()[0].values())


@given(st.sampled_from(["lines", "labels", "due", "status", "amount"]), ANY_JSON)
def test_any_value_in_a_body_is_taken_or_told_by_its_field(name: str, value: Any) -> None:
    body = json.dumps({**GOOD, name: value}).encode()

    problem = ORDERS["json"].problem(body)

    assert ORDERS["json"].decoded(pa.array([body])).num_rows == 1
    assert problem is None or problem.startswith((name, "holds", "has an object"))


@given(ANY_JSON)
def test_anything_is_a_schema_or_an_error_with_faults(value: Any) -> None:
    for schema in (value, record(field("x", value)), record(field("x", "int", default=value))):
        try:
            found = BodySchema.parse({"encoding": "json", "schema": schema})
        except BodySchemaError as error:
            assert error.faults
        else:
            assert BodySchema.parse(found.to_json()) == found


@given(st.floats(width=32))
def test_avro_keeps_every_float(number: float) -> None:
    schema = avro_schema(field("x", "float"))

    (row,) = read(schema, avro_body(schema, x=number))

    assert row["x"] == number or (math.isnan(number) and math.isnan(row["x"]))


@given(typed(), st.lists(SINGLES.map(nullable), min_size=1, max_size=3))
def test_bodies_of_an_earlier_schema_are_bodies_of_a_wider_one(case: Any, more: Any) -> None:
    fields, values, as_json, shown = case
    new = {f"y_{number}": kind[0] for number, kind in enumerate(more)}
    wider = [*fields, *(field(name, kind) for name, kind in new.items())]
    nulls = dict.fromkeys(new)

    for schema, text in ((json_schema, json.dumps(as_json).encode()), (avro_schema, None)):
        earlier, later = schema(*fields), schema(*wider)
        body = avro_body(earlier, **values) if text is None else text
        assert later.differences(earlier) == []
        assert read(later, body) == [{**shown, **nulls}]
        assert earlier.differences(later) == [f"{name} is missing" for name in new]


@given(st.data(), typed())
def test_body_of_avro_that_ends_early_shows_nothing_that_was_not_sent(data: Any, case: Any) -> None:
    fields, values, _, shown = case
    schema = avro_schema(*fields)
    body = avro_body(schema, **values)
    part = body[: data.draw(st.integers(0, len(body)))]

    (row,) = schema.decoded(pa.array([part])).to_pylist()

    if schema.problem(part) is None:
        gone = [name for name in shown if row[name] != shown[name]]
        assert [*shown][len(shown) - len(gone) :] == gone
        assert all(row[name] is None for name in gone)
