"""What verify reads by itself: appended rows, ranges of rows, files that vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.stores import HandMadeStore, transaction_id
from txmq.errors import ConfigError, StorageError
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store
from txmq.verify import verify
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
    ids = IdRange(transaction_id(first), transaction_id(end))

    table = PinnedTable(location, {}).within(ids)

    inside = sorted(number for number in (1, 4, *range(2, 8)) if first <= number < end)
    assert sorted(table.rows(["number"])["number"].to_pylist()) == inside
    assert sorted(table.appended(["number"])["number"].to_pylist()) == inside


def test_file_that_vanishes_while_it_is_read_is_an_error_with_its_next_step(
    clean: HandMadeStore,
) -> None:
    table = PinnedTable(f"{clean.location}/half", {})
    for path in Path(clean.location, "half").rglob("*.parquet"):
        if "_delta_log" not in str(path):
            path.unlink()

    with pytest.raises(StorageError, match=r"half: lost the file .*, verify again"):
        table.rows(["transaction_id"])


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
