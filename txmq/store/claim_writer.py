"""Appends claims to the op log, for services, producers and operators."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from txmq.delta.failures import process_id
from txmq.delta.table import Table
from txmq.store.op import OpLog, OpRow, op_table

if TYPE_CHECKING:
    import pyarrow as pa


# --- numbered:


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
            self._version = self._table.log.version_of(self._app_id, self._last.number)
        else:
            self._version = write(self._app_id, self._last.number)
        self._last = _Commit(self._last.number)

    def last_version(self) -> int:
        """The version of the last commit, which need not be the newest version; 0 commits."""
        return self._version

    def _has_landed(self) -> bool:
        return (self._table.reopen().log.mark(self._app_id) or 0) >= self._last.number


# --- claim_writer:


class ClaimWriter:
    """Appends claims, one commit for each call. Not safe for several threads.

    All of its commits go to one queue, so that each commit is one file.
    """

    def __init__(self, op: OpLog, kind: str, half_queues: int) -> None:
        """Open nothing yet.

        Args:
            op: the log to append to; after each append its handle shows the claims.
            kind: the kind of writer, such as "producer" or "check".
            half_queues: the number of partitions of the half and op logs.
        """
        self.op = op
        self._commits = NumberedCommits(op.table, kind)
        self.session = self._commits.session
        self.queue_id = self.session.int % half_queues

    def append(self, rows: Sequence[OpRow]) -> None:
        """Append claims in one commit. A second call makes a second commit.

        Raises: as `append_table`.
        """
        self.append_table(op_table(rows, self.queue_id))

    def append_table(self, rows: pa.Table, note: str = "") -> None:
        """Append claims, given as columns of OP, in one commit; this sets queue and ordinals.

        `note` is as in `TableWriter.append`.

        Retry: after an error the claims may be in the log. Pass the same table object again, and
        they are written once.

        Raises: CommitConflictError, UnknownCommitError, StoreFullError, ReadOnlyStoreError,
            StorageError.
        """
        self._commits.commit(
            rows,
            lambda app_id, number: self.op.append_table(
                rows, self.queue_id, app_id=app_id, number=number, note=note
            ),
        )

    def last_version(self) -> int:
        """The version of the op log that holds the last append; 0 commits."""
        return self._commits.last_version()
