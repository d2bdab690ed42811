"""Starting, killing and counting the processes under torture."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.endurance.torture.actors import main
from tests.endurance.torture.plan import POINTS, kills
from tests.endurance.torture.strikes import Strike, notes
from tests.kit.forked import Forked
from txmq.ground.fail_points import FailPoint

STOP_WAIT_S = 600.0
# Longer than all leases of the store under torture.
STANDS_STILL_S = 4.0
POLL_S = 0.05


@dataclass
class Killed:
    """How often each point was the last of a process, and how many kills were drawn so far."""

    by_point: dict[str, int] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_point.values())

    def draw(self, seed: int, actor: str) -> tuple[FailPoint, int]:
        """The next kill of an actor; each second one is for a point that nobody died at yet."""
        place = self.drawn.get(actor, 0)
        self.drawn[actor] = place + 1
        missing = [point for point in POINTS[actor] if point not in self.by_point]
        if missing and place % 2 and place >= len(POINTS[actor]):
            return missing[place // 2 % len(missing)], 1
        drawn = kills(seed, actor)
        return drawn[place % len(drawn)]


@dataclass
class Process:
    """An actor that may be armed to die at a fail point."""

    actor: str
    name: str
    point: FailPoint | None
    running: Forked
    log: Path
    is_told_to_end: bool = False
    stopped_at_s: float | None = None

    def wake(self) -> None:
        """Let it go on where it has stood still for so long."""
        if not self.running.is_stopped:
            self.stopped_at_s = None
        elif self.stopped_at_s is None:
            self.stopped_at_s = time.monotonic()
        elif time.monotonic() - self.stopped_at_s > STANDS_STILL_S:
            self.running.send_signal(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        return self.running.poll() is not None

    @property
    def was_killed(self) -> bool:
        return self.running.returncode == -signal.SIGKILL

    @property
    def has_failed(self) -> bool:
        code = self.running.returncode
        # Told so early that it did not listen to signals yet.
        ended_early = self.is_told_to_end and code == -signal.SIGTERM
        return code not in (0, None, -signal.SIGKILL) and not ended_early


class Processes:
    """All processes of one run; their names are never used twice."""

    def __init__(self, folder: Path, seed: int, killed: Killed, faults: list[str]) -> None:
        self._folder, self._seed, self.killed, self.faults = folder, seed, killed, faults
        self._running: list[Process] = []
        self._strikes: Mapping[str, Sequence[Strike]] = {}
        self._noted = 0

    def strike(self, strikes: Mapping[str, Sequence[Strike]]) -> None:
        """Let these hit the next processes of their actors that are armed, each until it has."""
        self._strikes = strikes
        self._noted = len(notes(self._folder))

    def _left(self, actor: str) -> list[str]:
        done = notes(self._folder)[self._noted :]
        return [str(one) for one in self._strikes.get(actor, ()) if str(one) not in done]

    def start(
        self, actor: str, round_number: int, *, armed: bool, at: FailPoint | None = None
    ) -> Process:
        """`at` names the point where nobody died yet and where it can be reached just now."""
        point, hit = self.killed.draw(self._seed, actor) if armed else (None, 0)
        if armed and at is not None and at not in self.killed.by_point:
            point, hit = at, 1
        serial = len(list((self._folder / "logs").iterdir()))
        name = f"{actor.replace(' ', '-')}-{round_number}-{serial}"
        log = self._folder / "logs" / f"{name}.log"
        faults = f"{point}=kill@{hit}" if point else ""
        strikes = self._left(actor) if armed else []
        given = (actor, str(self._folder), name, str(round_number), *strikes)
        running = Forked(main, *given, faults=faults, log=log)
        process = Process(actor, name, point, running, log)
        self._running.append(process)
        return process

    def reap(self) -> Iterator[Process]:
        """Processes that ended since the last look, counted; who stood still for long goes on."""
        for process in [one for one in self._running if one.has_ended]:
            self._running.remove(process)
            self._count(process)
            yield process
        for process in self._running:
            if not process.has_ended:
                process.wake()

    def alive(self, actor: str) -> int:
        return sum(one.actor == actor for one in self._running)

    def wait_for(self, *actors: str) -> None:
        """Until none of these runs any more."""
        deadline_s = time.monotonic() + STOP_WAIT_S
        while any(one.actor in actors for one in self._running):
            for _ in self.reap():
                pass
            if time.monotonic() > deadline_s:
                self.faults.append(f"{actors} did not end in {STOP_WAIT_S} s")
                self.kill_all()
            time.sleep(POLL_S)

    def terminate(self, actor: str) -> None:
        """The clean stop: SIGTERM."""
        for process in self._running:
            if process.actor == actor:
                process.is_told_to_end = True
                process.running.terminate()

    def kill_all(self) -> None:
        for process in self._running:
            _kill_session(process)

    def _count(self, process: Process) -> None:
        # A JVM outlives its Python for a moment; a killed driver is both.
        _kill_session(process)
        if process.was_killed and process.point is not None:
            count = self.killed.by_point.get(process.point, 0)
            self.killed.by_point[process.point] = count + 1
        if process.has_failed:
            last = process.log.read_text(errors="replace").strip().splitlines()[-1:]
            self.faults.append(f"{process.name} ended with {process.running.returncode}: {last}")


def _kill_session(process: Process) -> None:
    try:
        os.killpg(process.running.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
