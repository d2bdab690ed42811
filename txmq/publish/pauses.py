"""Pauses between two tries, by durations that this process has seen itself."""

from __future__ import annotations

MAX_DOUBLINGS = 5


class RetryPauses:
    """When each thing was last tried, by one clock that is compared with itself only.

    A time stamp of another process may lie in the future, so none is believed.
    """

    def __init__(self, interval_s: float) -> None:
        """Nothing was tried yet; the pause doubles with each attempt, up to 32 intervals."""
        self._interval_ms = interval_s * 1000
        self._tried_ms: dict[str, int] = {}

    def is_due(self, name: str, attempts: int, now_ms: int) -> bool:
        """Whether to try again; due at once: what was never tried, and a clock that went back."""
        if name not in self._tried_ms:
            return True
        passed_ms = now_ms - self._tried_ms[name]
        pause_ms = self._interval_ms * (1 << min(max(attempts, 1) - 1, MAX_DOUBLINGS))
        return not 0 <= passed_ms < pause_ms

    def tried(self, name: str, now_ms: int) -> None:
        """It was tried now, and failed."""
        self._tried_ms[name] = now_ms

    def forget(self, name: str) -> None:
        """It has succeeded."""
        self._tried_ms.pop(name, None)
