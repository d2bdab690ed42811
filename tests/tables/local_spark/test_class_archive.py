"""Java's archive of classes: one for each Java and its jars, and nothing breaks without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txmq.local_spark import class_archive
from txmq.local_spark.class_archive import archive_options, archive_path, make_archive
from txmq.local_spark.java import Java

MAKER = """\
#!/bin/sh
for argument do
  case $argument in
    *ArchiveClassesAtExit=*)
      file=${argument#*ArchiveClassesAtExit=}
      printf classes > "${file%% *}" ;;
  esac
done
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java and a Spark that are not there."""
    monkeypatch.setattr(class_archive, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr(class_archive.sys, "prefix", str(tmp_path / "venv"))
    return Java(tmp_path / "java", "21.0.8")


def spark_submit(folder: Path, script: str) -> None:
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(script)
    program.chmod(0o755)


def test_archive_is_made_once_and_used_by_later_starts(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    assert archive_options(java) == ""

    path = make_archive(java, tmp_path / "cache")

    assert path == archive_path(java)
    assert path.read_text() == "classes"
    assert f"-XX:SharedArchiveFile={path}" in archive_options(java).split()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n"])
def test_java_that_makes_none_leaves_nothing_behind(
    java: Java, tmp_path: Path, script: str
) -> None:
    spark_submit(tmp_path, script)

    assert make_archive(java, tmp_path / "cache") is None
    assert archive_options(java) == ""
    assert list(archive_path(java).parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_environment_that_cannot_be_written_is_left_alone(java: Java, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir(mode=0o500)

    assert make_archive(java, tmp_path / "cache") is None


def test_another_java_or_other_jars_have_another_archive(java: Java, tmp_path: Path) -> None:
    first = archive_path(java)
    (tmp_path / "spark" / "jars").mkdir(parents=True)

    others = {archive_path(java), archive_path(Java(java.home, "21.0.9"))}

    assert len({first, *others}) == 3


def test_archive_of_an_earlier_java_is_removed(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    earlier = make_archive(Java(java.home, "17.0.1"), tmp_path / "cache")

    path = make_archive(java, tmp_path / "cache")

    assert path is not None
    assert earlier is not None
    assert not earlier.exists()
