"""Which places are refused by their names."""

from __future__ import annotations

import sys

import pytest

from txmq.errors import ConfigError
from txmq.store.tables import plain_location


@pytest.mark.parametrize(
    "location", ["/Volumes/main/default/lake/store", "/Volumes", "/dbfs/store", "dbfs:/store"]
)
def test_mount_of_databricks_is_refused_with_the_way_out(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")

    with pytest.raises(ConfigError, match=r"volumes and DBFS .* use the URI of an external loc"):
        plain_location(location)


def test_volumes_of_macos_are_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert plain_location("/Volumes/Backup/store") == "/Volumes/Backup/store"


def test_folder_whose_name_begins_alike_is_a_folder() -> None:
    assert plain_location("/dbfs-copy/store") == "/dbfs-copy/store"
