"""Whether the logs have commits, by looks at file names: the deadline join rests without them."""

from __future__ import annotations

import time

from txmq.errors import StorageError
from txmq.store.store import Store

QUIET_AFTER_S = 30.0
# So many looks in a row with news are traffic; a single transaction is not.
STEADY_LOOKS = 5


class LogTraffic:
    """The traffic of the half and op logs. Not safe for several threads."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._tables = [store.tables.half_log().table, store.tables.op_log().table]
        self._interval_s = store.config.check_trigger_interval_s
        self._looked_s = self._busy_s = self._begun_s = time.monotonic()
        self._looks_with_news = 0

    def look(self) -> None:
        """Look for commits, once per `check_trigger_interval_s`."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._interval_s:
            return
        was_quiet = self.is_quiet
        self._looked_s = now_s
        has_news = self._has_news()
        if has_news and was_quiet:
            self._begun_s = now_s
        self._looks_with_news = self._looks_with_news + 1 if has_news else 0
        self._busy_s = now_s if has_news else self._busy_s

    def _has_news(self) -> bool:
        """Whether there are commits; true also where nobody can tell."""
        try:
            news = [table for table in self._tables if table.has_news()]
            for table in news:
                table.refresh()
        except StorageError:
            return True
        return bool(news)

    @property
    def is_quiet(self) -> bool:
        """Whether there was no commit for QUIET_AFTER_S."""
        return self._looked_s - self._busy_s >= QUIET_AFTER_S

    @property
    def is_steady(self) -> bool:
        """Whether commits keep coming."""
        return self._looks_with_news >= STEADY_LOOKS

    @property
    def is_lasting(self) -> bool:
        """Whether commits have come for QUIET_AFTER_S, without a pause of that length."""
        return not self.is_quiet and self._busy_s - self._begun_s >= QUIET_AFTER_S
