"""Appends claims to the op log, for services, producers and operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txmq.store.numbered import NumberedCommits
from txmq.store.op import OpLog, OpRow, op_table

if TYPE_CHECKING:
    import pyarrow as pa


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

        `note` is as in `Table.append`.

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
