"""The local session's environment: what is found, what is missing, and what the error says."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from txmq.errors import EnvironmentProblemError
from txmq.spark import jars as delta_jars
from txmq.spark import java as environment
from txmq.spark import java as java_runtime
from txmq.spark import session
from txmq.spark.jars import Release
from txmq.spark.java import Java

ROOT = Path(__file__).parents[3]

ANSWER = """\
#!/bin/sh
echo "    java.home = {home}" >&2
echo "    java.version = {version}" >&2
"""


def java_home(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(ANSWER.format(home=folder, version=version))
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_runtime.shutil, "which", lambda _: None)
    monkeypatch.setattr(java_runtime, "_packaged_homes", lambda: iter(()))
    monkeypatch.setattr(java_runtime, "_homes_in_usual_places", lambda: iter(()))


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("22-ea", 22)]
)
def test_java_version_is_read_in_both_its_forms(version: str, major: int) -> None:
    assert Java(Path("/java"), version).major == major


@pytest.mark.usefixtures("bare")
def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = java_home(tmp_path / "wanted", "21.0.1")
    other = java_home(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(wanted))
    monkeypatch.setattr(java_runtime.shutil, "which", lambda _: str(other / "bin" / "java"))
    assert java_runtime.find_java() == Java(wanted, "21.0.1")


@pytest.mark.usefixtures("bare")
def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java_home(tmp_path / "old", "1.8.0_402")
    new = java_home(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr(java_runtime, "_homes_in_usual_places", lambda: iter([new]))
    assert java_runtime.require_java() == Java(new, "17.0.1")


@pytest.mark.usefixtures("bare")
def test_a_missing_java_says_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, "11.0.2")))
    with pytest.raises(EnvironmentProblemError) as raised:
        java_runtime.require_java()
    assert "too old: 11.0.2" in raised.value.what
    assert java_runtime.JAVA_PACKAGE in raised.value.next_step


@pytest.mark.usefixtures("bare")
def test_a_java_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path, "21.0.1")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_runtime.find_java() is None


def test_usual_places_are_patterns(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    found = java_runtime._homes_in_usual_places([f"{tmp_path}/*", f"{tmp_path}/none/*"])
    assert list(found) == [tmp_path / "a", tmp_path / "b"]


def test_the_java_for_spark_leaves_out_one_module_and_keeps_all_else(tmp_path: Path) -> None:
    real = tmp_path / "a java's home"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (real / "bin" / "java").chmod(0o755)
    home = java_runtime.home_for_spark(Java(real, "21"), tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='*'", ""]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=True)
    assert said.stdout.decode() == "-cp|a b|-Dx='*'||"


def test_the_java_for_spark_is_written_once(tmp_path: Path) -> None:
    java = Java(tmp_path / "real", "21")
    first = java_runtime.home_for_spark(java, tmp_path) / "bin" / "java"
    before = first.stat().st_ino
    assert java_runtime.home_for_spark(java, tmp_path) / "bin" / "java" == first
    assert first.stat().st_ino == before


def expect(monkeypatch: pytest.MonkeyPatch, jars: dict[str, str]) -> None:
    release = Release("4.4.0", "4.2", "delta-spark_4.2_2.13", jars)
    monkeypatch.setattr(delta_jars, "installed_release", lambda: release)


def test_a_jar_counts_only_with_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = hashlib.sha256(b"good").hexdigest()
    expect(monkeypatch, {"a.jar": good, "b.jar": good, "c.jar": good})
    (tmp_path / "a.jar").write_bytes(b"good")
    (tmp_path / "b.jar").write_bytes(b"bad")
    assert delta_jars.missing_jars(tmp_path) == ("b.jar", "c.jar")


def fake_spark(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = folder / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(script)
    submit.chmod(0o755)
    monkeypatch.setattr(delta_jars, "spark_home", lambda: folder / "spark")


RESOLVER = """\
#!/bin/sh
for argument do
  case $argument in
    spark.jars.ivy=*) folder=${argument#*=} ;;
    *trustStore=*) trusted=yes ;;
  esac
done
[ -n "$trusted" ] || { echo "Server access error: PKIX"; exit 1; }
mkdir -p "$folder/jars" && printf good > "$folder/jars/a.jar"
"""


def test_jars_are_fetched_with_pythons_certificates_where_javas_do_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(monkeypatch, {"a.jar": hashlib.sha256(b"good").hexdigest()})
    fake_spark(tmp_path, RESOLVER, monkeypatch)
    cache = tmp_path / "cache"
    delta_jars.fetch_jars(cache, tmp_path / "java")
    assert delta_jars.missing_jars(delta_jars.jar_folder(cache)) == ()
    assert list(cache.iterdir()) == [delta_jars.jar_folder(cache)]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Host mirror not found. url=somewhere'; exit 1", "Host mirror not found."),
        ("exit 0", "their hashes are not the expected ones"),
    ],
)
def test_jars_that_cannot_be_fetched_say_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    fake_spark(tmp_path, f"#!/bin/sh\n{script}\n", monkeypatch)
    with pytest.raises(EnvironmentProblemError) as raised:
        delta_jars.fetch_jars(tmp_path, tmp_path / "java")
    assert raised.value.what.endswith(reason)
    assert str(delta_jars.jar_folder(tmp_path)) in raised.value.next_step


def test_java_is_the_one_that_setup_asks_for() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")

    assert java_runtime.JAVA_PACKAGE in setup["options.extras_require"]["java"].split()


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert delta_jars.cache_folder() == tmp_path / "txmq"


def test_the_trust_store_has_javas_format(tmp_path: Path) -> None:
    delta_jars.write_trust_store(tmp_path / "store", [b"one", b"three"])
    expected = (
        b"\xfe\xed\xfe\xed" b"\0\0\0\2" b"\0\0\0\2"
        b"\0\0\0\2" b"\0\0010" b"\0\0\0\0\0\0\0\0" b"\0\5X.509" b"\0\0\0\3one"
        b"\0\0\0\2" b"\0\0011" b"\0\0\0\0\0\0\0\0" b"\0\5X.509" b"\0\0\0\5three"
    )  # fmt: skip
    assert (tmp_path / "store").read_bytes() == expected


def test_without_pyspark_the_session_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentProblemError, match="extra spark"):
        session.local_session("app")


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "before")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with session._environment(JAVA_HOME="now", SPARK_HOME="now"):
        assert (os.environ["JAVA_HOME"], os.environ["SPARK_HOME"]) == ("now", "now")
    assert os.environ["JAVA_HOME"] == "before"
    assert "SPARK_HOME" not in os.environ


def test_importing_the_session_does_not_import_spark() -> None:
    program = "import sys, txmq.spark.session; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.usefixtures("bare")
def test_java_is_installed_only_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(requirement: str) -> None:
        asked.append(requirement)
        monkeypatch.setenv("JAVA_HOME", str(home))

    asked: list[str] = []
    home = java_home(tmp_path, "21.0.8")
    monkeypatch.setattr(environment, "_install", install)
    assert environment._java() == environment._java() == Java(home, "21.0.8")
    assert asked == [java_runtime.JAVA_PACKAGE]
    assert "install  Java" in capsys.readouterr().out


def test_what_cannot_be_had_is_told_with_a_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise EnvironmentProblemError("no Java", "install one")

    monkeypatch.setattr(environment, "_java", missing)
    assert environment.main() == 1
    assert capsys.readouterr().err == "missing  no Java\nto do    install one\n"
