"""Java's archive of the classes that a local session loads: made once, it makes each start quicker.

Without it Java reads, checks and links some ten thousand classes of Spark at every start. Making it
takes 60 to 90 core-seconds. A process with Spark then takes 4 fewer to start and about 8 fewer in
all, and `make test` starts 23 of them. The archive belongs to one Java and one folder of jars, so
it lives in the virtual environment beside them. It only saves time: where it is missing or does not
fit, Java loads its classes as always.

`python -m tests.kit.class_archive` makes it. `tests/conftest.py` calls `use_archive`, which names
the archive to every Java of the tests in SPARK_SUBMIT_OPTS, a variable of Spark. txmq knows nothing
of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.spark.jars import cache_folder, jar_folder, jar_paths, spark_home
from txmq.spark.java import home_for_spark, java_options, require_java

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from txmq.spark.java import Java

VARIABLE = "SPARK_SUBMIT_OPTS"
# A mismatch is not worth a warning: Java then loads the classes from their jars.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_MAKE_SECONDS = 300
_STORY = "from tests.kit.archive_story import main; main()\n"


def archive_path() -> Path:
    """Where the archive is, whether there is one or not."""
    return Path(sys.prefix) / "share" / "txmq" / "classes.jsa"


def use_archive(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let each Java that is started with `environment` use the archive, if there is one."""
    path = archive_path()
    if path.is_file() and " " not in str(path):
        environment.setdefault(VARIABLE, f"-XX:SharedArchiveFile={path} {_QUIET}")


def main() -> int:
    """Make the archive if there is none that fits; 0 also if that fails, for nothing needs it."""
    java = require_java()
    if is_made_for(java):
        _say("found", f"Java's archive of classes, {archive_path()}")
        return 0
    _say("make", "Java's archive of classes (190 MB, once; this takes up to a minute)")
    if not make_archive(java, cache_folder()):
        _say("left out", "the archive: this Java could not make one; starts take as long as before")
    return 0


def is_made_for(java: Java) -> bool:
    """Whether there is an archive, and it was made by this Java of these jars."""
    note = _note()
    return archive_path().is_file() and note.is_file() and note.read_text() == _origin(java)


def make_archive(java: Java, cache: Path) -> bool:
    """Run a small story on Spark and keep the classes that it loaded; False if that fails.

    Args:
        java: the Java that was found.
        cache: where Delta's jars are.
    """
    path = archive_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            draft = _make_draft(Path(work), home_for_spark(java, cache), cache)
            _note().unlink(missing_ok=True)
            draft.replace(path)
        _note().write_text(_origin(java))
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _make_draft(work: Path, java_home: Path, cache: Path) -> Path:
    """Through spark-submit: its process is Java, which writes the archive when it ends."""
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
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), VARIABLE: "",
    }  # fmt: skip
    subprocess.run(
        command, env={**os.environ, **variables}, check=True, timeout=_MAKE_SECONDS,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return draft


def _note() -> Path:
    """Beside the archive: what it was made of."""
    return archive_path().with_suffix(".txt")


def _origin(java: Java) -> str:
    jars = spark_home() / "jars"
    changed_ns = jars.stat().st_mtime_ns if jars.is_dir() else 0
    return f"{java.home} {java.version} {jars} {changed_ns} {jar_folder(cache_folder()).name}"


def _say(what: str, text: str) -> None:
    sys.stdout.write(f"{what:8} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
