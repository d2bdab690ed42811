"""Group commit: the callers of one process share commits, for a commit costs more than its rows."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from txmq.errors import ClosedError

DEFAULT_MAX_WAITING = 100_000
Item = TypeVar("Item")
Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class GroupCommitter(Generic[Item, Answer]):
    """One thread that commits for all others.

    While one commit is on its way the next callers gather, so commits grow with the load and a
    single caller never waits for others.
    """

    def __init__(
        self,
        commit: Callable[[list[Item]], Sequence[Answer]],
        *,
        name: str,
        max_rows: int,
        max_waiting: int = DEFAULT_MAX_WAITING,
        linger_s: float = 0.0,
    ) -> None:
        """`commit` makes items durable and answers each of them; it runs in one thread only.

        Where `max_waiting` items are not taken yet, the next caller waits. With `linger_s` they
        gather so long before each commit: it costs as much as thousands of rows.
        """
        self._commit = commit
        self._name = name
        self._max_rows, self._max_waiting = max_rows, max_waiting
        self._linger_s, self._is_urgent = linger_s, threading.Event()
        self._waiting: deque[_Entry[Item, Answer]] = deque()
        lock = threading.Lock()
        self._has_rows, self._has_room = threading.Condition(lock), threading.Condition(lock)
        self._thread: threading.Thread | None = None
        self._closed = self._has_ended = False
        # Whether the thread sleeps, or is not there yet, so that somebody has to wake it.
        self._is_idle = True
        self._pid = os.getpid()

    def submit(self, item: Item, rows: int) -> Future[Answer]:
        """Put an item of so many rows into the next commit."""
        future: Future[Answer] = Future()
        self._enter(((item, rows, future),))
        return future

    def put(self, item: Item, rows: int) -> None:
        """As `submit`, for an item that `commit` answers by itself."""
        self._enter(((item, rows, None),))

    def put_all(self, items: Sequence[Item], rows: Sequence[int]) -> None:
        """As `put`, for several at once, in their order."""
        self._enter([(item, count, None) for item, count in zip(items, rows, strict=True)])

    def _enter(self, entries: Sequence[_Entry[Item, Answer]]) -> None:
        """Without the lock where nobody sleeps: threads that queue for it would sleep each time."""
        # A lock that was held while the process forked is never released in the child.
        self._check_process()
        if len(self._waiting) >= self._max_waiting:
            self._wait_for_room()
        self.check_usable()
        self._waiting.extend(entries)
        if self._is_idle or self._closed or len(self._waiting) >= self._max_waiting:
            self._wake(entries)

    def _wait_for_room(self) -> None:
        with self._has_rows:
            while len(self._waiting) >= self._max_waiting and not self._closed:
                self._has_room.wait()

    def _wake(self, entries: Sequence[_Entry[Item, Answer]]) -> None:
        with self._has_rows:
            if self._has_ended and entries[0] in self._waiting:
                # It came after the last look; all others were taken.
                for entry in entries:
                    self._waiting.remove(entry)
                self.check_usable()
            if len(self._waiting) >= self._max_waiting:
                self._is_urgent.set()
            self._start()
            self._has_rows.notify()

    def close(self) -> None:
        """Commit what waits, then end the thread; in a forked process there is nothing to do."""
        if not self.is_of_this_process:
            return
        with self._has_rows:
            self._closed = True
            self._has_ended = self._thread is None
            self._is_urgent.set()
            self._has_rows.notify()
            self._has_room.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check_usable(self) -> None:
        """Raise ClosedError where nothing more can be committed."""
        self._check_process()
        if self._closed:
            message = f"{self._name} is closed; make a new producer"
            raise ClosedError(message)

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, and not before a fork."""
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        if not self.is_of_this_process:
            message = f"{self._name} belongs to the process before the fork; make a new producer"
            raise ClosedError(message)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while group := self._next_group():
            try:
                answers = self._commit([item for item, _, _ in group])
            except BaseException as error:  # noqa: BLE001 - each caller gets it
                _fail(group, error, self._name)
            else:
                _answer(group, answers)
            # Nothing of them is kept while the next ones gather.
            del group

    def _next_group(self) -> list[_Entry[Item, Answer]]:
        self._sleep()
        if self._linger_s:
            # Nobody has to be woken for each row that comes meanwhile.
            self._is_urgent.wait(self._linger_s)
        with self._has_rows:
            if not self._closed:
                self._is_urgent.clear()
            group: list[_Entry[Item, Answer]] = []
            count = 0
            while self._waiting and (not group or count + self._waiting[0][1] <= self._max_rows):
                group.append(self._waiting.popleft())
                count += group[-1][1]
            self._has_room.notify_all()
            # Whoever puts something now finds that it is closed, and takes it back.
            self._has_ended = not group
            return group

    def _sleep(self) -> None:
        """Until something waits; who puts it looks whether we sleep after it is there."""
        with self._has_rows:
            self._is_idle = True
            while not (self._waiting or self._closed):
                self._has_rows.wait()
            self._is_idle = False


# An item, its rows, and who waits for its answer.
_Entry = tuple[Item, int, Future[Answer] | None]


def _answer(group: Sequence[_Entry[Item, Answer]], answers: Sequence[Answer]) -> None:
    for (_, _, future), answer in zip(group, answers, strict=True):
        if future is not None:
            future.set_result(answer)


def _fail(group: Sequence[_Entry[Item, Answer]], error: BaseException, name: str) -> None:
    for _, _, future in group:
        if future is not None:
            future.set_exception(error)
    if any(future is None for _, _, future in group):
        logger.error("%s: what was put has no answer", name, exc_info=error)
