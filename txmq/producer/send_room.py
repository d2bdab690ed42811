"""Bounds the memory of asynchronous sends: the bytes of all that have no result yet."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SendRoom:
    """Room for so many bytes of sends; who finds none waits. Safe for many threads.

    A send that is larger than the room enters when no other one is in it.
    """

    def __init__(self, max_bytes: int, is_giver: Callable[[], bool]) -> None:
        """All of it is free.

        `is_giver` says whether the calling thread helps to give room back, so that it must never
        wait for it: a callback of a future may send again.
        """
        self._max_bytes, self._taken_bytes = max_bytes, 0
        self._is_giver = is_giver
        # All sends and all answers take it. While it is held nothing is called that is not needed:
        # Python changes threads at calls, and all others would stand before the lock.
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._waiting = 0

    @property
    def taken_bytes(self) -> int:
        """The bytes of the sends that are in it."""
        return self._taken_bytes

    def enter(self, size_bytes: int) -> None:
        """Take room; who is no giver waits where there is too little."""
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes <= self._max_bytes:
                self._taken_bytes = taken_bytes
                return
            if self._is_too_much(size_bytes) and not self._is_giver():
                self._wait_for(size_bytes)
            self._taken_bytes += size_bytes

    def _wait_for(self, size_bytes: int) -> None:
        self._waiting += 1
        try:
            while self._is_too_much(size_bytes):
                self._has_room.wait()
        finally:
            self._waiting -= 1

    def try_enter(self, size_bytes: int) -> bool:
        """Take room, if there is enough; whether it was taken."""
        with self._lock:
            if self._is_too_much(size_bytes):
                return False
            self._taken_bytes += size_bytes
            return True

    def leave(self, size_bytes: int) -> None:
        """Give room back."""
        with self._lock:
            self._taken_bytes -= size_bytes
            if self._waiting:
                self._has_room.notify_all()

    def _is_too_much(self, size_bytes: int) -> bool:
        return bool(self._taken_bytes) and self._taken_bytes + size_bytes > self._max_bytes
