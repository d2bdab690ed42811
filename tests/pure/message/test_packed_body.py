"""Columns become bodies, and the bodies are read back as the same columns."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)  # fmt: skip

from txmq.errors import BodySchemaError
from txmq.message.body_schema import BodySchema
from txmq.message.packed_body import packer, python_column, schema_of_columns

INNER = StructType(
    [StructField("name", StringType()), StructField("tags", ArrayType(StringType()))]
)
SCHEMA = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("small", ByteType()),
        StructField("paid", BooleanType()),
        StructField("price", DoubleType()),
        StructField("total", DecimalType(12, 2)),
        StructField("day", DateType()),
        StructField("moment", TimestampType()),
        StructField("text", StringType()),
        StructField("octets", BinaryType()),
        StructField("lines", ArrayType(INNER)),
        StructField("counts", MapType(StringType(), MapType(StringType(), IntegerType()))),
    ]
)
texts = st.text(max_size=4)
moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
values = st.fixed_dictionaries(
    {
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "small": st.none() | st.integers(-128, 127),
        "paid": st.none() | st.booleans(),
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "total": st.none() | st.decimals(-1000, 1000, places=2),
        "day": st.none() | st.dates(),
        "moment": st.none() | moments,
        "text": st.none() | texts,
        "octets": st.none() | st.binary(max_size=4),
        "lines": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {"name": st.none() | texts, "tags": st.none() | st.lists(texts, max_size=2)}
            ),
            max_size=2,
        ),
        "counts": st.none()
        | st.dictionaries(texts, st.dictionaries(texts, st.integers(-9, 9)), max_size=2),
    }
)


def rows_of(values: list[dict[str, Any]]) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Rows as Spark hands them to a task, and as a packer takes them."""
    columns = pa.Table.from_pylist(values, schema=to_arrow_schema(SCHEMA, timezone="UTC"))
    lists = [python_column(columns[name].combine_chunks()) for name in columns.column_names]
    rows = [dict(zip(columns.column_names, row, strict=True)) for row in zip(*lists, strict=True)]
    return columns, rows


@pytest.mark.parametrize("encoding", ["json", "avro"])
@given(rows=st.lists(values, min_size=1, max_size=3))
def test_bodies_are_read_back_as_the_columns(encoding: str, rows: list[dict[str, Any]]) -> None:
    schema = BodySchema.parse({**schema_of_columns(SCHEMA, ()), "encoding": encoding})
    columns, plain = rows_of(rows)

    bodies = pa.array(list(map(packer(schema), plain)), pa.binary())

    problems: list[tuple[int, str]] = []
    decoded = schema.decoded(bodies, lambda number, problem: problems.append((number, problem)))
    assert problems == []
    assert decoded.to_pylist() == columns.cast(decoded.schema).to_pylist()


def test_body_without_a_schema_is_an_object_without_nulls() -> None:
    body = packer(None)(
        {
            "n": 1, "none": None, "at": datetime(2026, 1, 2, 3, tzinfo=UTC), "on": date(2026, 1, 2),
            "sum": Decimal("1.50"), "octets": b"\x00", "lines": [{"a": None}],
        }
    )  # fmt: skip

    assert json.loads(body) == {
        "n": 1, "at": "2026-01-02T03:00:00Z", "on": "2026-01-02", "sum": "1.50", "octets": "AA==",
        "lines": [{"a": None}],
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_number_without_json_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        packer(None)({"n": value})


def test_fields_of_a_message_are_left_out_of_the_schema() -> None:
    given = StructType([StructField("keys", StringType()), StructField("id", LongType())])

    schema = schema_of_columns(given, ("keys",))

    assert schema["schema"]["fields"] == [{"name": "id", "type": ["null", "long"]}]


def test_columns_without_an_avro_type_are_all_named() -> None:
    wrong = StructType(
        [
            StructField("nothing", NullType()),
            StructField("local", ArrayType(TimestampNTZType())),
            StructField("byNumber", MapType(IntegerType(), StringType())),
        ]
    )

    with pytest.raises(BodySchemaError) as told:
        schema_of_columns(wrong, ())
    assert [fault.partition(":")[0] for fault in told.value.faults] == [
        "nothing", "local", "byNumber",
    ]  # fmt: skip


@pytest.mark.parametrize("schema", [None, "id long", {"type": "record"}, LongType()])
def test_what_is_no_schema_of_a_frame_is_refused(schema: Any) -> None:
    with pytest.raises(BodySchemaError, match="must be the schema of a DataFrame"):
        schema_of_columns(schema, ())
