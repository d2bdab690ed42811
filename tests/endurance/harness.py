"""What the long stories share: their scale, the form of a result, and where it is kept."""

from __future__ import annotations

import enum
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import machine_facts

RESULTS = Path(__file__).parent / "results"
STOP_WAIT_S = 120
SHOWN_CHARACTERS = 20_000
Say = Callable[[str], None]


class Scale(enum.StrEnum):
    """`full` is what the project promises; `slice` is minutes, for CI."""

    FULL = "full"
    SLICE = "slice"


@dataclass(frozen=True)
class Result:
    """What a story came to.

    Attributes:
        is_right: every promise held.
        numbers: the story's own counts and findings, for JSON.
    """

    is_right: bool
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Story:
    """A program with kills that takes long.

    Attributes:
        tell: runs it in an empty folder; its options are those of `Options`.
    """

    name: str
    sentence: str
    tell: Callable[[Path, Options], Result]


@dataclass(frozen=True)
class Options:
    """How a story is told; the same seed gives the same kills.

    Attributes:
        seconds: how long the generator draws; its scale decides where it is left out.
    """

    scale: Scale = Scale.FULL
    seed: int = 1
    with_spark: bool = True
    seconds: float | None = None
    say: Say = field(default=lambda _: None)


def started(command: Sequence[str], log: Any) -> subprocess.Popen[bytes]:
    """A module and its arguments as a process of its own, which writes into `log`."""
    root = Path(__file__).parents[2]
    # A process that hangs writes where its threads are, when it is aborted.
    python = [sys.executable, "-X", "faulthandler", "-m"]
    return subprocess.Popen([*python, *command], stdout=log, stderr=subprocess.STDOUT, cwd=root)


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """End it by SIGTERM; one that does not end says in the error where its threads hang."""
    process.terminate()
    try:
        process.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired as error:
        process.send_signal(signal.SIGABRT)
        process.wait()
        tail = log.read_text(encoding="utf-8", errors="replace")[-SHOWN_CHARACTERS:]
        raise AssertionError(f"a process did not end within {STOP_WAIT_S} s:\n{tail}") from error


def kept_result(story: str) -> dict[str, Any] | None:
    """The result of the last full run that was kept; None where there is none."""
    path = RESULTS / f"{story}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def keep(story: str, options: Options, result: Result) -> None:
    """Write the result into the repository, with date and machine."""
    RESULTS.mkdir(exist_ok=True)
    told = {
        "story": story,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine_facts(),
        "scale": options.scale.value,
        "seed": options.seed,
        "is_right": result.is_right,
        "numbers": result.numbers,
    }
    (RESULTS / f"{story}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
