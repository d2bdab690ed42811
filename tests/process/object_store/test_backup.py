"""A backup from a bucket and into one, in all directions."""

from __future__ import annotations

from pathlib import Path

from tests.kit.backup_world import Life, check_restored
from txmq.backup.backup import back_up
from txmq.backup.restore import restore


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
