"""What a publisher does when another one was faster."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from txmq.errors import CommitConflictError, CommitRefusedError

PAUSE_MAX_S = 0.1


@dataclass(slots=True)
class Rivals:
    """Counts the commits to the settled log that were refused in a row."""

    attempts: int
    _lost_in_a_row: int = 0

    def pause(self, published_s: float, stopping: threading.Event) -> None:
        """Pause for a random part of the last publish time: a faster publisher is at work."""
        stopping.wait(random.random() * min(published_s, PAUSE_MAX_S))  # noqa: S311

    def refused(self, refusal: CommitRefusedError, *, has_moved: bool) -> None:
        """Raise CommitConflictError after so many refusals without a moved mark.

        If the mark has not moved, no publisher won a race: the table cannot be appended to.
        """
        self._lost_in_a_row = 0 if has_moved else self._lost_in_a_row + 1
        if self._lost_in_a_row >= self.attempts:
            problem = f"refused {self._lost_in_a_row} commits in a row; check the table's log"
            self._lost_in_a_row = 0
            raise CommitConflictError("settled", problem) from refusal
