"""Makes the halves of transactions with an idempotency key durable: once, whoever tries.

Look and append are one compare-and-swap on the half log (decision 0032). A try that finds halves
of an earlier one joins it if its messages are the same, and else is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from txmq.delta.log import delete_files
from txmq.delta.parquet import NewFile
from txmq.delta.retries import pause
from txmq.errors import (
    AlreadyResolvedError,
    CommitConflictError,
    CommitRefusedError,
    DifferentMessagesError,
    IncompleteTransactionError,
    InvalidMessageError,
    StorageError,
    TransactionForgottenError,
    TxmqError,
    UnknownCommitError,
)
from txmq.fail_points import FailPoint, reached
from txmq.lifecycle import TransactionState
from txmq.message.body_codec import BodyCodec
from txmq.message.ids import IdempotencyKey
from txmq.producer.attempts import attempts_that_count
from txmq.producer.body_watch import BodyWatch, FrameTopic, Refused
from txmq.producer.group_commit import GroupCommitter, Size
from txmq.producer.once import ScopedHalves
from txmq.producer.same_messages import new_messages, stored_messages
from txmq.store.forgotten import Forgotten, may_be_forgotten
from txmq.store.half import HalfTransaction, half_table
from txmq.store.resolution import EndReader

if TYPE_CHECKING:
    from txmq.store.store import Store

_TOO_OLD = (
    "is of a day that retention has taken: its transaction may be done and forgotten; "
    "give the time of newer work"
)
_JOINED = (TransactionState.PENDING, TransactionState.COMMITTED)


class KeyedAttempt(NamedTuple):
    """The attempt under a key that counts, and its state; None if it is in no log yet."""

    transaction_id: str
    key: str
    state: TransactionState | None


class KeyedTry(NamedTuple):
    """What one try sends; DataFrames are in `files`, and `half` has the head."""

    key: str
    half: HalfTransaction
    files: Sequence[NewFile] = ()
    frames: Sequence[FrameTopic] = ()

    @property
    def transaction_id(self) -> str:
        """The id of the attempt."""
        return self.half.origin.transaction_id

    @property
    def size(self) -> Size:
        """Without the DataFrames, which are in files."""
        size_bytes = sum([message.size_bytes for message in self.half.messages])
        return Size(self.half.rows, size_bytes)


class KeyedHalves:
    """The halves with a key of one producer. Safe for many threads, which share the commits."""

    def __init__(
        self, store: Store, producer_group: str, watch: BodyWatch, codec: BodyCodec | None = None
    ) -> None:
        """Open nothing yet; the first append starts a thread."""
        self._store, self._group, self._watch, self._codec = store, producer_group, watch, codec
        self._half, self._forgotten = ScopedHalves(store.tables.half_log()), Forgotten(store)
        self._attempts = store.config.commit_attempts
        self._committer: GroupCommitter[KeyedTry, bool | TxmqError] = GroupCommitter(
            self._commit,
            name=f"txmq-keyed-{producer_group}",
            owner=f"the producer of group {producer_group}",
            max_rows=store.config.group_commit_max_rows,
            max_bytes=store.config.group_commit_max_bytes,
        )

    def close(self) -> None:
        """Wait for running commits and end the thread."""
        self._committer.close()

    def attempt_of(self, key: IdempotencyKey) -> KeyedAttempt:
        """The first attempt that was not rolled back or expired; 0 commits."""
        ids, reader = _KeyIds(self._group), EndReader(self._store.tables.logs())
        (attempt,) = attempts_that_count([key], ids, reader.kept_ends_of)
        state = None if attempt.end is None else attempt.end.state
        return KeyedAttempt(attempt.transaction_id, key.key, state)

    def append(self, tried: KeyedTry) -> bool:
        """Append the halves unless an earlier try did: one commit, shared; whether this one did.

        Raises: InvalidMessageError where retention may have taken an earlier try,
            InvalidBodyError, TopicChangedError, CommitConflictError, StorageError.
        """
        answer = self._committer.submit(tried, tried.size).result()
        if isinstance(answer, TxmqError):
            raise answer
        return answer

    def join(self, tried: KeyedTry) -> TransactionState:
        """PENDING or COMMITTED, the state of the earlier try that this one joins; 0 commits.

        Of a transaction whose messages retention has taken nothing can be compared.

        Raises: AlreadyResolvedError, IncompleteTransactionError, TransactionForgottenError,
            DifferentMessagesError, StorageError.
        """
        transaction_id, logs = tried.transaction_id, self._store.tables.logs()
        end = EndReader(logs).end_of(transaction_id)
        if not end.is_kept:
            raise TransactionForgottenError(transaction_id)
        if end.halves is not None and end.halves.problem:
            count = end.halves.message_count
            raise IncompleteTransactionError(transaction_id, count, end.halves.found)
        if end.state not in _JOINED:
            raise AlreadyResolvedError(transaction_id, end.state.value, end.source)
        if end.halves is not None:
            self._check_same(tried, end.state)
        elif not may_be_forgotten(self._store, transaction_id):
            problem = (
                f"lacks the messages of transaction {transaction_id}, which is {end.state.value}, "
                "and retention has not taken them; if the log was restored, restore the newer one"
            )
            raise StorageError("half", problem)
        return end.state

    def _check_same(self, tried: KeyedTry, state: TransactionState) -> None:
        half, first_sequence = self._store.tables.half_log(), tried.half.rows
        rows = half_table([tried.half])
        sent = new_messages(half, rows, tried.files, first_sequence, self._codec)
        stored = stored_messages(half, tried.transaction_id, first_sequence, self._codec)
        differences = stored.differences(sent)
        if differences:
            raise DifferentMessagesError(tried.transaction_id, tried.key, state.value, differences)

    def remove_files(self, tried: KeyedTry) -> None:
        """Remove the files of a try that joined an earlier one; no commit names them."""
        half, paths = self._store.tables.half_log().table, {file.path for file in tried.files}
        # What a producer may not delete is removed by maintenance.
        with suppress(OSError):
            delete_files(half, paths)

    # --- in its thread ------------------------------------------------------------------------

    def _commit(self, tries: list[KeyedTry]) -> list[bool | TxmqError]:
        first: dict[str, KeyedTry] = {}
        for tried in tries:
            first.setdefault(tried.transaction_id, tried)
        frames = {key: tried.frames for key, tried in first.items() if tried.frames}
        halves = [tried.half for tried in first.values()]
        refused, retypings = self._watch.before(halves, frames)
        appended, too_old = self._appended([first[key] for key in first if key not in refused])
        late = self._watch.after([tried.half for tried in appended], retypings, frames)
        errors = {**refused, **too_old, **late}
        mine = {id(tried) for tried in appended}
        return [errors.get(tried.transaction_id) or id(tried) in mine for tried in tries]

    def _appended(self, tries: Sequence[KeyedTry]) -> tuple[Sequence[KeyedTry], Refused]:
        """Those that no earlier try has appended, once they are durable; and those too old for it.

        What was appended before this looked is there or forgotten; later appends refuse this one.
        """
        failure: StorageError | None = None
        for attempt in range(self._attempts):
            missing = self._missing(tries, failure)
            if failure is not None and missing:
                raise failure
            # After the halves were looked for: an earlier try that is not forgotten was there.
            too_old = self._too_old(missing)
            new = [tried for tried in missing if tried.transaction_id not in too_old]
            try:
                self._append(new)
            except CommitRefusedError:
                # Somebody was first, perhaps with one of these: look again, then decide.
                pause(attempt)
            except StorageError as error:
                failure = error
            else:
                return new, too_old
        raise CommitConflictError("half", f"other writers won {self._attempts} times; try again")

    def _too_old(self, tries: Sequence[KeyedTry]) -> Refused:
        """Why those cannot be appended of which retention may have taken an earlier try."""
        forgotten = self._forgotten.among([tried.transaction_id for tried in tries])
        return {name: InvalidMessageError("key_timestamp", _TOO_OLD) for name in forgotten}

    def _missing(
        self, tries: Sequence[KeyedTry], failure: StorageError | None
    ) -> Sequence[KeyedTry]:
        try:
            self._half.refresh()
            there = self._half.log.halves_of([tried.transaction_id for tried in tries])
        except StorageError as error:
            if failure is None:
                raise
            problem = "gave no answer to a commit and cannot be read; call again with the same key"
            raise UnknownCommitError("half", problem) from error
        return [tried for tried in tries if tried.transaction_id not in there]

    def _append(self, tries: Sequence[KeyedTry]) -> None:
        if not tries:
            return
        rows = half_table(tried.half for tried in tries)
        reached(FailPoint.HALF_READY)
        files = [file for tried in tries for file in tried.files]
        if files:
            reached(FailPoint.FRAMES_WRITTEN)
        self._half.append(rows, map(self._scope, tries), files)
        if files:
            reached(FailPoint.FRAMES_COMMITTED)
        reached(FailPoint.HALF_COMMITTED)

    def _scope(self, tried: KeyedTry) -> str:
        """A sixteenth of the group's keys, so that other keys seldom take turns."""
        return f"producer/{self._group}/{tried.transaction_id[-1]}"


class _KeyIds(NamedTuple):
    """The ids of the attempts under an idempotency key."""

    producer_group: str

    def candidates(self, key: IdempotencyKey, attempt: int) -> tuple[str]:
        return (self.new(key, attempt),)

    def new(self, key: IdempotencyKey, attempt: int) -> str:
        return key.transaction_id(self.producer_group, attempt)
