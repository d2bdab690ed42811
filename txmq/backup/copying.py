"""Copies many files by their bytes, a few at a time, and tells how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from txmq.delta.rooted import REQUESTS_AT_ONCE

# One thread reads and one hashes while another waits for a disk.
THREADS_OF_DISKS = 4
# So many files are named to the threads at once.
FILES_AT_ONCE = 512
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        files, size_bytes: what was copied, or is there already.
        all_files, all_bytes: what there is to copy, as far as it is known.
    """

    files: int
    size_bytes: int
    all_files: int
    all_bytes: int


OnProgress = Callable[[Progress], None]


def unseen(progress: Progress) -> None:
    """Nobody is shown it."""
    del progress


class Counter:
    """Tells how far a copy is. Safe for several threads; what is shown never goes back."""

    def __init__(self, all_files: int, all_bytes: int, on_progress: OnProgress) -> None:
        """Nothing is copied yet."""
        self._all_files, self._all_bytes = all_files, all_bytes
        self._files = self._bytes = 0
        self._lock, self._tell = threading.Lock(), on_progress

    def add(self, size_bytes: int) -> None:
        """One more file."""
        with self._lock:
            self._files += 1
            self._bytes += size_bytes
            files, bytes_ = max(self._all_files, self._files), max(self._all_bytes, self._bytes)
            self._tell(Progress(self._files, self._bytes, files, bytes_))


def each(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, is_remote: bool
) -> Iterator[tuple[Task, Result]]:
    """`work` for each task, some at once, in their order. Raises: what `work` raises first."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE if is_remote else THREADS_OF_DISKS) as pool:
        for part in _parts(tasks):
            yield from zip(part, pool.map(work, part), strict=True)


def _parts(tasks: Sequence[Task]) -> Iterable[Sequence[Task]]:
    for start in range(0, len(tasks), FILES_AT_ONCE):
        yield tasks[start : start + FILES_AT_ONCE]
