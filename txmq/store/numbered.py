"""Numbered commits: a writer finds a commit whose answer was lost, and does not make it twice.

A writer counts its commits under its own name; Delta keeps the newest number of each name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from txmq.delta.forks import process_id
from txmq.delta.storage import Table


class _Commit(NamedTuple):
    """The number of the last commit, and its rows while it has no answer."""

    number: int
    unanswered: object = None


class NumberedCommits:
    """The commits of one writer to one table. Not safe for several threads."""

    def __init__(self, table: Table, kind: str) -> None:
        """Open nothing yet; `kind` names the kind of writer in Delta's log."""
        self._table, self._kind = table, kind
        self._begin()

    def _begin(self) -> None:
        self.session = uuid.uuid4()
        self._app_id = f"txmq-{self._kind}/{self.session}"
        self._last, self._process_id, self._version = _Commit(0), process_id(), 0

    def commit(self, rows: object, write: Callable[[str, int], int]) -> None:
        """Make one commit of `rows` with `write(app_id, number)`.

        Retry: after an error of any kind the commit may have landed. A second call with the same
        object keeps the number, looks for it, and writes only if it is not there. Other rows get
        the next number, so they are never taken for the rows that failed.

        Raises: StorageError, also if the table cannot be read; then nothing was written.
        """
        if self._process_id != process_id():
            # After a fork both processes would count under one name.
            self._begin()
        is_retry = rows is self._last.unanswered
        if not is_retry:
            self._last = _Commit(self._last.number + 1, rows)
        if is_retry and self._has_landed():
            self._version = self._table.version_of(self._app_id, self._last.number)
        else:
            self._version = write(self._app_id, self._last.number)
        self._last = _Commit(self._last.number)

    def last_version(self) -> int:
        """The version of the last commit, which need not be the newest version; 0 commits."""
        return self._version

    def _has_landed(self) -> bool:
        return (self._table.reopen().mark(self._app_id) or 0) >= self._last.number
