"""A live store is copied in the right order, whatever happens between two of its tables."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.backup_world import (
    READERS,
    TOPIC,
    KilledError,
    Life,
    check_restored,
    consumed,
    kill_at,
)
from tests.kit.bodies import GIFTLESS, WITH_GIFT
from tests.kit.reading import publish, topic_rows
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.delta import failures as retries
from txmq.delta.folder import UNFINISHED
from txmq.delta.log_files import clean_log
from txmq.delta.parquet import write_file
from txmq.errors import BackupError
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.admin.doctor import findings_of_order
from txmq.ops.admin.groups import ConsumerGroups
from txmq.ops.admin.topics import Topics
from txmq.ops.backup import backup
from txmq.ops.backup import backup as pins
from txmq.ops.backup.backup import Progress, back_up
from txmq.ops.backup.manifest import MANIFEST, Manifest
from txmq.ops.backup.place import BEGUN, STORE_FOLDER
from txmq.ops.backup.restore import restore
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.known import FORGOTTEN_BEFORE, SCHEDULE_FORGOTTEN_BEFORE
from txmq.store.store import Store
from txmq.store.tables import StoreTables

TABLES = 9


@pytest.fixture
def life(tmp_path: Path) -> Life:
    begun = Life.begin(tmp_path / "store")
    begun.go_on()
    return begun


def before_pin(
    monkeypatch: pytest.MonkeyPatch, which: int | str, action: Callable[[], None]
) -> None:
    """Do something once, before the table of this number, or of this path, is pinned."""
    pin, count, done = pins._pin, iter(range(1_000)), []

    def acted(tables: StoreTables, path: str) -> pins.Pin | None:
        if not done and which in {next(count), path}:
            done.append(path)
            action()
        return pin(tables, path)

    monkeypatch.setattr(pins, "_pin", acted)


@pytest.mark.parametrize("number", range(TABLES))
def test_whatever_happens_between_two_tables_nothing_is_lost_and_groups_have_no_gap(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    life.send()
    acknowledged = list(life.acknowledged)
    before_pin(monkeypatch, number, life.go_on)

    result = back_up(life.store, str(tmp_path / "backup"))

    assert (result.missing, result.faults) == ((), ())
    restore(result.location, str(tmp_path / "restored"))
    offsets = offsets_of(Store.open(tmp_path / "restored"))
    store = check_restored(tmp_path / "restored", life.clock, acknowledged)
    rest = [
        row["message_id"]
        for row in topic_rows(store, TOPIC)
        if row["queue_offset"] >= offsets.get(row["queue_id"], 0)
    ]
    assert sorted(consumed(store, life.clock)) == sorted(rest)


def test_field_that_comes_between_topics_and_their_settings_pins_them_anew(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(life.store)
    topics.create("typed", body=GIFTLESS)

    def widen() -> None:
        topics.alter("typed", body=WITH_GIFT)

    before_pin(monkeypatch, "settled", widen)

    result = back_up(life.store, tmp_path / "backup")

    restore(result.location, tmp_path / "restored")
    store = Store.open(tmp_path / "restored")
    with TransactionProducer(store, producer_group="restored") as producer:
        producer.send(Message("typed", b'{"order": 1, "gift": "a rose"}'))
    publish(store)
    assert topic_rows(store, "typed")[0]["gift"] == "a rose"


def offsets_of(store: Store) -> dict[int, int]:
    """The next offsets of the group, by queue."""
    (by_topic,) = store.tables.register("group_billing").read().value["offsets"].values()
    return {int(queue): offset for queue, offset in by_topic[TOPIC].items()}


def test_all_registers_are_those_of_the_store(life: Life, tmp_path: Path) -> None:
    Topics(life.store).create("gone")
    Topics(life.store).delete("gone", apply=True)

    back_up(life.store, str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))

    copy = Store.open(tmp_path / "restored")
    assert copy.tables.table_paths() == life.store.tables.table_paths()
    assert copy.topics() == life.store.topics()
    assert copy.config == life.store.config
    for path in copy.tables.register_paths():
        name = path.removeprefix("state/")
        assert copy.tables.register(name).read() == life.store.tables.register(name).read()


# --- files that go away ---------------------------------------------------------------------------


def test_files_that_maintenance_takes_meanwhile_are_copied_as_they_are_then(
    life: Life, tmp_path: Path
) -> None:
    life.send()
    acknowledged, cleaned = list(life.acknowledged), []

    def clean(progress: Progress) -> None:
        if not cleaned and progress.files >= 1:
            cleaned.append(True)
            life.publish()
            life.maintain()

    result = back_up(life.store, str(tmp_path / "backup"), on_progress=clean)

    assert cleaned
    assert result.missing == ()
    restore(result.location, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)


def test_files_that_go_again_and_again_end_it_with_a_clear_error(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "ATTEMPTS", 2)
    gone = iter(["a", "b"])
    monkeypatch.setattr(backup._Backup, "_copy", lambda *_: {f"half/{next(gone)}"})

    with pytest.raises(BackupError, match="log_reserved_time_s"):
        back_up(life.store, str(tmp_path / "backup"))

    assert not (tmp_path / "backup" / MANIFEST).exists()


def test_a_file_that_the_store_itself_lacks_is_named_and_the_rest_is_there(
    life: Life, tmp_path: Path
) -> None:
    half = life.store.tables.table_at("half")
    lost = half.files.all()[0].path
    Path(half.location, lost).unlink()

    result = back_up(life.store, str(tmp_path / "backup"))

    assert result.missing == (f"half/{lost}",)
    restored = restore(result.location, str(tmp_path / "restored"))
    assert restored.missing == result.missing
    Publisher(Store.open(tmp_path / "restored"), clock=life.clock).run_once()


def test_claims_that_are_lost_and_not_settled_are_no_end_of_backup_restore_and_doctor(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_PAUSE_S", 0.0)
    life.send()
    op, half = (life.store.tables.table_at(path) for path in ("op", "half"))
    lost = max((Path(op.location, file.path) for file in op.files.all()), key=os.path.getmtime)
    lost.unlink()

    result = back_up(life.store, str(tmp_path / "backup"))

    assert (result.missing, result.faults) == ((f"op/{lost.name}",), ())
    restored = restore(result.location, str(tmp_path / "restored"))
    assert restored.missing == result.missing
    # What the other claims show is still told.
    half.writer.remove(half.files.all())
    (finding,) = findings_of_order(life.store)
    assert (finding.where, "ends are claimed" in finding.problem) == ("op", True)


def test_a_store_that_stands_still_never_is_told_so(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1_000))
    monkeypatch.setattr(pins, "_still_versions", lambda _: {"maintenance": next(numbers)})

    with pytest.raises(
        BackupError, match="state/maintenance or state/set_aside or state/topics changed"
    ):
        back_up(life.store, str(tmp_path / "backup"))


@pytest.mark.parametrize("is_told_before", [False, True])
def test_retention_between_two_tables_pins_them_anew(
    life: Life,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_told_before: bool,  # noqa: FBT001
) -> None:
    """A late commit that is published, and whose day retention takes, between topics and half.

    Retention says each day once: a later one, with an older day left, is told before.
    """
    life.send()
    acknowledged = list(life.acknowledged)
    if is_told_before:
        register = life.store.tables.register("maintenance")
        told = {FORGOTTEN_BEFORE: "2999-01-01", SCHEDULE_FORGOTTEN_BEFORE: "2999-01-01"}
        register.swap(register.read(), told, life.clock.now_ms())

    def publish_and_retire() -> None:
        life.publish()
        life.clock.advance(2.0)
        life.publish()
        life.publish()
        life.clock.advance(10 * 24 * 3600.0)
        result = Maintenance(life.store, clock=life.clock).run_once()
        assert result.retained.half_days

    before_pin(monkeypatch, "settled", publish_and_retire)

    result = back_up(life.store, tmp_path / "backup")

    restore(result.location, tmp_path / "restored")
    shown = [row["message_id"] for row in topic_rows(Store.open(tmp_path / "restored"), TOPIC)]
    assert sorted(shown) == sorted(acknowledged)


def test_claims_that_clean_up_takes_between_two_tables_are_settled_in_the_copy(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.send()
    acknowledged = list(life.acknowledged)

    def publish_and_clean() -> None:
        life.publish()
        op = life.store.tables.table_at("op")
        op.writer.checkpoint()
        assert clean_log(op, op.version).commits

    before_pin(monkeypatch, "op", publish_and_clean)

    result = back_up(life.store, tmp_path / "backup")

    restore(result.location, tmp_path / "restored")
    check_restored(tmp_path / "restored", life.clock, acknowledged)


def test_rebuild_that_moves_offsets_between_a_group_and_its_topic_pins_them_anew(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_the_first(life)
    topics = Topics(life.store, clock=life.clock)
    before_pin(
        monkeypatch, f"topics/{TOPIC}", lambda: topics.rebuild(TOPIC, apply=True, force=True)
    )

    result = back_up(life.store, tmp_path / "backup")

    restore(result.location, tmp_path / "restored")
    store = check_restored(tmp_path / "restored", life.clock, life.acknowledged)
    assert lost in consumed(store, life.clock)


def lose_the_first(life: Life) -> str:
    """A message of queue 0 that the group has not seen, with those behind it at its offsets."""
    tables = life.store.tables
    log = tables.topic_log(TOPIC, tables.op_log().table_id)
    table = log.table
    rows = table.rows.read(table.files.all(), log.table.log.columns.names)
    rows = rows.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])
    offsets = [max(0, row["queue_offset"] - (not row["queue_id"])) for row in rows.to_pylist()]
    place = rows.column_names.index("queue_offset")
    left = rows.set_column(place, rows.schema.field(place), pa.array(offsets)).slice(1)
    file = write_file(
        [left], table.log.columns, table.folder.filesystem, table.schema.statistics_columns
    )
    log.replace_files([file], log.mark, {0: log.next_offsets([0])[0] - 1})
    group = ConsumerGroups(life.store, clock=life.clock)
    group.reset_offsets(READERS, TOPIC, ConsumeFromWhere.LAST_OFFSET, apply=True)
    return str(rows["message_id"][0].as_py())


# --- a second one to the same place ---------------------------------------------------------------


def test_the_next_one_copies_what_is_new_alone(life: Life, tmp_path: Path) -> None:
    first = back_up(life.store, str(tmp_path / "backup"))
    life.go_on()
    acknowledged = list(life.acknowledged)

    second = back_up(life.store, str(tmp_path / "backup"))

    assert first.copied_files == first.files
    assert second.copied_files < second.files
    again = back_up(life.store, str(tmp_path / "backup"))
    assert (again.copied_files, again.files) == (0, second.files)
    restore(second.location, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)
    held = [p for p in (tmp_path / "backup" / STORE_FOLDER).rglob("*") if p.is_file()]
    assert len(held) == again.files


@pytest.mark.parametrize("number", [1, 20, 1_000])
def test_one_that_is_killed_leaves_the_one_before(life: Life, tmp_path: Path, number: int) -> None:
    place = str(tmp_path / "backup")
    back_up(life.store, place)
    acknowledged = list(life.acknowledged)
    life.go_on()

    with pytest.raises(KilledError):
        back_up(life.store, place, on_progress=kill_at(number))

    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)


def test_the_first_that_is_killed_is_no_backup_and_goes_on(life: Life, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    with pytest.raises(KilledError):
        back_up(life.store, place, on_progress=kill_at(20))

    with pytest.raises(BackupError, match="was not finished"):
        restore(place, str(tmp_path / "restored"))
    torn = tmp_path / "backup" / STORE_FOLDER / "half" / f"part-1.parquet.0a{UNFINISHED}"
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"torn")
    result = back_up(life.store, place)

    assert result.copied_files < result.files
    assert not torn.exists()
    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, life.acknowledged)


# --- targets that are refused ---------------------------------------------------------------------


def test_a_folder_with_something_else_is_refused(life: Life, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")

    with pytest.raises(BackupError, match="no backup"):
        back_up(life.store, str(tmp_path / "other"))

    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]


@pytest.mark.parametrize("place", ["store", "store/backup", ""])
def test_the_store_itself_is_no_place_for_it(life: Life, tmp_path: Path, place: str) -> None:
    with pytest.raises(BackupError, match="choose a folder apart"):
        back_up(life.store, str(tmp_path / place))


def test_the_place_of_another_store_is_refused(life: Life, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other")
    back_up(other, str(tmp_path / "finished"))
    with pytest.raises(KilledError):
        back_up(other, str(tmp_path / "begun"), on_progress=kill_at(3))

    for place in ("finished", "begun"):
        with pytest.raises(BackupError, match="of another store"):
            back_up(life.store, str(tmp_path / place))
    restore(str(tmp_path / "finished"), str(tmp_path / "restored"))


def test_a_store_that_went_back_leaves_its_newer_backup_alone(life: Life, tmp_path: Path) -> None:
    back_up(life.store, str(tmp_path / "old"))
    life.go_on()
    back_up(life.store, str(tmp_path / "new"))
    shutil.rmtree(life.store.location)
    restore(str(tmp_path / "old"), life.store.location)

    with pytest.raises(BackupError, match="the store was restored"):
        back_up(life.store, str(tmp_path / "new"))
    for _ in range(3):
        life.go_on()
    with pytest.raises(BackupError, match="it was restored"):
        back_up(life.store, str(tmp_path / "new"))

    # Where it came from it goes on.
    back_up(life.store, str(tmp_path / "old"))


def test_the_manifest_says_what_it_holds(life: Life, tmp_path: Path) -> None:
    result = back_up(life.store, str(tmp_path / "backup"))
    manifest = Manifest.parse((tmp_path / "backup" / MANIFEST).read_bytes(), "here")

    assert set(manifest.tables) == set(life.store.tables.table_paths())
    assert manifest.source == life.store.location
    assert manifest.begun <= manifest.ended
    assert manifest.tables["op"].version == life.store.tables.table_at("op").version
    assert sum(1 for _ in manifest.files()) == result.files
    assert not (tmp_path / "backup" / BEGUN).exists()
    assert json.loads(json.dumps(result.to_dict()))["tables"] == len(manifest.tables)
