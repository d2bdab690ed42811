"""A restore makes a store of a whole backup only, and of nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.backup_world import Life, check_restored
from txmq.delta.folder import UNFINISHED
from txmq.errors import BackupError, SourceRestoredError, StoreFormatError, StoreNotFoundError
from txmq.message.message import Message
from txmq.ops.admin.doctor import Doctor
from txmq.ops.backup.backup import Progress, back_up
from txmq.ops.backup.manifest import MANIFEST
from txmq.ops.backup.order import SEEK
from txmq.ops.backup.place import STORE_FOLDER
from txmq.ops.backup.restore import restore
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import RESTORE_BEGUN, Store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Life, Path]:
    """A store and its backup; no test changes either of them."""
    folder = tmp_path_factory.mktemp("made")
    life = Life.begin(folder / "store")
    life.go_on()
    life.send()
    back_up(life.store, str(folder / "backup"))
    return life, folder / "backup"


@pytest.fixture
def backup(made: tuple[Life, Path], tmp_path: Path) -> Path:
    """A copy of the backup, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "backup"))


def some_file(backup: Path, table: str = "half") -> Path:
    return min((backup / STORE_FOLDER / table).glob("*.parquet"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is missing"),
        (cut, "has .* bytes, not"),
        (flip, "another checksum"),
    ],
)
def test_a_file_that_is_missing_or_changed_is_named_and_no_store_is_left(
    backup: Path, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    file = some_file(backup)
    damage(file)

    with pytest.raises(BackupError, match=rf"half/{file.name}.*{said}"):
        restore(str(backup), str(tmp_path / "restored"))

    with pytest.raises(StoreNotFoundError):
        Store.open(tmp_path / "restored")


def test_a_manifest_that_is_gone_or_damaged_is_told(backup: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "restored")
    cut(backup / MANIFEST)
    with pytest.raises(BackupError, match="damaged"):
        restore(str(backup), target)

    (backup / MANIFEST).unlink()
    with pytest.raises(BackupError, match="no backup: it has no"):
        restore(str(backup), target)
    with pytest.raises(BackupError, match="holds nothing"):
        restore(str(tmp_path / "nowhere"), target)
    assert not Path(target).exists()


def test_a_target_that_holds_something_is_refused(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")

    with pytest.raises(BackupError, match=r"holds something.*Nothing was written"):
        restore(str(backup), str(tmp_path / "target"))
    with pytest.raises(BackupError, match="apart"):
        restore(str(backup), str(backup / "inside"))

    assert [path.name for path in (tmp_path / "target").iterdir()] == ["mine"]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("number", [1, 40, 100_000])
def test_one_that_is_killed_left_no_store_and_is_finished_by_the_next(
    made: tuple[Life, Path], tmp_path: Path, number: int
) -> None:
    life, target = made[0], tmp_path / "restored"

    def kill(progress: Progress) -> None:
        if progress.files >= min(number, progress.all_files):
            raise KilledError

    with pytest.raises(KilledError):
        restore(str(made[1]), str(target), on_progress=kill)

    assert (target / RESTORE_BEGUN).exists()
    torn = target / "half" / f"part-1.parquet.0a{UNFINISHED}"
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"torn")
    if number < 100_000:
        with pytest.raises(StoreNotFoundError):
            Store.open(target)
        for make in (Store.create, Store.open_or_create):
            with pytest.raises(StoreFormatError, match="not finished"):
                make(target)
    result = restore(str(made[1]), str(target))
    assert not (target / RESTORE_BEGUN).exists()
    assert not torn.exists()
    assert (result.missing, result.faults) == ((), ())
    check_restored(target, life.clock, life.acknowledged)


def test_a_restore_of_another_backup_does_not_finish_it(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / RESTORE_BEGUN).write_text("other")

    with pytest.raises(BackupError, match="unfinished restore of another backup"):
        restore(str(backup), str(tmp_path / "restored"))


def test_of_two_at_once_the_first_is_told_and_the_store_is_whole(
    made: tuple[Life, Path], tmp_path: Path
) -> None:
    life, place, begun = made[0], str(tmp_path / "restored"), []

    def begin_another(_: Progress) -> None:
        if not begun:
            begun.append(True)
            restore(str(made[1]), place)

    with pytest.raises(BackupError, match="began meanwhile"):
        restore(str(made[1]), place, on_progress=begin_another)

    check_restored(place, life.clock, life.acknowledged)


# --- copies that were made by hand ----------------------------------------------------------------


def naive_copy(life: Life, target: Path, first: str) -> Path:
    """Copy one table first, and the others after the store has gone on."""
    source = Path(life.store.location)
    shutil.copytree(source / first, target / first)
    life.go_on()
    life.send()
    Publisher(life.store, clock=life.clock).run_once()
    shutil.copytree(
        source, target, dirs_exist_ok=True, ignore=lambda folder, names: (
            {Path(first).name} if Path(folder) == (source / first).parent else set()
        ) & set(names),
    )  # fmt: skip
    return target


@pytest.mark.parametrize(
    ("first", "newer"),
    [("half", "settled"), ("op", "settled"), ("settled", "topics/order-paid")],
)
def test_a_copy_in_the_wrong_order_is_refused_and_told(
    tmp_path: Path, first: str, newer: str
) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()
    copy = naive_copy(life, tmp_path / "copy", first)

    with pytest.raises(BackupError, match=rf"{newer} is newer than {first}.*Way out: "):
        restore(str(copy), str(tmp_path / "restored"))

    store = Store.open(copy)
    findings = Doctor(store, clock=life.clock).examine().findings
    told = [(finding.where, finding.problem) for finding in findings]
    assert any(w == newer and f"is newer than {first}" in problem for w, problem in told), told


@pytest.mark.parametrize("first", ["half", "op"])
def test_publishers_stop_on_such_a_copy_at_the_next_claim(tmp_path: Path, first: str) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()
    store = Store.open(naive_copy(life, tmp_path / "copy", first))
    with TransactionProducer(store, producer_group="orders", clock=life.clock) as producer:
        producer.send(Message("order-paid", b"next"))

    with pytest.raises(SourceRestoredError):
        Publisher(store, clock=life.clock).run_once()


def test_facts_that_were_copied_too_early_are_settled_again(tmp_path: Path) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()

    copy = naive_copy(life, tmp_path / "copy", "settled")

    check_restored(copy, life.clock, life.acknowledged)


def test_claims_of_which_the_halves_were_copied_too_early_are_counted(tmp_path: Path) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()
    shutil.copytree(Path(life.store.location) / "half", tmp_path / "copy" / "half")
    with TransactionProducer(life.store, producer_group="orders", clock=life.clock) as producer:
        producer.send(Message("order-paid", b"late"))
    ignore = shutil.ignore_patterns("half")
    shutil.copytree(life.store.location, tmp_path / "copy", dirs_exist_ok=True, ignore=ignore)

    with pytest.raises(BackupError, match="op is newer than half: 1 ends are claimed"):
        restore(str(tmp_path / "copy"), str(tmp_path / "restored"))


def test_a_group_that_was_copied_last_is_told_by_the_doctor(tmp_path: Path) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()
    shutil.copytree(life.store.location, tmp_path / "copy")
    life.go_on()
    group = Path("state", "group_billing")
    shutil.rmtree(tmp_path / "copy" / group)
    shutil.copytree(life.store.location / group, tmp_path / "copy" / group)

    findings = Doctor(Store.open(tmp_path / "copy"), clock=life.clock).examine().findings

    assert [(f.where, f.next_step) for f in findings if "is newer than" in f.problem] == [
        ("state/group_billing", SEEK)
    ]


def test_a_store_is_no_backup(made: tuple[Life, Path], tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"by hand, and no backup.*txmq doctor"):
        restore(made[0].store.location, str(tmp_path / "restored"))


# --- commands -------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_commands_say_what_they_did(made: tuple[Life, Path], tmp_path: Path) -> None:
    source, place = made[0].store.location, str(tmp_path / "backup")

    code, text = run("backup", source, place)
    assert (code, "holds all up to" in text, "copied now" in text) == (0, True, True)
    code, text = run("backup", source, place, "--json")
    assert (code, json.loads(text)["copied_files"]) == (0, 0)
    code, text = run("restore", place, str(tmp_path / "restored"))
    assert (code, "txmq verify" in text) == (0, True)
    code, text = run("restore", place, str(tmp_path / "restored"))
    assert (code, "holds something" in text) == (2, True)
    code, text = run("restore", place, str(tmp_path / "again"), "--json")
    assert (code, json.loads(text)["faults"]) == (0, [])


def test_a_file_that_the_store_lacks_makes_exit_code_1(tmp_path: Path) -> None:
    life = Life.begin(tmp_path / "store")
    life.send()
    half = life.store.tables.table_at("half")
    Path(half.location, half.files.all()[0].path).unlink()

    code, text = run("backup", life.store.location, str(tmp_path / "backup"))
    assert (code, "not there in the store itself: half/" in text) == (1, True)
    code, text = run("restore", str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert (code, "not there in the store itself: half/" in text) == (1, True)
