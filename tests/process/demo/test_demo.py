"""The demo from begin to end, small: with kills, with lost checkpoints, and interrupted."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from txmq.ops.demo import run as demo

if TYPE_CHECKING:
    from pathlib import Path

FLIGHTS = 300


@pytest.mark.timeout(900)
def test_a_small_demo_ends_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its broker is killed, and loses its checkpoints."""
    location = tmp_path / "demo"
    code = demo.main(
        str(location),
        flights=FLIGHTS,
        seconds=6.0,
        kills=4,
        broker_kills=1,
        lose_checkpoints=True,
    )
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "0 violations" in shown
    assert "0 missing, 0 too many" in shown
    assert "txmq status" in shown
    assert "broker 1" in shown
    (command,) = [line for line in shown.splitlines() if line.startswith("  python -c")]
    program = shlex.split(command)[2]
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)
    assert (location / "checkpoints.older").is_dir()
    assert (location / "store" / "topics" / "flight-departed").is_dir()


# A shell makes what it runs in the background ignore it, and so the demo.
HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@pytest.mark.timeout(300)
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    location = tmp_path / "demo"
    program = (
        f"{HEED_SIGINT}; import runpy; runpy.run_module('txmq.ops.demo.run', run_name='__main__')"
    )
    arguments = [sys.executable, "-c", program, str(location)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 60
    while not (location / "broker.log").exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == demo.INTERRUPTED
    assert "nothing runs any more" in shown
    assert str(location / "store") in shown
    assert not _running_below(location)


def _running_below(location: Path) -> list[str]:
    """Processes that were started for this demo, where the system can tell."""
    command = ["ps", "-eo", "args"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return [row for row in shown.stdout.splitlines() if str(location) in row]
