"""A backup from a bucket and into one, in all directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.backup_world import Life, check_restored
from txmq.errors import BackupError
from txmq.ops.backup.backup import back_up
from txmq.ops.backup.place import Place
from txmq.ops.backup.restore import restore


def test_a_store_goes_from_a_disk_to_buckets_and_back(lake: str, tmp_path: Path) -> None:
    life = Life.begin(tmp_path / "store")
    life.go_on()
    life.send_large()

    back_up(life.store, f"{lake}/backup")
    restore(f"{lake}/backup", f"{lake}/restored")
    store = check_restored(f"{lake}/restored", life.clock, life.acknowledged)
    second = back_up(store, str(tmp_path / "backup"))
    restore(second.location, str(tmp_path / "again"))

    check_restored(tmp_path / "again", life.clock, life.acknowledged)


@pytest.mark.parametrize("sleeps_before", ["txmq-backup.1.claimed", "txmq-backup.1.json"])
def test_one_that_slept_in_a_bucket_gets_an_error_and_the_newer_one_is_whole(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps_before: str
) -> None:
    life, place, slept = Life.begin(tmp_path / "store"), f"{lake}/backup", list[str]()
    life.send()
    back_up(life.store, place)

    def late(real: str) -> None:
        does = getattr(Place, real)

        def put(self: Place, path: str, content: bytes) -> object:
            if path == sleeps_before and not slept:
                slept.append(path)
                life.go_on()
                back_up(life.store, place)
            return does(self, path, content)

        monkeypatch.setattr(Place, real, put)

    late("put")
    late("put_new")
    with pytest.raises(BackupError, match="began meanwhile"):
        back_up(life.store, place)

    restore(place, tmp_path / "restored")
    check_restored(tmp_path / "restored", life.clock, life.acknowledged)
