"""What verify reads by itself: appended rows, ranges of rows, files that vanish."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.foreign_input import ForeignProgram, Told, column_of
from tests.kit.stores import HandMadeStore, transaction_id
from txmq.delta.log_files import clean_log
from txmq.delta.table import Table
from txmq.errors import ConfigError, StorageError
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.schemas import HALF, SETTLED
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify
from txmq.verify.checker import LOOKS_MAX
from txmq.verify.logs import LogChecks
from txmq.verify.tables import IdRange, PinnedTable

COLUMNS = ["transaction_id", "number", "_commit_version"]
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def append(location: str, *numbers: int) -> None:
    ids = [transaction_id(number) for number in numbers]
    rows = pa.table({"transaction_id": ids, "number": pa.array(numbers, pa.int64())})
    write_deltalake(location, rows, mode="append", configuration=FEED)


def rows_of(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows)


def change_feed(location: str) -> list[dict[str, object]]:
    """What delta-rs calls inserted."""
    rows = pa.table(DeltaTable(location).load_cdf(0)).to_pylist()
    return [row for row in rows if row["_change_type"] == "insert"]


def test_appended_rows_are_those_that_the_change_feed_calls_inserted(location: str) -> None:
    for numbers in ((1, 2), (3,), (4, 5)):
        append(location, *numbers)
    DeltaTable(location).update(updates={"number": "7"}, predicate="number = 2")
    DeltaTable(location).delete("number = 5")
    DeltaTable(location).optimize.compact()
    append(location, 6)

    appended = PinnedTable(location, {}).appended(COLUMNS)

    assert rows_of(appended.to_pylist()) == rows_of(change_feed(location))
    assert appended["number"].to_pylist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("first", "end"), [(0, 3), (2, 5), (3, 3), (0, 9), (7, 9)])
def test_range_of_transactions_is_read_alone(location: str, first: int, end: int) -> None:
    append(location, 1, 4)
    append(location, *range(2, 8))
    ids = IdRange(transaction_id(first).encode(), transaction_id(end).encode())

    table = PinnedTable(location, {}).within(ids)

    inside = sorted(number for number in (1, 4, *range(2, 8)) if first <= number < end)
    assert sorted(table.rows(["number"])["number"].to_pylist()) == inside
    assert sorted(table.appended(["number"])["number"].to_pylist()) == inside


def test_statistics_that_are_none_are_an_error_that_names_the_table(
    store: Store,
) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"42"))
    rows = pa.table(DeltaTable(f"{store.location}/half").to_pyarrow_table())
    row = {name: rows[name].combine_chunks() for name in rows.column_names}
    statistics = Told('{"numRecords": "x"}')
    ForeignProgram(store.location, "half").append(row, HALF.partition_by, statistics)

    with pytest.raises(StorageError, match="half: cannot be read"):
        verify(store.location)


def test_id_that_is_no_text_is_in_a_range_and_stops_neither_verify_nor_retention(
    store: Store,
) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    broker = Broker(store, clock=clock)
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        producer.send(Message("order-paid", b"42"))
        broker.run_once()
    rows = pa.table(DeltaTable(f"{store.location}/settled").to_pyarrow_table())
    row = {name: rows[name].combine_chunks() for name in rows.column_names}
    row["transaction_id"] = column_of(b"\xff\xfe", pa.string())
    ForeignProgram(store.location, "settled").append(row, SETTLED.partition_by)

    assert verify(store.location).violation_count == 1
    clock.advance(6 * 86_400)
    assert not broker.run_once().maintained.failed


@pytest.mark.parametrize(("path", "column"), [("op", "kind"), ("topics/order-paid", "message_id")])
def test_text_that_is_not_utf8_stops_neither_verify_nor_maintenance(
    store: Store, path: str, column: str
) -> None:
    broker = Broker(store)
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"42"))
        broker.run_once()
        rows = pa.table(DeltaTable(f"{store.location}/{path}").to_pyarrow_table()).slice(0, 1)
        row = {name: rows[name].combine_chunks() for name in rows.column_names}
        row[column] = column_of(b"\xff\xfe", pa.string())
        table = store.tables.table_at(path)
        ForeignProgram(store.location, path).append(row, table.schema.partition_by)
        for _ in range(2 * store.config.checkpoint_interval):
            producer.send(Message("order-paid", b"42"))
        broker.run_once()

    assert not Maintenance(store).run_once().failed
    broken = {one.invariant for one in verify(store.location).results if one.violation_count}
    assert ("I3" in broken) == (path == "topics/order-paid")


def test_half_with_a_topic_that_is_no_text_does_not_stop_verify(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"42"))
    rows = pa.table(DeltaTable(f"{store.location}/half").to_pyarrow_table()).slice(0, 1)
    row = {name: rows[name].combine_chunks() for name in rows.column_names}
    row["transaction_id"] = pa.array([transaction_id(7)])
    row["real_topic"] = column_of(b"\xff\xfe", pa.string())
    ForeignProgram(store.location, "half").append(row, HALF.partition_by)
    Broker(store).run_once()

    assert verify(store.location).results


def test_file_that_vanishes_while_it_is_read_is_an_error_with_its_next_step(
    clean: HandMadeStore,
) -> None:
    table = PinnedTable(f"{clean.location}/half", {})
    for path in Path(clean.location, "half").rglob("*.parquet"):
        if "_delta_log" not in str(path):
            path.unlink()

    with pytest.raises(StorageError, match=r"half: lost the file .*, verify again"):
        table.rows(["transaction_id"])


def test_files_that_have_lost_their_content_are_named_and_the_rest_is_judged(
    clean: HandMadeStore,
) -> None:
    for table in ("half", "op"):
        for path in Path(clean.location, table).rglob("*.parquet"):
            path.write_bytes(b"")

    report = verify(clean.location)

    (files,) = [result for result in report.results if result.invariant == "I26"]
    assert files.violation_count >= 2
    assert "has 0 bytes" in files.violations[0].detail


def test_file_whose_content_is_damaged_is_an_error_that_names_it(clean: HandMadeStore) -> None:
    for path in Path(clean.location, "half").rglob("*.parquet"):
        path.write_bytes(b"x" * path.stat().st_size)

    with pytest.raises(StorageError, match=r"half: the file .*parquet cannot be read .*backup"):
        verify(clean.location)


def cleaned_while_it_is_verified(store: Store, looks: int) -> Callable[[], None]:
    """Before the rows of `half` are read, compaction and clean-up take the files of the version."""
    left, numbers = iter(range(looks)), count(1)

    def clean_up() -> None:
        if next(left, None) is None:
            return
        half = store.tables.table_at("half").refresh()
        half.writer.rewrite(half.files.all(), half.writer.new_files(rows_in(half)))
        half.writer.append(rows_in(half)[:0], app_id="later", number=next(numbers))
        half.writer.checkpoint()
        clean_log(half, half.version)

    return clean_up


def rows_in(table: Table) -> pa.Table:
    return table.rows.read(table.files.all(), table.schema.columns.names)


@pytest.mark.parametrize("looks", [1, LOOKS_MAX - 1, LOOKS_MAX])
def test_store_is_looked_at_again_where_a_clean_up_takes_a_file_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"paid"))
    clean_up, check = cleaned_while_it_is_verified(store, looks), LogChecks.run

    def checked(checks: LogChecks) -> None:
        clean_up()
        check(checks)

    monkeypatch.setattr(LogChecks, "run", checked)

    if looks < LOOKS_MAX:
        assert verify(store.location, drained=False).is_clean
    else:
        with pytest.raises(StorageError, match=r"during each of 5 looks .* log_reserved_time_s"):
            verify(store.location, drained=False)


@pytest.mark.parametrize("queue", [-(2**31), 2**31 - 1])
def test_queue_number_that_another_program_wrote_is_a_number_like_any_other(
    store: Store, queue: int
) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"paid"))
    half = store.tables.table_at("half").refresh()
    rows = rows_in(half)
    columns = {"transaction_id": transaction_id(1), "real_queue_id": queue}
    for name, value in columns.items():
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        rows = rows.set_column(place, field, pa.array([value], field.type))
    write_deltalake(f"{store.location}/half", rows, mode="append")

    report = verify(store.location, drained=False)

    assert report.is_clean
    assert report.counts["messages"] == 2


@pytest.mark.parametrize(
    "keys", [{"orders": "secret"}, {"orders": [b"secret"]}, ["secret"], {7: []}]
)
def test_text_in_place_of_a_list_of_keys_is_refused_and_not_shown(
    tmp_path: Path, keys: Any
) -> None:
    with pytest.raises(ConfigError, match="a list of keys") as refused:
        verify(tmp_path, claim_keys=keys)

    assert "secret" not in str(refused.value)


# --- commits of other programs -------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        '{"commitInfo":{}}\n\n   \n',
        '{"commitInfo":null,"add":null,"remove":null,"txn":null}\n',
        '{"commitInfo":{},"cdc":null}\n',
    ],
)
def test_commit_that_is_spelled_oddly_is_checked_as_any_other(store: Store, line: str) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("order-paid", b"1"))
        Broker(store).run_once()
        for path in ("half", "op", "settled", "topics/order-paid"):
            newest = max(Path(store.location, path, "_delta_log").glob("*.json"))
            newest.with_name(f"{int(newest.stem) + 1:020}.json").write_text(line)
        producer.send(Message("order-paid", b"2"))
    Broker(store).run_once()

    # No promise but that nobody else commits to half and op.
    assert set(verify(store.location).broken) == {"I17"}
