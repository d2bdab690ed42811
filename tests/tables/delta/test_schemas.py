from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.reading import delta_rs
from txmq.delta.schemas import SCHEMA_VERSION, TableSchema
from txmq.delta.table import Table
from txmq.store.schemas import HALF, OP, REGISTER, SETTLED, TOPIC

ALL = [HALF, OP, SETTLED, TOPIC, REGISTER]


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.name)
def test_schema_names_only_columns_that_it_has(schema: TableSchema) -> None:
    names = schema.columns.names

    assert len(set(names)) == len(names)
    assert set(schema.partition_by) <= set(names)
    assert set(schema.statistics_columns) <= set(names) - set(schema.partition_by)


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.name)
def test_every_column_says_what_it_is(schema: TableSchema) -> None:
    assert all((field.metadata or {}).get(b"comment") for field in schema.columns)


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.name)
def test_no_type_needs_a_newer_protocol(schema: TableSchema) -> None:
    kinds = [field.type for field in schema.columns]

    for kind in kinds:
        assert not pa.types.is_dictionary(kind)
        assert not pa.types.is_unsigned_integer(kind)
        assert not pa.types.is_large_string(kind)
        if pa.types.is_timestamp(kind):
            assert (kind.unit, kind.tz) == ("us", "UTC")


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.name)
def test_made_table_can_be_read_by_any_delta_reader(schema: TableSchema, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "t"), schema)
    table.writer.create(checkpoint_interval=100)

    protocol = delta_rs(table.folder).protocol()

    assert protocol.min_reader_version <= 1
    assert not protocol.reader_features
    assert delta_rs(table.folder).metadata().partition_columns == list(schema.partition_by)
    assert table.log.properties()["txmq.schema_version"] == str(SCHEMA_VERSION)


def test_change_feed_is_kept_on_the_logs_that_streams_read() -> None:
    assert {schema.name for schema in ALL if schema.change_data_feed} == {"half", "op"}


def test_comments_reach_the_table(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "op"), OP)
    table.writer.create(checkpoint_interval=100)

    fields = {field.name: field.metadata for field in delta_rs(table.folder).schema().fields}

    assert fields["transaction_id"]["comment"] == "UUIDv7; sorts by time"


def test_body_has_no_statistics() -> None:
    for schema in (HALF, TOPIC):
        assert "body" not in schema.statistics_columns
