"""Local transactions that are Delta writes: marker, fence, and what the producer hears."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.kit.asked import answers, asked_about, prepared, states
from tests.kit.reading import bodies, log_rows, publish, wait_until
from txmq.check.service import CheckService
from txmq.errors import (
    AlreadyResolvedError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
    NotPreparedError,
    StorageError,
)
from txmq.listeners.delta import DeltaListener
from txmq.message.ids import new_transaction_id
from txmq.producer.producer import TransactionProducer
from txmq.testing import ManualClock
from txmq.user_data.delta_marker import DONE, FENCED, LOOKED_UP_SINGLY, MarkedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.producer.transaction import Transaction
    from txmq.store.store import Store

GROUP = "orders"
RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class Orders:
    """A business table with the orders 1 (open) and 2 (open)."""

    location: str
    spark: SparkSession

    def rows(self) -> list[tuple[int, str]]:
        found = DeltaTable(self.location).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["status"]) for row in found)

    @property
    def version(self) -> int:
        return int(DeltaTable(self.location).version())

    def changes(self) -> DataFrame:
        return self.spark.createDataFrame([(1, "paid"), (3, "paid")], "id bigint, status string")


def rows_of(*rows: tuple[int, str]) -> pa.Table:
    ids, statuses = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "status": pa.array(statuses, pa.string())})


@pytest.fixture
def orders(tmp_path: Path, spark: SparkSession) -> Orders:
    location = str(tmp_path / "orders")
    write_deltalake(location, rows_of((1, "open"), (2, "open")))
    return Orders(location, spark)


@pytest.fixture
def listener(orders: Orders) -> DeltaListener:
    return DeltaListener(orders.location)


@pytest.fixture
def producer(store: Store, listener: DeltaListener) -> Any:
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        yield producer


# --- every kind of write --------------------------------------------------------------------------


def append(orders: Orders, transaction: Transaction) -> None:
    writer = orders.changes().write.format("delta").mode("append")
    writer.options(**transaction.delta_options()).save(orders.location)


def overwrite(orders: Orders, transaction: Transaction) -> None:
    writer = orders.changes().write.format("delta").mode("overwrite")
    writer.options(**transaction.delta_options()).save(orders.location)


def replace_where(orders: Orders, transaction: Transaction) -> None:
    writer = orders.changes().where("id = 1").write.format("delta").mode("overwrite")
    writer.option("replaceWhere", "id = 1").options(**transaction.delta_options()).save(
        orders.location
    )


def merge(orders: Orders, transaction: Transaction) -> None:
    orders.changes().createOrReplaceTempView("changes")
    with transaction.delta_sql(orders.spark) as sql:
        sql(
            f"MERGE INTO delta.`{orders.location}` AS o USING changes AS c ON o.id = c.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def merge_by_delta_table(orders: Orders, transaction: Transaction) -> None:
    from delta.tables import DeltaTable as SparkDeltaTable

    target = SparkDeltaTable.forPath(orders.spark, orders.location).alias("o")
    merging = target.merge(orders.changes().alias("c"), "o.id = c.id").whenMatchedUpdateAll()
    with transaction.delta_sql(orders.spark):
        merging.whenNotMatchedInsertAll().execute()


def update(orders: Orders, transaction: Transaction) -> None:
    with transaction.delta_sql(orders.spark) as sql:
        sql(f"UPDATE delta.`{orders.location}` SET status = 'paid' WHERE id = 1")


def delete(orders: Orders, transaction: Transaction) -> None:
    with transaction.delta_sql(orders.spark) as sql:
        sql(f"DELETE FROM delta.`{orders.location}` WHERE id = 2")


def insert(orders: Orders, transaction: Transaction) -> None:
    with transaction.delta_sql(orders.spark) as sql:
        sql(f"INSERT INTO delta.`{orders.location}` VALUES (3, 'paid')")


def delta_rs_append(_: Orders, transaction: Transaction) -> None:
    with transaction.delta_rs() as (handle, properties):
        write_deltalake(handle, rows_of((3, "paid")), mode="append", commit_properties=properties)


def delta_rs_merge(_: Orders, transaction: Transaction) -> None:
    with transaction.delta_rs() as (handle, properties):
        (
            handle.merge(rows_of((1, "paid")), "t.id = s.id", source_alias="s", target_alias="t",
                         commit_properties=properties)
            .when_matched_update_all()
            .execute()
        )  # fmt: skip


WRITES: dict[str, tuple[Callable[[Orders, Transaction], None], list[tuple[int, str]]]] = {
    "append": (append, [(1, "open"), (1, "paid"), (2, "open"), (3, "paid")]),
    "overwrite": (overwrite, [(1, "paid"), (3, "paid")]),
    "replaceWhere": (replace_where, [(1, "paid"), (2, "open")]),
    "MERGE": (merge, [(1, "paid"), (2, "open"), (3, "paid")]),
    "DeltaTable.merge": (merge_by_delta_table, [(1, "paid"), (2, "open"), (3, "paid")]),
    "UPDATE": (update, [(1, "paid"), (2, "open")]),
    "DELETE": (delete, [(1, "open")]),
    "INSERT": (insert, [(1, "open"), (2, "open"), (3, "paid")]),
    "delta-rs append": (delta_rs_append, [(1, "open"), (2, "open"), (3, "paid")]),
    "delta-rs merge": (delta_rs_merge, [(1, "paid"), (2, "open")]),
}
EVERY_WRITE = pytest.mark.parametrize("name", WRITES)


@EVERY_WRITE
def test_business_first_is_committed(
    name: str, orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    write, after = WRITES[name]
    transaction = prepared(producer)
    write(orders, transaction)

    version = orders.version
    assert states(listener, transaction.id) == ["COMMIT"]
    assert orders.version == version
    assert orders.rows() == after
    transaction.commit()
    publish(producer.store)
    assert bodies(producer.store) == [transaction.id.encode()]


@EVERY_WRITE
def test_fence_first_nothing_lands_and_the_producer_hears_it(
    name: str, orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    write, _ = WRITES[name]
    before, transaction = orders.rows(), prepared(producer)
    assert states(listener, transaction.id) == ["ROLLBACK"]

    with pytest.raises(LocalTransactionFencedError, match="nothing was changed"):
        # The options of a DataFrame know nothing yet; `commit()` looks.
        write(orders, transaction)
        transaction.commit()

    assert orders.rows() == before
    assert log_rows(producer.store, "op") == []
    assert states(listener, transaction.id) == ["ROLLBACK"]


@contextmanager
def in_background(call: Callable[[], None]) -> Iterator[Future[None]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


NO_ROW = {
    "UPDATE": "UPDATE {table} SET status = 'paid' WHERE id = 77",
    "MERGE": (
        "MERGE INTO {table} AS o USING (SELECT 77 AS id) AS c ON o.id = c.id "
        "WHEN MATCHED THEN UPDATE SET status = 'paid'"
    ),
}


@pytest.mark.parametrize("statement", NO_ROW.values(), ids=NO_ROW)
def test_statement_that_changes_no_row_carries_its_marker_too(
    statement: str, orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    before, transaction = orders.rows(), prepared(producer)

    with transaction.delta_sql(orders.spark) as sql:
        sql(statement.format(table=f"delta.`{orders.location}`"))
    transaction.commit()

    assert orders.rows() == before
    assert states(listener, transaction.id) == ["COMMIT"]


def test_delete_that_finds_nothing_commits_nothing_and_is_told(
    orders: Orders, producer: TransactionProducer
) -> None:
    version, transaction = orders.version, prepared(producer)

    with (
        pytest.raises(LocalTransactionMissingError),
        transaction.delta_sql(orders.spark) as sql,
    ):
        sql(f"DELETE FROM delta.`{orders.location}` WHERE id = 77")

    assert orders.version == version


# --- both at once ---------------------------------------------------------------------------------


def test_write_on_its_way_loses_to_the_fence(
    orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    before, transaction = orders.rows(), prepared(producer)

    with (
        pytest.raises(CommitFailedError),
        transaction.delta_rs() as (handle, properties),
    ):
        assert states(listener, transaction.id) == ["ROLLBACK"]
        write_deltalake(handle, rows_of((3, "paid")), mode="append", commit_properties=properties)

    assert orders.rows() == before
    with pytest.raises(LocalTransactionFencedError):
        transaction.commit()


def test_spark_write_on_its_way_loses_to_the_fence(
    orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    import pyspark.sql.functions as F  # noqa: N812
    from delta.exceptions import ConcurrentTransactionException

    before, transaction = orders.rows(), prepared(producer)
    begun, fenced = Path(f"{orders.location}.begun"), Path(f"{orders.location}.fenced")

    def slow(status):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - hints choose a kind
        import time
        from pathlib import Path

        Path(str(begun)).touch()
        for _ in range(1_200):
            if Path(str(fenced)).exists():
                break
            time.sleep(0.05)
        return status

    rows = orders.changes().coalesce(1).withColumn("status", F.udf(slow, "string")("status"))
    writer = rows.write.format("delta").mode("append").options(**transaction.delta_options())
    with in_background(lambda: writer.save(orders.location)) as writing:
        wait_until(begun.exists)
        assert states(listener, transaction.id) == ["ROLLBACK"]
        fenced.touch()
        with pytest.raises(ConcurrentTransactionException):
            writing.result(60)

    assert orders.rows() == before


def test_fence_that_meets_a_landed_write_says_commit(
    orders: Orders, producer: TransactionProducer
) -> None:
    done, never = prepared(producer), prepared(producer)
    marked = MarkedTable("orders", orders.location)
    # Pinned before the write, as a fence is that is on its way.
    assert marked.markers([done.id, never.id]) == {}
    delta_rs_append(orders, done)
    marked.refresh = lambda: marked  # type: ignore[method-assign]
    with suppress(Exception):
        marked.commit_marks({done.id: FENCED, never.id: FENCED})
    assert DeltaTable(orders.location).transaction_version(done.id) == DONE
    assert DeltaTable(orders.location).transaction_version(never.id) is None

    assert MarkedTable("orders", orders.location).fence([done.id, never.id]) == {
        done.id: DONE, never.id: FENCED,
    }  # fmt: skip


# --- traps ----------------------------------------------------------------------------------------


def test_second_statement_in_one_scope_is_refused(
    orders: Orders, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    update_2 = f"UPDATE delta.`{orders.location}` SET status = 'paid' WHERE id = 2"

    with (
        pytest.raises(LocalTransactionError, match="one statement"),
        transaction.delta_sql(orders.spark) as sql,
    ):
        sql(f"UPDATE delta.`{orders.location}` SET status = 'paid' WHERE id = 1")
        sql(update_2)

    assert orders.rows() == [(1, "paid"), (2, "open")]
    orders.spark.sql(update_2)
    assert orders.rows() == [(1, "paid"), (2, "paid")], "the settings are gone with the block"


def test_scope_without_a_write_is_told(orders: Orders, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    with (
        pytest.raises(LocalTransactionMissingError, match="no write with the marker"),
        transaction.delta_sql(orders.spark),
    ):
        pass


def test_commit_without_the_marked_write_is_refused(
    producer: TransactionProducer,
) -> None:
    transaction = prepared(producer)
    transaction.delta_options()

    with pytest.raises(LocalTransactionMissingError):
        transaction.commit()

    assert log_rows(producer.store, "op") == []


def test_marker_before_prepare_is_refused(producer: TransactionProducer) -> None:
    with pytest.raises(NotPreparedError):
        producer.begin_transaction().delta_options()


def test_marker_without_any_table_is_refused(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        with pytest.raises(LocalTransactionError, match="which table"):
            transaction.delta_options()


def test_marker_may_be_on_another_table(
    orders: Orders, tmp_path: Path, producer: TransactionProducer
) -> None:
    other = Orders(str(tmp_path / "other"), orders.spark)
    write_deltalake(other.location, rows_of((7, "open")))
    transaction = prepared(producer)
    options = transaction.delta_options(other.location)
    orders.changes().write.format("delta").mode("append").options(**options).save(other.location)

    transaction.commit()

    assert states(DeltaListener(other.location), transaction.id) == ["COMMIT"]


def test_retried_job_asks_whether_it_is_done(orders: Orders, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    assert not transaction.is_local_transaction_done()
    delta_rs_append(orders, transaction)

    assert transaction.is_local_transaction_done()
    with pytest.raises(LocalTransactionError, match="earlier try"):
        delta_rs_append(orders, transaction)


@pytest.mark.parametrize("target", ["VERSION AS OF 0", "TIMESTAMP AS OF '{time}'"])
def test_restore_by_spark_is_known(
    orders: Orders, producer: TransactionProducer, target: str
) -> None:
    transaction = prepared(producer)
    append(orders, transaction)
    history = orders.spark.sql(f"DESCRIBE HISTORY delta.`{orders.location}`")
    time = history.where("version = 0").collect()[0]["timestamp"]
    orders.spark.sql(f"RESTORE delta.`{orders.location}` TO {target.format(time=time)}").collect()

    state, reason = answers(DeltaListener(orders.location), [transaction.id])[transaction.id]

    assert orders.rows() == [(1, "open"), (2, "open")]
    assert state == "UNKNOWN"
    assert "commit 2 is a RESTORE to" in reason
    with pytest.raises(LocalTransactionError, match="RESTORE"):
        transaction.commit()


def test_expired_marker_is_no_proof(orders: Orders) -> None:
    DeltaTable(orders.location).alter.set_table_properties({RETENTION: "interval 2 days"})
    clock = ManualClock(1_800_000_000_000)
    listener = DeltaListener(orders.location, clock=clock)
    old = asked_about(["old"], born_ms=clock.now_ms() - 2 * 86_400_000)
    young = asked_about(["young"], born_ms=clock.now_ms() - 86_400_000)

    (answer,) = listener.check_local_transactions_arrow(old).to_pylist()
    assert (answer["state"], RETENTION in answer["reason"]) == ("UNKNOWN", True)
    (answer,) = listener.check_local_transactions_arrow(young).to_pylist()
    assert answer["state"] == "ROLLBACK"


@pytest.mark.parametrize(
    ("text", "retention_s"),
    [("interval 30 days", 2_592_000), ("INTERVAL 1 week", 604_800), ("3 hours", 10_800),
     ("interval 2 moons", 0)],
)  # fmt: skip
def test_retention_of_markers_is_read(orders: Orders, text: str, retention_s: float) -> None:
    marked = MarkedTable("orders", orders.location)
    marked.properties = lambda: {RETENTION: text}  # type: ignore[method-assign]

    assert marked.marker_retention_s == retention_s


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_many_are_fenced_in_one_commit(orders: Orders, *, with_checkpoint: bool) -> None:
    ids = [new_transaction_id(1_800_000_000_000 + number) for number in range(5_000)]
    MarkedTable("orders", orders.location).commit_marks(dict.fromkeys(ids[:40], DONE))
    if with_checkpoint:
        DeltaTable(orders.location).create_checkpoint()
    version = orders.version
    listener = DeltaListener(orders.location)
    assert len(ids) > LOOKED_UP_SINGLY

    found = answers(listener, ids)

    assert orders.version == version + 1
    assert [found[each][0] for each in ids] == ["COMMIT"] * 40 + ["ROLLBACK"] * 4_960
    assert answers(listener, ids) == found
    assert orders.version == version + 1


def test_log_and_single_look_ups_agree(orders: Orders) -> None:
    ids = [new_transaction_id(1_800_000_000_000 + number) for number in range(60)]
    MarkedTable("orders", orders.location).commit_marks(dict.fromkeys(ids[:20], DONE))
    DeltaTable(orders.location).create_checkpoint()
    MarkedTable("orders", orders.location).commit_marks(dict.fromkeys(ids[20:40], FENCED))

    marked = MarkedTable("orders", orders.location)
    assert marked.markers(ids) == {each: marked.mark(each) for each in ids[:40]}


def test_young_transaction_is_not_fenced(orders: Orders) -> None:
    clock = ManualClock(1_800_000_000_000)
    listener = DeltaListener(orders.location, rollback_after_s=60.0, clock=clock)
    heads = asked_about(["young"], born_ms=clock.now_ms())

    assert listener.check_local_transactions_arrow(heads)["state"].to_pylist() == ["UNKNOWN"]
    assert orders.version == 0
    clock.advance(61)
    assert listener.check_local_transactions_arrow(heads)["state"].to_pylist() == ["ROLLBACK"]


def test_missing_table_is_an_error_and_no_answer(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is no Delta table"):
        states(DeltaListener(str(tmp_path / "nowhere")), "1")


# --- the whole way --------------------------------------------------------------------------------


def test_check_answers_for_producers_that_died(
    orders: Orders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    done, never = prepared(producer), prepared(producer)
    merge(orders, done)
    clock = ManualClock(producer.clock.now_ms() + 60_000)
    service = CheckService(producer.store, listeners={GROUP: listener}, clock=clock)

    result = service.run_once()
    publish(producer.store)

    assert (result.checks.committed, result.checks.rolled_back) == (1, 1)
    assert bodies(producer.store) == [done.id.encode()]
    reasons = {row["transaction_id"]: row["reason"] for row in log_rows(producer.store, "op")}
    assert "marker is in the table" in reasons[done.id]
    assert "fenced" in reasons[never.id]
    with pytest.raises((AlreadyResolvedError, LocalTransactionFencedError)):
        append(orders, never)
        never.commit()
