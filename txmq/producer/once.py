"""Messages that are sent once, however many processes try, and whenever each of them dies.

Ids are derived, so that the next try finds an earlier one. Looking and appending are one
compare-and-swap on the half log: two tries at once cannot both append, and so halves never
contradict each other.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.delta.pinned import pause
from txmq.errors import CommitConflictError, CommitRefusedError, IncompleteTransactionError
from txmq.fail_points import FailPoint, reached
from txmq.lifecycle import ClaimKind, ClaimSource, Halves, TransactionState
from txmq.message.ids import MAX_AHEAD_S, keyed_transaction_id, message_id
from txmq.message.message import Message
from txmq.store.claim_writer import ClaimWriter
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.numbered import reopen_sometimes
from txmq.store.op import OpRow
from txmq.store.resolution import EndReader, Resolution

if TYPE_CHECKING:
    from txmq.store.store import Store

_MARK = "txmq-once/"
_PREFERRED = {TransactionState.COMMITTED: 0, TransactionState.PENDING: 1}
_SEND_AGAIN = (TransactionState.ROLLED_BACK, TransactionState.EXPIRED)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to a stored topic, and what makes another try the same.

    Attributes:
        key: names what it stands for, among all letters of one scope.
        time_ms: when that came about; the same in every try.
        born_ms: the birth time that its rows show.
    """

    key: str
    time_ms: int
    message: Message
    queue_id: int
    born_ms: int


class SentOnce:
    """Sends letters of one scope, such as a consumer group; safe for several threads.

    A letter is known again for at least a third of `file_reserved_time_h`.

    Args:
        store: where they go.
        scope: keys are told apart within it.
        sender_group: the internal producer group that the messages belong to.
        clock: whose time the rows and claims have.
    """

    def __init__(self, store: Store, scope: str, sender_group: str, clock: Clock) -> None:
        """Open nothing yet."""
        self._store, self._scope, self._clock = store, scope, clock
        self._half = store.half_log()
        self._ids = _DerivedIds(scope, store.config.file_reserved_time_h * 3_600_000 / 3)
        self._ends = _Ends(store, sender_group, clock)
        self._lock = threading.Lock()
        self._session = str(uuid.uuid4())
        self._queue_id = uuid.uuid4().int % store.config.half_queues
        self._sender_group = sender_group
        self._commits = 0

    def send(self, letters: Sequence[Letter], *, operator_reason: str | None = None) -> list[str]:
        """Make all of them durable and committed; their message ids, in the same order.

        Those that an earlier try has sent are not sent again; one that it left without an end is
        ended. With `operator_reason` their ends are those of an operator.

        Reads: half, settled, op. Writes: half, op. Commits: one to each, for all letters; none
        where all are sent already.

        Raises: CommitConflictError, IncompleteTransactionError, StorageError.
        """
        with self._lock:
            for attempt in range(self._store.config.commit_attempts):
                look = self._look(letters)
                try:
                    self._append(look)
                except CommitRefusedError:
                    # Another process sent something of this scope: look again, then decide.
                    pause(attempt)
                    continue
                if self._ends.commit(look.open_ids, operator_reason):
                    return [message_id(each, 0) for each in look.ids]
        raise CommitConflictError("half", f"other senders of {self._scope} won all the time")

    # --- looking ------------------------------------------------------------------------------

    def _look(self, letters: Sequence[Letter]) -> _Look:
        """What of these is there, as the half log says that will be appended to."""
        reopen_sometimes(self._half.table, self._commits)
        self._half.table.refresh()
        look = _Look([""] * len(letters))
        waiting = list(enumerate(letters))
        for attempt in itertools.count():
            if not waiting:
                break
            waiting = self._look_at(attempt, waiting, look)
        return look

    def _look_at(
        self, attempt: int, waiting: Sequence[tuple[int, Letter]], look: _Look
    ) -> list[tuple[int, Letter]]:
        """Settle what can be told by this attempt; the letters that need a next one."""
        now_ms = self._clock.now_ms()
        ids = {place: self._ids.known(each, attempt, now_ms) for place, each in waiting}
        halves = self._half.halves_of([one for several in ids.values() for one in several])
        ends = self._ends.resolutions_of(list(halves))
        again = []
        for place, letter in waiting:
            found = [one for one in ids[place] if one in halves]
            # Of several, one that readers see already, or may see yet.
            found.sort(key=lambda one: _PREFERRED.get(ends[one].state, len(_PREFERRED)))
            if not found:
                look.is_new(place, letter, self._ids.new(letter, attempt, now_ms))
            elif ends[found[0]].state in _SEND_AGAIN:
                again.append((place, letter))
            else:
                look.is_there(place, found[0], halves[found[0]], ends[found[0]])
        return again

    # --- writing ------------------------------------------------------------------------------

    def _append(self, look: _Look) -> None:
        """The new ones, only if nobody appended any of this scope since the look."""
        halves = [self._half_of(own_id, letter) for own_id, letter in look.new.items()]
        if not halves:
            return
        mark = f"{_MARK}{self._scope}"
        table = self._half.table
        reached(FailPoint.HALF_READY)
        table.swap(half_table(halves), {mark: (table.mark(mark) or 0) + 1})
        reached(FailPoint.HALF_COMMITTED)
        self._commits += 1

    def _half_of(self, transaction_id: str, letter: Letter) -> HalfTransaction:
        config = self._store.config
        origin = HalfOrigin(
            transaction_id,
            self._sender_group,
            self._queue_id,
            config.transaction_timeout_s,
            letter.born_ms,
            self._session,
            ordinary=True,
            delay_levels_s=config.delay_levels_s,
        )
        return HalfTransaction(origin, [letter.message], [letter.queue_id], 1)


@dataclass(slots=True)
class _Look:
    """Where each letter stands: its id, and what is left to do."""

    ids: list[str]
    new: dict[str, Letter] = field(default_factory=dict)
    open_ids: list[str] = field(default_factory=list)

    def is_new(self, place: int, letter: Letter, own_id: str) -> None:
        self.ids[place] = own_id
        if own_id not in self.new:
            self.new[own_id] = letter
            self.open_ids.append(own_id)

    def is_there(self, place: int, own_id: str, halves: Halves, end: Resolution) -> None:
        self.ids[place] = own_id
        if end.state is TransactionState.COMMITTED:
            return
        if halves.problem or end.state is not TransactionState.PENDING:
            raise IncompleteTransactionError(own_id, halves.message_count, halves.found)
        if own_id not in self.open_ids:
            self.open_ids.append(own_id)


@dataclass(frozen=True, slots=True)
class _DerivedIds:
    """The ids of a letter: by the time of what it stands for, or by the window of now.

    Retention and file statistics go by the time in an id, so what is old gets one of now: the
    begin of a window, the same for all that try in that window. The windows beside it are looked
    at too, for two tries may lie on both sides of a border, and clocks differ.
    """

    scope: str
    window_ms: float

    def new(self, letter: Letter, attempt: int, now_ms: int) -> str:
        is_of_now = now_ms - self.window_ms <= letter.time_ms <= now_ms + MAX_AHEAD_S * 1000
        time_ms = letter.time_ms if is_of_now else self._begin_ms(now_ms)
        return self._id(letter, attempt, time_ms)

    def known(self, letter: Letter, attempt: int, now_ms: int) -> list[str]:
        begins_ms = (self._begin_ms(now_ms + step * self.window_ms) for step in (-1, 0, 1))
        times_ms = dict.fromkeys([letter.time_ms, *begins_ms])
        return [self._id(letter, attempt, time_ms) for time_ms in times_ms]

    def _begin_ms(self, now_ms: float) -> int:
        return round(now_ms // self.window_ms * self.window_ms)

    def _id(self, letter: Letter, attempt: int, time_ms: int) -> str:
        return keyed_transaction_id(self.scope, letter.key, max(time_ms, 0), attempt)


class _Ends:
    """COMMIT claims, and the look at what they led to; not safe for several threads."""

    def __init__(self, store: Store, sender_group: str, clock: Clock) -> None:
        self._group, self._clock = sender_group, clock
        logs = store.logs()
        self._claims = ClaimWriter(logs.op, "producer", store.config.half_queues)
        self._reader = EndReader(logs)

    def resolutions_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Where these stand now; nothing is read where there are none."""
        return self._reader.ends_of(transaction_ids)

    def commit(self, transaction_ids: Sequence[str], operator_reason: str | None) -> bool:
        """End these in one commit; False where the check was first with one of them."""
        if not transaction_ids:
            return True
        rows = list(self._rows(transaction_ids, operator_reason))
        reached(FailPoint.END_READY)
        self._claims.append(rows)
        reached(FailPoint.END_COMMITTED)
        ends = self._reader.ends_after_claims([(row.transaction_id, row.kind) for row in rows])
        return all(end.state is TransactionState.COMMITTED for end in ends)

    def _rows(self, transaction_ids: Sequence[str], reason: str | None) -> Iterator[OpRow]:
        now_ms = self._clock.now_ms()
        source = ClaimSource.OPERATOR if reason else ClaimSource.PRODUCER
        for own_id in transaction_ids:
            yield OpRow(own_id, ClaimKind.COMMIT, self._group, source, now_ms, reason=reason)
