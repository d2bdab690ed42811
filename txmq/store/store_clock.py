"""The time of the store: that of its storage, which all processes share (decision 0031).

What nobody can take back (a delivery, an expiry, a question whose answer may be ROLLBACK, a deleted
file) waits for this time, never for the clock of one machine alone.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from txmq.delta.failures import translated
from txmq.delta.folder import Objects, rooted_filesystem
from txmq.errors import StorageError
from txmq.ground.clock import (
    Clock,
    SystemClock,
    affine,
    clock_of_store,
    elapsed_ms,
    follows_storage,
)
from txmq.store.store import Store

logger = logging.getLogger(__name__)

CLOCK_FOLDER = "clock"
LOOK_INTERVAL_MS = 60_000
# A machine's clock that differs by more is said to be wrong.
FAR_MS = 10_000
# The storage may round its times to seconds.
NEAR_MS = 2_000
JUMP_MS = 60_000
# A look that takes longer is tried again.
QUICK_MS = 50
LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class _Look:
    """The storage's time at a moment that this process counts by itself."""

    storage_ms: int
    elapsed_ms: int

    def at(self, elapsed: int) -> int:
        return self.storage_ms + elapsed - self.elapsed_ms


class StoreClock:
    """The store's time: that of a small file which this process has just written.

    It counts on from there by a clock that nobody can set, and looks again after a minute, but only
    if it is asked. So it may be some milliseconds late, on an object store up to a second, and is
    not early. A clock that tests set, such as ManualClock, is the time of the store, too. A machine
    whose own clock is far from the store's is named in the log. Safe for several threads.

    On a local disk the storage's time is the machine's: keep that clock right. `hold_s` guards
    against a wrong one that is set right again soon.

    Writes: a file in `clock/` at most once a minute, and removes it. Commits: 0.

    Args:
        store: whose storage is asked.
        clock: the service's own clock; another StoreClock counts as that one's own clock.
        hold_s: how long a jump ahead must have lasted before it is believed.
        storage_ms: writes the file and returns its time; for tests.
        count_ms: the clock that nobody can set; for tests.

    Example:
        >>> StoreClock(store).now_ms()
        1767225600000
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        *,
        hold_s: float = 0.0,
        storage_ms: Callable[[], int] | None = None,
        count_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Write nothing yet."""
        own = clock.own if isinstance(clock, StoreClock) else clock
        self.own: Clock = own or SystemClock()
        self._hold_ms = round(hold_s * 1000)
        self._storage_ms = storage_ms or _ClockFiles(store).written_ms
        self._count_ms = count_ms
        self._lock = threading.Lock()
        self._believed: _Look | None = None
        # The first look of a jump ahead that is not believed yet.
        self._jump: _Look | None = None
        self._looked_ms = 0
        self._shown_ms = 0
        self._is_far = False

    @classmethod
    def of(cls, store: Store, clock: Clock | None) -> StoreClock:
        """Return `clock` if it is a StoreClock; else a new one beside it."""
        return clock if isinstance(clock, StoreClock) else cls(store, clock)

    @property
    def of_store(self) -> Clock:
        """The clock that shows the store's times."""
        return clock_of_store(self.own)

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; a small correction makes it stand, not go back.

        Raises: StorageError if the first file cannot be written; later ones may fail.
        """
        if not follows_storage(self.own):
            return self.of_store.now_ms()
        with self._lock:
            now_ms = affine(self.own).at(self._storage_now_ms())
            is_corrected = 0 < self._shown_ms - now_ms <= NEAR_MS
            self._shown_ms = self._shown_ms if is_corrected else now_ms
            return self._shown_ms

    def counted_ms(self) -> int:
        """Return milliseconds since some moment, for durations only: nobody can set what counts."""
        return round(self._count_ms() * affine(self.own).speed)

    def not_beyond(self, shown_ms: int) -> int:
        """Return a time that the machine's clock has shown; now, if that is clearly in the future.

        Raises: as `now_ms`.
        """
        now_ms = self.now_ms()
        if shown_ms <= now_ms or not follows_storage(self.own):
            return min(shown_ms, now_ms)
        with self._lock:
            near_ms = affine(self.own).at(self._storage_now_ms() + NEAR_MS)
            # What is believed once is not in the future later.
            self._shown_ms = max(self._shown_ms, shown_ms) if shown_ms <= near_ms else now_ms
        return shown_ms if shown_ms <= near_ms else now_ms

    def _storage_now_ms(self) -> int:
        believed = self._believed
        if believed is None or self._count_ms() - self._looked_ms >= LOOK_INTERVAL_MS:
            believed = self._believed = self._next(believed)
        return believed.at(self._count_ms())

    def _next(self, before: _Look | None) -> _Look:
        """Return the look to count on from: a new one, or the one before if that is better."""
        try:
            look = self._look()
        except StorageError as error:
            if before is None:
                raise
            logger.warning("the time of the store is counted on without a look: %s", error)
            self._looked_ms = self._count_ms()
            return before
        self._looked_ms = self._count_ms()
        if before is not None and self._is_doubtful(look, before):
            return before
        self._jump = None
        self._say_if_far(look)
        return look

    def _look(self) -> _Look:
        """Return the quickest of some looks; the clock may be late by as long as it takes."""
        looks: dict[int, _Look] = {}
        for _ in range(LOOKS_MAX):
            begun_ms = self._count_ms()
            storage_ms = self._storage_ms()
            # Counted from after the look, so that the clock is late rather than early.
            ended_ms = self._count_ms()
            looks[ended_ms - begun_ms] = _Look(storage_ms, ended_ms)
            if ended_ms - begun_ms <= QUICK_MS:
                break
        return looks[min(looks)]

    def _is_doubtful(self, look: _Look, before: _Look) -> bool:
        """Tell whether the look is ahead of the count, and has not been for long."""
        ahead_ms = look.storage_ms - before.at(look.elapsed_ms)
        if ahead_ms <= JUMP_MS:
            return False
        self._jump = self._jump or look
        is_held = look.elapsed_ms - self._jump.elapsed_ms < self._hold_ms
        if is_held:
            warning = "the time of the store jumped ahead by %d s; nothing is decided by it yet"
            logger.warning(warning, ahead_ms // 1000)
        return is_held

    def _say_if_far(self, look: _Look) -> None:
        store_ms = affine(self.own).at(look.at(self._count_ms()))
        ahead_ms = self.own.now_ms() - store_ms
        is_far, was_far = abs(ahead_ms) > FAR_MS, self._is_far
        self._is_far = is_far
        if is_far and not was_far:
            side = "ahead of" if ahead_ms > 0 else "behind"
            warning = "this machine's clock is %.1f s %s the store's; the store's time counts"
            logger.warning(warning, abs(ahead_ms) / 1000, side)


class _ClockFiles:
    """Files whose modification time is the storage's time.

    Each has a name of its own: another user of the machine could not write to the same file again.
    """

    def __init__(self, store: Store) -> None:
        self._filesystem = rooted_filesystem(store.location, store.storage_options)
        self._objects = Objects(store.location, store.storage_options)

    def written_ms(self) -> int:
        """Write a file, read its time, and remove it."""
        path = f"{CLOCK_FOLDER}/{uuid.uuid4()}"
        with translated(CLOCK_FOLDER):
            self._objects.put(path, b"The time of this file is the time of the store.\n")
            (info,) = self._filesystem.get_file_info([path])
            # What stays after a kill is removed by maintenance.
            with suppress(OSError):
                self._filesystem.delete_file(path)
        if info.mtime_ns is None:
            problem = "has files without a modification time; txmq needs a storage that keeps one"
            raise StorageError(CLOCK_FOLDER, problem)
        return int(info.mtime_ns) // 1_000_000
