"""Sends micro-batches of streams, each once however often it runs, as Delta's own sink counts them.

The half log has the number of the newest batch of each query, and the id of its transaction. The
commit of the halves moves both, so of two processes that run one batch only one appends it
(decision 0074).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from txmq.delta.failures import pause
from txmq.delta.parquet import NewFile
from txmq.errors import (
    CheckpointMismatchError,
    CommitConflictError,
    CommitRefusedError,
    FilesSweptError,
    ProducerGroupMismatchError,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.producer.body_check import BodyWatch, FrameTopic, Refused
from txmq.producer.ends import EndCommits
from txmq.producer.keyed import new_messages, stored_messages
from txmq.producer.once import TRIED_AGAIN_AFTER, ScopedHalves, discard_files
from txmq.store.half import HalfTransaction, half_table
from txmq.store.known import Forgotten

if TYPE_CHECKING:
    from txmq.store.store import Store

# The two bits of a UUID that are the same in all of them.
_VARIANT = 1 << 63


class QueryBatch(NamedTuple):
    """A micro-batch of a stream.

    Attributes:
        query_id: that of its query, as its checkpoint has it.
        batch_id: its number.
        may_differ: whether the rows of a batch may differ from run to run, so that a run that finds
            the batch sent compares nothing.
    """

    query_id: str
    batch_id: int
    may_differ: bool = False


class BatchSender:
    """Sends micro-batches of streams for one producer group. Not safe for several threads."""

    def __init__(self, store: Store, sender_group: str, clock: Clock, watch: BodyWatch) -> None:
        """Open nothing yet."""
        self._attempts, self._watch, self._group = store.config.commit_attempts, watch, sender_group
        self._half, self._forgotten = ScopedHalves(store.tables.half_log()), Forgotten(store)
        self._ends = EndCommits(store, sender_group, clock)

    def send(
        self,
        batch: QueryBatch,
        half: HalfTransaction,
        files: Sequence[NewFile],
        frames: Sequence[FrameTopic],
    ) -> None:
        """Make the messages of a batch durable and committed, unless an earlier run did.

        Commits: one to half, one to op; none without files. Retry: run the batch again. An earlier
        run that left its halves without an end is ended, and the files of this one are removed;
        where the check rolled it back, this run takes its place.

        Raises: CheckpointMismatchError if the query has sent a later batch, or this one with other
            messages; ProducerGroupMismatchError if another group left it open;
            TransactionForgottenError if retention has taken the end of an earlier run;
            SourceRestoredError; AlreadyResolvedError if the check was first; InvalidBodyError,
            TopicChangedError, FilesSweptError, StorageError.
        """
        for attempt in range(self._attempts):
            self._half.refresh()
            if self._is_sent(batch, half, files):
                discard_files(self._half.log.table, files)
                return
            if not files:
                return
            try:
                refused = self._append(batch, half, files, frames)
            except FilesSweptError:
                raise
            except CommitRefusedError:
                # Another process ran this batch: look again, then decide.
                pause(attempt)
                continue
            self._end(half.origin.transaction_id, refused)
            return
        raise CommitConflictError("half", f"other runs of {batch.query_id} won all the time")

    def _end(self, transaction_id: str, refused: Refused) -> None:
        kind = ClaimKind.ROLLBACK if refused else ClaimKind.COMMIT
        (end,) = self._ends.commit([(transaction_id, kind)])
        for error in refused.values():
            raise error
        end.confirm(transaction_id, ClaimKind.COMMIT)

    def _is_sent(self, batch: QueryBatch, half: HalfTransaction, files: Sequence[NewFile]) -> bool:
        """Tell whether an earlier run is committed; commit one that is open."""
        newest = self._newest(batch.query_id)
        if newest is None or newest[0] < batch.batch_id:
            return False
        if newest[0] > batch.batch_id:
            raise CheckpointMismatchError(
                f"query {batch.query_id} runs batch {batch.batch_id:,} and has sent batch "
                f"{newest[0]:,}: its checkpoint is older than what it sent; begin with a new one"
            )
        transaction_id = newest[1]
        end = self._ends.reader.end_of(transaction_id)
        end = self._forgotten.explained(transaction_id, end)
        if end.state in TRIED_AGAIN_AFTER and end.is_kept:
            return False
        if end.halves is not None and transaction_id != half.origin.transaction_id:
            self._check_same(batch, transaction_id, half, files)
        if end.state is TransactionState.PENDING and end.is_kept:
            group = self._group if end.halves is None else end.halves.producer_group
            if group != self._group:
                raise ProducerGroupMismatchError(transaction_id, group, self._group)
            (end,) = self._ends.commit([(transaction_id, ClaimKind.COMMIT)])
        end.confirm(transaction_id, ClaimKind.COMMIT)
        return True

    def _check_same(
        self,
        batch: QueryBatch,
        transaction_id: str,
        half: HalfTransaction,
        files: Sequence[NewFile],
    ) -> None:
        """Compare the messages that an earlier run sent. Raises: CheckpointMismatchError."""
        if batch.may_differ:
            return
        log, first = self._half.log, half.rows
        sent = new_messages(log, half_table([half]), files, first)
        differences = stored_messages(log, transaction_id, first).differences(sent)
        if differences:
            raise CheckpointMismatchError(
                f"batch {batch.batch_id:,} of query {batch.query_id} was sent with other messages "
                f"({'; '.join(differences)}): its checkpoint is older than what it sent, so begin "
                "with a new one; or its rows differ from run to run, then set the option "
                "rowsMayDiffer to true"
            )

    def _newest(self, query_id: str) -> tuple[int, str] | None:
        """Return the newest batch that was sent, and its transaction."""
        numbers = [self._half.log.table.log.mark(name) for name in _batch_marks(query_id)]
        if any(number is None for number in numbers):
            return None
        batch_id, high, low = (number or 0 for number in numbers)
        return batch_id, str(UUID(int=high << 64 | _VARIANT | low))

    def _append(
        self,
        batch: QueryBatch,
        half: HalfTransaction,
        files: Sequence[NewFile],
        frames: Sequence[FrameTopic],
    ) -> Refused:
        """Append the halves: one commit. Return the error of one that must not be used.

        Raises: CommitRefusedError if another run was faster; InvalidBodyError before the commit.
        """
        by_id = {half.origin.transaction_id: frames}
        refused, retypings = self._watch.before([half], by_id)
        for error in refused.values():
            raise error
        number = UUID(half.origin.transaction_id).int
        parts = (batch.batch_id, number >> 64, number & (_VARIANT - 1))
        rows = half_table([half])
        reached(FailPoint.FRAMES_WRITTEN)
        self._half.swap(rows, dict(zip(_batch_marks(batch.query_id), parts, strict=True)), files)
        reached(FailPoint.FRAMES_COMMITTED)
        return self._watch.after([half], retypings, by_id)


def _batch_marks(query_id: str) -> tuple[str, str, str]:
    """Name the marks of a query: of its newest batch, and of both halves of the id of that."""
    name = f"txmq-stream/{query_id}"
    return name, f"{name}/high", f"{name}/low"
