"""`python -m tests.wheel.matrix`: the wheel with each extra, and with each Spark and Delta.

Docs/install.md has the table. Words on the command line choose among the names; 1 where a step
fails or nothing was tried.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from tests.wheel.__main__ import first_steps
from tests.wheel.building import built_wheel, environment, python_of, run, say

HERE = Path(__file__).parent
OLDEST, NEWEST = "3.11", "3.13"
EXTRAS = {
    "avro": "fastavro",
    "dashboard": "jinja2, txmq.ops.dashboard",
    "database": "sqlalchemy, txmq.listeners.database",
    "http": "requests, txmq.listeners.http",
    "metrics": "prometheus_client, txmq.ops.metrics.server",
    "otel": "opentelemetry.trace, txmq.ops.tracing",
    "pydantic": "pydantic",
    "trace": "opentelemetry.trace",
}


class Corner(NamedTuple):
    """One environment to try."""

    name: str
    python: str
    extras: str
    pins: tuple[str, ...] = ()


SPARKS = (
    Corner("spark-4.0-delta-4.0", OLDEST, "spark", ("pyspark==4.0.1", "delta-spark==4.0.1")),
    Corner("spark-4.0-delta-4.4", NEWEST, "spark", ("pyspark==4.0.1", "delta-spark==4.4.0")),
    Corner("spark-4.1-delta-4.4", OLDEST, "spark", ("pyspark==4.1.1", "delta-spark==4.4.0")),
    Corner("spark-4.2-delta-4.4", NEWEST, "spark", ("pyspark==4.2.0", "delta-spark==4.4.0")),
)


def main(chosen: list[str]) -> int:
    """Try each corner; print a line for each."""
    with tempfile.TemporaryDirectory(prefix="txmq-matrix-") as temporary:
        folder = Path(temporary)
        wheel = built_wheel(folder / "wheel")
        outcomes = [_tried(corner, wheel, folder) for corner in _corners(chosen)]
    return int(False in outcomes or True not in outcomes)


def _corners(chosen: list[str]) -> list[Corner]:
    extras = [Corner(extra, NEWEST, extra) for extra in EXTRAS]
    known = [*extras, *SPARKS]
    return [corner for corner in known if not chosen or corner.name in chosen]


def _tried(corner: Corner, wheel: Path, folder: Path) -> bool | None:
    """Whether all steps worked; None where this Python is missing."""
    python = python_of(corner.python)
    if python is None:
        say(f"missing  {corner.name}: Python {corner.python} is not here")
        return None
    began = monotonic()
    try:
        _try(corner, python, wheel, folder / corner.name)
    except subprocess.CalledProcessError as error:
        say(f"broken   {corner.name}: {error}\n{error.stdout}{error.stderr[-3000:]}")
        return False
    say(f"works    {corner.name}, Python {corner.python} ({monotonic() - began:.0f} s)")
    return True


def _try(corner: Corner, python: str, wheel: Path, folder: Path) -> None:
    own = environment(python, folder, f"{wheel}[{corner.extras}]", *corner.pins)
    if corner in SPARKS:
        (folder / "empty").mkdir()
        run(own, "-I", HERE / "spark_steps.py", cwd=folder / "empty")
    else:
        run(own, "-I", "-c", f"import {EXTRAS[corner.extras]}")
        # The first steps look what is said without this package.
        if "opentelemetry" not in EXTRAS[corner.extras]:
            first_steps(own, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
