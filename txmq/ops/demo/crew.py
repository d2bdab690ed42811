"""The processes of the demo: starts, watches, kills and stops dispatchers and the broker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from txmq.errors import EnvironmentProblemError
from txmq.ops.demo.folder import DemoFolder

LOOK_INTERVAL_S = 0.5
STOP_WAIT_S = 120.0
LOG_TAIL_CHARACTERS = 2_000


@dataclass(slots=True)
class Crew:
    """The dispatchers and the broker, each in a session of its own.

    Attributes:
        outages: when no broker served, each from a kill until the next broker was ready.
    """

    folder: DemoFolder
    dispatchers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    broker: subprocess.Popen[bytes] | None = None
    dispatcher_kills: int = 0
    broker_kills: int = 0
    outages: list[tuple[float, float]] = field(default_factory=list)
    _killed_s: float | None = None
    _ready_s: float | None = None

    # --- dispatchers -------------------------------------------------------------------------

    def start_dispatcher(self, number: int) -> None:
        """Start a dispatcher, for the first time or after a kill."""
        arguments = [str(self.folder.path), str(number)]
        name = f"dispatcher-{number}"
        self.dispatchers[number] = self._started("txmq.ops.demo.dispatcher", arguments, name)

    def tend_dispatchers(self) -> bool:
        """Restart killed dispatchers and forget those that are done; true while any is left.

        Raises: EnvironmentProblemError if a dispatcher failed.
        """
        for number, process in list(self.dispatchers.items()):
            match process.poll():
                case None:
                    continue
                case 0:
                    del self.dispatchers[number]
                case code if code == -signal.SIGKILL:
                    self.dispatcher_kills += 1
                    self.start_dispatcher(number)
                case code:
                    raise self._failure(f"dispatcher-{number}", code)
        return bool(self.dispatchers)

    # --- the broker --------------------------------------------------------------------------

    def start_broker(self) -> None:
        """Start Spark and the services; `is_serving` says when they are ready."""
        arguments = [str(self.folder.path)]
        self.broker = self._started("txmq.ops.demo.broker", arguments, "broker")

    def is_serving(self) -> bool:
        """Tell whether the broker is ready, and note since when.

        Raises: EnvironmentProblemError if the broker ended by itself.
        """
        code = self.broker.poll() if self.broker else None
        if code is not None:
            raise self._failure("broker", code)
        ready = self.folder.ready_file.exists()
        if ready and self._ready_s is None:
            self._ready_s = time.time()
            self.outages += [(self._killed_s, self._ready_s)] if self._killed_s else []
            self._killed_s = None
        return ready

    def served_s(self) -> float:
        """Return how long this broker has served."""
        return time.time() - self._ready_s if self.is_serving() and self._ready_s else 0.0

    def kill_broker(self, harm: Callable[[DemoFolder, int], None] | None = None) -> None:
        """Kill -9 Python and Java together, call `harm`, and start a new broker."""
        if self.broker is None:
            return
        _signal_group(self.broker, signal.SIGKILL)
        self.broker.wait()
        self._killed_s, self._ready_s = time.time(), None
        self.broker_kills += 1
        self.folder.ready_file.unlink(missing_ok=True)
        if harm is not None:
            harm(self.folder, self.broker_kills)
        self.start_broker()

    # --- the end -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask all processes to finish; kill those that do not within STOP_WAIT_S."""
        processes = [*self.dispatchers.values(), *([self.broker] if self.broker else [])]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + STOP_WAIT_S
        for process in processes:
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal_group(process, signal.SIGKILL)
                process.wait()
        self.folder.ready_file.unlink(missing_ok=True)

    def _started(self, module: str, arguments: list[str], name: str) -> subprocess.Popen[bytes]:
        with self.folder.log(name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _failure(self, name: str, code: int) -> EnvironmentProblemError:
        path = self.folder.log(name)
        tail = path.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:]
        return EnvironmentProblemError(
            f"the {name} of the demo ended with {code}", f"See {path}:\n{tail}"
        )


def harm_checkpoints(folder: DemoFolder, kills: int) -> None:
    """Delete all streaming checkpoints, and every second time put an older copy in their place.

    No message may depend on them: each table holds its own progress.
    """
    checkpoints = folder.store / "checkpoints"
    older = folder.path / "checkpoints.older"
    if kills % 2 and checkpoints.exists():
        shutil.copytree(checkpoints, older, dirs_exist_ok=True)
    shutil.rmtree(checkpoints, ignore_errors=True)
    if kills % 2 == 0 and older.exists():
        shutil.copytree(older, checkpoints)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process and all that it started, Java too."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def watch_parent(stopping: threading.Event) -> None:
    """Send SIGTERM to this process when its parent has ended, until `stopping` is set."""
    parent = os.getppid()

    def watch() -> None:
        while not stopping.wait(LOOK_INTERVAL_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, name="txmq-demo-parent", daemon=True).start()
