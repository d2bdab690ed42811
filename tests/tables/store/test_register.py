from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.foreign_input import column_of
from txmq.delta.table import Table
from txmq.errors import (
    CommitRefusedError,
    StorageError,
    StoreFormatError,
    StoreNotFoundError,
)
from txmq.store.register import Register, Registered, SharedValue
from txmq.store.schemas import REGISTER
from txmq.store.store import Store
from txmq.testing import START_MS, before_commit, failing_commits
from txmq.verify import verify

NEW = Registered(0, {})


@pytest.fixture
def register(store: Store) -> Register:
    return store.tables.register("value", create=True)


@pytest.fixture
def rival(store: Store) -> Register:
    return store.tables.register("value", create=True)


def test_new_register_is_empty(register: Register) -> None:
    assert register.read() == NEW


def test_register_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        Register(Table(str(tmp_path / "absent"), REGISTER)).read()


def test_swapped_value_is_read_by_all(register: Register, rival: Register) -> None:
    value = {"mark": 5, "parked": {"orders": {"reason": "Ж\n"}}, "none": None}

    swapped = register.swap(register.read(), value, START_MS)

    assert swapped == register.read() == rival.read() == Registered(1, value)


def test_swaps_follow_each_other(register: Register) -> None:
    seen = register.read()
    for number in range(1, 6):
        seen = register.swap(seen, {"number": number}, START_MS)

    assert register.read() == Registered(5, {"number": 5})
    assert len(register.table.files.all()) == 1


def test_of_two_swaps_of_the_same_value_the_second_is_refused(
    register: Register, rival: Register
) -> None:
    seen, seen_by_rival = register.read(), rival.read()
    rival.swap(seen_by_rival, {"by": "rival"}, START_MS)

    for _ in range(2):
        with pytest.raises(CommitRefusedError):
            register.swap(seen, {"by": "us"}, START_MS)

    assert register.read() == Registered(1, {"by": "rival"})


def test_value_that_was_read_again_does_not_revive_an_older_one(
    register: Register, rival: Register
) -> None:
    old = register.read()
    rival.swap(rival.read(), {"by": "rival"}, START_MS)
    register.read()

    with pytest.raises(CommitRefusedError):
        register.swap(old, {"by": "us"}, START_MS)


def test_value_can_be_swapped_once_only(register: Register) -> None:
    seen = register.read()
    register.swap(seen, {"a": 1}, START_MS)

    with pytest.raises(CommitRefusedError):
        register.swap(seen, {"a": 2}, START_MS)


def test_rival_between_look_and_commit_wins(register: Register, rival: Register) -> None:
    seen = register.read()

    def overtake() -> None:
        rival.swap(rival.read(), {"by": "rival"}, START_MS)

    with before_commit(overtake), pytest.raises(CommitRefusedError):
        register.swap(seen, {"by": "us"}, START_MS)

    assert register.read().value == {"by": "rival"}


def test_refused_swap_can_be_made_again_after_a_new_look(register: Register) -> None:
    seen = register.read()
    with failing_commits(1), pytest.raises(CommitRefusedError):
        register.swap(seen, {"a": 1}, START_MS)

    register.swap(register.read(), {"a": 1}, START_MS)

    assert register.read() == Registered(1, {"a": 1})


def test_registers_are_apart(store: Store) -> None:
    one, other = (
        store.tables.register("value", create=True),
        store.tables.register("other", create=True),
    )

    one.swap(one.read(), {"a": 1}, START_MS)

    assert other.read() == NEW


# --- a newest change that lost its content -------------------------------------------------------


def newest_commit(register: Register) -> Path:
    return max(Path(register.table.location, "_delta_log").glob("*.json"))


def test_value_before_a_change_that_lost_its_content_does_not_count_in_silence(
    register: Register, rival: Register
) -> None:
    register.swap(register.swap(register.read(), {"n": 1}, START_MS), {"n": 2}, START_MS)
    newest_commit(register).write_bytes(b"")

    for reader in (register, rival):
        with pytest.raises(StoreFormatError, match=r"00002\.json, is empty"):
            Register(reader.table.reopen()).read()


def test_operator_may_undo_the_change_that_lost_its_content(register: Register) -> None:
    register.swap(register.swap(register.read(), {"n": 1}, START_MS), {"n": 2}, START_MS)
    newest_commit(register).write_bytes(b"")
    newest_commit(register).unlink()

    assert Register(register.table.reopen()).read().value == {"n": 1}


def test_change_after_one_that_lost_its_content_counts(register: Register) -> None:
    register.swap(register.read(), {"n": 1}, START_MS)
    newest_commit(register).write_bytes(b"")
    fresh = Register(register.table.reopen())

    fresh.swap(fresh.read_unseen(), {"n": 3}, START_MS)

    assert fresh.read().value == {"n": 3}
    assert Register(register.table.reopen()).read().value == {"n": 3}


def test_value_that_a_rival_repairs_meanwhile_is_not_taken_for_an_unreadable_one(
    register: Register, rival: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is replaced is the value that could not be read, and no later one."""
    register.swap(register.read(), {"n": 1}, START_MS)
    newest_commit(register).write_bytes(b"")
    own = Register(register.table.reopen())
    read_unseen = own.read_unseen

    def after_a_repair() -> Registered:
        rival.table.refresh()
        rival.swap(rival.read_unseen(), {"n": 7}, START_MS)
        return read_unseen()

    monkeypatch.setattr(own, "read_unseen", after_a_repair)
    shared = SharedValue(own, "value", dict, dict)

    changed = shared.change(lambda value: {"n": value.get("n", 0) + 1}, START_MS, lambda _: None)

    assert changed == {"n": 8}


def deleted(location: str) -> None:
    DeltaTable(location).delete()


def restored(location: str) -> None:
    DeltaTable(location).restore(1)


def appended(location: str) -> None:
    row = {
        "revision": 9,
        "value": "{}",
        "updated_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    }
    write_deltalake(location, pa.Table.from_pylist([row], REGISTER.columns), mode="append")


def doubled(location: str) -> None:
    rows = pa.table(DeltaTable(location).to_pyarrow_table())
    value = pa.array(['{"count": 7}'], pa.string())
    odd = rows.set_column(rows.schema.get_field_index("value"), "value", value)
    write_deltalake(location, odd, mode="append")


def without_text(location: str) -> None:
    row = {
        "revision": pa.array([9], pa.int64()),
        "value": column_of(b"\xff", pa.string()),
        "updated_timestamp": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    write_deltalake(location, pa.table(row), mode="append")


@pytest.mark.parametrize("change", [deleted, restored, appended, doubled, without_text])
def test_value_whose_row_another_program_changed_is_not_believed(
    register: Register, change: Callable[[str], None]
) -> None:
    seen = register.swap(register.read(), {"count": 1}, now_ms=1)
    register.swap(seen, {"count": 2}, now_ms=2)

    change(register.table.location)

    with pytest.raises(StoreFormatError, match=r"its log says 2: another program .* \(DELETE"):
        register.read()


def test_verify_names_a_value_that_another_program_spoiled(store: Store) -> None:
    register = store.tables.register("group_billing", create=True)
    without_text(register.table.location)

    with pytest.raises(StorageError, match=r"state/group_billing.*no JSON object"):
        verify(store.location)
