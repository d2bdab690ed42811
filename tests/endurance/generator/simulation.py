"""One process that plays many: its time is made up, and its commits pass through here.

Only one of the played processes runs at any moment, so a seed gives the same run again.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from tests.endurance.generator.plan import Step, Strike
from tests.kit.fault_vocabulary import Fault
from txmq.delta import failures as retries
from txmq.delta.actions import NewCommit, Seen, commit_path
from txmq.delta.commit_writer import CommitWriter
from txmq.ground import random_names
from txmq.ground.fail_points import FailPoint, arm
from txmq.ground.handles import ThreadHandle
from txmq.maintenance import compaction
from txmq.ops.backup import backup
from txmq.publish import round as rivals
from txmq.testing.faults import _around_commits, _replaced

# Sunday, 2020-03-01 06:00:00 UTC: before all real time, so that a file without a stamp is known.
BEGIN_S = 1_583_042_400.0
_REAL_TIME_S = 1_700_000_000.0
_TICK_S = 0.0001
_LOST = "the answer is lost"
_PUT = CommitWriter._put


class KilledError(BaseException):
    """The played process has ended; whatever it still tries is refused."""


class BangError(BaseException):
    """What a SystemExit or a Rust panic is to the code around it."""


@dataclass
class Life:
    """One played process from its start to its end."""

    name: str
    is_dead: bool = False
    strikes: list[_Armed] = field(default_factory=list)


@dataclass
class _Armed:
    strike: Strike
    left: int


class Simulation:
    """Time, disk and interruptions of all played processes.

    Attributes:
        now_s: the true time, which is that of the store.
        disk: errors by the beginning of the tables' paths that meet them.
        losing: beginnings of the paths of tables whose next commit loses its answer.
        play: does a step of another process; set by the world.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.now_s = root, BEGIN_S
        self.disk: dict[str, int] = {}
        self.losing: set[str] = set()
        self.play: Callable[[Step], None] = lambda _: None
        self._seed, self._random = seed, random.Random(seed)
        self._local = threading.local()
        self._handles: list[ThreadHandle] = []

    # --- who runs -------------------------------------------------------------------------------

    @contextmanager
    def living(self, life: Life) -> Iterator[None]:
        """What this thread does is done by a process; so is what its new threads do."""
        stack = self._stack()
        stack.append(life)
        try:
            yield
        finally:
            stack.pop()

    def _stack(self) -> list[Life]:
        if not hasattr(self._local, "lives"):
            first = getattr(threading.current_thread(), "played", None)
            self._local.lives = [] if first is None else [first]
        lives: list[Life] = self._local.lives
        return lives

    def _life(self) -> Life | None:
        stack = self._stack()
        return stack[-1] if stack else None

    def passed(self, place: str) -> None:
        """A process gets to a place of its way."""
        life = self._life()
        if life is None:
            return
        if life.is_dead:
            raise KilledError
        for armed in [one for one in life.strikes if place.startswith(one.strike.place)]:
            armed.left -= 1
            if armed.left == 0:
                self._strike(armed.strike, life)

    def _strike(self, strike: Strike, life: Life) -> None:
        if strike.fault is Fault.KILL:
            life.is_dead = True
            raise KilledError
        if strike.fault is Fault.LOST_ANSWER:
            raise DeltaError(_LOST)
        if strike.fault is Fault.BASE_EXCEPTION:
            raise BangError
        for step in strike.meanwhile:
            self.play(step)
        if life.is_dead:
            raise KilledError

    @contextmanager
    def armed(self, life: Life, strike: Strike | None) -> Iterator[None]:
        """Let a strike wait for its place."""
        armed = [] if strike is None else [_Armed(strike, strike.hit)]
        life.strikes += armed
        try:
            yield
        finally:
            life.strikes = [one for one in life.strikes if one not in armed]

    # --- commits and files ------------------------------------------------------------------------

    def _around(self, location: str, commit: Callable[[], None]) -> None:
        path = Path(location.removeprefix("file://"))
        table = self._table_at(path)
        self.passed(f"before {table}")
        for beginning, number in self.disk.items():
            if table.startswith(beginning):
                raise OSError(number, os.strerror(number))
        commit()
        self.stamp(path)
        self.passed(f"after {table}")
        for beginning in [one for one in self.losing if table.startswith(one)]:
            self.losing.discard(beginning)
            raise DeltaError(_LOST)

    def _table_at(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix().removeprefix("store/")

    def _put_by(self, writer: CommitWriter, seen: Seen, commit: NewCommit) -> bool:
        """Put a commit of txmq; its process may stand still before and after."""
        path = Path(writer.location.removeprefix("file://"))
        table = self._table_at(path)
        self.passed(f"looked {table}")
        is_put = _PUT(writer, seen, commit)
        # Only this one: by its time the writer knows the commit before.
        self._stamp_file(path / commit_path(seen.version + 1))
        self.passed(f"put {table}")
        return is_put

    def stamp(self, folder: Path) -> None:
        """Give new files the made-up time; their real one is later than all of it."""
        for path in folder.rglob("*"):
            self._stamp_file(path)

    def _stamp_file(self, path: Path) -> None:
        moment_ns = int(self.now_s * 1e9)
        # A thread that renews a lease may have put a draft in its place meanwhile.
        with suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mtime > _REAL_TIME_S:
                os.utime(path, ns=(moment_ns, moment_ns))

    # --- time ---------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Time goes on at once."""
        self.now_s += max(seconds, 0.0)

    def _monotonic(self) -> float:
        # Each look takes a moment, so that a loop with a deadline ends.
        self.now_s += _TICK_S
        return self.now_s

    def _uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    # --- in place -------------------------------------------------------------------------------

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The made-up time and the interruptions are those of this process."""
        random.seed(self._seed)
        random_names._random.seed(self._seed)
        with ExitStack() as stack:
            for owner, name, value in self._replacements():
                stack.enter_context(_replaced(owner, name, value))
            stack.enter_context(_around_commits(self._around))
            stack.callback(arm(self._reached))
            try:
                yield
            finally:
                self._end_threads()

    def _reached(self, point: FailPoint) -> None:
        self.passed(str(point))

    def _replacements(self) -> list[tuple[object, str, Any]]:
        start, begin = threading.Thread.start, ThreadHandle.begin

        def put(writer: CommitWriter, seen: Seen, commit: NewCommit) -> bool:
            return self._put_by(writer, seen, commit)

        def started(thread: threading.Thread) -> None:
            thread.played = self._life()  # type: ignore[attr-defined]
            start(thread)

        def begun(handle: ThreadHandle) -> None:
            self._handles.append(handle)
            begin(handle)

        return [
            (time, "sleep", self.sleep),
            (time, "monotonic", self._monotonic),
            (time, "time_ns", lambda: int(self.now_s * 1e9)),
            (time, "monotonic_ns", lambda: int(self._monotonic() * 1e9)),
            (time, "clock_gettime_ns", lambda _: int(self._monotonic() * 1e9)),
            (uuid, "uuid4", self._uuid4),
            (threading.Thread, "start", started),
            (CommitWriter, "_put", put),
            (backup, "THREADS_OF_DISKS", 1),
            # A day makes few files.
            (compaction, "FILES_OF_A_CLASS", 3),
            (ThreadHandle, "begin", begun),
            (retries, "RETRY_PAUSE_S", 0.0),
            (rivals, "PAUSE_MAX_S", 0.0),
        ]

    def _end_threads(self) -> None:
        for handle in self._handles:
            if handle.is_alive:
                handle.stop()


class PlayedClock:
    """The clock of one process: the true time, and how far it is wrong."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self.wrong_s = simulation, 0.0

    @property
    def of_store(self) -> PlayedClock:
        """The right clock, which is that of the store."""
        return PlayedClock(self._simulation)

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return round((self._simulation.now_s + self.wrong_s) * 1000)


NO_SPACE, IO_ERROR = errno.ENOSPC, errno.EIO
