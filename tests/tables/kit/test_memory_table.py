"""One suite over the real door to Delta and its stand-in in memory: what txmq relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from tests.kit.builders import op_row
from tests.kit.memory_table import Disk, MemoryTable
from txmq.delta.schemas import SCHEMA_VERSION, TableSchema
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, StorageError, StoreNotFoundError
from txmq.store.op import op_table
from txmq.store.schemas import OP, REGISTER, SETTLED
from txmq.testing import failing_commits

if TYPE_CHECKING:
    from pathlib import Path

DAY, NEXT_DAY = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class World:
    """New handles on the same tables, and a way to lose the answer of the next commit."""

    table_of: Callable[[TableSchema], Table]
    lost_answer: Callable[[], AbstractContextManager[Any]]

    def new_table(self, schema: TableSchema = SETTLED) -> Table:
        table = self.table_of(schema)
        table.writer.create(100)
        return table

    def another(self, schema: TableSchema = SETTLED) -> Table:
        return self.table_of(schema)


@pytest.fixture(params=["delta", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "delta":
        return World(
            lambda schema: Table(f"{tmp_path}/{schema.name}", schema),
            lambda: failing_commits(1, error=DeltaError("lost (injected)"), after_commit=True),
        )
    disk = Disk()
    return World(
        lambda schema: MemoryTable(f"/memory/{schema.name}", schema, disk),
        lambda: answer_lost_in_memory(disk),
    )


@contextmanager
def answer_lost_in_memory(disk: Disk) -> Iterator[None]:
    def fail() -> None:
        raise DeltaError("lost (injected)")

    disk.interrupts.append(("", True, fail))
    yield
    assert not disk.interrupts


def facts(*names: str, version: int = 0, day: datetime = DAY) -> pa.Table:
    rows = [
        {"transaction_id": name, "state": "COMMITTED", "op_version": version,
         "settled_timestamp": day, "store_date": day.date()}
        for name in names
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SETTLED.columns)


def names_in(rows: pa.Table) -> list[str]:
    return sorted(rows["transaction_id"].to_pylist())


def all_names(table: Table) -> list[str]:
    return names_in(table.rows.read(table.files.all(), ["transaction_id"]))


# --- opening --------------------------------------------------------------------------------------


def test_table_that_was_not_made_is_not_found(world: World) -> None:
    table = world.another()
    assert not table.exists()
    with pytest.raises(StoreNotFoundError):
        table.refresh()


def test_new_table_is_empty_and_made_once(world: World) -> None:
    table = world.new_table()
    table.writer.create(100)
    assert table.exists()
    assert (table.version, table.log.mark("app"), table.files.all()) == (0, None, [])
    assert table.log.table_id == world.another().log.table_id
    assert table.log.properties()["txmq.schema_version"] == str(SCHEMA_VERSION)


def test_handle_is_pinned_until_it_is_refreshed(world: World) -> None:
    pinned, writer = world.new_table(), world.another()
    assert pinned.version == 0
    assert not pinned.log.has_news()
    assert writer.writer.append(facts("a"), app_id="app", number=7) == 1
    assert (pinned.version, pinned.log.mark("app"), all_names(pinned)) == (0, None, [])
    assert pinned.log.has_news()
    pinned.refresh()
    assert (pinned.version, pinned.log.mark("app"), all_names(pinned)) == (1, 7, ["a"])
    assert not pinned.log.has_news()


# --- compare-and-swap ---------------------------------------------------------------------------


def test_swap_is_refused_after_another_moved_the_same_mark(world: World) -> None:
    first, second = world.new_table(), world.another()
    assert (first.version, second.version) == (0, 0)
    first.writer.swap(facts("a"), {"mark": 1})
    with pytest.raises(CommitRefusedError):
        second.writer.swap(facts("b"), {"mark": 1, "other": 1})
    assert all_names(second.refresh()) == ["a"]
    assert second.log.mark("other") is None


def test_swap_is_refused_though_the_mark_goes_up(world: World) -> None:
    first, second = world.new_table(), world.another()
    assert (first.version, second.version) == (0, 0)
    first.writer.swap(facts("a"), {"mark": 1})
    with pytest.raises(CommitRefusedError):
        second.writer.swap(facts("b"), {"mark": 2})


def test_swap_from_a_fresh_handle_may_move_the_mark_back(world: World) -> None:
    table = world.new_table()
    table.writer.swap(facts("a"), {"mark": 5})
    table.writer.swap(facts("b"), {"mark": 3})
    assert (table.log.mark("mark"), all_names(table)) == (3, ["a", "b"])


def test_commits_under_other_marks_do_not_disturb(world: World) -> None:
    first, second = world.new_table(), world.another()
    assert (first.version, second.version) == (0, 0)
    first.writer.swap(facts("a"), {"one": 1})
    second.writer.swap(facts("b"), {"two": 2})
    assert (second.log.mark("one"), second.log.mark("two")) == (1, 2)
    assert all_names(second) == ["a", "b"]
    assert second.version == 2


def test_mark_alone_is_a_commit(world: World) -> None:
    table = world.new_table()
    table.writer.swap(facts(), {"mark": 4})
    assert (table.version, table.log.mark("mark"), table.files.all()) == (1, 4, [])


def test_files_of_a_refused_swap_are_never_read(world: World) -> None:
    first, second = world.new_table(), world.another()
    files = second.writer.new_files(facts("b"))
    assert second.version == 0
    first.writer.swap(facts("a"), {"mark": 1})
    with pytest.raises(CommitRefusedError):
        second.writer.swap_files(files, {"mark": 1})
    assert all_names(second.reopen()) == ["a"]


def test_own_commit_of_files_is_seen_after_a_refresh(world: World) -> None:
    first, second = world.new_table(), world.another()
    assert (first.version, second.version) == (0, 0)
    first.writer.swap(facts("a"), {"one": 1})
    second.writer.swap_files(second.writer.new_files(facts("b")), {"two": 2})
    assert (second.refresh().version, second.log.mark("one"), second.log.mark("two")) == (2, 1, 2)


def test_append_whose_answer_was_lost_is_made_once(world: World) -> None:
    table = world.new_table()
    with world.lost_answer():
        assert table.writer.append(facts("a"), app_id="app", number=1) == 1
    assert all_names(table) == ["a"]


def test_replaced_table_holds_the_new_rows_only(world: World) -> None:
    table = world.new_table(REGISTER)
    table.writer.replace(register("1"), {"mark": 1})
    table.writer.replace(register("2"), {"mark": 2})
    assert table.rows.read(table.files.all(), ["value"])["value"].to_pylist() == ["2"]
    assert (table.version, table.log.mark("mark")) == (2, 2)


def test_replacing_is_refused_after_another_moved_the_mark(world: World) -> None:
    first, second = world.new_table(REGISTER), world.another(REGISTER)
    assert (first.version, second.version) == (0, 0)
    first.writer.replace(register("1"), {"mark": 1})
    with pytest.raises(CommitRefusedError):
        second.writer.replace(register("2"), {"mark": 1})


def register(value: str) -> pa.Table:
    row = {"revision": 1, "value": value, "updated_timestamp": DAY}
    return pa.Table.from_pylist([row], schema=REGISTER.columns)


# --- reading --------------------------------------------------------------------------------------


def written(world: World) -> Table:
    table = world.new_table()
    table.writer.append(facts("a", "c", version=1), app_id="app", number=1)
    table.writer.append(facts("b", version=2, day=NEXT_DAY), app_id="app", number=2)
    table.writer.append(facts("x", "z", version=5), app_id="app", number=3)
    return table


def records(table: Table, files: list[Any]) -> list[list[str]]:
    return sorted(names_in(table.rows.read([file], ["transaction_id"])) for file in files)


def test_files_are_chosen_by_their_statistics(world: World) -> None:
    table = written(world)
    assert records(table, table.files.holding("transaction_id", pa.array(["b"]))) == [
        ["a", "c"],
        ["b"],
    ]
    assert records(table, table.files.holding("transaction_id", pa.array(["d", "y"]))) == [
        ["x", "z"]
    ]
    assert table.files.holding("transaction_id", pa.array([], pa.string())) == []
    assert records(table, table.files.beyond("op_version", 1)) == [["b"], ["x", "z"]]
    assert records(table, table.files.up_to("op_version", 1)) == [["a", "c"]]


def test_files_come_in_the_same_order(world: World) -> None:
    table = written(world)
    found = [names_in(table.rows.read([file], ["transaction_id"])) for file in table.files.all()]
    assert found == [["a", "c"], ["b"], ["x", "z"]]


def test_rows_are_found_by_a_column_that_is_not_asked_for(world: World) -> None:
    table = written(world)
    found = table.search.rows_of(
        "transaction_id", pa.array(["b", "z"]), ["op_version", "store_date"]
    )
    days = {row["op_version"]: str(row["store_date"]) for row in found.to_pylist()}
    assert days == {2: "2026-01-02", 5: "2026-01-01"}
    assert found.schema.names == ["op_version", "store_date"]


def test_batches_are_the_rows_of_a_file_in_their_order(world: World) -> None:
    table = written(world)
    for file in table.files.all():
        batches = list(table.rows.batches(file, ["transaction_id"], 1))
        stored = table.rows.read([file], ["transaction_id"])["transaction_id"].to_pylist()
        assert [batch.num_rows for batch in batches] == [1] * file.num_records
        assert [name for batch in batches for name in batch.column(0).to_pylist()] == stored


def test_commits_can_be_told_apart(world: World) -> None:
    table = written(world)
    contents = [table.folder.commit_bytes(version) for version in range(4)]
    assert len(set(contents)) == 4
    assert table.folder.commit_bytes(4) is None
    assert sorted(table.folder.commit_times_ms()) == [0, 1, 2, 3]


# --- the change feed ----------------------------------------------------------------------------


@pytest.fixture
def fed(world: World) -> Table:
    table = world.new_table(OP)
    rows = [op_row(number) for number in range(3)]
    for number in range(3):
        claims = op_table(rows[: number + 1], queue_id=number)
        table.writer.append(claims, app_id="app", number=number + 1)
    return table


def test_changes_are_the_rows_of_the_commits_asked_for(fed: Table) -> None:
    found = fed.changes.read(2, 3, ("ordinal", "queue_id", "kind"))
    rows = sorted((r["_commit_version"], r["ordinal"], r["queue_id"]) for r in found.to_pylist())
    assert rows == [(2, 0, 1), (2, 1, 1), (3, 0, 2), (3, 1, 2), (3, 2, 2)]
    assert found.schema.names == ["ordinal", "queue_id", "kind", "_commit_version"]


def test_changes_of_no_commit_are_none(fed: Table) -> None:
    assert fed.changes.read(3, 2, ("ordinal",)).num_rows == 0


def test_changes_that_are_not_there_yet_raise(fed: Table) -> None:
    with pytest.raises(StorageError):
        fed.changes.read(2, 4, ("ordinal",))


def test_changes_beyond_the_handle_are_read(world: World, fed: Table) -> None:
    pinned = world.another(OP)
    assert pinned.version == 3
    fed.writer.append(fed.changes.read(1, 1, OP.columns.names).drop_columns("_commit_version"),
               app_id="app", number=4)  # fmt: skip
    assert pinned.changes.read(4, 4, ("ordinal",)).num_rows == 1
