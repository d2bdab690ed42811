"""Messages that were erased leave the backups, too, and come back from older ones alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.dead_world import DeadWorld
from txmq.errors import BackupError
from txmq.maintenance.service import Maintenance
from txmq.ops.admin.erasure import Erasure
from txmq.ops.backup.backup import back_up
from txmq.ops.backup.manifest import MANIFEST
from txmq.ops.backup.place import BEGUN, STORE_FOLDER
from txmq.ops.backup.restore import restore
from txmq.store.store import Store

KEY, SECRET, WHY = "customer-7", "SECRET-of-customer-7", "request 4711"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeadWorld]:
    made = DeadWorld(tmp_path)
    made.send(SECRET, keys=KEY)
    yield made
    made.producer.close()


def holds_secret(folder: Path) -> bool:
    files = (path for path in folder.rglob("*") if path.is_file())
    return any(SECRET.encode() in path.read_bytes() for path in files)


def erase(world: DeadWorld) -> None:
    Erasure(world.store, KEY, clock=world.clock).apply(reason=WHY)


def test_backup_that_is_made_again_holds_nothing_of_what_was_erased(
    world: DeadWorld, tmp_path: Path
) -> None:
    place = tmp_path / "backup"
    back_up(world.store, place)
    erase(world)
    back_up(world.store, place)
    assert holds_secret(place)
    world.clock.advance(2 * 86_400)
    assert not Maintenance(world.store, clock=world.clock).run_once().failed
    assert Erasure(world.store, KEY).look().is_gone

    back_up(world.store, place)

    assert not holds_secret(place)
    assert Erasure(Store.open(place / STORE_FOLDER), KEY).look().is_gone


def test_restore_of_an_older_backup_is_erased_again(world: DeadWorld, tmp_path: Path) -> None:
    back_up(world.store, tmp_path / "backup")
    erase(world)
    restore(tmp_path / "backup", tmp_path / "restored")

    erasure = Erasure(Store.open(tmp_path / "restored"), KEY, clock=world.clock)
    assert erasure.apply(reason=WHY).messages == 2
    assert not erasure.look().messages


@pytest.mark.parametrize("name", [MANIFEST, "txmq-backup.12.json", BEGUN])
def test_erasure_in_a_backup_is_refused_and_says_what_to_do(
    world: DeadWorld, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "backup"
    back_up(world.store, place)
    shutil.move(place / MANIFEST, place / name)
    erasure = Erasure(Store.open(place / STORE_FOLDER), KEY)

    with pytest.raises(BackupError, match="nothing was erased: erase in the store"):
        erasure.apply(reason=WHY)

    assert erasure.look().messages == 2


def test_store_beside_other_files_is_none_of_a_backup(world: DeadWorld, tmp_path: Path) -> None:
    place = tmp_path / "mine" / STORE_FOLDER
    shutil.copytree(world.store.location, place)
    (place.parent / "txmq-backup.txt").write_text("mine")

    assert Erasure(Store.open(place), KEY).apply(reason=WHY).messages == 2
