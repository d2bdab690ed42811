"""Java's archive of classes: for one Java and its jars, and nothing breaks without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit import class_archive
from tests.kit.class_archive import VARIABLE, archive_path, is_made_for, make_archive, use_archive
from txmq.spark.java import Java

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


def options() -> str | None:
    """What a Java of the tests is started with."""
    environment: dict[str, str] = {}
    use_archive(environment)
    return environment.get(VARIABLE)


def test_archive_is_made_once_and_used_by_later_starts(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    assert options() is None
    assert not is_made_for(java)

    assert make_archive(java, tmp_path / "cache")

    path = archive_path()
    assert path.read_text() == "classes"
    assert f"-XX:SharedArchiveFile={path}" in (options() or "").split()
    assert is_made_for(java)
    assert {file.name for file in path.parent.iterdir()} == {"classes.jsa", "classes.txt"}


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n"])
def test_java_that_makes_none_leaves_nothing_behind(
    java: Java, tmp_path: Path, script: str
) -> None:
    spark_submit(tmp_path, script)

    assert not make_archive(java, tmp_path / "cache")
    assert options() is None
    assert list(archive_path().parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_environment_that_cannot_be_written_is_left_alone(java: Java, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir(mode=0o500)

    assert not make_archive(java, tmp_path / "cache")


def test_archive_does_not_fit_another_java_or_other_jars(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    assert make_archive(java, tmp_path / "cache")

    assert not is_made_for(Java(java.home, "21.0.9"))
    (tmp_path / "spark" / "jars").mkdir()
    assert not is_made_for(java)


def test_archive_of_an_earlier_java_is_replaced(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    assert make_archive(Java(java.home, "17.0.1"), tmp_path / "cache")

    assert make_archive(java, tmp_path / "cache")

    assert is_made_for(java)
    assert not is_made_for(Java(java.home, "17.0.1"))


def test_options_that_a_user_has_set_are_kept(java: Java, tmp_path: Path) -> None:
    spark_submit(tmp_path, MAKER)
    assert make_archive(java, tmp_path / "cache")
    environment = {VARIABLE: "-Dmine=1"}

    use_archive(environment)

    assert environment == {VARIABLE: "-Dmine=1"}
