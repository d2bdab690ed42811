"""`python -m txmq.local_spark.environment` finds or installs what local Spark needs.

That is Python, the packages of Spark and Delta, Java, and the jars of Delta.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

from txmq.errors import EnvironmentProblemError
from txmq.local_spark.jars import cache_folder, fetch_jars, jar_folder, missing_jars
from txmq.local_spark.java import JAVA_PACKAGE, Java, find_java, home_for_spark, require_java
from txmq.local_spark.releases import installed_release

_OLDEST_PYTHON = (3, 11)


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
