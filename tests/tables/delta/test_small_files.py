"""A round that reads a small file several times asks the storage once; memory stays bounded."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.builders import halves
from tests.kit.numbers_table import another
from txmq.delta import file_rows as small_files
from txmq.delta.file_rows import (
    KEPT_BYTES,
    KEPT_FILES,
    SMALL_BYTES,
    SMALL_ROWS,
    SmallFiles,
    some_columns,
)
from txmq.delta.table import Table
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

COLUMNS = ("transaction_id", "sequence", "body")


def rows(count: int = 1) -> pa.Table:
    return pa.table({"number": list(range(count)), "text": ["x"] * count})


def half_with(store: Store, count: int) -> Table:
    table = store.tables.half_log().table
    rows = pa.concat_tables([halves(number) for number in range(1, count + 1)])
    table.writer.append(rows, app_id=str(uuid.uuid4()), number=1)
    return keeping(another(table))


def keeping(table: Table) -> Table:
    table.rows.keep_small_files()
    return table


def kept_files() -> SmallFiles:
    kept = SmallFiles()
    kept.is_on = True
    return kept


def test_small_file_is_read_once_whatever_columns_are_asked_for(store: Store) -> None:
    table = half_with(store, 1)
    (file,) = table.files.all()
    narrow = table.rows.read([file], COLUMNS[:2])

    Path(table.location, file.path).unlink()

    assert table.rows.read([file], COLUMNS[:2]).equals(narrow)
    wide = table.rows.read([file], COLUMNS)
    assert wide["body"].to_pylist() == first_body()
    batches = list(table.rows.batches(file, COLUMNS, 10))
    assert pa.Table.from_batches(batches).select(COLUMNS).equals(wide)


def first_body() -> list[bytes]:
    """The body that the first half of the kit has."""
    return halves(1)["body"].to_pylist()


def test_file_of_more_rows_is_read_each_time(store: Store) -> None:
    table = half_with(store, SMALL_ROWS + 1)
    for file in table.files.all():
        table.rows.read([file], COLUMNS)
        is_kept = table.rows.small_files.rows(file.path) is not None
        assert is_kept == (file.num_records <= SMALL_ROWS)


def test_what_was_just_written_is_not_fetched(store: Store) -> None:
    table = keeping(store.tables.half_log().table)
    table.writer.append(halves(1), app_id="test", number=1)
    (file,) = table.refresh().files.all()
    Path(table.location, file.path).unlink()

    assert table.rows.read([file], ("body",)).num_rows == file.num_records


def test_kept_rows_are_bounded_in_bytes_and_the_oldest_go() -> None:
    kept = kept_files()
    for number in range(10):
        kept.keep(str(number), rows(), SMALL_BYTES)

    names = [name for name in map(str, range(10)) if kept.rows(name) is not None]

    assert names == ["6", "7", "8", "9"]
    assert len(names) * SMALL_BYTES == KEPT_BYTES


def test_rows_that_hold_more_than_a_small_file_are_not_kept() -> None:
    kept = kept_files()
    kept.keep("bytes", rows(), SMALL_BYTES + 1)
    kept.keep("rows", rows(SMALL_ROWS + 1), 100)

    assert kept.rows("bytes") is None
    assert kept.rows("rows") is None


def test_column_that_an_older_file_lacks_is_left_out() -> None:
    assert some_columns(rows(), ["text", "later"]).column_names == ["text"]


def test_few_rows_of_a_large_file_are_not_small() -> None:
    assert small_files.is_small(SMALL_BYTES, 1)
    assert not small_files.is_small(SMALL_BYTES + 1, 1)
    assert not small_files.is_small(1, SMALL_ROWS + 1)


def test_few_files_are_kept_however_small_they_are() -> None:
    kept = kept_files()
    for number in range(2_000):
        kept.keep(str(number), rows(), 100)

    assert len(kept._rows) == KEPT_FILES


def test_publisher_keeps_rows_of_its_two_logs_and_of_no_topic(store: Store) -> None:
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group="orders") as producer:
        for number in range(3):
            producer.send(Message(f"topic-{number}", b"x"))
    publisher.run_once()
    rounds: Any = publisher._rounds()

    assert rounds._half.table.rows.small_files._rows
    topics = rounds._topics._topics.values()
    assert [len(topic.table.rows.small_files._rows) for topic in topics] == [0, 0, 0]
