"""Fences that Spark writes: in each place, against each write, and beside fences by files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.asked import asked_about, prepared
from tests.kit.fenced_by_spark import PLACES, WRITES, SparkOrders, place, race, took_effect
from tests.kit.kills import killed_at
from tests.kit.reading import bodies, publish, wait_until
from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.errors import (
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
    StoreNotFoundError,
)
from txmq.ground.fail_points import FailPoint
from txmq.listeners.delta import IS_FENCED, MARKED, MAYBE_FORGOTTEN, NOT_YET, DeltaListener
from txmq.message.ids import new_transaction_id
from txmq.producer.producer import TransactionProducer
from txmq.spark import marked_table
from txmq.spark.marked_table import MADE_LATER, UNCLEAR, SparkMarkedTable
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.user_data.delta_marker import MarkedTable
from txmq.user_data.local_transaction import LocalTransaction
from txmq.user_data.markers import DONE, FENCED, done_text, fence_text
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "orders"
PATIENCE_S = 240.0
RACES = int(os.environ.get("TXMQ_FENCE_RACES", "6"))
# The tables of this session are in a folder that no test chooses.
EACH_PLACE = pytest.mark.parametrize("where", PLACES)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> SparkOrders:
    return place(spark, "name", tmp_path)


@pytest.fixture
def prompt_store(tmp_path: Path) -> Store:
    """A store whose transactions are asked about at once."""
    config = Config(
        transaction_timeout_s=0.5,
        transaction_check_interval_s=0.5,
        listener_timeout_s=60.0,
        check_lease_s=61.0,
    )
    return Store.create(tmp_path / "store", config)


@pytest.fixture
def by_path(spark: SparkSession, tmp_path: Path) -> SparkOrders:
    """A table that files can fence too."""
    return SparkOrders(spark, str(tmp_path / "orders")).create({})


def new_id() -> str:
    return new_transaction_id(now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def by_spark(orders: SparkOrders) -> SparkMarkedTable:
    return SparkMarkedTable(orders.spark, "orders", orders.location)


def asked(listener: DeltaListener, *ids: str, born_ms: int | None = None) -> list[tuple[Any, Any]]:
    """State and reason of each, as a listener that is asked now."""
    heads = asked_about(ids, born_ms=now_ms() if born_ms is None else born_ms)
    found = listener.check_local_transactions_arrow(heads)
    return list(zip(found["state"].to_pylist(), found["reason"].to_pylist(), strict=True))


# --- each place, each write -----------------------------------------------------------------------


def test_word_that_is_no_path_is_refused_before_the_statement(
    spark: SparkSession, store: Store
) -> None:
    listener = DeltaListener("orders", spark=spark)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        transaction = prepared(producer)
        refused = pytest.raises(
            StoreNotFoundError, match=r"orders is no Delta table.*schema\.table"
        )
        with refused, transaction.delta_sql(spark):
            pytest.fail("the statement runs")
        transaction.rollback()


@EACH_PLACE
def test_in_each_place_a_write_counts_or_is_fenced(
    where: str, spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    orders = place(spark, where, tmp_path)
    listener = DeltaListener(orders.location, spark=spark)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        late, done = prepared(producer), prepared(producer)
        before = orders.rows()

        assert asked(listener, late.id) == [("ROLLBACK", IS_FENCED)]
        orders.save(
            orders.paid(7).write.format("delta").mode("append").options(**late.delta_options())
        )
        with pytest.raises(LocalTransactionFencedError):
            late.commit()
        assert orders.rows() == before

        with done.delta_sql(spark) as sql:
            sql(f"UPDATE {orders.sql_name} SET status = 'paid' WHERE id = 1")
        assert asked(listener, done.id, late.id) == [("COMMIT", MARKED), ("ROLLBACK", IS_FENCED)]
        assert done.is_local_transaction_done()
        done.commit()
        publish(store)
        assert bodies(store) == [done.id.encode()]
        assert orders.rows() == [(1, "paid"), (2, "open")]


@pytest.mark.parametrize("name", WRITES)
def test_each_write_after_its_fence_changes_nothing_and_is_told(
    name: str, orders: SparkOrders
) -> None:
    late, done = new_id(), new_id()
    assert by_spark(orders).outcomes({late: now_ms()}, [late])[late].mark == FENCED
    before, history = orders.rows(), orders.history

    with pytest.raises(LocalTransactionFencedError):
        write(name, orders, late)
    assert (orders.rows(), orders.history) == (before, history)

    write(name, orders, done)
    assert took_effect(name, dict(orders.rows()), 1)
    assert by_spark(orders).outcomes({done: now_ms()}, [done])[done].mark == DONE


def write(name: str, orders: SparkOrders, transaction_id: str) -> None:
    local = LocalTransaction(transaction_id)
    WRITES[name](orders, local, 1)
    local.confirm()


@EACH_PLACE
def test_in_a_race_exactly_one_stands_and_the_loser_is_told(
    where: str, spark: SparkSession, tmp_path: Path
) -> None:
    orders = place(spark, where, tmp_path, ids=RACES)

    races = race(orders, WRITES, RACES)

    assert races.disagreements == []
    assert races.writes_won + races.fences_won == RACES
    assert sum(races.told.values()) == races.fences_won


# --- both kinds of fence on one table -------------------------------------------------------------


def test_fences_by_files_are_seen_by_spark_and_the_other_way_round(by_path: SparkOrders) -> None:
    by_files, ids = MarkedTable("orders", by_path.location), [new_id() for _ in range(3)]
    born_ms = dict.fromkeys(ids, now_ms())
    of_files, of_spark, done = ids
    write("INSERT", by_path, done)

    assert by_files.refresh().fence([of_files]) == {of_files: FENCED}
    assert marks(by_spark(by_path), born_ms, [of_spark]) == [FENCED, FENCED, DONE]
    assert marks(by_files.refresh(), born_ms, ids) == [FENCED, FENCED, DONE]
    assert by_files.markers(ids) == {of_files: FENCED, of_spark: FENCED, done: DONE}
    for late in (of_files, of_spark):
        with pytest.raises(LocalTransactionFencedError):
            write("append", by_path, late)


def test_fence_whose_writer_was_killed_half_way_is_one_for_both_and_is_finished(
    by_path: SparkOrders,
) -> None:
    by_files, late = MarkedTable("orders", by_path.location), new_id()
    with killed_at(1, FailPoint.FENCE_COMMITTED):
        by_spark(by_path).outcomes({late: now_ms()}, [late])

    # Its number is still that of a marker.
    assert by_files.refresh().markers([late]) == {late: DONE}
    assert by_files.is_done(late) is False
    assert marks(by_files, {late: now_ms()}, [late]) == [FENCED]
    assert by_spark(by_path).is_done(late) is False
    with pytest.raises(LocalTransactionFencedError):
        write("MERGE", by_path, late)

    assert marks(by_spark(by_path), {late: now_ms()}, []) == [FENCED]
    assert by_files.refresh().markers([late]) == {late: FENCED}


def test_fence_by_files_that_names_no_transaction_is_doubted_by_spark(by_path: SparkOrders) -> None:
    by_files, late = MarkedTable("orders", by_path.location), new_id()
    by_files.commit_marks({late: FENCED})
    before = by_path.history

    outcome = by_spark(by_path).outcomes({late: now_ms()}, [late])[late]

    assert outcome == (None, UNCLEAR)
    assert by_path.history == before
    assert by_spark(by_path).is_done(late) is None
    with pytest.raises(LocalTransactionFencedError):
        write("UPDATE", by_path, late)
    assert by_path.rows() == [(1, "open"), (2, "open")]


def marks(table: Any, born_ms: dict[str, int], to_fence: list[str]) -> list[int | None]:
    outcomes = table.outcomes(born_ms, to_fence)
    return [outcomes[each].mark for each in born_ms]


# --- what a history does not say ------------------------------------------------------------------


def test_users_own_words_stay_behind_those_of_the_marker(orders: SparkOrders) -> None:
    by_options, by_setting = new_id(), new_id()
    local = LocalTransaction(by_options)
    options = local.delta_options(orders.location, user_metadata="night run 7")
    orders.save(orders.paid(8).write.format("delta").mode("append").options(**options))
    setting = "spark.databricks.delta.commitInfo.userMetadata"
    orders.spark.conf.set(setting, "day run 8")
    try:
        write("UPDATE", orders, by_setting)
        assert orders.spark.conf.get(setting) == "day run 8"
    finally:
        orders.spark.conf.unset(setting)

    local.confirm()
    said = [words for _, words in orders.history]
    assert said[:2] == [
        f"{done_text(by_setting)} day run 8",
        f"{done_text(by_options)} night run 7",
    ]
    born_ms = dict.fromkeys([by_options, by_setting], now_ms())
    assert marks(by_spark(orders), born_ms, list(born_ms)) == [DONE, DONE]


def test_marked_write_with_words_of_its_own_is_doubted_and_its_message_waits(
    orders: SparkOrders,
) -> None:
    silent = new_id()
    local = LocalTransaction(silent)
    writer = orders.paid(8).write.format("delta").mode("append")
    options = local.delta_options(orders.location) | {"userMetadata": "mine"}
    orders.save(writer.options(**options))

    with pytest.raises(LocalTransactionMissingError):
        local.confirm()
    outcome = by_spark(orders).outcomes({silent: now_ms()}, [silent])[silent]
    assert outcome == (None, UNCLEAR)


def test_words_of_a_commit_without_the_mark_are_no_marker(orders: SparkOrders) -> None:
    truncated = new_id()

    with (
        pytest.raises(LocalTransactionMissingError),
        LocalTransaction(truncated).delta_sql(orders.spark, orders.location) as sql,
    ):
        sql(f"TRUNCATE TABLE {orders.sql_name}")

    assert orders.history[0] == ("TRUNCATE", done_text(truncated))
    assert by_spark(orders).is_done(truncated) is None


def test_history_that_was_cleaned_says_nothing_and_a_listener_waits(by_path: SparkOrders) -> None:
    done, log = new_id(), Path(by_path.location, "_delta_log")
    write("INSERT", by_path, done)
    by_path.spark.sql(
        f"ALTER TABLE {by_path.sql_name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')"
    )
    write("INSERT", by_path, new_id())
    newest = max(log.glob("*.checkpoint.parquet")).name[:20]
    for commit in log.glob("*.json"):
        if commit.stem < newest:
            commit.unlink()

    outcome = by_spark(by_path).outcomes({done: now_ms()}, [done])[done]

    assert outcome == (None, UNCLEAR)


def test_undone_write_is_told_and_a_fence_stays(orders: SparkOrders) -> None:
    done, late, again = new_id(), new_id(), new_id()
    write("UPDATE", orders, done)
    by_spark(orders).outcomes({late: now_ms()}, [late])
    orders.spark.sql(f"RESTORE TABLE {orders.sql_name} TO VERSION AS OF 1")
    write("DELETE", orders, again)

    with pytest.raises(LocalTransactionError, match=r"commit 5 is a RESTORE to version 1"):
        by_spark(orders).is_done(done)
    born_ms = dict.fromkeys([done, late, again], now_ms())
    outcomes = by_spark(orders).outcomes(born_ms, list(born_ms))
    assert outcomes[done].mark is None
    assert "RESTORE" in str(outcomes[done].reason)
    assert (outcomes[late].mark, outcomes[again].mark) == (FENCED, DONE)
    with pytest.raises(LocalTransactionFencedError):
        write("append", orders, late)


def test_table_that_was_renamed_is_missed_and_one_in_its_place_is_doubted(
    orders: SparkOrders,
) -> None:
    done, listener = new_id(), DeltaListener(orders.location, spark=orders.spark)
    write("UPDATE", orders, done)
    orders.spark.sql(f"ALTER TABLE {orders.sql_name} RENAME TO {orders.location}_old")

    with pytest.raises(StoreNotFoundError, match="the catalog of this session has no Delta table"):
        asked(listener, done)
    orders.create({})
    began_ms = now_ms() - marked_table.MADE_LATER_MS - 3_600_000
    assert asked(listener, done, born_ms=began_ms) == [("UNKNOWN", MADE_LATER)]
    assert all(words is None for _, words in orders.history)
    assert asked(listener, new_id())[0][0] == "ROLLBACK"


def test_long_history_is_read_in_steps(
    by_path: SparkOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = new_id()
    write("INSERT", by_path, done)
    for number in range(5):
        write_deltalake(by_path.location, pa.table({"id": [number], "status": ["open"]}),
                        mode="append")  # fmt: skip
    monkeypatch.setattr(marked_table, "HISTORY_STEPS", (2, 4, None))

    assert by_spark(by_path).is_done(done) is True
    assert by_spark(by_path).is_done(new_id()) is None
    monkeypatch.setattr(marked_table, "HISTORY_STEPS", (2, 4))
    assert by_spark(by_path).is_done(done) is None


def test_marker_that_may_be_forgotten_is_unknown_and_not_fenced(orders: SparkOrders) -> None:
    orders.spark.sql(
        f"ALTER TABLE {orders.sql_name} SET TBLPROPERTIES "
        "('delta.setTransactionRetentionDuration' = 'interval 2 hours')"
    )
    listener = DeltaListener(orders.location, spark=orders.spark, rollback_after_s=60.0)
    before = orders.history

    old, young = new_id(), new_id()
    assert asked(listener, old, born_ms=now_ms() - 2 * 3_600_000)[0] == ("UNKNOWN", MAYBE_FORGOTTEN)
    assert asked(listener, young)[0] == ("UNKNOWN", NOT_YET)
    assert orders.history == before


# --- the cost, and odd tables ---------------------------------------------------------------------


def test_fences_that_find_no_time_are_written_in_the_next_rounds_uncounted(
    orders: SparkOrders, prompt_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = DeltaListener(orders.location)
    with TransactionProducer(prompt_store, producer_group=GROUP, listener=listener) as producer:
        transactions = [prepared(producer) for _ in range(3)]
    monkeypatch.setattr(marked_table, "FENCING_S", 0.0)
    results: list[RecheckResult] = []

    wait_until(
        lambda: not rechecked(results, prompt_store, listener, orders).open_transactions,
        PATIENCE_S,
    )

    assert sum(each.checks.rolled_back for each in results) == len(transactions)
    assert sum(each.checks.unknown + each.checks.unasked for each in results) == 0
    assert all(by_spark(orders).is_done(each.id) is False for each in transactions)


def rechecked(
    results: list[RecheckResult], store: Store, listener: DeltaListener, orders: SparkOrders
) -> RecheckResult:
    """The listener has no session of its own: it gets that of the job."""
    job = RecheckJob(store, listeners={GROUP: listener}, spark=orders.spark)
    results.append(job.run_once())
    return results[-1]


ODD = {
    "identity": "id BIGINT GENERATED ALWAYS AS IDENTITY, status STRING NOT NULL",
    "generated": "id BIGINT, double BIGINT GENERATED ALWAYS AS (id * 2), status STRING",
    "needed": "id BIGINT NOT NULL, status STRING NOT NULL",
}


@pytest.mark.parametrize("columns", ODD.values(), ids=ODD)
def test_columns_that_fill_themselves_or_must_be_given_allow_a_fence(
    columns: str, spark: SparkSession, tmp_path: Path
) -> None:
    orders, late = SparkOrders(spark, str(tmp_path / "a `b` c")), new_id()
    spark.sql(f"CREATE TABLE {orders.sql_name} ({columns}) USING delta PARTITIONED BY (status)")

    assert by_spark(orders).outcomes({late: now_ms()}, [late])[late].mark == FENCED

    assert [words for _, words in orders.history] == [fence_text([late])] * 2 + [None]


def test_producer_and_check_agree_about_a_managed_table(
    spark: SparkSession, prompt_store: Store, tmp_path: Path
) -> None:
    store, orders = prompt_store, place(spark, "managed", tmp_path)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        done, dead = prepared(producer), prepared(producer)
        with done.delta_sql(spark, orders.location) as sql:
            sql(f"INSERT INTO {orders.sql_name} VALUES (3, 'paid')")
    listener = DeltaListener(orders.location)

    wait_until(lambda: not rechecked([], store, listener, orders).open_transactions, PATIENCE_S)
    publish(store)

    assert bodies(store) == [done.id.encode()]
    assert by_spark(orders).is_done(dead.id) is False
    assert verify(store.location).is_clean
