"""Says in the log, from time to time, what a broker has done since the last time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txmq.handles import ThreadHandle, is_survivable
from txmq.watch.counts import BrokerCounts

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0


class ReportHandle(ThreadHandle):
    """A thread that writes one line after each interval."""

    def __init__(self, counts: Callable[[], BrokerCounts], interval_s: float = INTERVAL_S) -> None:
        """Start it; `counts` gives the counts since the start of the services."""
        super().__init__("report", interval_s, first_s=interval_s)
        self._counts, self._before = counts, counts()
        self.begin()

    def _turn(self) -> None:
        try:
            self.tell()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("the services could not be counted")

    def tell(self) -> None:
        """Write the line."""
        counts = self._counts()
        logger.info("in the last %.0f s: %s", self._interval_s, counts.since(self._before))
        self._before = counts
