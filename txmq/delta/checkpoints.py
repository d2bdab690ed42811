"""Makes checkpoints beside the commits: one thread of the process, for all of its tables.

A reader of a table reads its newest checkpoint and the commits after it. Making one takes longer
than a hundred commits, so no commit waits for it, and it takes a small share of the time only.
Maintenance makes those that nobody made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from deltalake import DeltaTable

from txmq.delta.failures import in_one_line
from txmq.delta.forks import begin_use, process_id
from txmq.handles import close_at_exit

logger = logging.getLogger(__name__)

# The thread pauses so many times as long as a checkpoint took.
PAUSE_FACTOR = 20
LONGEST_PAUSE_S = 60.0


class _Checkpoints:
    """The tables that wait for a checkpoint, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.process_id = process_id()

    def ask(self, location: str, options: Mapping[str, str]) -> None:
        with self._changed:
            self._waiting[location] = options
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._run, name="txmq-checkpoints", daemon=True)
                thread.start()
                self._thread = thread
                close_at_exit(self.close)
            self._changed.notify()

    def close(self) -> None:
        """End the thread; what waits is left to maintenance."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while (table := self._next(pause_s)) is not None:
            begun_s = time.monotonic()
            _make(*table)
            pause_s = min(PAUSE_FACTOR * (time.monotonic() - begun_s), LONGEST_PAUSE_S)

    def _next(self, pause_s: float) -> tuple[str, Mapping[str, str]] | None:
        """A table after the pause; None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, pause_s)
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            return None if self._is_closed else self._waiting.popitem()


class _Process:
    """The checkpoints of this process; a fork copies no thread."""

    checkpoints = _Checkpoints()


def checkpoint_soon(location: str, options: Mapping[str, str]) -> None:
    """Have a checkpoint of a table's newest version made; 0 commits, and nothing is waited for."""
    if _Process.checkpoints.process_id != process_id():
        _Process.checkpoints = _Checkpoints()
    _Process.checkpoints.ask(location, options)


def _make(location: str, options: Mapping[str, str]) -> None:
    try:
        begin_use()
        DeltaTable(location, storage_options=dict(options) or None).create_checkpoint()
    except BaseException as error:  # noqa: BLE001 - maintenance makes it later
        logger.debug("no checkpoint of %s: %s", location, in_one_line(error))
