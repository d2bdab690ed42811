"""Of two backups to one place at once one is whole, and who has not made it is told so."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.kit.backup_world import KilledError, Life, check_restored, kill_at
from txmq.errors import BackupError
from txmq.ops.backup.backup import Progress, back_up
from txmq.ops.backup.place import Place
from txmq.ops.backup.restore import restore


@pytest.fixture
def life(tmp_path: Path) -> Life:
    begun = Life.begin(tmp_path / "store")
    begun.go_on()
    return begun


def test_of_two_at_once_the_first_is_told(life: Life, tmp_path: Path) -> None:
    place, begun = str(tmp_path / "backup"), []

    def begin_another(_: Progress) -> None:
        if not begun:
            begun.append(True)
            back_up(life.store, place)

    with pytest.raises(BackupError, match="began meanwhile"):
        back_up(life.store, place, on_progress=begin_another)

    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, life.acknowledged)


def asleep_before(
    monkeypatch: pytest.MonkeyPatch, method: str, name: str, action: Callable[[], None]
) -> None:
    """One call sleeps before it does this to a file, and others run meanwhile."""
    real, slept = getattr(Place, method), []

    def late(place: Place, path: str, *content: bytes) -> object:
        if fnmatch(path, name) and not slept:
            slept.append(True)
            action()
        return real(place, path, *content)

    monkeypatch.setattr(Place, method, late)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", ["txmq-backup*.claimed", "txmq-backup*.json"])
def test_one_that_slept_before_its_manifest_gets_an_error_and_the_newer_one_is_whole(
    life: Life,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_first: bool,  # noqa: FBT001
) -> None:
    place, acknowledged = str(tmp_path / "backup"), list[str]()
    if not is_first:
        back_up(life.store, place)

    def another() -> None:
        for _ in range(2):
            life.go_on()
        acknowledged.extend(life.acknowledged)
        back_up(life.store, place)

    def sleeps() -> None:
        asleep_before(monkeypatch, "put_new" if "claimed" in name else "put", name, another)

    with pytest.raises(BackupError, match="began meanwhile"):
        # Once it has copied all; the begin is a put, too.
        back_up(life.store, place, on_progress=once(sleeps))

    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)


def once(action: Callable[[], None]) -> Callable[[Progress], None]:
    done: list[bool] = []

    def tell(_: Progress) -> None:
        if not done:
            done.append(True)
            action()

    return tell


def test_deletes_that_come_late_take_nothing_that_a_newer_one_has(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, acknowledged = str(tmp_path / "backup"), list[str]()
    back_up(life.store, place)
    for _ in range(2):
        life.go_on()

    def killed_and_another() -> None:
        life.go_on()
        acknowledged.extend(life.acknowledged)
        with pytest.raises(KilledError):
            back_up(life.store, place, on_progress=kill_at(1_000))
        back_up(life.store, place)

    asleep_before(monkeypatch, "delete", "store/*", killed_and_another)
    back_up(life.store, place)

    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)


def test_one_that_is_killed_before_its_manifest_leaves_the_one_before(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "backup")
    back_up(life.store, place)
    # Earlier ones had no such file.
    (tmp_path / "backup" / "txmq-backup.0.claimed").unlink()
    acknowledged = list(life.acknowledged)
    life.go_on()

    def dies() -> None:
        raise KilledError

    asleep_before(monkeypatch, "put", "txmq-backup.1.json", dies)
    with pytest.raises(KilledError):
        back_up(life.store, place)

    restore(place, str(tmp_path / "restored"))
    check_restored(tmp_path / "restored", life.clock, acknowledged)
    # Its number is lost, and nothing else.
    back_up(life.store, place)
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {
        "store", "txmq-backup.2.json", "txmq-backup.2.claimed",
    }  # fmt: skip
