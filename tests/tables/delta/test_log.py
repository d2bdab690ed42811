"""Log clean-up: what a reader may still want stays, all else goes with its data files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.builders import halves
from tests.kit.commits import after_commit
from tests.kit.kills import killed_at
from txmq.delta import log_files as log
from txmq.delta.actions import commit_path
from txmq.delta.checkpoints import checkpoint_path
from txmq.delta.folder import Objects
from txmq.delta.log_files import LogCleaned, LogFiles, clean_log, commit_news, log_files
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, StorageError
from txmq.ground.fail_points import FailPoint
from txmq.maintenance.compaction import compact
from txmq.store.store import Store

TARGET_BYTES = 64 * 1024 * 1024


@pytest.fixture
def table(store: Store) -> Table:
    """Ten commits, compacted, and a checkpoint after it."""
    made = store.tables.table_at("half")
    for number in range(10):
        made.writer.append(halves(number), app_id="producer", number=number + 1)
    compact(made, TARGET_BYTES)
    made.writer.checkpoint()
    return made


def names(table: Table, folder: str = "_delta_log") -> list[str]:
    found = [path for path in Path(table.location, folder).iterdir() if path.is_file()]
    return sorted(path.name for path in found if not path.name.startswith("_last"))


def data_files(table: Table) -> int:
    return len(list(Path(table.location).glob("*.parquet")))


def message_ids(table: Table) -> list[str]:
    rows = table.rows.read(table.files.all(), ("message_id",))
    return sorted(rows["message_id"].to_pylist())


def slept_past_clean_up(table: Table, commits: int) -> Table:
    """A handle from before `commits` that were made and cleaned while it stood still."""
    sleeper = Table(table.location, table.schema)
    sleeper.refresh()
    for number in range(20, 20 + commits):
        table.writer.append(halves(number), app_id="producer", number=number)
    table.writer.checkpoint()
    clean_log(table, table.version)
    return sleeper


def test_commits_before_the_checkpoint_go_with_what_they_removed(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=11)

    assert clean_log(table, table.version) == LogCleaned(commits=11, data_files=0)
    assert names(table) == [f"{11:020}.checkpoint.parquet", f"{11:020}.json", f"{12:020}.json"]
    # The commit that removed them is kept, and so are they.
    assert data_files(table) == 12


def test_data_files_go_when_the_commit_that_removed_them_goes(table: Table) -> None:
    before = message_ids(table)
    for number in range(20, 23):
        table.writer.append(halves(number), app_id="producer", number=number)
    table.writer.checkpoint()

    assert clean_log(table, table.version) == LogCleaned(commits=14, data_files=10)
    assert data_files(table) == 4
    assert message_ids(Table(table.location, table.schema))[:10] == before


def test_without_a_checkpoint_nothing_goes(store: Store) -> None:
    table = store.tables.table_at("half")
    table.writer.append(halves(1), app_id="producer", number=1)

    assert clean_log(table, table.version) == LogCleaned()
    assert len(names(table)) == 2


def test_what_a_reader_has_not_read_yet_is_kept(table: Table) -> None:
    assert clean_log(table, 10) == LogCleaned()
    assert table.changes.read(1, table.version, ("message_id",)).num_rows == 10


def test_change_feed_after_the_kept_version_is_whole(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    clean_log(table, 11)

    fresh = Table(table.location, table.schema)
    assert fresh.refresh().changes.read(12, fresh.version, ("message_id",)).num_rows == 1


def test_clean_up_that_was_cut_short_is_finished_by_the_next(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    for version in (0, 3, 7):
        Path(table.location, "_delta_log", f"{version:020}.json").unlink()

    assert clean_log(table, table.version).commits == 8
    assert len(message_ids(Table(table.location, table.schema))) == 11


def test_checkpoint_that_readers_are_pointed_to_is_kept(table: Table) -> None:
    """A slow writer may point readers to an older checkpoint than the newest."""
    pointer = Path(table.location, "_delta_log", "_last_checkpoint")
    older = json.loads(pointer.read_text())
    table.writer.append(halves(20), app_id="producer", number=20)
    table.writer.checkpoint()
    pointer.write_text(json.dumps(older))
    clean_log(table, table.version)

    assert names(table)[0] == f"{11:020}.checkpoint.parquet"
    assert len(message_ids(Table(table.location, table.schema))) == 11


def test_append_through_a_handle_from_before_the_clean_up_is_made_once(table: Table) -> None:
    sleeper = slept_past_clean_up(table, commits=3)

    version = sleeper.writer.append(halves(30), app_id="sleeper", number=1)
    assert version == table.refresh().version
    assert len(message_ids(table)) == 14


def test_change_feed_of_what_was_cleaned_is_an_error_and_not_empty(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    clean_log(table, table.version)
    with pytest.raises(StorageError):
        Table(table.location, table.schema).changes.read(1, table.version, ("message_id",))


def test_mark_through_a_handle_from_before_the_clean_up_is_that_of_its_version(
    table: Table,
) -> None:
    sleeper = slept_past_clean_up(table, commits=10)

    assert sleeper.log.mark("producer") == 10
    assert sleeper.refresh().log.mark("producer") == 29


def test_age_of_the_log_is_told_by_its_files(table: Table) -> None:
    files = log_files(table.folder)

    assert files.newest_of(lambda _: True) == table.version
    assert files.newest_of(lambda _: False) == -1
    assert files.since_checkpoint(table.version) == 0


def test_base_is_the_last_checkpoint_that_is_not_beyond() -> None:
    files = LogFiles({}, (10, 20, 30))

    assert [files.base(version) for version in (5, 10, 19, 20, 99)] == [0, 10, 10, 20, 30]


def test_commit_tells_what_it_added_and_under_which_marks(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=11)

    news = commit_news(table.folder, table.version)

    assert news is not None
    (added,) = news.added
    assert added.low["transaction_id"] == added.high["transaction_id"]
    assert table.rows.read_part(added, ("message_id",)) is not None
    assert (news.has_removed, news.marks["producer"]) == (False, 11)


def test_compaction_is_no_news_and_a_removal_is(table: Table) -> None:
    compaction = commit_news(table.folder, table.version)
    table.writer.remove(table.files.all())
    removal = commit_news(table.folder, table.version)

    assert compaction is not None
    assert (compaction.added, compaction.has_removed) == ((), False)
    assert removal is not None
    assert (removal.added, removal.has_removed) == ((), True)


def test_commit_that_was_cleaned_away_tells_nothing(table: Table) -> None:
    clean_log(table, table.version)

    assert commit_news(table.folder, 0) is None


# --- a reader that slept ------------------------------------------------------------------------


def test_handle_from_before_the_clean_up_has_news_and_follows(table: Table) -> None:
    sleeper = slept_past_clean_up(table, commits=3)
    assert sleeper.folder.commit_bytes(sleeper.version + 1) is None

    assert sleeper.log.has_news()
    assert sleeper.refresh().version == table.version
    assert not sleeper.log.has_news()
    assert message_ids(sleeper) == message_ids(table)
    assert sleeper.log.mark("producer") == 22


@pytest.mark.parametrize("slept", ["refresh", "reopen"])
def test_marks_outlive_the_commits_that_set_them(table: Table, slept: str) -> None:
    sleeper = Table(table.location, table.schema)
    assert sleeper.refresh().log.mark("producer") == 10
    for number in range(20, 60):
        table.writer.append(halves(number), app_id="another", number=number)
    table.writer.checkpoint()
    clean_log(table, table.version)

    getattr(sleeper, slept)()

    assert (sleeper.log.mark("producer"), sleeper.log.mark("another")) == (10, 59)


# --- a log that is damaged ------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"PAR1 and nothing more"])
def test_commits_stay_where_their_checkpoint_cannot_be_read(table: Table, damage: bytes) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    before = names(table)
    path = Path(table.location, "_delta_log", f"{11:020}.checkpoint.parquet")
    path.write_bytes(damage)

    assert clean_log(table, table.version) == LogCleaned()
    assert names(table) == before


def test_commits_stay_where_half_of_their_checkpoint_is_lost(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    path = Path(table.location, "_delta_log", f"{11:020}.checkpoint.parquet")
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:4] + bytes(half) + whole[4 + half :])

    assert clean_log(table, table.version) == LogCleaned()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"size": 1}', b'{"version": null}'])
def test_pointer_that_cannot_be_read_stops_the_clean_up_alone(table: Table, damage: bytes) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    Path(table.location, "_delta_log", "_last_checkpoint").write_bytes(damage)

    assert clean_log(table, table.version) == LogCleaned()
    table.writer.checkpoint()
    assert clean_log(table, table.version).commits > 0


@pytest.mark.parametrize("damage", [b"", b"PAR1 and nothing more"])
def test_broken_checkpoint_is_passed_over_while_older_commits_are_there(
    table: Table, damage: bytes
) -> None:
    before = message_ids(table)
    log = Path(table.location, "_delta_log")
    (log / f"{11:020}.checkpoint.parquet").write_bytes(damage)
    clean_log(table, table.version)

    assert message_ids(Table(table.location, table.schema)) == before

    (log / f"{11:020}.checkpoint.parquet").unlink()
    (log / "_last_checkpoint").unlink()

    assert message_ids(Table(table.location, table.schema)) == before


# --- a writer that sleeps in the middle of its commit ---------------------------------------------


@pytest.fixture
def sleeping(table: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A writer that sleeps after its last look at the log; meanwhile the log is cleaned.

    It then makes the file of the next version: that name is free again.
    """
    put, sleeper = Objects.put_new, Table(table.location, table.schema)
    sleeper.refresh()
    following = f"{sleeper.version + 1:020}.json"

    def slept(objects: Objects, path: str, content: bytes) -> bool:
        monkeypatch.setattr(Objects, "put_new", put)
        table.reopen()
        for number in range(20, 24):
            table.writer.append(halves(number), app_id="producer", number=number)
        table.writer.checkpoint()
        clean_log(table, table.version)
        assert not Path(table.location, "_delta_log", following).exists()
        return put(objects, path, content)

    monkeypatch.setattr(Objects, "put_new", slept)
    return sleeper


def test_rows_of_a_writer_that_slept_in_its_commit_are_there_once(sleeping: Table) -> None:
    before = len(message_ids(Table(sleeping.location, sleeping.schema)))

    version = sleeping.writer.append(halves(30), app_id="sleeper", number=1)

    fresh = Table(sleeping.location, sleeping.schema).refresh()
    assert len(message_ids(fresh)) == before + 4 + 1
    assert fresh.changes.read(version, version, ("message_id",)).num_rows == 1


def test_commit_counts_whose_writer_slept_after_it_while_the_log_was_cleaned(table: Table) -> None:
    sleeper = Table(table.location, table.schema).refresh()

    def night() -> None:
        table.reopen().writer.checkpoint()
        clean_log(table, table.version)

    with after_commit(night):
        version = sleeper.writer.append(halves(30), app_id="sleeper", number=1)

    assert version == table.version
    table.writer.append(halves(31), app_id="producer", number=31)

    fresh = Table(table.location, table.schema).refresh()
    assert len(message_ids(fresh)) == 10 + 2


def test_log_whose_newest_commit_is_in_its_checkpoint_alone_is_written_on(table: Table) -> None:
    table.writer.checkpoint()
    clean_log(table, table.version)
    Path(table.location, commit_path(table.version)).unlink()
    fresh = Table(table.location, table.schema)

    version = fresh.writer.append(halves(30), app_id="producer", number=30)

    assert version == table.version + 1
    assert len(message_ids(Table(table.location, table.schema).refresh())) == 10 + 1


def test_swap_of_a_writer_that_slept_in_its_commit_is_refused(sleeping: Table) -> None:
    with pytest.raises(CommitRefusedError, match="cleaned"):
        sleeping.writer.swap(halves(30), {"progress": 1})

    assert Table(sleeping.location, sleeping.schema).refresh().log.mark("progress") is None


def test_long_log_is_cleaned_in_steps_of_which_a_kill_takes_none_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMMITS_AT_ONCE", 5)
    table = store.tables.table_at("half")
    for number in range(1, 31):
        table.writer.append(halves(number), app_id="producer", number=number)
        if number % 4 == 0:
            table.writer.checkpoint()
    ids = message_ids(table)

    with killed_at(2, FailPoint.LOG_CLEANED):
        clean_log(table, table.version)

    oldest = min(log_files(table.folder).commits_ms)
    assert 10 <= oldest < 28
    assert message_ids(Table(table.location, table.schema)) == ids
    assert clean_log(table, table.version) == LogCleaned(28 - oldest)
    assert message_ids(Table(table.location, table.schema)) == ids


def test_damaged_checkpoint_between_two_steps_keeps_no_log_from_being_cleaned(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMMITS_AT_ONCE", 5)
    table = store.tables.table_at("half")
    for number in range(1, 31):
        table.writer.append(halves(number), app_id="producer", number=number)
        if number % 4 == 0:
            table.writer.checkpoint()
    Path(table.location, checkpoint_path(8)).write_bytes(b"")

    assert clean_log(table, table.version).commits == 28
    assert len(message_ids(Table(table.location, table.schema))) == len(message_ids(table)) > 0


# --- commits of other programs -------------------------------------------------------------------

ODD_LINES = {
    "a blank line": '{"commitInfo":{}}\n\n',
    "spaces": '{"commitInfo":{}}\n   \n',
    "ends of Windows": '{"commitInfo":{}}\r\n\r\n',
    "no file": '{"commitInfo":{},"add":null,"remove":null}\n',
    "no change": '{"commitInfo":{},"cdc":null}\n',
    "no mark": '{"commitInfo":{},"txn":null}\n',
}


@pytest.mark.parametrize("line", ODD_LINES.values(), ids=ODD_LINES)
def test_commit_that_is_spelled_oddly_keeps_no_log_from_being_cleaned(
    table: Table, line: str
) -> None:
    odd = Path(table.location, "_delta_log", f"{table.version + 1:020}.json")
    odd.write_text(line, newline="")
    table.refresh().writer.append(halves(20), app_id="producer", number=20)
    table.writer.checkpoint()
    ids = message_ids(table)

    assert clean_log(table, table.version).commits > 10
    assert names(table)[0] == f"{table.version:020}.checkpoint.parquet"
    assert message_ids(Table(table.location, table.schema)) == ids


def test_commit_that_is_damaged_is_named_where_the_log_is_cleaned(table: Table) -> None:
    table.writer.append(halves(20), app_id="producer", number=20)
    damaged = Path(table.location, "_delta_log", f"{3:020}.json")
    damaged.write_text('{"add":')

    with pytest.raises(StorageError, match=damaged.name):
        clean_log(table, table.version)
