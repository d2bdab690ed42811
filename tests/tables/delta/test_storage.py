from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import halves, ids, messages, op_row, transaction_id
from tests.kit.commits import failing_put
from tests.kit.reading import delta_rs
from txmq.delta import table_log
from txmq.delta.actions import commit_path
from txmq.delta.files import covering, may_hold
from txmq.delta.parquet import NewFile, described
from txmq.delta.pinned import CARRIED_COMMITS
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.delta.table import Table
from txmq.delta.table_log import TableLog
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    IncompatibleVersionError,
    ReadOnlyStoreError,
    StorageError,
    StoreFormatError,
    StoreFullError,
    StoreNotFoundError,
    UnknownCommitError,
)
from txmq.store.op import CLAIM_COLUMNS
from txmq.store.schemas import OP
from txmq.store.store import Store
from txmq.testing import START_MS, before_commit, failing_commits

APP = "writer"
Another = Callable[[], Table]
NUMBERS = TableSchema(
    "numbers",
    pa.schema(
        [
            pa.field("key", pa.string()),
            pa.field("number", pa.int64()),
            pa.field("moment", pa.timestamp("us", tz="UTC")),
            pa.field("day", pa.date32()),
            pa.field("part", pa.int32()),
        ]
    ),
    partition_by=("part", "day"),
    change_data_feed=True,
)
DAY = date(2026, 1, 1)


def number_rows(*numbers: int, part: int | None = 0, day: date | None = DAY) -> pa.Table:
    count = len(numbers)
    columns = {
        "key": [transaction_id(number) for number in numbers],
        "number": list(numbers),
        "moment": [datetime(2026, 1, 1, tzinfo=UTC)] * count,
        "day": [day] * count,
        "part": [part] * count,
    }
    return pa.table(columns, schema=NUMBERS.columns)


@pytest.fixture
def numbers(tmp_path: Path) -> Table:
    table = Table(str(tmp_path / "numbers"), NUMBERS)
    table.writer.create(checkpoint_interval=100)
    return table


@pytest.fixture
def another(numbers: Table) -> Another:
    """Another process's view of the same table."""
    return lambda: Table(numbers.location, NUMBERS)


def stored_numbers(table: Table) -> list[int]:
    fresh = Table(table.location, NUMBERS)
    return sorted(fresh.rows.read(fresh.files.all(), ["number"])["number"].to_pylist())


def corrupt(path: Path) -> None:
    path.write_bytes(b"not a parquet file")


# --- opening ----------------------------------------------------------------------------------


def test_table_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "absent"), OP)

    assert not table.exists()
    with pytest.raises(StoreNotFoundError):
        _ = table.version


def test_location_below_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(StorageError):
        Table(str(tmp_path / "file"), OP).exists()
    with pytest.raises(StorageError):
        Table(str(tmp_path / "file" / "op"), OP).writer.create(checkpoint_interval=100)


def test_table_made_by_somebody_else_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "foreign"), pa.table({"a": [1]}))

    with pytest.raises(StoreFormatError):
        _ = Table(str(tmp_path / "foreign"), OP).version


@pytest.mark.parametrize(
    ("written", "error"),
    [
        (str(SCHEMA_VERSION + 1), IncompatibleVersionError),
        ("x", StoreFormatError),
        ("²", StoreFormatError),
    ],
)
def test_table_of_another_schema_version_is_refused(
    tmp_path: Path, written: str, error: type[StorageError]
) -> None:
    table = Table(str(tmp_path / "op"), OP)
    table.writer.create(100, {SCHEMA_VERSION_PROPERTY: written})

    with pytest.raises(error):
        _ = table.version


def test_creating_again_keeps_the_table(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    table_id = numbers.log.table_id

    numbers.writer.create(checkpoint_interval=100)

    assert numbers.log.table_id == table_id
    assert stored_numbers(numbers) == [1]


def test_creator_that_lost_the_race_takes_the_table_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, loser = (Table(str(tmp_path / "t"), NUMBERS) for _ in range(2))
    winner.writer.create(checkpoint_interval=100)

    def refused(*_: object, **__: object) -> None:
        raise CommitRefusedError("numbers", "another writer was first")

    monkeypatch.setattr(loser.writer, "_create", refused)
    loser.writer.create(checkpoint_interval=100)

    assert loser.log.table_id == winner.log.table_id


def test_made_table_has_the_properties_that_the_design_asks_for(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "op"), OP)
    table.writer.create(checkpoint_interval=7, extra={"txmq.committer": "delta-rs"})

    properties = table.log.properties()

    assert properties["delta.enableExpiredLogCleanup"] == "false"
    assert properties["delta.checkpointInterval"] == "7"
    assert properties["delta.enableChangeDataFeed"] == "true"
    assert properties["txmq.schema_version"] == str(SCHEMA_VERSION)
    assert "delta.setTransactionRetentionDuration" not in properties


# --- handles ----------------------------------------------------------------------------------


def test_handle_stays_at_its_version_until_it_is_refreshed(
    numbers: Table, another: Another
) -> None:
    before = numbers.version
    another().writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.version == before
    assert numbers.log.has_news()
    assert numbers.refresh().version == before + 1
    assert not numbers.log.has_news()


def test_reopen_shows_the_newest_version(numbers: Table, another: Another) -> None:
    _ = numbers.version
    another().writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.reopen().version == 1


def test_commit_file_is_read_byte_for_byte(numbers: Table) -> None:
    content = Path(numbers.location, "_delta_log", f"{0:020d}.json").read_bytes()

    assert numbers.folder.commit_bytes(0) == content
    assert numbers.folder.commit_bytes(99) is None


def test_commit_times_are_those_of_the_files(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    log = Path(numbers.location, "_delta_log")
    os.utime(log / f"{1:020d}.json", (1_000, 1_000))

    assert numbers.folder.commit_times_ms()[1] == 1_000_000
    assert set(numbers.folder.commit_times_ms()) == {0, 1}


# --- files by their statistics -----------------------------------------------------------------


def test_empty_table_has_no_files(numbers: Table) -> None:
    assert numbers.files.all() == []
    assert numbers.files.holding("key", ids(transaction_id(1))) == []
    assert numbers.files.beyond("number", 0) == []
    assert numbers.search.rows_of("key", ids(transaction_id(1)), ["number"]).num_rows == 0


def test_only_files_that_may_hold_a_value_are_chosen(numbers: Table) -> None:
    for number in range(10, 20):
        numbers.writer.append(number_rows(number, number + 100), app_id=APP, number=number)

    chosen = numbers.files.holding("number", pa.array([13, 999]))

    found = [numbers.rows.read([file], ["number"])["number"].to_pylist() for file in chosen]
    assert sorted(found) == [[10, 110], [11, 111], [12, 112], [13, 113]]


def test_old_id_does_not_widen_the_choice_to_all_files(numbers: Table) -> None:
    for number in range(1, 10):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)

    chosen = numbers.files.holding("key", ids(transaction_id(1), transaction_id(9)))

    assert len(chosen) == 2


def test_files_beyond_a_number_leave_out_older_ones(numbers: Table) -> None:
    for number in range(1, 6):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)

    chosen = numbers.files.beyond("number", 3)

    assert sorted(numbers.rows.read(chosen, ["number"])["number"].to_pylist()) == [4, 5]


def test_nothing_wanted_needs_no_file(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.files.holding("key", ids()) == []


def test_wanted_null_is_found_nowhere(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.search.rows_of("key", ids(None, transaction_id(1)), ["number"]).num_rows == 1
    assert numbers.search.rows_of("key", ids(None), ["number"]).num_rows == 0


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("part", 0, pa.int32()), ("day", DAY, pa.date32()), ("number", 1, pa.int64()),
        ("moment", datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
        ("key", transaction_id(1), pa.large_string()),
    ],
)  # fmt: skip
def test_rows_are_found_by_a_column_of_any_type(
    numbers: Table, column: str, value: Any, kind: pa.DataType
) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    numbers.writer.append(number_rows(2, part=1, day=date(2026, 1, 2)), app_id=APP, number=2)

    found = numbers.search.rows_of(column, pa.array([value], kind), ["number"])

    assert 1 in found["number"].to_pylist()


def test_column_without_statistics_leaves_out_no_file(store: Store) -> None:
    op = store.tables.op_log()
    op.append([op_row(1)], 0, app_id=APP, number=1)
    op.append([op_row(2)], 0, app_id=APP, number=2)

    assert len(op.table.files.holding("ordinal", pa.array([77]))) == 2
    assert op.table.search.rows_of("ordinal", pa.array([0]), CLAIM_COLUMNS).num_rows == 2


def test_long_names_are_found_through_truncated_statistics(store: Store) -> None:
    twins = ["t" * 100 + end for end in "abc"]
    half = store.tables.half_log()
    for number, topic in enumerate(twins):
        half.table.writer.append(halves(number, messages(1, topic)), app_id=APP, number=number + 1)

    for topic in twins:
        found = half.table.search.rows_of("real_topic", ids(topic), ["real_topic"])
        assert found["real_topic"].to_pylist() == [topic]


SPARK_PREFIX = 32


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=8), st.data())
def test_ids_are_found_through_statistics_that_spark_cut(
    numbers: list[int], data: st.DataObject
) -> None:
    stored = sorted(transaction_id(number) for number in numbers)
    wanted = data.draw(st.sampled_from(stored))

    # Spark keeps 32 characters and ends a cut maximum with a character beyond all others.
    low, high = stored[0][:SPARK_PREFIX], stored[-1][:SPARK_PREFIX] + "\U0010ffff"

    assert may_hold(low, high, [wanted])


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_choice_of_files_is_that_of_a_naive_loop(stored: list[int], wanted: list[int]) -> None:
    low, high = min(stored), max(stored)

    assert may_hold(low, high, sorted(wanted)) == any(low <= value <= high for value in wanted)


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=6),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_files_are_chosen_alike_for_one_value_and_for_many(
    bounds: list[tuple[int | None, int | None]], wanted: list[int]
) -> None:
    expected = [may_hold(low, high, sorted(wanted)) for low, high in bounds]

    assert covering(bounds, pa.array(wanted)) == expected
    assert covering(bounds, pa.array(wanted[:1] * 2)) == covering(bounds, pa.array(wanted[:1]))


@pytest.mark.parametrize(("low", "high"), [(None, None), (None, 5), (5, None)])
def test_file_of_unknown_bounds_may_hold_anything(low: int | None, high: int | None) -> None:
    assert may_hold(low, high, [99])


def committed_by_hand(numbers: Table, rows: pa.Table, stats_json: str) -> None:
    """A file whose statistics say what a test wants."""
    stored = rows.drop_columns(["part", "day"])
    path = f"{uuid.uuid4()}.parquet"
    pq.write_table(stored, Path(numbers.location, path))
    size = Path(numbers.location, path).stat().st_size
    partition = {"part": "3", "day": "2026-01-02"}
    file = NewFile(path, size, rows.num_rows, stats_json, partition)
    numbers.writer.swap_files([file], {"files": 1})


@pytest.mark.parametrize(
    "stats",
    [
        {"numRecords": 1},
        {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}},
        {"numRecords": 1, "minValues": {"number": 0}, "maxValues": {"number": 9}},
    ],
    ids=["count only", "empty", "another column only"],
)
def test_file_without_bounds_is_never_left_out(numbers: Table, stats: dict[str, object]) -> None:
    committed_by_hand(numbers, number_rows(1), json.dumps(stats))

    assert numbers.reopen().search.rows_of("key", ids(transaction_id(1)), ["number"]).num_rows == 1


def test_statistics_survive_a_checkpoint_of_the_log(numbers: Table) -> None:
    for number in range(1, 4):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)
    delta_rs(numbers.folder).create_checkpoint()

    numbers.reopen()

    assert len(numbers.files.holding("key", ids(transaction_id(2)))) == 1
    assert [file.num_records for file in numbers.files.all()] == [1, 1, 1]
    assert numbers.log.mark(APP) == 3


# --- reading ----------------------------------------------------------------------------------


def test_partition_values_come_back_with_their_types(numbers: Table) -> None:
    numbers.writer.append(number_rows(1, part=7, day=date(1969, 12, 31)), app_id=APP, number=1)

    rows = numbers.rows.read(numbers.files.all(), NUMBERS.columns.names)

    assert rows.schema == NUMBERS.columns
    assert rows.to_pylist()[0]["part"] == 7
    assert rows.to_pylist()[0]["day"] == date(1969, 12, 31)


def test_null_in_a_partition_column_comes_back_as_null(numbers: Table) -> None:
    numbers.writer.append(number_rows(1, part=None, day=None), app_id=APP, number=1)

    row = numbers.rows.read(numbers.files.all(), NUMBERS.columns.names).to_pylist()[0]

    assert (row["part"], row["day"], row["number"]) == (None, None, 1)


def test_columns_come_back_in_the_order_asked_for(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.rows.read(numbers.files.all(), ["part", "number"]).column_names == [
        "part",
        "number",
    ]
    assert numbers.rows.read([], ["day", "key"]).column_names == ["day", "key"]


def test_looked_up_column_is_returned_only_if_asked_for(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.search.rows_of("key", ids(transaction_id(1)), ["number"]).column_names == [
        "number"
    ]


@pytest.mark.parametrize("int96", [True, False], ids=["INT96", "microseconds"])
def test_timestamps_of_other_writers_are_read_alike(numbers: Table, *, int96: bool) -> None:
    rows = number_rows(1)
    path = Path(numbers.location, "foreign.parquet")
    pq.write_table(rows.drop_columns(["part", "day"]), path, use_deprecated_int96_timestamps=int96)
    partition = {"part": "0", "day": "2026-01-01"}
    numbers.writer.swap_files(
        [described(path.name, numbers.folder.filesystem, [], partition)], {"files": 1}
    )

    numbers.reopen()
    file = numbers.files.all()[0]

    assert numbers.rows.read([file], NUMBERS.columns.names).to_pylist() == rows.to_pylist()
    batch = next(iter(numbers.rows.batches(file, ["number", "moment"], 10)))
    assert pa.types.is_timestamp(batch.schema.field("moment").type)
    assert batch.schema.field("moment").type.unit == "us"


def test_batches_hold_at_most_the_rows_asked_for_in_their_order(numbers: Table) -> None:
    numbers.writer.append(number_rows(*range(25)), app_id=APP, number=1)

    batches = list(numbers.rows.batches(numbers.files.all()[0], ["number"], 10))

    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert [n for batch in batches for n in batch["number"].to_pylist()] == list(range(25))


def test_column_that_is_younger_than_a_file_is_null_in_it(numbers: Table) -> None:
    rows = number_rows(1).drop_columns(["part", "day", "moment"])
    pq.write_table(rows, Path(numbers.location, "old.parquet"))
    partition = {"part": "0", "day": "2026-01-01"}
    numbers.writer.swap_files(
        [described("old.parquet", numbers.folder.filesystem, [], partition)], {"files": 1}
    )

    numbers.reopen()

    assert numbers.rows.read(numbers.files.all(), ["moment", "number"]).to_pylist() == [
        {"moment": None, "number": 1}
    ]


@pytest.mark.usefixtures("files_read_each_time")
def test_damaged_file_is_a_typed_error(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    file = numbers.files.all()[0]

    corrupt(Path(numbers.location, file.path))

    with pytest.raises(StorageError, match="cannot be read"):
        numbers.rows.read([file], ["number"])


@pytest.mark.usefixtures("files_read_each_time")
def test_missing_file_is_a_typed_error_and_not_an_empty_table(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    file = numbers.files.all()[0]

    Path(numbers.location, file.path).unlink()

    with pytest.raises(StorageError, match="cannot be read"):
        numbers.search.rows_of("key", ids(transaction_id(1)), ["number"])


# --- the change feed ---------------------------------------------------------------------------


def test_changes_hold_each_appended_row_with_its_version(numbers: Table) -> None:
    for number in range(1, 5):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)

    found = numbers.changes.read(2, 3, ["number", "part", "day"]).to_pylist()

    assert sorted((row["_commit_version"], row["number"]) for row in found) == [(2, 2), (3, 3)]
    assert {row["part"] for row in found} == {0}


def test_no_versions_have_no_changes(numbers: Table) -> None:
    found = numbers.changes.read(5, 4, ["number"])

    assert found.num_rows == 0
    assert found.column_names == ["number", "_commit_version"]


def test_changes_follow_versions_that_others_made_meanwhile(
    numbers: Table, another: Another
) -> None:
    assert numbers.version == 0
    another().writer.append(number_rows(1), app_id=APP, number=1)

    assert numbers.changes.read(1, 1, ["number"]).num_rows == 1


def test_changes_beyond_the_newest_version_are_not_cut_in_silence(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)

    with pytest.raises(StorageError, match="no version 9"):
        numbers.changes.read(0, 9, ["number"])


def test_rows_that_retention_removed_are_not_claims_made_now(numbers: Table) -> None:
    numbers.writer.append(number_rows(1, day=date(2026, 1, 1)), app_id=APP, number=1)
    numbers.writer.append(number_rows(2, day=date(2026, 1, 2)), app_id=APP, number=2)
    delta_rs(numbers.folder).delete("day = '2026-01-01'")

    assert numbers.changes.read(3, numbers.reopen().version, ["number"]).num_rows == 0


def test_compaction_appends_nothing(numbers: Table) -> None:
    for number in range(1, 4):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)
    delta_rs(numbers.folder).optimize.compact()
    numbers.reopen()

    assert numbers.changes.read(4, numbers.version, ["number"]).num_rows == 0
    assert numbers.changes.read(1, numbers.version, ["number"]).num_rows == 3
    assert numbers.search.rows_of("key", ids(transaction_id(2)), ["number"]).num_rows == 1


def test_cleaned_version_is_a_typed_error(numbers: Table) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    numbers.writer.append(number_rows(2), app_id=APP, number=2)
    delta_rs(numbers.folder).create_checkpoint()
    Path(numbers.location, "_delta_log", f"{1:020d}.json").unlink()

    with pytest.raises(StorageError):
        numbers.reopen().changes.read(1, 2, ["number"])


# --- appending once ----------------------------------------------------------------------------


def test_append_returns_the_version_that_holds_it(numbers: Table) -> None:
    version = numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert version == 1
    assert numbers.changes.read(version, version, ["number"])["number"].to_pylist() == [1]


def test_lost_race_is_tried_again(numbers: Table) -> None:
    with failing_commits(3) as failed:
        numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert len(failed) == 3
    assert stored_numbers(numbers) == [1]


def test_append_names_its_own_version_where_another_commits_right_after_it(
    numbers: Table, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, rival = numbers.log.refresh, another()

    def late() -> TableLog:
        rival.writer.append(number_rows(9), app_id="rival", number=1)
        return refresh()

    monkeypatch.setattr(numbers.log, "refresh", late)
    version = numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert another().changes.read(version, version, ["number"])["number"].to_pylist() == [1]


def test_answer_that_was_lost_is_found_by_the_commit_itself(
    numbers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = numbers.version
    monkeypatch.setattr(numbers.log, "reopen", None)

    with failing_put(OSError("lost (injected)"), after_put=True) as failed:
        version = numbers.writer.append(number_rows(1), app_id=APP, number=1)
        numbers.writer.swap(number_rows(2), {"progress": 1})

    assert version == len(failed) == 1
    assert stored_numbers(numbers) == [1, 2]


def test_append_whose_answer_was_lost_names_its_own_version(
    numbers: Table, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = numbers.version
    reopen, rival = numbers.log.reopen, another()

    def late() -> TableLog:
        rival.writer.append(number_rows(9), app_id="rival", number=1)
        return reopen()

    monkeypatch.setattr(numbers.log, "reopen", late)
    with failing_commits(1, table="numbers", after_commit=True):
        version = numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert another().changes.read(version, version, ["number"])["number"].to_pylist() == [1]
    assert stored_numbers(numbers) == [1, 9]


def test_append_after_others_were_faster_names_its_own_version(
    numbers: Table, another: Another
) -> None:
    rival = another()

    with before_commit(
        lambda: rival.writer.append(number_rows(9), app_id="rival", number=1) and None
    ):
        version = numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert another().changes.read(version, version, ["number"])["number"].to_pylist() == [1]


def test_commit_whose_table_cannot_be_looked_at_afterwards_is_acknowledged(
    numbers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> Table:
        raise StorageError("numbers", "cannot be read")

    monkeypatch.setattr(numbers.log, "refresh", failing)

    assert numbers.writer.append(number_rows(1), app_id=APP, number=1) == 1


def test_mark_that_cannot_be_read_leaves_a_commit_unknown(
    numbers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: str) -> int:
        raise CommitRefusedError("numbers", "the log was cleaned since it was opened")

    monkeypatch.setattr(numbers.log, "mark", failing)
    with (
        failing_commits(1, error=OSError("connection reset"), after_commit=True),
        pytest.raises(UnknownCommitError),
    ):
        numbers.writer.append(number_rows(1), app_id=APP, number=1)


def test_commit_that_is_refused_for_good_says_why(numbers: Table) -> None:
    patient = Table(numbers.location, NUMBERS, commit_attempts=2)
    error = CommitFailedError("the moon is full")

    with (
        failing_commits(9, error=error),
        pytest.raises(CommitConflictError, match="the moon is full"),
    ):
        patient.writer.append(number_rows(1), app_id=APP, number=1)


@pytest.mark.parametrize(
    "error", [None, OSError("connection reset"), DeltaError("timed out")], ids=repr
)
def test_append_whose_answer_was_lost_is_not_made_twice(
    numbers: Table, error: Exception | None
) -> None:
    with failing_commits(1, error=error, after_commit=True) as failed:
        version = numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert (len(failed), version) == (1, 1)
    assert stored_numbers(numbers) == [1]


def test_append_of_files_whose_answer_was_lost_is_not_made_twice(numbers: Table) -> None:
    path = Path(numbers.location, "mine.parquet")
    pq.write_table(number_rows(1).drop_columns(["part", "day"]), path)
    partition = {"part": "0", "day": "2026-01-01"}
    files = [described(path.name, numbers.folder.filesystem, ["number"], partition)]

    with failing_commits(1, error=OSError("connection reset"), after_commit=True):
        numbers.writer.append_files(files, app_id=APP, number=1)

    assert stored_numbers(numbers) == [1]
    assert len(numbers.reopen().files.holding("number", pa.array([5]))) == 0


def test_append_that_never_wins_gives_up_and_wrote_nothing(numbers: Table) -> None:
    patient = Table(numbers.location, NUMBERS, commit_attempts=3)

    with failing_commits(99) as failed, pytest.raises(CommitConflictError) as refused:
        patient.writer.append(number_rows(1), app_id=APP, number=1)

    assert refused.value.retryable
    assert len(failed) == 3
    assert stored_numbers(numbers) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreFullError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StoreFullError),
        (DeltaError("Generic error: No space left on device (os error 28)"), StoreFullError),
        (OSError(errno.EROFS, "Read-only file system"), ReadOnlyStoreError),
        (PermissionError(errno.EACCES, "Permission denied"), ReadOnlyStoreError),
        (DeltaError("Permission denied (os error 13)"), ReadOnlyStoreError),
        (DeltaError("something else"), StorageError),
    ],
    ids=repr,
)  # fmt: skip
def test_failed_append_says_what_is_wrong_and_wrote_nothing(
    numbers: Table, error: Exception, expected: type[StorageError]
) -> None:
    with failing_commits(99, error=error), pytest.raises(StorageError) as refused:
        numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert type(refused.value) is expected
    assert stored_numbers(numbers) == []


def test_commit_that_can_neither_be_confirmed_nor_denied_says_so(
    numbers: Table, tmp_path: Path
) -> None:
    def vanish() -> None:
        shutil.move(numbers.location, tmp_path / "elsewhere")

    with before_commit(vanish), pytest.raises(UnknownCommitError) as refused:
        numbers.writer.append(number_rows(1), app_id=APP, number=1)

    assert refused.value.retryable


def test_two_writers_do_not_hinder_each_other(numbers: Table, another: Another) -> None:
    rival = another()
    _ = rival.version, numbers.version

    for number in range(1, 4):
        numbers.writer.append(number_rows(number), app_id="one", number=number)
        rival.writer.append(number_rows(10 + number), app_id="two", number=number)

    assert stored_numbers(numbers) == [1, 2, 3, 11, 12, 13]


# --- compare and swap --------------------------------------------------------------------------


def test_swap_writes_rows_and_mark_together(numbers: Table) -> None:
    assert numbers.log.mark("progress") is None

    numbers.writer.swap(number_rows(1), {"progress": 7, "offset": 0})

    assert numbers.reopen().log.mark("progress") == 7
    assert numbers.log.mark("offset") == 0
    assert stored_numbers(numbers) == [1]


def test_swap_without_rows_moves_the_mark(numbers: Table) -> None:
    numbers.writer.swap(NUMBERS.columns.empty_table(), {"progress": 7})

    assert numbers.reopen().log.mark("progress") == 7
    assert numbers.files.all() == []


def test_swap_after_a_rival_moved_the_mark_is_refused_again_and_again(
    numbers: Table, another: Another
) -> None:
    _ = numbers.version
    another().writer.swap(number_rows(1), {"progress": 1})

    for _ in range(3):
        with pytest.raises(CommitRefusedError):
            numbers.writer.swap(number_rows(2), {"progress": 1})

    assert stored_numbers(numbers) == [1]


def test_swap_of_files_after_a_rival_moved_the_mark_is_refused(
    numbers: Table, another: Another
) -> None:
    _ = numbers.version
    another().writer.swap(number_rows(1), {"files": 1})

    with pytest.raises(CommitRefusedError):
        committed_by_hand(numbers, number_rows(2), json.dumps({"numRecords": 1}))

    assert stored_numbers(numbers) == [1]


def test_swap_of_files_leaves_a_handle_that_shows_them(numbers: Table) -> None:
    committed_by_hand(numbers, number_rows(1), json.dumps({"numRecords": 1}))

    assert numbers.refresh().log.mark("files") == 1
    assert numbers.rows.read(numbers.files.all(), ["number", "part", "day"]).to_pylist() == [
        {"number": 1, "part": 3, "day": date(2026, 1, 2)}
    ]


def test_swap_accepts_what_others_appended_under_other_marks(
    numbers: Table, another: Another
) -> None:
    _ = numbers.version
    another().writer.append(number_rows(1), app_id="somebody", number=1)

    numbers.writer.swap(number_rows(2), {"progress": 1})

    assert stored_numbers(numbers) == [1, 2]


def test_swap_accepts_a_compaction_in_between(numbers: Table, another: Another) -> None:
    for number in range(1, 4):
        numbers.writer.append(number_rows(number), app_id=APP, number=number)
    delta_rs(another().folder).optimize.compact()

    numbers.writer.swap(number_rows(4), {"progress": 1})

    assert stored_numbers(numbers) == [1, 2, 3, 4]


def test_replace_holds_only_its_own_rows_and_refuses_rivals(
    numbers: Table, another: Another
) -> None:
    numbers.writer.swap(number_rows(1), {"progress": 1})
    stale = another()
    _ = stale.version

    numbers.writer.replace(number_rows(2), {"progress": 2})

    with pytest.raises(CommitRefusedError):
        stale.writer.swap(number_rows(3), {"progress": 2})
    assert stored_numbers(numbers) == [2]


@pytest.mark.parametrize("passed", [1, 2, CARRIED_COMMITS, CARRIED_COMMITS + 3])
def test_marks_that_are_known_follow_what_others_commit(
    numbers: Table, another: Another, passed: int
) -> None:
    numbers.writer.swap(number_rows(1), {"progress": 1, "still": 5})
    assert (numbers.refresh().log.mark("progress"), numbers.log.mark("still")) == (1, 5)
    assert numbers.log.mark("unknown") is None

    for number in range(2, passed + 2):
        rival = another()
        rival.writer.swap(number_rows(number), {"progress": rival.log.mark("progress") + number})
    rival.writer.swap(number_rows(0), {"unknown": 9})

    numbers.refresh()
    names = ("progress", "still", "unknown")
    assert [numbers.log.mark(name) for name in names] == [
        another().log.mark(name) for name in names
    ]
    assert numbers.log.mark("unknown") == 9


def test_refresh_reads_each_commit_once_and_nothing_else(
    numbers: Table, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.refresh()
    monkeypatch.setattr(numbers.log, "_opened", None)
    reads: list[str] = []
    read = numbers.folder.file_bytes
    monkeypatch.setattr(
        numbers.folder, "file_bytes", lambda path: (reads.append(path), read(path))[1]
    )

    another().writer.swap(number_rows(1), {"progress": 1})
    another().writer.swap(number_rows(2), {"progress": 2})
    for _ in range(3):
        numbers.refresh()

    assert reads == [commit_path(1), commit_path(2)]
    assert numbers.log.mark("progress") == 2
    assert stored_numbers(numbers) == [1, 2]


def test_follower_that_is_far_behind_begins_at_a_checkpoint(
    numbers: Table, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "FOLLOWED_MAX", 3)
    numbers.refresh()
    rival = another()
    for number in range(1, 9):
        rival.writer.append(number_rows(number), app_id=APP, number=number)
    rival.writer.checkpoint()

    assert numbers.refresh().version == 8
    assert stored_numbers(numbers) == [*range(1, 9)]


def test_commit_that_is_lost_before_later_ones_is_an_error_and_no_end(
    numbers: Table, another: Another, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.refresh()
    rival = another()
    for number in (1, 2):
        rival.writer.append(number_rows(number), app_id=APP, number=number)
    Path(numbers.location, commit_path(1)).unlink()
    monkeypatch.setattr(table_log, "LIST_EVERY_S", 0.0)

    with pytest.raises(StorageError, match=f"{commit_path(1)} is not there, but later commits are"):
        numbers.refresh()


def test_appends_alone_read_no_snapshot(numbers: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers.writer.append(number_rows(1), app_id=APP, number=1)
    monkeypatch.setattr(numbers.log, "refresh", None)
    monkeypatch.setattr(numbers.log, "reopen", None)

    versions = [numbers.writer.append(number_rows(n), app_id=APP, number=n) for n in (2, 3, 4)]

    assert versions == [2, 3, 4]


def test_look_that_fails_neither_loses_a_commit_nor_its_answer(
    numbers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.refresh()

    look, looks = numbers.folder.look_up_commits, []

    def broken(*versions: int) -> Any:
        looks.append(versions)
        if len(looks) > 1:
            raise OSError(errno.EIO, "a disk that cannot be looked at")
        return look(*versions)

    with monkeypatch.context() as patch:
        patch.setattr(numbers.folder, "look_up_commits", broken)
        numbers.writer.swap(number_rows(1), {"progress": 1})
        assert len(looks) > 1

    assert numbers.refresh().log.mark("progress") == 1
    assert stored_numbers(numbers) == [1]


def test_refresh_sees_a_table_that_was_made_anew_with_as_many_commits(
    numbers: Table, another: Another
) -> None:
    numbers.writer.swap(number_rows(1), {"progress": 1})
    before = numbers.refresh().log.table_id
    shutil.rmtree(numbers.location)
    made = another()
    made.writer.create(checkpoint_interval=100)
    made.writer.swap(number_rows(2, 3), {"progress": 7})
    assert made.refresh().version == numbers.version

    assert numbers.refresh().log.table_id != before
    assert numbers.log.mark("progress") == 7


def test_mark_carries_the_time_without_which_spark_would_ignore_it(numbers: Table) -> None:
    numbers.writer.swap(number_rows(1), {"progress": 1})

    content = numbers.folder.commit_bytes(1) or b""
    actions = [json.loads(line) for line in content.splitlines()]
    marks = [action["txn"] for action in actions if "txn" in action]

    assert [mark["appId"] for mark in marks] == ["progress"]
    assert marks[0]["lastUpdated"] > START_MS


def test_part_of_a_file_is_read_with_its_range(store: Store) -> None:
    table = store.tables.table_at("half")
    table.writer.append(pa.concat_tables([halves(1), halves(2)]), app_id=APP, number=1)

    (part,) = table.files.parts(("transaction_id", "absent"))
    groups = table.rows.row_groups(part, ("transaction_id",))

    assert part.low == {"transaction_id": transaction_id(1), "absent": None}
    assert part.high["transaction_id"] == transaction_id(2)
    assert groups is not None
    assert [group.row_group for group in groups] == [0]
    rows = table.rows.read_part(groups[0], ("transaction_id", "queue_id"))
    assert rows is not None
    assert rows.to_pydict() == {
        "transaction_id": [transaction_id(1), transaction_id(2)], "queue_id": [0, 0],
    }  # fmt: skip


@pytest.mark.usefixtures("files_read_each_time")
def test_part_of_a_file_that_is_gone_is_none(store: Store) -> None:
    table = store.tables.table_at("half")
    table.writer.append(halves(1), app_id=APP, number=1)
    (part,) = table.files.parts(("transaction_id",))
    Path(table.location, part.file.path).unlink()

    assert table.rows.read_part(part, ("transaction_id",)) is None
    assert table.rows.row_groups(part, ("transaction_id",)) is None
