"""Files of the schedule that cannot be read: their messages wait, all others are delivered."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from txmq.delta.files import UnreadableFile
from txmq.publish.pauses import RetryPauses

logger = logging.getLogger(__name__)
_NAME = "schedule"


class UnreadableSchedule:
    """Those that one delay service met since it last read the whole schedule."""

    def __init__(self, retry_interval_s: float) -> None:
        """Know of none."""
        self._pauses = RetryPauses(retry_interval_s)
        self._paths: set[str] = set()
        self._told: set[str] = set()
        self._attempts = 0

    def __len__(self) -> int:
        """The number of files."""
        return len(self._paths)

    def is_due(self, now_ms: int) -> bool:
        """Whether there are any, and it is time to read the schedule again."""
        return bool(self._paths) and self._pauses.is_due(_NAME, self._attempts, now_ms)

    def begin(self, now_ms: int) -> None:
        """The whole schedule is read from now on."""
        self._attempts = self._attempts + 1 if self._paths else 0
        self._told &= self._paths
        self._paths.clear()
        self._pauses.tried(_NAME, now_ms)

    def add(self, files: Iterable[UnreadableFile]) -> None:
        """These files were met; each is told once for as long as it cannot be read."""
        for one in files:
            self._paths.add(one.file.path)
            if one.file.path not in self._told:
                self._told.add(one.file.path)
                text = "the schedule has a file that cannot be read, its messages wait: %s; %s"
                logger.error(text, one.problem, "restore it")
