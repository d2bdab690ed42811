"""The jars of Delta follow the installed PySpark and the installed Delta."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from txmq.errors import EnvironmentProblemError
from txmq.spark.jars import RELEASES, checkpoint_files_class, installed_release, release_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("pyspark", "delta", "coordinate"),
    [
        ("4.0.1", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.0.5", "4.4.0", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.1.1", "4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.0.dev1", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_each_spark_gets_its_own_jars(pyspark: str, delta: str, coordinate: str) -> None:
    release = release_of(pyspark, delta)

    assert release.coordinate == coordinate
    assert sum(release.artifact in name for name in release.jars) == 1


@pytest.mark.parametrize(("pyspark", "delta"), [("3.5.9", "3.3.3"), ("4.2.0", "4.0.1")])
def test_versions_without_jars_are_refused_with_those_that_have_some(
    pyspark: str, delta: str
) -> None:
    with pytest.raises(EnvironmentProblemError, match=r"4\.2 with 4\.4\.0") as raised:
        release_of(pyspark, delta)

    assert pyspark in raised.value.what
    assert delta in raised.value.what


def test_each_jar_has_the_hash_of_one_file() -> None:
    digests: dict[str, set[str]] = {}
    for release in RELEASES:
        for name, digest in release.jars.items():
            digests.setdefault(name, set()).add(digest)

    assert all(re.fullmatch("[0-9a-f]{64}", digest) for each in digests.values() for digest in each)
    assert all(len(each) == 1 for each in digests.values())


def test_setup_offers_a_range_of_spark_and_the_deltas_that_have_jars() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    spark = settings["options.extras_require"]["spark"].split()

    assert "pyspark>=4.0.1,<=4.2.0" in spark
    (delta,) = [line for line in spark if line.startswith("delta-spark")]
    oldest, newest = sorted({release.delta for release in RELEASES})
    assert f">={oldest},<={newest}" in delta


def test_what_is_installed_here_has_jars() -> None:
    assert installed_release() in RELEASES


def test_settings_file_for_spark_submit_names_the_newest() -> None:
    newest = max(RELEASES, key=lambda release: (release.spark, release.delta))

    for name in ("spark-defaults.conf", "spark-s3.conf"):
        assert newest.coordinate in (ROOT / "conf" / name).read_text("utf-8")


def test_class_for_checkpoints_is_where_each_spark_has_it() -> None:
    streaming = "org.apache.spark.sql.execution.streaming"
    name = "FileSystemBasedCheckpointFileManager"

    assert checkpoint_files_class("4.0.1") == f"{streaming}.{name}"
    assert checkpoint_files_class("4.1.1") == f"{streaming}.checkpointing.{name}"
    assert checkpoint_files_class("4.2.0") == f"{streaming}.checkpointing.{name}"
