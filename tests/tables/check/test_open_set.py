"""The open set: what goes on from what was read before says what a new search says."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.check_world import GROUP, CheckWorld
from tests.kit.kills import interrupted
from txmq.check import open_set
from txmq.check.open_set import HALF_COLUMNS, OpenSetReader, runs_of
from txmq.check.open_transactions import OpenTransactions, open_transactions
from txmq.check.recheck import RecheckJob
from txmq.delta.folder import Objects, TableFolder
from txmq.maintenance import service as maintenance
from txmq.maintenance.compaction import compact
from txmq.maintenance.service import Maintenance
from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource, Fact, TransactionState
from txmq.ops.admin.status import Admin
from txmq.store.op import OpRow
from txmq.store.schemas import HALF
from txmq.store.settled import settled_table
from txmq.store.store import Store
from txmq.store.tables import OPEN_TRANSACTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
INCOMPLETE = TransactionState.INCOMPLETE


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckWorld:
    # So that each search with news writes its set down.
    monkeypatch.setattr(open_set, "KEEP_EVERY_ROWS", 1)
    return CheckWorld(tmp_path)


def settle(world: CheckWorld, ids: Sequence[str], state: TransactionState = COMMITTED) -> None:
    """End these transactions, as a producer and a publisher would."""
    world.claim(ids, ClaimKind.COMMIT)
    op = world.store.tables.op_log().table
    log = world.store.tables.settled_log(op.log.table_id)
    claims = [Claim(key, ClaimKind.COMMIT, GROUP, op.version, n) for n, key in enumerate(ids)]
    facts = [Fact(claim, state, 0, None) for claim in claims]
    log.swap(settled_table(facts, world.clock.now_ms(), [None] * len(facts)), op.version)


def recheck(world: CheckWorld) -> int:
    return RecheckJob(world.store, clock=world.clock).run_once().open_transactions


def shown(world: CheckWorld) -> set[str]:
    rows = open_transactions(world.store, clock=world.clock)
    return set(rows["transaction_id"].to_pylist())


def data_files(world: CheckWorld, table: str) -> list[Path]:
    return sorted((world.folder / "store" / table).rglob("*.parquet"))


def delta(world: CheckWorld, table: str) -> DeltaTable:
    return DeltaTable(str(world.folder / "store" / table))


# --- going on -------------------------------------------------------------------------------------


def test_set_that_goes_on_is_that_of_a_new_search(world: CheckWorld) -> None:
    going_on = OpenTransactions(world.store, world.clock)
    for turn in range(4):
        ended, incomplete, claimed, *_ = world.prepare(5, messages=turn + 1)
        settle(world, [ended])
        going_on.read()
        settle(world, [incomplete], INCOMPLETE)
        world.claim([claimed], ClaimKind.UNKNOWN, life=0, check_times=1)
        rows = going_on.read()

        fresh = OpenTransactions(world.store, world.clock)
        assert rows.equals(fresh.read())
        assert rows.num_rows == 4 * (turn + 1)
        assert going_on.open_set.read().ended == fresh.open_set.read().ended


def test_end_that_is_read_before_its_half_counts(world: CheckWorld) -> None:
    # Half is read first: between the two reads another transaction may begin and end.
    reader = OpenTransactions(world.store, world.clock)
    reader.read()
    logs = reader._logs
    logs.half.table.refresh()
    (late,) = world.prepare()
    settle(world, [late])
    logs.refresh_claims()
    refresh, logs.refresh_after_half = logs.refresh_after_half, lambda: None  # type: ignore[method-assign]
    assert reader.read().num_rows == 0
    logs.refresh_after_half = refresh  # type: ignore[method-assign]

    assert reader.read().num_rows == 0
    assert reader.open_set.read().ended[COMMITTED.value] == 1


def test_half_that_is_appended_again_after_its_end_is_not_open(world: CheckWorld) -> None:
    reader = OpenTransactions(world.store, world.clock)
    (key,) = world.prepare()
    settle(world, [key])
    assert reader.read().num_rows == 0

    half = world.store.tables.half_log().table
    rows = half.rows.read(half.files.all(), HALF.columns.names)
    half.writer.append(rows, app_id="again", number=1)

    assert reader.read().num_rows == 0


def test_message_that_is_twice_counts_once(world: CheckWorld) -> None:
    reader = OpenTransactions(world.store, world.clock)
    world.prepare(messages=3)
    reader.read()
    half = world.store.tables.half_log().table
    rows = half.rows.read(half.files.all(), HALF.columns.names)
    half.writer.append(rows.slice(1), app_id="again", number=1)

    (row,) = reader.read().to_pylist()

    assert (row["found"], row["message_count"], row["problem"]) == (3, 3, None)


def test_reader_that_goes_on_opens_no_file_that_it_has_read(world: CheckWorld) -> None:
    reader = OpenTransactions(world.store, world.clock)
    reader.read()
    world.prepare(3)
    reader.read()
    for path in data_files(world, "half"):
        path.unlink()
    (new,) = world.prepare()

    assert new in reader.read()["transaction_id"].to_pylist()
    assert reader.read().num_rows == 4


# --- what is kept ---------------------------------------------------------------------------------


def test_process_that_starts_goes_on_at_what_a_service_kept(world: CheckWorld) -> None:
    service = OpenTransactions(world.store, world.clock)
    service.read()
    settle(world, world.prepare(2))
    first = world.prepare(3)
    service.read()
    assert service.open_set.keep()
    for table in ("half", "settled"):
        for path in data_files(world, table):
            path.unlink()
    second = world.prepare(2)

    assert shown(world) == {*first, *second}
    status = Admin(world.store, clock=world.clock).status()
    assert (status.open, status.committed) == (5, 2)
    assert status.half_messages == {"paid": 5}


def test_small_store_keeps_nothing(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path)
    world.prepare(3)

    assert recheck(world) == 3
    assert OPEN_TRANSACTIONS not in world.store.tables.table_paths()


def test_search_without_news_keeps_nothing_again(world: CheckWorld) -> None:
    world.prepare(3)
    recheck(world)
    version = delta(world, OPEN_TRANSACTIONS).version()

    recheck(world)

    assert delta(world, OPEN_TRANSACTIONS).version() == version


def lose(world: CheckWorld) -> None:
    shutil.rmtree(world.folder / "store" / OPEN_TRANSACTIONS)


def lose_rows(world: CheckWorld) -> None:
    delta(world, OPEN_TRANSACTIONS).delete("part = 'half'")


def change_rows(world: CheckWorld) -> None:
    delta(world, OPEN_TRANSACTIONS).update({"transaction_id": "concat(transaction_id, 'x')"})


def damage(world: CheckWorld) -> None:
    for path in data_files(world, OPEN_TRANSACTIONS):
        path.write_bytes(b"no Parquet")


def empty_log(world: CheckWorld) -> None:
    log = world.folder / "store" / OPEN_TRANSACTIONS / "_delta_log"
    for path in log.glob("*.json"):
        path.write_bytes(b"")


def only_create(world: CheckWorld) -> None:
    lose(world)
    world.store.tables.create_open_set()


HARM = {
    "lost": lose, "rows are gone": lose_rows, "rows are others": change_rows, "damaged": damage,
    "log is empty": empty_log,
    "killed before its first rows": only_create,
}  # fmt: skip


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_set_that_cannot_be_used_is_built_anew(world: CheckWorld, harm: Any) -> None:
    settle(world, world.prepare(2))
    first = world.prepare(3)
    recheck(world)
    harm(world)
    second = world.prepare()

    assert shown(world) == {*first, *second}
    assert recheck(world) == 4
    assert Admin(world.store, clock=world.clock).status().committed == 2


def test_set_of_logs_that_went_another_way_is_built_anew(world: CheckWorld, tmp_path: Path) -> None:
    world.prepare(2)
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    world.prepare(3)
    recheck(world)
    # Somebody restores half, op and settled, and keeps the rest.
    for table in ("half", "op", "settled"):
        shutil.rmtree(tmp_path / "store" / table)
        shutil.copytree(tmp_path / "older" / table, tmp_path / "store" / table)
    again = CheckWorld.__new__(CheckWorld)
    again.__dict__.update(world.__dict__)
    again._half, again._op = world.store.tables.half_log(), world.store.tables.op_log()
    again.prepare(4)

    assert len(shown(again)) == 6


def test_rows_that_another_program_removed_are_not_open(world: CheckWorld) -> None:
    reader = OpenTransactions(world.store, world.clock)
    first, second = world.prepare(2)
    recheck(world)
    assert reader.read().num_rows == 2

    delta(world, "half").delete(f"transaction_id = '{first}'")

    assert reader.read()["transaction_id"].to_pylist() == [second]
    assert shown(world) == {second}


def test_end_that_another_program_removed_is_no_end(world: CheckWorld) -> None:
    reader = OpenTransactions(world.store, world.clock)
    (key,) = world.prepare()
    settle(world, [key])
    recheck(world)
    assert reader.open_set.read().ended[COMMITTED.value] == 1

    delta(world, "settled").delete()

    assert reader.open_set.read().ended[COMMITTED.value] == 0
    assert OpenTransactions(world.store, world.clock).open_set.read().ended[COMMITTED.value] == 0


def test_file_that_could_not_be_read_is_read_when_it_is_back(world: CheckWorld) -> None:
    lost = world.prepare(2)
    (path,) = data_files(world, "half")
    content = path.read_bytes()
    path.write_bytes(b"no Parquet")
    others = world.prepare(2)
    assert shown(world) == {*others}
    recheck(world)
    assert Admin(world.store, clock=world.clock).status().unreadable

    path.write_bytes(content)

    assert shown(world) == {*lost, *others}
    assert not Admin(world.store, clock=world.clock).status().unreadable


def test_commit_that_lost_its_content_is_read_when_it_is_back(world: CheckWorld) -> None:
    lost = world.prepare(2)
    log = world.folder / "store" / "half" / "_delta_log"
    newest = log / f"{1:020}.json"
    content = newest.read_bytes()
    newest.write_bytes(b"")
    others = world.prepare(2)
    recheck(world)

    newest.write_bytes(content)

    assert shown(world) == {*lost, *others}


def test_two_services_keep_one_set(world: CheckWorld) -> None:
    readers = [OpenTransactions(world.store, world.clock) for _ in range(2)]
    world.prepare(2)
    for reader in readers:
        reader.read()
    assert readers[0].open_set.keep()
    # The other one found no table; it sees one now, and that it is not its own.
    assert not readers[1].open_set.keep() or delta(world, OPEN_TRANSACTIONS).version() == 2

    assert len(shown(world)) == 2


def test_set_is_written_by_many_and_read_whole(world: CheckWorld) -> None:
    for count in range(3):
        settle(world, world.prepare(count + 1))
        world.prepare(1)
        recheck(world)

    kept = OpenSetReader(world.store.tables.logs(), world.store.tables).read()

    assert kept.ended[COMMITTED.value] == 6
    assert len(kept.ids) == 3


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("owner", "write"), [(TableFolder, "write_unnamed"), (Objects, "put_new")])
def test_writer_of_the_set_may_die_at_any_write(
    world: CheckWorld, owner: type, write: str, *, before: bool
) -> None:
    still_open, is_kept = set[str](), False
    for nth in itertools.count(1):
        settle(world, world.prepare(2))
        still_open |= set(world.prepare())
        reader = OpenTransactions(world.store, world.clock)
        reader.read()
        with suppress(KeyboardInterrupt), interrupted(owner, write, nth=nth, before=before):
            is_kept = reader.open_set.keep()

        assert shown(world) == still_open
        if is_kept:
            break

    assert nth > 1


def test_maintenance_writes_the_set_before_it_cleans_the_logs(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "KEEP_EVERY_ROWS", 1)
    store = world.store.with_settings(world.store.config.replace(log_reserved_time_s=1.0))
    ids = world.prepare(3)
    for _ in range(store.config.checkpoint_interval):
        settle(world, world.prepare())
    world.clock.advance(3_600)

    result = Maintenance(store, clock=world.clock).run_once()

    assert result.commits_cleaned
    new = world.prepare()
    monkeypatch.setattr(OpenSetReader, "_built", lambda _: pytest.fail("all halves are read"))
    assert shown(world) == {*ids, *new}


def test_older_set_does_not_replace_a_newer_one(world: CheckWorld) -> None:
    behind, ahead = (OpenTransactions(world.store, world.clock) for _ in range(2))
    world.prepare(2)
    behind.read()
    world.prepare(2)
    ahead.read()
    ahead.open_set.keep()
    version = delta(world, OPEN_TRANSACTIONS).version()

    behind.open_set.keep()

    assert delta(world, OPEN_TRANSACTIONS).version() == version


# --- runs -----------------------------------------------------------------------------------------

HALVES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.sampled_from(["g", "h"]), st.booleans()),
    max_size=30,
)


@given(rows=HALVES, parts=st.integers(1, 4))
def test_runs_hold_each_message_once(rows: list[tuple[str, int, str, bool]], parts: int) -> None:
    columns = {
        "transaction_id": [row[0] for row in rows],
        "sequence": [row[1] for row in rows],
        "producer_group": [row[2] for row in rows],
        "real_topic": ["t" if row[3] else None for row in rows],
        "message_count": [7 if row[1] == 0 else None for row in rows],
        "check_immunity_time_s": [6.0 if row[1] == 0 else None for row in rows],
        "ordinary": [False for _ in rows],
    }
    schema = pa.schema([HALF.columns.field(name) for name in HALF_COLUMNS])
    table = pa.table({name: columns[name] for name in HALF_COLUMNS}, schema=schema)
    sizes = np.array_split(np.arange(len(rows)), parts)
    runs = pa.concat_tables([runs_of(table.take(pa.array(part, pa.int64()))) for part in sizes])

    messages = Counter(
        (run["transaction_id"], run["producer_group"], run["is_payload"], sequence)
        for run in runs.to_pylist()
        for sequence in range(run["first_sequence"], run["last_sequence"] + 1)
    )

    assert set(messages) == {(row[0], row[2], row[3], row[1]) for row in rows}
    assert max(messages.values(), default=1) <= parts
    heads = {run["transaction_id"] for run in runs.to_pylist() if run["message_count"] == 7}
    assert heads == {row[0] for row in rows if row[1] == 0}


# --- what is repaired, merged or taken away meanwhile ---------------------------------------------


def searched(world: CheckWorld, store: Store | None = None) -> pa.Table:
    """The open transactions by a search of all halves, whatever is kept."""
    search = OpenTransactions(store or world.store, world.clock)
    search.open_set._loaded = lambda: None  # type: ignore[method-assign]
    return search.read()


@pytest.mark.parametrize("by", ["maintenance", "delta-rs"])
def test_file_that_was_repaired_and_merged_is_not_forgotten(world: CheckWorld, by: str) -> None:
    world.prepare(2)
    (path,) = data_files(world, "half")
    content = path.read_bytes()
    path.write_bytes(b"no Parquet")
    world.prepare(2)
    world.prepare(2)
    going_on = OpenTransactions(world.store, world.clock)
    assert going_on.read().num_rows == 4
    going_on.open_set.keep()
    path.write_bytes(content)
    if by == "delta-rs":
        delta(world, "half").optimize.compact()
    else:
        for _ in range(10):
            world.prepare(1)
        compact(world.store.tables.half_log().table, 10**9)

    count = searched(world).num_rows

    assert count == (6 if by == "delta-rs" else 16)
    assert going_on.read().num_rows == count
    assert OpenTransactions(world.store, world.clock).read().num_rows == count


@pytest.mark.parametrize("table", ["half", "settled"])
def test_commit_that_lost_its_content_below_a_checkpoint_is_no_empty_one(
    world: CheckWorld, table: str
) -> None:
    world.prepare(1)
    old = OpenTransactions(world.store, world.clock)
    old.read()
    old.open_set.keep()
    mine = world.prepare(2)
    settle(world, mine[:1])
    for _ in range(3):
        settle(world, world.prepare(1))
    op_id = world.store.tables.op_log().table.log.table_id
    for log in (world.store.tables.half_log(), world.store.tables.settled_log(op_id)):
        log.table.writer.checkpoint()
    emptied = 2 if table == "half" else 1
    commit = world.folder / "store" / table / "_delta_log" / f"{emptied:020}.json"
    commit.write_bytes(b"")
    world.prepare(1)

    assert shown(world) == set(searched(world)["transaction_id"].to_pylist())
    assert mine[1] in shown(world)


@pytest.mark.parametrize("later", [0, 2])
def test_going_on_search_sees_a_commit_that_was_repaired(world: CheckWorld, later: int) -> None:
    for count in (1, 2, 1):
        world.prepare(count)
    commit = world.folder / "store" / "half" / "_delta_log" / f"{2:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(b"")
    going_on = OpenTransactions(world.store, world.clock)
    assert going_on.read().num_rows == 2
    for _ in range(later):
        world.prepare(1)
    going_on.read()
    commit.write_bytes(content)

    assert going_on.read().num_rows == searched(world).num_rows == 4 + later


def test_claims_that_another_program_removed_do_not_count_any_more(world: CheckWorld) -> None:
    ended, asked = world.prepare(2)
    world.claim([ended], ClaimKind.COMMIT)
    version = delta(world, "op").version()
    world.claim([asked], ClaimKind.UNKNOWN, life=0, check_times=3)
    going_on = OpenTransactions(world.store, world.clock)
    going_on.read()
    going_on.open_set.keep()

    delta(world, "op").restore(version)
    assert going_on.read().equals(searched(world))
    assert OpenTransactions(world.store, world.clock).read().equals(searched(world))
    delta(world, "op").delete()

    assert shown(world) == {ended, asked}
    assert going_on.read().equals(searched(world))


@pytest.mark.parametrize(("writer", "reader"), [("f" * 64, "0" * 64), ("0" * 64, "")])
def test_set_of_a_process_with_other_keys_is_not_taken(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch, writer: str, reader: str
) -> None:
    def store_with(key: str) -> Store:
        if key:
            monkeypatch.setenv("ORDERS_CLAIM_KEY", key)
        store = Store.open(world.folder / "store")
        keys = {GROUP: "ORDERS_CLAIM_KEY"} if key else {}
        return store.with_settings(store.config.replace(claim_keys=keys))

    asked, forged = world.prepare(2)
    world.claim([forged], ClaimKind.COMMIT)
    now_ms = world.clock.now_ms()
    row = OpRow(
        asked, ClaimKind.UNKNOWN, GROUP, ClaimSource.CHECK, now_ms,
        life=0, check_times=2, next_check_timestamp_ms=now_ms + 5_000,
    )  # fmt: skip
    store_with("0" * 64).tables.op_log().append([row], 0, app_id="signed", number=1)
    kept = OpenTransactions(store_with(writer), world.clock)
    kept.read()
    assert kept.open_set.keep()

    store = store_with(reader)

    assert OpenTransactions(store, world.clock).read().equals(searched(world, store))


def test_damaged_file_of_a_young_commit_does_not_stop_the_search(world: CheckWorld) -> None:
    for _ in range(3):
        world.prepare(1)
    half = world.store.tables.half_log().table
    rows = half.rows.read(half.files.all(), HALF.columns.names)
    # As of two producers at once: the ids of this commit cover the others.
    half.writer.append(pa.concat_tables([rows.slice(0, 1), rows.slice(2)]), app_id="p", number=1)
    newest = max(data_files(world, "half"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"no Parquet")

    assert OpenTransactions(world.store, world.clock).read().num_rows == 3
