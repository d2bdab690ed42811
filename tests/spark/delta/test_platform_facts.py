"""What txmq relies on in delta-rs and Spark: each test goes red when an upgrade changes it.

These facts were found by experiment, not in a specification. A red test here is no bug of txmq
yet; it names what has to be thought through again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from tests.kit.builders import halves, messages, op_row
from tests.kit.reading import delta_rs
from txmq.delta.table import Table
from txmq.message.message import Message
from txmq.store.op import CLAIM_COLUMNS
from txmq.store.schemas import HALF
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_800_000_000_000
APP = "app"
SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field("part", pa.int64())])


def rows(*numbers: int, part: int = 0) -> pa.Table:
    return pa.table({"number": list(numbers), "part": [part] * len(numbers)}, schema=SCHEMA)


def marked(version: int, app_id: str = APP) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(app_id, version, NOW_MS)])


def append(table: str | DeltaTable, *numbers: int, mark: int | None = None) -> None:
    properties = None if mark is None else marked(mark)
    write_deltalake(table, rows(*numbers), mode="append", commit_properties=properties)


def numbers_in(location: str) -> list[int]:
    found = pa.table(DeltaTable(location).to_pyarrow_table())
    return sorted(found["number"].to_pylist())


def written_file(location: str, *numbers: int) -> AddAction:
    path = Path(location, f"part-{'-'.join(map(str, numbers))}.parquet")
    pq.write_table(rows(*numbers), path)
    stats = json.dumps({"numRecords": len(numbers)})
    return AddAction(path.name, path.stat().st_size, {}, NOW_MS, data_change=True, stats=stats)


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table with a change feed and one row, made by delta-rs."""
    place = str(tmp_path / "table")
    DeltaTable.create(
        place,
        SCHEMA,
        configuration={
            "delta.enableChangeDataFeed": "true",
            "delta.enableExpiredLogCleanup": "false",
        },
    )
    append(place, 1)
    return place


# --- delta-rs: compare and swap -----------------------------------------------------------------


def test_pinned_handle_is_refused_after_another_moved_the_same_mark(location: str) -> None:
    pinned, rival = DeltaTable(location), DeltaTable(location)
    append(rival, 2, mark=1)

    with pytest.raises(CommitFailedError):
        append(pinned, 3, mark=1)

    assert numbers_in(location) == [1, 2]


def test_refused_handle_stays_refused(location: str) -> None:
    pinned, rival = DeltaTable(location), DeltaTable(location)
    append(rival, 2, mark=1)

    for _ in range(3):
        with pytest.raises(CommitFailedError):
            append(pinned, 3, mark=2)


def test_pinned_handle_accepts_foreign_appends_under_other_marks(location: str) -> None:
    pinned, rival = DeltaTable(location), DeltaTable(location)
    append(rival, 2)
    write_deltalake(rival, rows(3), mode="append", commit_properties=marked(1, "another"))

    append(pinned, 4, mark=1)

    assert numbers_in(location) == [1, 2, 3, 4]


def test_pinned_handle_accepts_compaction_checkpoint_and_clean_up_in_between(
    location: str,
) -> None:
    append(location, 2)
    pinned, maintenance = DeltaTable(location), DeltaTable(location)
    maintenance.optimize.compact()
    maintenance.create_checkpoint()
    maintenance.cleanup_metadata()

    append(pinned, 3, mark=1)

    assert numbers_in(location) == [1, 2, 3]


def test_mark_may_go_back_so_it_must_be_compared_by_us(location: str) -> None:
    handle = DeltaTable(location)
    append(handle, 2, mark=9)

    append(handle, 3, mark=4)

    assert DeltaTable(location).transaction_version(APP) == 4


def test_same_mark_again_through_a_fresh_handle_is_no_conflict(location: str) -> None:
    append(DeltaTable(location), 2, mark=1)

    append(DeltaTable(location), 3, mark=1)

    assert numbers_in(location) == [1, 2, 3]


def test_commit_without_rows_carries_the_mark_and_no_file(location: str) -> None:
    handle = DeltaTable(location)
    files = handle.file_uris()

    write_deltalake(handle, SCHEMA.empty_table(), mode="append", commit_properties=marked(7))

    fresh = DeltaTable(location)
    assert fresh.transaction_version(APP) == 7
    assert fresh.file_uris() == files


def test_handle_that_appended_shows_its_own_commit(location: str) -> None:
    handle = DeltaTable(location)

    append(handle, 2, mark=3)

    assert handle.version() == 2
    assert handle.transaction_version(APP) == 3


def test_unknown_mark_is_none(location: str) -> None:
    assert DeltaTable(location).transaction_version("nobody") is None


def test_marks_survive_a_checkpoint_and_the_loss_of_the_commits_before_it(location: str) -> None:
    append(location, 2, mark=5)
    append(location, 3)
    DeltaTable(location).create_checkpoint()
    for version in (0, 1, 2):
        Path(location, "_delta_log", f"{version:020d}.json").unlink()

    assert DeltaTable(location).transaction_version(APP) == 5


def test_one_commit_may_carry_many_marks(location: str) -> None:
    marks = [Transaction(f"queue-{n}", n, NOW_MS) for n in range(50)]

    properties = CommitProperties(app_transactions=marks)
    write_deltalake(location, rows(2), mode="append", commit_properties=properties)

    fresh = DeltaTable(location)
    assert [fresh.transaction_version(f"queue-{n}") for n in range(50)] == list(range(50))


def test_files_written_before_are_committed_only_through_an_unmoved_mark(location: str) -> None:
    pinned, rival = DeltaTable(location), DeltaTable(location)
    append(rival, 2, mark=1)

    with pytest.raises(CommitFailedError):
        pinned.create_write_transaction(
            [written_file(location, 3)], "append", SCHEMA, commit_properties=marked(1)
        )
    assert numbers_in(location) == [1, 2]

    DeltaTable(location).create_write_transaction(
        [written_file(location, 4)], "append", SCHEMA, commit_properties=marked(2)
    )
    assert numbers_in(location) == [1, 2, 4]


def test_overwrite_is_refused_after_another_moved_the_same_mark(location: str) -> None:
    pinned, rival = DeltaTable(location), DeltaTable(location)
    append(rival, 2, mark=1)

    with pytest.raises(CommitFailedError):
        write_deltalake(pinned, rows(9), mode="overwrite", commit_properties=marked(1))

    assert numbers_in(location) == [1, 2]


def test_of_many_threads_with_the_same_mark_one_wins(location: str) -> None:
    handles = [DeltaTable(location) for _ in range(8)]
    start, answers = threading.Barrier(len(handles)), []

    def race(number: int, handle: DeltaTable) -> None:
        start.wait()
        try:
            append(handle, number, mark=1)
            answers.append(number)
        except CommitFailedError:
            pass

    threads = [
        threading.Thread(target=race, args=(10 + number, handle))
        for number, handle in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 1
    assert numbers_in(location) == [1, *answers]


# --- delta-rs: change feed ----------------------------------------------------------------------


def feed(location: str, start: int, end: int, **options: Any) -> list[tuple[int, int, str]]:
    found = pa.table(DeltaTable(location).load_cdf(start, end, **options))
    columns = ["_commit_version", "number", "_change_type"]
    return sorted(tuple(row.values()) for row in found.select(columns).to_pylist())


def test_change_feed_of_plain_appends_needs_no_change_files(location: str) -> None:
    append(location, 2, 3)
    append(location, 4)

    assert feed(location, 1, 3) == [
        (1, 1, "insert"), (2, 2, "insert"), (2, 3, "insert"), (3, 4, "insert")
    ]  # fmt: skip
    assert not Path(location, "_change_data").exists()


def test_change_feed_cuts_an_end_beyond_the_newest_version_in_silence(location: str) -> None:
    assert feed(location, 1, 999) == feed(location, 1, 1)


def test_change_feed_refuses_a_start_beyond_the_newest_version_unless_told_not_to(
    location: str,
) -> None:
    with pytest.raises(DeltaError):
        feed(location, 5, 9)

    assert feed(location, 5, 9, allow_out_of_range=True) == []


def test_change_feed_goes_on_beyond_its_handle_so_its_end_must_be_given(location: str) -> None:
    pinned = DeltaTable(location)
    append(location, 2)

    assert pinned.version() == 1
    assert sorted(pa.table(pinned.load_cdf(0, 99))["number"].to_pylist()) == [1, 2]
    assert pa.table(pinned.load_cdf(0, pinned.version()))["number"].to_pylist() == [1]


def test_compaction_changes_no_change_feed_of_older_versions(location: str) -> None:
    append(location, 2)
    append(location, 3)
    before = feed(location, 1, 3)

    DeltaTable(location).optimize.compact()

    assert DeltaTable(location).version() == 4
    assert feed(location, 1, 3) == before
    assert feed(location, 4, 4) == []


def test_removed_rows_come_as_deletes_and_never_as_inserts(location: str) -> None:
    DeltaTable(location).delete()

    assert feed(location, 2, 2) == [(2, 1, "delete")]


def test_time_of_a_commit_in_delta_rs_s_change_feed_is_not_the_file_s(location: str) -> None:
    for version in (0, 1):
        os.utime(Path(location, "_delta_log", f"{version:020d}.json"), (1_000_000, 1_000_000))

    found = pa.table(DeltaTable(location).load_cdf(1, 1))

    moment = found["_commit_timestamp"].to_pylist()[0].replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=5)


# --- delta-rs: statistics and handles -------------------------------------------------------------


def test_file_statistics_come_with_their_types(location: str) -> None:
    actions = pa.table(DeltaTable(location).get_add_actions(flatten=True))

    assert actions["min.number"].to_pylist() == actions["max.number"].to_pylist() == [1]
    assert actions["num_records"].to_pylist() == [1]
    assert not Path(actions["path"][0].as_py()).is_absolute()


def test_open_handle_does_not_move_by_itself(location: str) -> None:
    pinned = DeltaTable(location)
    append(location, 2)

    assert (pinned.version(), len(pinned.file_uris())) == (1, 1)
    pinned.update_incremental()
    assert (pinned.version(), len(pinned.file_uris())) == (2, 2)


def test_append_leaves_old_commits_where_clean_up_is_left_to_maintenance(tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    DeltaTable.create(
        place,
        SCHEMA,
        configuration={
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": "2",
            "delta.logRetentionDuration": "interval 0 days",
        },
    )
    for number in range(1, 9):
        append(place, number)

    left = sorted(int(path.stem) for path in Path(place, "_delta_log").glob("0*[0-9].json"))
    assert left == list(range(9))


def test_location_with_a_percent_sign_is_not_found_again(tmp_path: Path) -> None:
    place = tmp_path / "a%20b"

    with pytest.raises((DeltaError, OSError)):
        DeltaTable.create(str(place), SCHEMA)


# --- Spark reads what delta-rs wrote --------------------------------------------------------------


def read(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.format("delta").load(location)


def spark_feed(spark: SparkSession, location: str, start: int) -> DataFrame:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    return reader.option("startingVersion", start).load(location)


@pytest.fixture
def half(store: Store) -> Table:
    table = store.tables.half_log().table
    sent = [
        Message("orders", b"\x00\xff", tags="paid", keys=["a", "b"], properties={"x": "Ж"}),
        Message("stock", b"", sharding_key="s"),
    ]
    table.writer.append(halves(1, sent, queue_id=3), app_id="a", number=1)
    table.writer.append(halves(2), app_id="a", number=2)
    return table


@pytest.mark.needs_spark
def test_spark_reads_every_type_that_delta_rs_wrote(spark: SparkSession, half: Table) -> None:
    by_spark = [row.asDict() for row in read(spark, half.location).collect()]
    by_us = half.rows.read(half.files.all(), HALF.columns.names).to_pylist()

    assert len(by_us) == 3
    for row in by_spark:
        row["properties"] = list(row["properties"].items())
        row["body"] = bytes(row["body"])
        row["born_timestamp"] = row["born_timestamp"].replace(tzinfo=UTC)
    order: Callable[[dict[str, object]], object] = lambda row: row["message_id"]  # noqa: E731
    assert sorted(by_spark, key=order) == sorted(by_us, key=order)  # type: ignore[arg-type]


@pytest.mark.needs_spark
def test_spark_prunes_by_partitions_that_delta_rs_made(spark: SparkSession, half: Table) -> None:
    found = read(spark, half.location).where("queue_id = 3 and store_date = date'2026-01-01'")

    assert found.count() == 2
    assert {type(row.store_date) for row in found.collect()} == {date}
    assert len(found.inputFiles()) == 1


@pytest.mark.needs_spark
def test_spark_sees_the_versions_that_delta_rs_sees(spark: SparkSession, half: Table) -> None:
    by_spark = {
        (row["_commit_version"], row["message_id"], row["_change_type"])
        for row in spark_feed(spark, half.location, 0).collect()
    }

    ours = half.changes.read(0, 2, ["message_id"]).to_pylist()
    assert by_spark == {(row["_commit_version"], row["message_id"], "insert") for row in ours}
    assert {version for version, _, _ in by_spark} == {1, 2}


@pytest.mark.needs_spark
def test_spark_sees_no_change_in_a_compaction(spark: SparkSession, half: Table) -> None:
    half.writer.append(halves(3), app_id="a", number=3)
    before = half.version
    delta_rs(half.folder).optimize.compact()

    assert half.reopen().version == before + 1
    assert spark_feed(spark, half.location, before + 1).count() == 0
    assert spark_feed(spark, half.location, 0).count() == 4


@pytest.mark.needs_spark
def test_time_of_a_commit_in_spark_s_change_feed_is_the_file_s(
    spark: SparkSession, location: str
) -> None:
    for version in (0, 1):
        moment = 1_000_000_000 + version
        os.utime(Path(location, "_delta_log", f"{version:020d}.json"), (moment, moment))

    row = spark_feed(spark, location, 1).selectExpr("unix_millis(_commit_timestamp) AS at").first()

    assert row is not None
    assert row["at"] == 1_000_000_001_000


@pytest.mark.needs_spark
def test_time_of_a_commit_in_spark_s_change_feed_never_goes_back(
    spark: SparkSession, location: str
) -> None:
    for version, moment in ((0, 1_000_000_000), (1, 900_000_000)):
        os.utime(Path(location, "_delta_log", f"{version:020d}.json"), (moment, moment))

    row = spark_feed(spark, location, 1).selectExpr("unix_millis(_commit_timestamp) AS at").first()

    # A clock that was set back does not make a half older than the commit before it.
    assert row is not None
    assert row["at"] == 1_000_000_000_001


@pytest.mark.needs_spark
def test_checkpoints_of_delta_rs_are_read_by_spark_alone(spark: SparkSession, half: Table) -> None:
    delta_rs(half.folder).create_checkpoint()
    for version in range(2):
        Path(half.location, "_delta_log", f"{version:020d}.json").unlink()

    assert read(spark, half.location).count() == 3


@pytest.mark.needs_spark
def test_stream_of_spark_follows_appends_of_delta_rs(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    op = store.tables.op_log()
    op.append([op_row(1)], 0, app_id="a", number=1)
    seen: list[int] = []

    def stream() -> None:
        feed = spark.readStream.format("delta").option("readChangeFeed", "true")
        query = (
            feed.option("startingVersion", 0)
            .load(op.table.location)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(
                lambda batch, _: seen.extend(
                    r[0] for r in batch.select("_commit_version").collect()
                )
            )
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    stream()
    op.append([op_row(2), op_row(3)], 0, app_id="a", number=2)
    stream()

    assert sorted(seen) == [1, 2, 2]


# --- Spark and marks --------------------------------------------------------------------------


def spark_append(
    spark: SparkSession, location: str, number: int, app_id: str, version: int
) -> None:
    frame = spark.createDataFrame([(number, 0)], "number BIGINT, part BIGINT")
    writer = frame.write.format("delta").mode("append")
    writer.option("txnAppId", app_id).option("txnVersion", version).save(location)


@pytest.mark.needs_spark
def test_local_session_writes_checkpoints_without_a_program_for_each_file(
    spark: Any, tmp_path: Path
) -> None:
    """By the default way, each rename of a small file starts `readlink` four times."""
    managers = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    folder = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path))
    settings = spark._jsparkSession.sessionState().newHadoopConf()

    made = managers.CheckpointFileManager.create(folder, settings)

    assert made.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"
    assert made.isLocal()


def test_mark_of_spark_is_read_by_delta_rs(spark: SparkSession, location: str) -> None:
    spark_append(spark, location, 2, "job", 1)

    assert DeltaTable(location).transaction_version("job") == 1


@pytest.mark.needs_spark
def test_mark_of_delta_rs_makes_spark_skip_its_write_in_silence(
    spark: SparkSession, location: str
) -> None:
    append(DeltaTable(location), mark=2)
    version = DeltaTable(location).version()

    spark_append(spark, location, 5, APP, 1)

    assert DeltaTable(location).version() == version
    assert numbers_in(location) == [1]


@pytest.mark.needs_spark
def test_mark_without_a_time_is_ignored_by_spark_once_a_retention_is_set(
    spark: SparkSession, location: str
) -> None:
    retention = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable(location).alter.set_table_properties(retention)
    timeless = CommitProperties(app_transactions=[Transaction("timeless", 2)])
    timed = CommitProperties(
        app_transactions=[Transaction("timed", 2, int(datetime.now(UTC).timestamp() * 1000))]
    )
    write_deltalake(location, SCHEMA.empty_table(), mode="append", commit_properties=timeless)
    write_deltalake(location, SCHEMA.empty_table(), mode="append", commit_properties=timed)

    spark_append(spark, location, 5, "timeless", 1)
    spark_append(spark, location, 6, "timed", 1)

    assert numbers_in(location) == [1, 5]


# --- files of Spark in tables of delta-rs -----------------------------------------------------


@pytest.mark.needs_spark
@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_files_that_spark_wrote_are_read_by_us(
    spark: SparkSession, store: Store, kind: str
) -> None:
    from txmq.delta.parquet import described

    half = store.tables.half_log().table
    half.writer.append(halves(1, messages(2)), app_id="a", number=1)
    expected = half.rows.read(half.files.all(), HALF.columns.names).to_pylist()
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        frame = read(spark, half.location).drop("queue_id", "store_date").coalesce(1)
        frame.sortWithinPartitions("sequence").write.parquet(f"{half.location}/staging-x")
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    path = next(Path(half.location, "staging-x").glob("*.parquet"))
    partition = {"queue_id": "0", "store_date": "2026-01-01"}
    name = f"staging-x/{path.name}"

    half.writer.swap_files(
        [described(name, half.folder.filesystem, HALF.statistics_columns, partition)], {"m": 1}
    )

    half.reopen()
    file = next(one for one in half.files.all() if one.path == name)
    assert half.rows.read([file], HALF.columns.names).to_pylist() == expected


@pytest.mark.needs_spark
def test_statistics_that_spark_cut_still_lead_to_the_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = [f"018f0000-0000-7000-8000-{n:012d}" for n in (1, 2, 999_999_999_999)]
    place = str(tmp_path / "by-spark")
    frame = spark.createDataFrame([(one,) for one in ids], "transaction_id STRING").coalesce(1)
    frame.write.format("delta").save(place)

    actions = pa.table(DeltaTable(place).get_add_actions(flatten=True))
    low, high = actions["min.transaction_id"][0].as_py(), actions["max.transaction_id"][0].as_py()

    assert len(low) < len(ids[0])
    assert low <= min(ids)
    assert high >= max(ids)


@pytest.mark.needs_spark
@pytest.mark.parametrize("name", ["two words", "ünï-店", "hash#m", "what?", "{x}", "a:b", "$w*"])
def test_spark_finds_a_store_wherever_it_is(spark: SparkSession, tmp_path: Path, name: str) -> None:
    store = Store.create(tmp_path / name)
    store.tables.half_log().table.writer.append(halves(1), app_id="a", number=1)

    assert read(spark, f"{store.location}/half").count() == 1


def test_claim_columns_are_all_in_the_change_feed(store: Store) -> None:
    op = store.tables.op_log()
    op.append([op_row(1)], 0, app_id="a", number=1)

    found = pa.table(delta_rs(op.table.folder).load_cdf(1, 1))

    assert set(CLAIM_COLUMNS) <= set(found.column_names)
