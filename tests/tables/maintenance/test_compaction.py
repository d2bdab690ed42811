"""Which small files become one, and that their rows stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as some

from tests.kit.builders import halves, transaction_id
from tests.kit.kills import killed_at
from txmq.delta import file_rows as batches
from txmq.delta.files import DataFile
from txmq.delta.table import Table
from txmq.delta.table_log import TableLog
from txmq.delta.table_writer import TableWriter
from txmq.errors import CommitRefusedError
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance import compaction
from txmq.maintenance.compaction import (
    FILES_OF_A_CLASS,
    SMALLEST_CLASS_BYTES,
    Compacted,
    compact,
    groups_to_compact,
    size_class,
)
from txmq.store.store import Store

TARGET_BYTES = 64 * 1024 * 1024
KIB = 1024


def file(number: int, size_bytes: int = KIB, queue_id: int = 0) -> DataFile:
    partition = {"queue_id": queue_id, "store_date": date(2026, 1, 1)}
    return DataFile(f"part-{number:05}.parquet", 1, size_bytes, partition, number)


def files(count: int, size_bytes: int = KIB) -> list[DataFile]:
    return [file(number, size_bytes) for number in range(count)]


@pytest.mark.parametrize(
    ("size_bytes", "number"),
    [(0, 0), (128 * KIB - 1, 0), (128 * KIB, 1), (1024 * KIB - 1, 1), (1024 * KIB, 2)],
)
def test_size_classes_are_eight_times_each_other(size_bytes: int, number: int) -> None:
    assert size_class(size_bytes) == number


def test_seven_small_files_stay_and_eight_become_one() -> None:
    assert groups_to_compact(files(7), TARGET_BYTES) == []
    assert groups_to_compact(files(8), TARGET_BYTES) == [files(8)]


def test_files_of_other_partitions_and_classes_are_not_mixed() -> None:
    mixed = [file(n, queue_id=n % 2) for n in range(14)] + files(7, 200 * KIB)

    assert groups_to_compact(mixed, TARGET_BYTES) == []


def test_large_files_stay_as_they_are() -> None:
    assert groups_to_compact(files(20, TARGET_BYTES), TARGET_BYTES) == []


def test_merged_files_are_neighbours_in_time() -> None:
    half_of_target = TARGET_BYTES // 2
    groups = groups_to_compact(files(9, half_of_target)[::-1], TARGET_BYTES)

    assert [[one.modified_ms for one in group] for group in groups] == [
        [0, 1], [2, 3], [4, 5], [6, 7],
    ]  # fmt: skip


@given(some.lists(some.integers(1, 2 * TARGET_BYTES), max_size=60))
def test_compacting_ends_with_few_files_after_few_copies(sizes: list[int]) -> None:
    live = [file(number, size) for number, size in enumerate(sizes)]
    copies = 0
    while groups := groups_to_compact(live, TARGET_BYTES):
        copies += 1
        for group in groups:
            live = [one for one in live if one not in group]
            size = sum(one.size_bytes for one in group)
            live.append(file(10_000 + copies * 1_000 + len(live), size))
    by_class: dict[int, int] = {}
    for one in live:
        if one.size_bytes < TARGET_BYTES:
            by_class[size_class(one.size_bytes)] = by_class.get(size_class(one.size_bytes), 0) + 1

    assert sum(one.size_bytes for one in live) == sum(sizes)
    assert all(one.size_bytes <= max([TARGET_BYTES, *sizes]) for one in live)
    # The topmost class may keep what does not fit together.
    topmost = size_class(TARGET_BYTES - 1)
    assert all(n < FILES_OF_A_CLASS for number, n in by_class.items() if number < topmost)
    assert copies <= len(sizes)


def test_class_bound_is_the_smallest_class() -> None:
    assert size_class(SMALLEST_CLASS_BYTES - 1) == 0


# --- on real tables ----------------------------------------------------------------------------


def filled(store: Store, count: int) -> Table:
    table = store.tables.table_at("half")
    for number in range(count):
        rows = halves(number, producer_group=f"group-{number % 3}")
        table.writer.append(rows, app_id="producer", number=number + 1)
    return table


def content(table: Table) -> list[dict[str, object]]:
    table.refresh()
    rows = table.rows.read(table.files.all(), table.schema.columns.names)
    return rows.sort_by("message_id").to_pylist()


def test_compacted_table_holds_the_same_rows_in_one_file_and_one_commit(store: Store) -> None:
    table = filled(store, 10)
    before, version = content(table), table.version

    assert compact(table, TARGET_BYTES) == Compacted(10, 1)
    assert content(table) == before
    assert (table.version, len(table.files.all())) == (version + 1, 1)


def test_compacted_file_is_as_old_as_the_newest_in_it(store: Store) -> None:
    table = filled(store, 8)
    newest_ms = max(file.modified_ms for file in table.refresh().files.all())
    compact(table, TARGET_BYTES)

    assert [file.modified_ms for file in table.files.all()] == [newest_ms]


def test_change_feed_shows_each_row_once_and_in_its_own_commit(store: Store) -> None:
    table = filled(store, 9)
    before = table.changes.read(0, table.version, ("message_id",))
    compact(table, TARGET_BYTES)
    after = table.changes.read(0, table.version, ("message_id",))

    assert after.sort_by("message_id").equals(before.sort_by("message_id"))


def test_compacted_file_is_found_by_its_ids(store: Store) -> None:
    table = filled(store, 8)
    compact(table, TARGET_BYTES)
    found = table.search.rows_of("transaction_id", _ids(3), ("message_id",))

    assert found.num_rows == 1
    assert table.files.holding("transaction_id", _ids(5_000)) == []


def test_appends_through_an_older_handle_are_not_refused(store: Store) -> None:
    table = filled(store, 8)
    other = store.tables.table_at("half").refresh()
    compact(table, TARGET_BYTES)
    other.writer.swap(halves(100), {"another": 1})

    assert len(content(table)) == 9


def test_second_of_two_compactions_is_refused_and_changes_nothing(store: Store) -> None:
    table, other = filled(store, 8), store.tables.table_at("half").refresh()
    old = other.files.all()
    compact(table, TARGET_BYTES)
    before = content(table)
    with pytest.raises(CommitRefusedError):
        other.writer.rewrite(old, other.writer.new_files(halves(50)))

    assert content(table) == before


def test_compaction_by_another_program_at_the_same_time_doubles_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs would accept both."""
    table = filled(store, 8)
    before, rewrite = content(table), TableWriter.rewrite

    def late(self: TableWriter, *files: Any) -> None:
        monkeypatch.undo()
        DeltaTable(table.location).optimize.compact()
        rewrite(self, *files)

    monkeypatch.setattr(TableWriter, "rewrite", late)
    with pytest.raises(CommitRefusedError, match="another writer removed"):
        compact(table, TARGET_BYTES)

    assert content(table) == before


def test_rows_deleted_meanwhile_do_not_come_back(store: Store) -> None:
    table, other = filled(store, 8), store.tables.table_at("half").refresh()
    old = other.files.all()
    table.writer.remove(table.files.all()[:1])
    with pytest.raises(CommitRefusedError):
        other.writer.rewrite(old, other.writer.new_files(halves(50)))

    assert len(content(table)) == 7


def test_two_compactions_by_delta_rs_alone_would_double_every_row(store: Store) -> None:
    """Why storage keeps a mark: goes red when delta-rs refuses the second by itself."""
    table = filled(store, 8)
    first, second = DeltaTable(table.location), DeltaTable(table.location)
    first.optimize.compact()
    second.optimize.compact()

    assert len(content(table)) == 16


MERGES: dict[str, Callable[[DeltaTable], object]] = {
    "compact": lambda handle: handle.optimize.compact(),
    "z-order": lambda handle: handle.optimize.z_order(["message_id"]),
}
REMOVALS: dict[str, Callable[[Table], object]] = {
    "merged": lambda table: compact(table, TARGET_BYTES),
    "removed": lambda table: table.writer.remove(table.files.all()[:4]),
    "replaced": lambda table: table.writer.replace(halves(100), {}),
}


@pytest.mark.parametrize("is_from_checkpoint", [True, False])
@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("merge", MERGES)
def test_merge_by_delta_rs_that_began_before_is_refused_and_doubles_nothing(
    store: Store, merge: str, removal: str, *, is_from_checkpoint: bool
) -> None:
    table = filled(store, 8)
    if is_from_checkpoint:
        table.writer.checkpoint()
        table = store.tables.table_at("half")
    sleeper = DeltaTable(table.location)
    REMOVALS[removal](table.refresh())
    rows = content(table)

    with pytest.raises(CommitFailedError, match="Metadata changed"):
        MERGES[merge](sleeper)

    assert content(table) == rows
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == len(rows)


def test_who_appends_goes_on_behind_a_merge(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store, 8)
    sender = store.tables.table_at("half").refresh()
    compact(table, TARGET_BYTES)
    monkeypatch.setattr(TableLog, "reopen", lambda _: pytest.fail("it was refused"))

    sender.writer.append(halves(100), app_id="another", number=1)

    assert len(content(table)) == 9


def _ids(number: int) -> object:
    import pyarrow as pa

    return pa.array([transaction_id(number)])


# --- many small files ----------------------------------------------------------------------------


def test_what_was_merged_before_a_kill_stays_merged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FILES_AT_ONCE", 10)
    table = filled(store, 35)
    before = content(table)

    with killed_at(3, FailPoint.FILES_MERGED):
        compact(table, TARGET_BYTES)

    another = store.tables.table_at("half").refresh()
    assert len(another.files.all()) == 2 + 15
    assert compact(another, TARGET_BYTES) == Compacted(17, 2)
    assert content(another) == before


def test_rows_of_many_small_files_are_held_together_and_not_in_a_table_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "TABLES_HELD", 8)
    table, held = filled(store, 64), list[int]()
    concat_tables = pa.concat_tables

    def noted(tables: Iterable[pa.Table], **options: Any) -> pa.Table:
        parts = list(tables)
        held.append(len(parts))
        return concat_tables(parts, **options)

    monkeypatch.setattr(batches.pa, "concat_tables", noted)
    compact(table, TARGET_BYTES)

    assert max(held) == 8


def test_step_after_a_commit_of_another_program_doubles_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FILES_AT_ONCE", 8)
    table, merged = store.tables.table_at("half"), list[FailPoint]()
    for number in range(1, 17):
        rows = halves(number, queue_id=number % 2)
        table.writer.append(rows, app_id="producer", number=number)
    before = content(table)
    last = groups_to_compact(table.files.all(), TARGET_BYTES)[-1][0].partition["queue_id"]

    def optimize(point: FailPoint) -> None:
        """Another program, which knows no mark of txmq, merges what the second step would."""
        if point is FailPoint.FILES_MERGED and not merged:
            merged.append(point)
            filters = [("queue_id", "=", str(last))]
            DeltaTable(table.location).optimize.compact(partition_filters=filters)

    disarm = arm(optimize)
    assert compact(table, TARGET_BYTES) == Compacted(8, 1)
    disarm()

    assert content(store.tables.table_at("half")) == before
