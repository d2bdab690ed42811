"""Makes checkpoints beside the commits: one thread of the process, for all of its tables.

A reader of a table reads its newest checkpoint and the commits after it. Making one takes longer
than many commits, so no commit waits for it, and it takes a share of the time only. Maintenance
makes those that nobody made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from deltalake import DeltaTable

from txmq.delta.checkpoint_file import OtherCheckpointError, write_checkpoint
from txmq.delta.failures import in_one_line, translated
from txmq.delta.folder import TableFolder
from txmq.delta.forks import process_id
from txmq.handles import EXIT_WAIT_S, close_at_exit

logger = logging.getLogger(__name__)

# The thread pauses so many times as long as a checkpoint took: a log that is committed to without a
# pause is behind by some tens of commits, and the callers have the time.
PAUSE_FACTOR = 10
LONGEST_PAUSE_S = 60.0


class _Due(NamedTuple):
    """A checkpoint that is asked for."""

    name: str
    location: str
    options: Mapping[str, str]
    version: int
    least_commits: int


class _Checkpoints:
    """The tables that wait for a checkpoint, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Due] = {}
        # Not entered by the condition: an interrupt in Condition.__enter__ would leave it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.process_id = process_id()

    def ask(self, due: _Due) -> None:
        with self._lock:
            self._waiting[due.location] = due
            if self._thread is None and not self._is_closed:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="txmq-checkpoints", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # A process without room for a thread has made its commit all the same.
            logger.debug("no thread for checkpoints: %s", error)
            return
        self._thread = thread
        close_at_exit(self.close)

    def close(self) -> None:
        """End the thread; what waits, or takes too long, is left to maintenance."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        pause_s = 0.0
        while (due := self._next(pause_s)) is not None:
            begun_s = time.monotonic()
            _make(due)
            pause_s = min(PAUSE_FACTOR * (time.monotonic() - begun_s), LONGEST_PAUSE_S)

    def _next(self, pause_s: float) -> _Due | None:
        """What has waited longest, after the pause; None after `close`."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_closed, pause_s)
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            return None if self._is_closed else self._waiting.pop(next(iter(self._waiting)))


class _Process:
    """The checkpoints of this process; a fork copies no thread."""

    checkpoints = _Checkpoints()


def checkpoint_soon(table: TableFolder, version: int, least_commits: int) -> None:
    """Have a checkpoint of this version or a newer one made; 0 commits, nothing is waited for.

    `least_commits` is as in `write_checkpoint`.
    """
    if _Process.checkpoints.process_id != process_id():
        _Process.checkpoints = _Checkpoints()
    _Process.checkpoints.ask(
        _Due(table.name, table.location, table.options, version, least_commits)
    )


def checkpoint_now(table: TableFolder, version: int) -> None:
    """Write a checkpoint of this version, unless there is a newer one; 0 commits.

    Raises: StorageError.
    """
    try:
        write_checkpoint(table, version)
    except OtherCheckpointError:
        with translated(table.name):
            DeltaTable(
                table.location, storage_options=dict(table.options) or None
            ).create_checkpoint()


def _make(due: _Due) -> None:
    try:
        table = TableFolder(due.name, due.location, due.options)
        write_checkpoint(table, due.version, least_commits=due.least_commits)
    except BaseException as error:  # noqa: BLE001 - maintenance makes it later
        logger.debug("no checkpoint of %s: %s", due.location, in_one_line(error))
