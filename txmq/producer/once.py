"""Messages that are sent once, however many processes try and whenever each of them dies.

Transaction ids follow from the message's key, so a process finds what an earlier one sent. Look
and append are one compare-and-swap on the half log: of two tries at once only one can append.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from txmq.delta.failures import pause
from txmq.delta.log_files import delete_files
from txmq.delta.parquet import NewFile
from txmq.delta.table import Table
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    IncompleteTransactionError,
    StorageError,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.ids import MAX_AHEAD_S, keyed_transaction_id, message_id
from txmq.message.lifecycle import ClaimKind, Halves, TransactionState
from txmq.message.message import Message
from txmq.producer.ends import EndCommits
from txmq.store.half import HalfLog, HalfOrigin, HalfTransaction, half_table
from txmq.store.logs import Resolution
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.store.store import Store

TRIED_AGAIN_AFTER = frozenset([TransactionState.ROLLED_BACK, TransactionState.EXPIRED])
# Of several ids of one attempt the one that readers see already, or may see yet.
_PREFERRED = {TransactionState.COMMITTED: 0, TransactionState.PENDING: 1}
_LAST = len(_PREFERRED)
_MARK = "txmq-once/"
logger = logging.getLogger(__name__)
Key_contra = TypeVar("Key_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class OnceKey:
    """What makes another try to send something the same.

    Attributes:
        key: names what it stands for, among all messages of one scope.
        time_ms: when that came about; the same in every try.
    """

    key: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class KeyedMessage(OnceKey):
    """A message to a stored topic with its key; `born_ms` is the birth time that its rows show."""

    message: Message
    queue_id: int
    born_ms: int


class OnceSender:
    """Sends messages of one scope, such as a consumer group; safe for several threads.

    A message is known again for at least a third of `file_reserved_time_h`, by the store's time: it
    is sent by one machine and looked for by another. Who may not write `clock` goes by its own.

    Args:
        store: where they go.
        scope: keys are told apart within it.
        sender_group: the internal producer group that the messages belong to.
        clock: whose time the rows and claims have.
    """

    def __init__(self, store: Store, scope: str, sender_group: str, clock: Clock) -> None:
        """Open nothing yet."""
        self._config, self._scope, self._clock = store.config, scope, clock
        self._store_clock = StoreClock.of(store, clock)
        self._has_store_time = True
        self._sender_group = sender_group
        self._half = ScopedHalves(store.tables.half_log())
        self._ends = EndCommits(store, sender_group, clock)
        self._lock = threading.Lock()

    def send(
        self, messages: Sequence[KeyedMessage], *, operator_reason: str | None = None
    ) -> list[str]:
        """Make all of them durable and committed. Return their message ids, in the same order.

        Those that an earlier try has sent are not sent again; one that it left without an end is
        ended. With `operator_reason` their ends are those of an operator.

        Reads: half, settled, op. Writes: half, op. Commits: one to each, for all messages; none
        where all are sent already.

        Raises: CommitConflictError, IncompleteTransactionError, StorageError.
        """
        with self._lock:
            for attempt in range(self._config.commit_attempts):
                plan = self._plan(messages)
                try:
                    self._append(plan)
                except CommitRefusedError:
                    # Another process sent something of this scope: look again, then decide.
                    pause(attempt)
                    continue
                if self._committed(plan.open_ids, operator_reason):
                    return [message_id(transaction_id, 0) for transaction_id in plan.ids]
        raise CommitConflictError("half", f"other senders of {self._scope} won all the time")

    # --- looking ------------------------------------------------------------------------------

    def has_sent_any(self) -> bool:
        """Tell whether anything of this scope was ever sent; 0 commits. Raises: StorageError."""
        with self._lock:
            self._half.refresh()
            return self._half.has_any(self._scope)

    def are_sent(self, keys: Sequence[OnceKey]) -> list[bool]:
        """Tell of each key whether some try has sent it, in the order of `keys`; 0 commits.

        One that has halves and no COMMIT is not sent. Costs one look for news where nothing of
        this scope was ever sent, else one read for all keys. Raises: StorageError.
        """
        with self._lock:
            self._half.refresh()
            if not self._half.has_any(self._scope):
                return [False] * len(keys)
            attempts = attempts_that_count(keys, self._ids(), partial(self._ends_of, {}))
        ends = [attempt.end for attempt in attempts]
        return [end is not None and end.state is TransactionState.COMMITTED for end in ends]

    def _plan(self, messages: Sequence[KeyedMessage]) -> _SendPlan:
        """Decide what is left to do, by the half log that will be appended to."""
        self._half.refresh()
        halves: dict[str, Halves] = {}
        attempts = attempts_that_count(messages, self._ids(), partial(self._ends_of, halves))
        plan = _SendPlan()
        for message, attempt in zip(messages, attempts, strict=True):
            plan.add(message, attempt, halves.get(attempt.transaction_id))
        return plan

    def _ids(self) -> _DerivedIds:
        window_ms = self._config.file_reserved_time_h * 3_600_000 / 3
        return _DerivedIds(self._scope, window_ms, self._now_ms())

    def _now_ms(self) -> int:
        if self._has_store_time:
            try:
                return self._store_clock.now_ms()
            except StorageError as error:
                self._has_store_time = False
                problem = "the time of the store cannot be had, so this machine's clock tells what "
                logger.warning("%swas sent before; keep it right (%s)", problem, error)
        return self._clock.now_ms()

    def _ends_of(
        self, halves: dict[str, Halves], transaction_ids: Sequence[str]
    ) -> Mapping[str, Resolution]:
        """Note in `halves` those that have halves; return where they stand. Most have none.

        Those of other senders are none of this scope, whatever their ids are.
        """
        halves_there = {
            name: there
            for name, there in self._half.log.halves_of(transaction_ids).items()
            if there.producer_group == self._sender_group
        }
        halves.update(halves_there)
        return self._ends.reader.ends_of(list(halves_there))

    # --- writing ------------------------------------------------------------------------------

    def _append(self, plan: _SendPlan) -> None:
        """Append the new ones. Raises: CommitRefusedError if another of this scope was faster."""
        if plan.new:
            rows = half_table([self._half_of(key, message) for key, message in plan.new.items()])
            reached(FailPoint.HALF_READY)
            self._half.append(rows, [self._scope])
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
        """Commit these in one commit. Return False if the check was first with one of them."""
        if not transaction_ids:
            return True
        ends = [(transaction_id, ClaimKind.COMMIT) for transaction_id in transaction_ids]
        resolutions = self._ends.commit(ends, operator_reason=operator_reason)
        return all(end.state is TransactionState.COMMITTED for end in resolutions)


class ScopedHalves:
    """The half log for senders of named scopes. Not safe for several threads.

    A sender looks into it and then appends, which fails where another sender of the same scope
    appended in between. All that may send the same thing must name the same scope.
    """

    def __init__(self, half: HalfLog) -> None:
        """Open nothing yet."""
        self.log = half

    def refresh(self) -> None:
        """Move to the newest version: what the next `append` is compared with."""
        self.log.table.refresh()

    def has_any(self, scope: str) -> bool:
        """Tell whether senders of a scope have ever appended, as far as `refresh` has seen."""
        return bool(self.log.table.log.mark(f"{_MARK}{scope}"))

    def append(self, rows: pa.Table, scopes: Iterable[str], files: Sequence[NewFile] = ()) -> None:
        """Append rows, and files that are written already: one commit.

        Raises: CommitRefusedError where a sender of one of the scopes was faster; StorageError.
        """
        log, marks = self.log.table.log, {f"{_MARK}{scope}" for scope in scopes}
        self.swap(rows, {mark: (log.mark(mark) or 0) + 1 for mark in sorted(marks)}, files)

    def swap(self, rows: pa.Table, marks: Mapping[str, int], files: Sequence[NewFile] = ()) -> None:
        """Append as `append` does, and set these marks.

        Raises: CommitRefusedError where another commit moved one of them; StorageError.
        """
        table = self.log.table
        new_files = [*files, *table.writer.new_files(rows)]
        reached(FailPoint.FILES_WRITTEN)
        table.writer.swap_files(new_files, marks)
        table.refresh()


def discard_files(half: Table, files: Sequence[NewFile]) -> None:
    """Delete the files of a try that joined an earlier one; 0 commits.

    The earlier one may be a commit of this try whose answer was lost: what is live stays. What
    cannot be looked up or deleted is removed by maintenance.
    """
    if not files:
        return
    with suppress(OSError, StorageError):
        live = {file.path for file in half.refresh().files.all()}
        delete_files(half.folder, {file.path for file in files} - live)


@dataclass(slots=True)
class _SendPlan:
    """The id of each message, and what is left to do: append the new ones, end the open ones."""

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
    """The ids of a message: with the time of what it stands for, or with a time of now.

    Retention and file statistics go by the time in an id. So a message that stands for something
    old gets the begin of the current window, which is the same for all that try in this window.
    Tries may lie on both sides of a border, and looks at a clock differ, so the windows before and
    after are candidates too.
    """

    scope: str
    window_ms: float
    now_ms: int

    def new(self, key: OnceKey, attempt: int) -> str:
        latest_ms = self.now_ms + MAX_AHEAD_S * 1000
        is_of_now = self.now_ms - self.window_ms <= key.time_ms <= latest_ms
        return self._id(key, attempt, key.time_ms if is_of_now else self._begin_ms(0))

    def candidates(self, key: OnceKey, attempt: int) -> list[str]:
        begins_ms = map(self._begin_ms, (-1, 0, 1))
        times_ms = dict.fromkeys([key.time_ms, *begins_ms])
        return [self._id(key, attempt, time_ms) for time_ms in times_ms]

    def _begin_ms(self, step: int) -> int:
        """Return the begin of the window of now, or of one before or after it."""
        at_ms = self.now_ms + step * self.window_ms
        return round(at_ms // self.window_ms * self.window_ms)

    def _id(self, keyed: OnceKey, attempt: int, time_ms: int) -> str:
        return keyed_transaction_id(self.scope, keyed.key, max(time_ms, 0), attempt)


# --- attempts -----------------------------------------------------------------------------------


class AttemptIds(Protocol[Key_contra]):
    """The transaction ids of attempts; they follow from what is sent."""

    def candidates(self, key: Key_contra, attempt: int) -> Sequence[str]:
        """Return all ids under which somebody may have made this attempt."""

    def new(self, key: Key_contra, attempt: int) -> str:
        """Return the id under which this attempt is made now."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that counts, and where it stands; `end` is None where nobody has made it."""

    transaction_id: str
    end: Resolution | None


def attempts_that_count(
    keys: Sequence[Key_contra],
    ids: AttemptIds[Key_contra],
    ends_of: Callable[[Sequence[str]], Mapping[str, Resolution]],
) -> list[Attempt]:
    """Return for each key the first attempt that is not over, in the order of `keys`.

    Args:
        keys: what is sent.
        ids: the ids of its attempts.
        ends_of: where transactions stand, without those that nobody has made; called once for each
            number of attempts, for all keys together.
    """
    attempts: dict[int, Attempt] = {}
    for number in itertools.count():
        waiting = {place: key for place, key in enumerate(keys) if place not in attempts}
        if not waiting:
            break
        candidates = {place: ids.candidates(key, number) for place, key in waiting.items()}
        ends = ends_of(list(itertools.chain.from_iterable(candidates.values())))
        for place, key in waiting.items():
            attempt = _made(candidates[place], ends) or Attempt(ids.new(key, number), None)
            if attempt.end is None or attempt.end.state not in TRIED_AGAIN_AFTER:
                attempts[place] = attempt
    return [attempts[place] for place in range(len(keys))]


def _made(candidates: Sequence[str], ends: Mapping[str, Resolution]) -> Attempt | None:
    ids = [name for name in candidates if name in ends]
    ids.sort(key=lambda name: _PREFERRED.get(ends[name].state, _LAST))
    return Attempt(ids[0], ends[ids[0]]) if ids else None
