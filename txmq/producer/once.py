"""Sends messages exactly once, however many processes try, and whenever each of them dies.

Ids are derived from a key, so that a later try finds an earlier one. The read and the append are
one compare-and-swap on the half log: of two concurrent tries only one can append, so halves never
contradict each other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.delta.pinned import pause
from txmq.errors import CommitConflictError, CommitRefusedError, IncompleteTransactionError
from txmq.fail_points import FailPoint, reached
from txmq.lifecycle import ClaimKind, Halves, TransactionState
from txmq.message.ids import MAX_AHEAD_S, keyed_transaction_id, message_id
from txmq.message.message import Message
from txmq.producer.attempts import Attempt, attempts_that_count
from txmq.producer.ends import EndCommits
from txmq.store.half import HalfLog, HalfOrigin, HalfTransaction, half_table
from txmq.store.numbered import reopen_sometimes
from txmq.store.resolution import Resolution

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.store.store import Store

_MARK = "txmq-once/"


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """A message to a stored topic, with the key that identifies it in every try.

    Attributes:
        key: identifies the message within its scope.
        time_ms: the time of the event behind the message; the same in every try.
        born_ms: the birth time in its rows.
    """

    key: str
    time_ms: int
    message: Message
    queue_id: int
    born_ms: int


class OnceSender:
    """Sends keyed messages of one scope, such as a consumer group. Safe for several threads.

    A later try recognises a message for at least a third of `file_reserved_time_h`.

    Args:
        store: the store to send to.
        scope: keys are unique within it.
        sender_group: the internal producer group that the messages belong to.
        clock: gives the time of rows and claims.
    """

    def __init__(self, store: Store, scope: str, sender_group: str, clock: Clock) -> None:
        """Open nothing yet."""
        self._config, self._scope, self._clock = store.config, scope, clock
        self._sender_group = sender_group
        self._half = ScopedHalves(store.tables.half_log(), scope)
        self._ends = EndCommits(store, sender_group, clock)
        self._lock = threading.Lock()

    def send(
        self, messages: Sequence[KeyedMessage], *, operator_reason: str | None = None
    ) -> list[str]:
        """Make all messages durable and committed, and return their ids in the same order.

        Messages that an earlier try has sent are not sent again; those that it left without an end
        get their COMMIT. With `operator_reason` the COMMITs are claims of an operator.

        Reads: half, settled, op. Writes: half, op. Commits: one to each, for all messages; none
        if all are sent already. Retry: call it again with the same messages.

        Raises: CommitConflictError, IncompleteTransactionError, StorageError.
        """
        with self._lock:
            for attempt in range(self._config.commit_attempts):
                plan = self._plan(messages)
                try:
                    self._append(plan)
                except CommitRefusedError:
                    # Another sender of this scope appended: read again, then decide.
                    pause(attempt)
                    continue
                if self._committed(plan.open_ids, operator_reason):
                    return [message_id(transaction_id, 0) for transaction_id in plan.ids]
        problem = f"other senders of {self._scope} were faster in every attempt; try again"
        raise CommitConflictError("half", problem)

    # --- reading ------------------------------------------------------------------------------

    def _plan(self, messages: Sequence[KeyedMessage]) -> _SendPlan:
        """What is left to do for these messages, by the version of half that is appended to."""
        self._half.refresh()
        halves: dict[str, Halves] = {}
        attempts = attempts_that_count(messages, self._ids(), partial(self._ends_of, halves))
        plan = _SendPlan()
        for message, attempt in zip(messages, attempts, strict=True):
            plan.add(message, attempt, halves.get(attempt.transaction_id))
        return plan

    def _ids(self) -> _DerivedIds:
        window_ms = self._config.file_reserved_time_h * 3_600_000 / 3
        return _DerivedIds(self._scope, window_ms, self._clock.now_ms())

    def _ends_of(
        self, halves: dict[str, Halves], transaction_ids: Sequence[str]
    ) -> Mapping[str, Resolution]:
        """The states of the transactions that have halves; their halves are added to `halves`."""
        durable = self._half.log.halves_of(transaction_ids)
        halves.update(durable)
        return self._ends.reader.ends_of(list(durable))

    # --- writing ------------------------------------------------------------------------------

    def _append(self, plan: _SendPlan) -> None:
        """Append the new messages. Raises CommitRefusedError if another sender was faster."""
        if plan.new:
            rows = half_table([self._half_of(key, message) for key, message in plan.new.items()])
            reached(FailPoint.HALF_READY)
            self._half.append(rows)
            reached(FailPoint.HALF_COMMITTED)

    def _half_of(self, transaction_id: str, keyed: KeyedMessage) -> HalfTransaction:
        origin = HalfOrigin(
            transaction_id,
            self._sender_group,
            self._ends.queue_id,
            self._config.transaction_timeout_s,
            keyed.born_ms,
            str(self._ends.session),
            ordinary=True,
            delay_levels_s=self._config.delay_levels_s,
        )
        return HalfTransaction(origin, [keyed.message], [keyed.queue_id], 1)

    def _committed(self, transaction_ids: Sequence[str], operator_reason: str | None) -> bool:
        """COMMIT these in one commit; False if the check rolled one of them back first."""
        if not transaction_ids:
            return True
        ends = [(transaction_id, ClaimKind.COMMIT) for transaction_id in transaction_ids]
        resolutions = self._ends.commit(ends, operator_reason=operator_reason)
        return all(end.state is TransactionState.COMMITTED for end in resolutions)


class ScopedHalves:
    """The half log for senders of one scope: an append succeeds only if none came after the read.

    Not safe for several threads.
    """

    def __init__(self, half: HalfLog, scope: str) -> None:
        """Open nothing yet; all senders that may send the same message share a `scope`."""
        self.log = half
        self._mark = f"{_MARK}{scope}"
        self._commits = 0

    def refresh(self) -> None:
        """Move to the newest version; `append` fails if a sender of the scope appends after it."""
        reopen_sometimes(self.log.table, self._commits)
        self.log.table.refresh()

    def append(self, rows: pa.Table) -> None:
        """Append rows in one commit. Raises CommitRefusedError if another sender was faster."""
        table = self.log.table
        table.swap(rows, {self._mark: (table.mark(self._mark) or 0) + 1})
        self._commits += 1


@dataclass(slots=True)
class _SendPlan:
    """The id of each message, the messages to append, and the ids that need a COMMIT."""

    ids: list[str] = field(default_factory=list)
    new: dict[str, KeyedMessage] = field(default_factory=dict)
    open_ids: list[str] = field(default_factory=list)

    def add(self, message: KeyedMessage, attempt: Attempt, halves: Halves | None) -> None:
        transaction_id, end = attempt.transaction_id, attempt.end
        self.ids.append(transaction_id)
        if end is not None and end.state is TransactionState.COMMITTED:
            return
        if end is None:
            self.new.setdefault(transaction_id, message)
        elif halves is not None and (halves.problem or end.state is not TransactionState.PENDING):
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        if transaction_id not in self.open_ids:
            self.open_ids.append(transaction_id)


@dataclass(frozen=True, slots=True)
class _DerivedIds:
    """The transaction ids of a message, with the time of its event or of the current window.

    Retention and file statistics use the time in an id. Therefore a message with an old event gets
    the begin of the current window, which is the same for all tries within the window. The windows
    before and after are searched too, because two tries may lie on both sides of a border, and
    clocks differ.
    """

    scope: str
    window_ms: float
    now_ms: int

    def new(self, key: KeyedMessage, attempt: int) -> str:
        latest_ms = self.now_ms + MAX_AHEAD_S * 1000
        is_of_now = self.now_ms - self.window_ms <= key.time_ms <= latest_ms
        return self._id(key, attempt, key.time_ms if is_of_now else self._begin_ms(0))

    def known(self, key: KeyedMessage, attempt: int) -> list[str]:
        begins_ms = map(self._begin_ms, (-1, 0, 1))
        times_ms = dict.fromkeys([key.time_ms, *begins_ms])
        return [self._id(key, attempt, time_ms) for time_ms in times_ms]

    def _begin_ms(self, step: int) -> int:
        """The begin of the current window, or of the window `step` windows later."""
        at_ms = self.now_ms + step * self.window_ms
        return round(at_ms // self.window_ms * self.window_ms)

    def _id(self, keyed: KeyedMessage, attempt: int, time_ms: int) -> str:
        return keyed_transaction_id(self.scope, keyed.key, max(time_ms, 0), attempt)
