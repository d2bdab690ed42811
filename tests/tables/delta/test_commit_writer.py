"""The commit writer on a real log: who is first, what passes, what is refused, and why."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from obstore.store import LocalStore

from tests.kit.commits import after_commit, before_put, failing_put
from tests.kit.delta_protocol import checked
from tests.kit.numbers_table import NUMBERS, another, numbers_table, rows, stored
from txmq.delta import checkpoints as checkpoint_thread
from txmq.delta import commit_writer
from txmq.delta.actions import LOG_FOLDER, NewCommit, commit_path
from txmq.delta.checkpoints import _Checkpoints, _Due, _Process
from txmq.delta.commit_writer import TURN_FILE, Turns
from txmq.delta.folder import Objects
from txmq.delta.log_files import clean_log
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, StorageError, StoreFullError, UnsupportedTableError

APP = "app"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return numbers_table(tmp_path, checkpoint_interval=1000)


# --- what it writes ------------------------------------------------------------------------------


def test_every_commit_keeps_delta_s_protocol_to_the_letter(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    table.writer.append(pa.concat_tables([rows(2), rows(3, part=None), rows(4, part="ä/ %2F=")]),
                 app_id=APP, number=2)  # fmt: skip
    table.writer.swap(rows(5), {"progress": 1})
    table.writer.commit_marks({"progress": 2})
    table.writer.rewrite(table.files.all()[:2], table.writer.new_files(rows(9)))
    table.writer.remove(table.files.all()[:1], {"progress": 3})
    table.writer.replace(rows(7), {"progress": 4})

    snapshot = checked(table.location)

    assert snapshot.version == 7
    assert snapshot.marks["progress"] == 4
    assert [action["size"] for action in snapshot.live.values()] == [
        file.size_bytes for file in another(table).files.all()
    ]
    assert stored(table) == [7]


def test_history_says_what_each_commit_did(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    table.writer.append(rows(2), app_id=APP, number=2)
    table.writer.rewrite(table.files.all(), table.writer.new_files(rows(1, 2)))
    table.writer.replace(rows(3), {"progress": 1})
    table.writer.remove(table.files.all())

    history = DeltaTable(table.location).history()

    names = [entry["operation"] for entry in reversed(history)]
    assert names == ["CREATE TABLE", "WRITE", "WRITE", "OPTIMIZE", "WRITE", "DELETE"]


def test_delta_rs_reads_what_it_writes(table: Table) -> None:
    table.writer.append(pa.concat_tables([rows(1), rows(2, part=None)]), app_id=APP, number=1)
    table.writer.remove([file for file in table.files.all() if file.partition["part"] is None])

    handle = DeltaTable(table.location)

    assert pa.table(handle.to_pyarrow_table()).to_pylist() == [{"number": 1, "part": "a"}]
    assert handle.transaction_version(APP) == 1
    changes = pa.table(handle.load_cdf(1, 2)).to_pylist()
    kinds = {(row["number"], row["_change_type"], row["_commit_version"]) for row in changes}
    assert kinds == {(1, "insert", 1), (2, "insert", 1), (2, "delete", 2)}


# --- races ---------------------------------------------------------------------------------------


def appended_by_delta_rs(table: Table) -> None:
    write_deltalake(table.location, rows(100), mode="append")


def appended_by_txmq(table: Table) -> None:
    another(table).writer.append(rows(100), app_id="rival", number=1)


@pytest.mark.parametrize("rival", [appended_by_delta_rs, appended_by_txmq])
def test_append_follows_the_appends_of_others(table: Table, rival: Callable[[Table], None]) -> None:
    with before_put(lambda: rival(table)):
        version = table.writer.append(rows(1), app_id=APP, number=1)

    assert version == 2
    assert stored(table) == [1, 100]
    assert another(table).changes.read(version, version, ["number"])["number"].to_pylist() == [1]


@pytest.mark.parametrize("rival", [appended_by_delta_rs, appended_by_txmq])
def test_append_of_delta_rs_follows_ours(table: Table, rival: Callable[[Table], None]) -> None:
    with after_commit(lambda: rival(table)):
        table.writer.append(rows(1), app_id=APP, number=1)

    assert stored(table) == [1, 100]


def mark_by_delta_rs(table: Table) -> None:
    properties = CommitProperties(app_transactions=[Transaction("progress", 5, 1)])
    write_deltalake(table.location, rows(100), mode="append", commit_properties=properties)


def mark_by_txmq(table: Table) -> None:
    another(table).writer.swap(rows(100), {"progress": 5})


@pytest.mark.parametrize("rival", [mark_by_delta_rs, mark_by_txmq])
def test_swap_is_refused_where_another_writer_moved_its_mark(
    table: Table, rival: Callable[[Table], None]
) -> None:
    with (
        before_put(lambda: rival(table)),
        pytest.raises(CommitRefusedError, match="moved the mark progress"),
    ):
        table.writer.swap(rows(1), {"progress": 1})

    assert stored(table) == [100]
    assert another(table).log.mark("progress") == 5


def test_file_is_removed_once(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    rival = another(table)

    def delete_by_delta_rs() -> None:
        DeltaTable(table.location).delete("number = 1")

    with (
        before_put(delete_by_delta_rs),
        pytest.raises(CommitRefusedError, match="another writer removed part-"),
    ):
        rival.writer.rewrite(rival.files.all(), rival.writer.new_files(rows(1)))

    assert stored(table) == []


def test_commit_after_the_properties_changed_is_computed_again(table: Table) -> None:
    with before_put(lambda: another(table).writer.set_properties({"txmq.test": "1"})):
        table.writer.append(rows(1), app_id=APP, number=1)

    assert table.log.properties()["txmq.test"] == "1"
    with (
        before_put(lambda: another(table).writer.set_properties({"txmq.test": "2"})),
        pytest.raises(CommitRefusedError, match="columns or properties"),
    ):
        table.writer.swap(rows(2), {"progress": 1})
    assert stored(table) == [1]


def test_file_whose_removal_was_another_one_s_does_not_stop_appends(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    rival = another(table)

    with before_put(lambda: rival.writer.remove(rival.files.all())):
        table.writer.append(rows(2), app_id=APP, number=2)

    assert stored(table) == [2]


# --- logs that are not what they were ------------------------------------------------------------


def test_log_that_went_back_is_not_written_beyond_its_end(table: Table) -> None:
    for number in (1, 2, 3):
        table.writer.append(rows(number), app_id=APP, number=number)
    for version in (2, 3):
        Path(table.location, commit_path(version)).unlink()

    version = table.writer.append(rows(9), app_id=APP, number=9)

    assert version == 2
    assert stored(table) == [1, 9]


def test_log_that_was_replaced_is_not_taken_for_the_old_one(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    newest = Path(table.location, commit_path(1))
    lines = newest.read_text(encoding="utf-8").splitlines(keepends=True)
    newest.unlink()
    newest.write_text("".join(line for line in lines if '"txn"' not in line), encoding="utf-8")
    reopen, opened = table.log.reopen, []
    monkeypatch.setattr(table.log, "reopen", lambda: opened.append(1) or reopen())

    version = table.writer.append(rows(9), app_id=APP, number=9)

    assert version == 2
    assert opened
    assert stored(table) == [1, 9]


def test_emptied_commit_of_another_is_opened_again(table: Table) -> None:
    def emptied() -> None:
        appended_by_txmq(table)
        Path(table.location, commit_path(1)).write_bytes(b"")

    with before_put(emptied):
        version = table.writer.append(rows(1), app_id=APP, number=1)

    assert version == 2


@pytest.mark.parametrize("content", ["7", '{"commitInfo": 5}', '{"txn": {"appId": "a"}}'])
def test_commit_of_another_shape_is_no_error_of_python(table: Table, content: str) -> None:
    def odd() -> None:
        Path(table.location, commit_path(1)).write_text(content)

    with before_put(odd), pytest.raises(StorageError) as error:
        table.writer.append(rows(1), app_id=APP, number=1)

    assert f"{commit_path(1)} is damaged" in str(error.value.__cause__)


def test_full_disk_is_named_and_nothing_is_committed(table: Table) -> None:
    error = OSError(28, "No space left on device")

    with failing_put(error), pytest.raises(StoreFullError):
        table.writer.append(rows(1), app_id=APP, number=1)

    assert stored(table) == []


# --- turns ---------------------------------------------------------------------------------------


def test_writer_that_loses_again_and_again_asks_the_others_to_wait(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival, count = another(table), iter(range(1, 1000))
    put, is_asked = Objects.put_new, []

    def faster(objects: Objects, path: str, content: bytes) -> bool:
        is_waiting = Path(table.location, TURN_FILE).exists()
        if objects is table.folder.objects and path.startswith(LOG_FOLDER) and not is_waiting:
            rival.writer.append(rows(next(count)), app_id="rival", number=next(count))
        is_asked.append(is_waiting)
        return put(objects, path, content)

    monkeypatch.setattr(Objects, "put_new", faster)
    monkeypatch.setattr(commit_writer, "PAUSE_S", 0.0)
    table.writer.append(rows(0), app_id=APP, number=1)

    assert is_asked[-1]
    assert 0 in stored(table)
    assert not Path(table.location, TURN_FILE).exists()


def turns_of(table: Table) -> Turns:
    return Turns(table.folder.objects, table.folder.file_bytes)


def test_turn_of_a_dead_writer_is_waited_for_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = iter(range(1000))
    monkeypatch.setattr("txmq.delta.commit_writer.time.sleep", slept.append)
    monkeypatch.setattr("txmq.delta.commit_writer.time.monotonic", lambda: next(now) / 10)
    turns_of(table).ask()
    waiting = turns_of(table)

    waiting.wait()
    pauses = len(slept)
    waiting.wait()

    assert pauses > 0
    assert len(slept) == pauses
    assert not Path(table.location, TURN_FILE).exists()


def test_turn_in_which_a_commit_is_computed_is_waited_for_longer(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("txmq.delta.commit_writer.time.monotonic", lambda: now[0])

    def sleep(pause_s: float) -> None:
        now[0] += pause_s

    monkeypatch.setattr("txmq.delta.commit_writer.time.sleep", sleep)
    waited_s = []
    for is_long in (False, True):
        turns_of(table).ask(is_long=is_long)
        begin_s = now[0]
        turns_of(table).wait()
        waited_s.append(now[0] - begin_s)

    assert waited_s[1] > 5 * waited_s[0] > 0


def test_who_lost_patience_with_a_turn_waits_for_the_next_one_of_the_same_writer(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    slept: list[float] = []
    monkeypatch.setattr("txmq.delta.commit_writer.time.monotonic", lambda: now[0])

    def sleep(pause_s: float) -> None:
        now[0] += pause_s
        slept.append(pause_s)

    monkeypatch.setattr("txmq.delta.commit_writer.time.sleep", sleep)
    asking, waiting = turns_of(table), turns_of(table)
    pauses = []
    for _ in range(2):
        asking.ask()
        waiting.wait()
        pauses.append(len(slept))
        asking.give_back()
        now[0] += 1

    assert pauses[1] > pauses[0] > 0


def test_second_writer_in_need_waits_for_the_first(table: Table) -> None:
    first, second = turns_of(table), turns_of(table)
    first.ask()
    second.ask()
    second.give_back()

    assert Path(table.location, TURN_FILE).exists()
    first.give_back()
    assert not Path(table.location, TURN_FILE).exists()


# --- what a table asks of its writers ------------------------------------------------------------


def with_constraint(table: Table) -> None:
    DeltaTable(table.location).alter.add_constraint({"small": "number < 5"})


def with_invariant(table: Table) -> None:
    with_rule_of_a_column(table, "delta.invariants", '{"expression":{"expression":"number < 5"}}')


def with_computed_column(table: Table) -> None:
    with_rule_of_a_column(table, "delta.generationExpression", "1 + 1")


def with_identity_column(table: Table) -> None:
    with_rule_of_a_column(table, "delta.identity.start", "1")


def with_rule_of_a_column(table: Table, key: str, rule: str) -> None:
    first = (table.folder.commit_bytes(0) or b"").decode().splitlines()
    (metadata,) = (json.loads(line) for line in first if "metaData" in line)
    schema = json.loads(metadata["metaData"]["schemaString"])
    schema["fields"][0]["metadata"][key] = rule
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    path = commit_path(table.refresh().version + 1)
    Path(table.location, path).write_text(json.dumps(metadata), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (with_constraint, r"checkConstraints \(small\)"),
        (with_invariant, "invariants"),
        (with_computed_column, "generatedColumns"),
        (with_identity_column, "identityColumns"),
    ],
)
def test_new_rows_are_refused_by_name_where_the_table_has_a_rule_for_them(
    table: Table, change: Callable[[Table], None], name: str
) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    table.writer.append(rows(2), app_id=APP, number=2)
    change(table)

    with pytest.raises(UnsupportedTableError, match=name):
        table.writer.append(rows(3), app_id=APP, number=3)
    table.refresh().writer.rewrite(table.files.all(), table.writer.new_files(rows(1, 2)))
    table.writer.commit_marks({"progress": 1})

    assert stored(table) == [1, 2]


def test_rows_of_a_table_that_is_append_only_stay(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    table.writer.set_properties({"delta.appendOnly": "true"})

    for change in (lambda: table.writer.remove(table.files.all()),
                   lambda: table.writer.replace(rows(2), {"progress": 1})):  # fmt: skip
        with pytest.raises(UnsupportedTableError, match=r"delta\.appendOnly"):
            change()
    table.writer.append(rows(3), app_id=APP, number=2)
    table.writer.rewrite(table.files.all(), table.writer.new_files(rows(1, 3)))

    assert stored(table) == [1, 3]


# --- logs that were cleaned or replaced ----------------------------------------------------------


@pytest.fixture
def no_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers put their first try without a look, as on an object store."""
    monkeypatch.setattr(Objects, "_opened", lambda objects, _: LocalStore(objects.location))
    monkeypatch.setattr(Objects, "is_remote", True)


@pytest.mark.usefixtures("no_first_look")
def test_two_writers_that_rested_while_the_log_was_cleaned_are_both_seen(table: Table) -> None:
    # The first one puts a commit where nobody looks any more: right behind what the second one saw.
    first, second = another(table), another(table)
    first.writer.append(rows(1), app_id="first", number=1)
    second.writer.append(rows(2), app_id="second", number=1)
    for number in range(5):
        table.writer.append(rows(10 + number), app_id=APP, number=number + 1)
    table.writer.checkpoint()
    clean_log(table, table.version)

    versions = [
        first.writer.append(rows(3), app_id="first", number=2),
        second.writer.append(rows(4), app_id="second", number=2),
    ]

    assert versions == [8, 9]
    assert set(stored(table)) >= {3, 4}


def test_writer_that_sleeps_before_its_put_does_not_follow_another_such_one(table: Table) -> None:
    sleeper, rival = another(table), another(table)
    sleeper.writer.append(rows(1), app_id="sleeper", number=1)
    stale = NewCommit((), (), {"rival": 1}, "stale")

    def night() -> None:
        for number in range(5):
            table.writer.append(rows(10 + number), app_id=APP, number=number + 1)
        table.writer.checkpoint()
        clean_log(table, table.version)
        assert rival.folder.objects.put_new(commit_path(1), stale.content(0))

    with before_put(night):
        sleeper.writer.append(rows(2), app_id="sleeper", number=2)

    assert 2 in stored(table)


def test_own_commit_that_is_not_there_after_it_is_made_again(table: Table) -> None:
    newest = Path(table.location, commit_path(1))

    with after_commit(newest.unlink):
        table.writer.append(rows(1), app_id=APP, number=1)

    assert stored(table) == [1]


def test_writer_goes_on_in_a_log_that_was_replaced_by_one_of_as_many_commits(table: Table) -> None:
    table.writer.append(rows(1), app_id=APP, number=1)
    table.refresh()
    newest = Path(table.location, commit_path(1))
    os.utime(newest, ns=(1, 1))

    table.writer.append(rows(2), app_id=APP, number=2)

    assert stored(table) == [1, 2]


def test_swap_after_an_own_swap_is_refused_where_another_writer_moved_its_mark(
    table: Table,
) -> None:
    table.writer.swap_files(table.writer.new_files(rows(1)), {"progress": 1})
    another(table).writer.swap(rows(2), {"progress": 2})

    with pytest.raises(CommitRefusedError):
        table.writer.swap_files(table.writer.new_files(rows(2)), {"progress": 2})
    assert stored(table) == [1, 2]


# --- what commits do not rest on -----------------------------------------------------------------


def test_writer_that_may_write_no_turn_goes_on_without_one(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_new, rival = Objects.put_new, another(table)
    lost = list(range(commit_writer.TURN_AFTER_REFUSALS + 2))

    def put(objects: Objects, path: str, content: bytes) -> bool:
        if path == TURN_FILE:
            raise OSError(errno.ENOSPC, "no space left")
        if lost and path.startswith(LOG_FOLDER):
            number = lost.pop()
            with monkeypatch.context() as patch:
                patch.setattr(Objects, "put_new", put_new)
                rival.writer.append(rows(100 + number), app_id=f"rival-{number}", number=1)
        return put_new(objects, path, content)

    monkeypatch.setattr(Objects, "put_new", put)
    table.writer.append(rows(1), app_id=APP, number=1)

    assert 1 in stored(table)


def test_lost_answer_of_the_last_try_is_found(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_writer, "REFUSALS_MAX", 1)
    put_new = Objects.put_new

    def put_twice(objects: Objects, path: str, content: bytes) -> bool:
        # A client that tries again by itself meets its own object.
        put_new(objects, path, content)
        return put_new(objects, path, content)

    monkeypatch.setattr(Objects, "put_new", put_twice)
    table.writer.swap(rows(1), {"progress": 1})

    assert stored(table) == [1]


def test_commit_in_a_process_without_room_for_a_thread_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Table(str(tmp_path / "few"), NUMBERS)
    made.writer.create(checkpoint_interval=1)
    checkpoints = _Checkpoints()
    monkeypatch.setattr(_Process, "checkpoints", checkpoints)

    def no_room(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        made.writer.append(rows(1), app_id=APP, number=1)

    assert stored(made) == [1]


def test_table_that_has_waited_longest_gets_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    checkpoints = _Checkpoints()

    def ask(name: str) -> None:
        checkpoints.ask(_Due(name, name, {}, 1, 1))

    def make(due: _Due) -> None:
        made.append(due.name)
        # Two busy tables ask again all the time.
        if len(made) < 9:
            ask("quiet" if len(made) == 1 else "busy")
            ask("busier")

    monkeypatch.setattr(checkpoint_thread, "_make", make)
    ask("busy")
    until_s = time.monotonic() + 10
    while len(made) < 9 and time.monotonic() < until_s:
        time.sleep(0.01)
    checkpoints.close()

    assert "quiet" in made[:3]
