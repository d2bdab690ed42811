"""Java's archive of the classes that a local session loads: made once, then each start is quicker.

Without it Java reads, checks and links some ten thousand classes of Spark at every start. The
archive belongs to one Java and one folder of jars, so it lives in the virtual environment beside
them. It only saves time: where it is missing, or does not fit, Java loads its classes as always.

`python -m txmq.local_spark.class_archive` makes it, in about a minute.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.local_spark.jars import DELTA_VERSION, cache_folder, jar_paths, spark_home
from txmq.local_spark.java import home_for_spark, java_options, require_java

if TYPE_CHECKING:
    from txmq.local_spark.java import Java

# A mismatch is no news to anybody: the classes are then loaded from their jars.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_MAKE_SECONDS = 300
_STORY = "from txmq.demo.archive_story import main; main()\n"


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and these jars is, whether it is there or not."""
    jars = spark_home() / "jars"
    changed_ns = jars.stat().st_mtime_ns if jars.is_dir() else 0
    facts = f"{java.home} {java.version} {jars} {changed_ns} {DELTA_VERSION}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "txmq" / f"classes-{digest}.jsa"


def archive_options(java: Java) -> str:
    """Java's options for a start with the archive; none if there is no archive."""
    path = archive_path(java)
    if not path.is_file() or " " in str(path):
        return ""
    return f" -XX:SharedArchiveFile={path} {_QUIET}"


def main() -> int:
    """Make the archive if there is none; 0 also where that fails, for nothing needs it."""
    java = require_java()
    path = archive_path(java)
    if path.is_file():
        _say("found", f"Java's archive of classes, {path}")
        return 0
    _say("make", "Java's archive of classes (160 MB, once; this takes up to a minute)")
    if make_archive(java, cache_folder()) is None:
        _say("left out", "the archive: this Java could not make one; starts take as long as before")
    return 0


def _say(what: str, text: str) -> None:
    sys.stdout.write(f"{what:8} {text}\n")
    sys.stdout.flush()


def make_archive(java: Java, cache: Path) -> Path | None:
    """Run a small story on Spark and keep the classes that it loaded; None where that fails.

    Args:
        java: the Java that was found.
        cache: where Delta's jars are.
    """
    path = archive_path(java)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            _made(Path(work), home_for_spark(java, cache), cache).replace(path)
    except (OSError, subprocess.SubprocessError):
        return None
    _forget_others(path)
    return path


def _made(work: Path, java_home: Path, cache: Path) -> Path:
    """Submitted, for then the program that is waited for is Java, which writes at its end."""
    draft, program, home = work / "classes.jsa", work / "story.py", spark_home()
    program.write_text(_STORY, encoding="utf-8")
    options = f"{java_options(for_minutes=True)} -XX:ArchiveClassesAtExit={draft} {_QUIET}"
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "2g",
        "--jars", ",".join(map(str, jar_paths(cache))),
        "--driver-java-options", options, str(program), str(work / "store"),
    ]  # fmt: skip
    variables = {
        "JAVA_HOME": str(java_home), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    subprocess.run(
        command, env={**os.environ, **variables}, check=True, timeout=_MAKE_SECONDS,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return draft


def _forget_others(path: Path) -> None:
    """An archive is some 200 MB, and those of an earlier Java or Spark are of no use."""
    for other in path.parent.glob("classes-*.jsa"):
        if other != path:
            other.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
