"""Makes the halves of transactions with an idempotency key durable: once, whoever tries.

Look and append are one compare-and-swap on the half log (decision 0032). A try that finds halves
of an earlier one joins it if its messages are the same, and else is told so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.failures import pause
from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile
from txmq.errors import (
    AlreadyResolvedError,
    BodyCodecError,
    CommitConflictError,
    CommitRefusedError,
    DifferentMessagesError,
    FilesSweptError,
    IncompleteTransactionError,
    InvalidMessageError,
    ProducerGroupMismatchError,
    StorageError,
    TransactionForgottenError,
    TxmqError,
    UnknownCommitError,
)
from txmq.ground.columns import python_rows
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.codec import (
    BODY_KEY_ID,
    BODY_MARKS,
    CONTENT,
    ERASED,
    BodyCodec,
    decoded,
    is_erased,
)
from txmq.message.ids import IdempotencyKey, message_id
from txmq.message.lifecycle import TransactionState
from txmq.message.trace_context import TRACEPARENT, TRACESTATE
from txmq.producer.body_check import BodyWatch, FrameTopic, Refused
from txmq.producer.group_commit import Answered, GroupCommitter, Size
from txmq.producer.once import ScopedHalves, attempts_that_count
from txmq.store.half import SEQUENCES_PER_DATAFRAME, HalfLog, HalfTransaction, half_table
from txmq.store.known import Forgotten, may_be_forgotten
from txmq.store.logs import EndReader, Resolution

if TYPE_CHECKING:
    from txmq.store.store import Store

# A queue and a birth time follow from the try, and not from the work.
COMPARED = (
    "real_topic", "tags", "keys", "body", "properties", "sharding_key", "delay_s",
    "deliver_timestamp",
)  # fmt: skip
# All that can be compared with a message that was erased since.
_LEFT = tuple(name for name in COMPARED if name not in CONTENT)
_READ = ("transaction_id", "sequence", *COMPARED)
_SHOWN = 5
_BATCH_ROWS, _BATCH_BYTES = 1024, 8 * 1024 * 1024
_DIGESTS = 1 << 256
_TOO_OLD = (
    "is of a day that retention has taken: its transaction may be done and forgotten; "
    "give the time of newer work"
)
# Of a try that others may have begun nobody knows at which it was looked at.
_NO_RETYPINGS = 0
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
        """Return the first attempt that was not rolled back or expired; 0 commits."""
        ids, reader = _KeyIds(self._group), EndReader(self._store.tables.logs())
        (attempt,) = attempts_that_count([key], ids, partial(ids.own_ends, reader))
        state = None if attempt.end is None else attempt.end.state
        return KeyedAttempt(attempt.transaction_id, key.key, state)

    def append(self, tried: KeyedTry, answered: Answered[bool | TxmqError]) -> None:
        """Queue the halves for a shared commit, unless an earlier try appended them.

        The answer says whether this try appended them, or is an InvalidMessageError where retention
        may have taken an earlier try, an InvalidBodyError or a TopicChangedError.

        Raises: ClosedError; the answer may be a CommitConflictError or a StorageError.
        """
        self._committer.submit_to(answered, tried, tried.size)

    def join(self, tried: KeyedTry) -> TransactionState:
        """Join an earlier try. Return its state, PENDING or COMMITTED; 0 commits.

        Of a transaction whose messages retention has taken nothing can be compared, nor of a try
        without messages, which joins whatever is there.

        Raises: AlreadyResolvedError, IncompleteTransactionError, TransactionForgottenError,
            ProducerGroupMismatchError, DifferentMessagesError, StorageError; TopicChangedError for
            messages that must not be committed: a topic became typed before their try had looked.
        """
        transaction_id, logs = tried.transaction_id, self._store.tables.logs()
        end = EndReader(logs).end_of(transaction_id)
        if not end.is_kept:
            raise TransactionForgottenError(transaction_id)
        if end.halves is not None and end.halves.producer_group != self._group:
            raise ProducerGroupMismatchError(transaction_id, end.halves.producer_group, self._group)
        if end.halves is not None and end.halves.problem:
            count = end.halves.message_count
            raise IncompleteTransactionError(transaction_id, count, end.halves.found)
        if end.state not in _JOINED:
            raise AlreadyResolvedError(transaction_id, end.state.value, end.source)
        if end.halves is not None:
            if tried.half.messages or tried.files:
                self._check_same(tried, end.state)
            if end.state is TransactionState.PENDING:
                self._check_bodies(tried)
        elif not may_be_forgotten(self._store, transaction_id):
            problem = (
                f"lacks the messages of transaction {transaction_id}, which is {end.state.value}, "
                "and retention has not taken them; if the log was restored, restore the newer one"
            )
            raise StorageError("half", problem)
        return end.state

    def _check_bodies(self, tried: KeyedTry) -> None:
        frames = {tried.transaction_id: tried.frames}
        for error in self._watch.after([tried.half], _NO_RETYPINGS, frames).values():
            raise error

    def _check_same(self, tried: KeyedTry, state: TransactionState) -> None:
        half, first_sequence = self._store.tables.half_log(), tried.half.rows
        rows = half_table([tried.half])
        sent = new_messages(half, rows, tried.files, first_sequence, self._codec)
        stored = stored_messages(half, tried.transaction_id, first_sequence, self._codec)
        differences = stored.differences(sent)
        if differences:
            raise DifferentMessagesError(tried.transaction_id, tried.key, state.value, differences)

    # --- in its thread ------------------------------------------------------------------------

    def _commit(self, tries: list[KeyedTry]) -> list[bool | TxmqError]:
        """Commit tries, of several with one key the first. Return an answer for each (`append`)."""
        first: dict[str, KeyedTry] = {}
        for tried in tries:
            first.setdefault(tried.transaction_id, tried)
        frames = {key: tried.frames for key, tried in first.items() if tried.frames}
        halves = [tried.half for tried in first.values()]
        refused, retypings = self._watch.before(halves, frames)
        appended, too_old = self._appended([first[key] for key in first if key not in refused])
        # Also over what is found: a commit whose answer was lost, or of a process that died.
        there = [half for half in halves if half.origin.transaction_id not in {*refused, *too_old}]
        changed = self._watch.after(there, retypings, frames)
        errors = {**refused, **too_old, **changed}
        appended_ids = {id(tried) for tried in appended}
        return [errors.get(tried.transaction_id) or id(tried) in appended_ids for tried in tries]

    def _appended(self, tries: Sequence[KeyedTry]) -> tuple[Sequence[KeyedTry], Refused]:
        """Append the tries that no earlier one has. Return them, and errors of those too old.

        What was appended before this looked is there or forgotten; later appends refuse this one.
        """
        failure: StorageError | None = None
        for attempt in range(self._attempts):
            missing = self._missing(tries, failure)
            if failure is not None and missing:
                raise failure
            # After the halves were looked for: an earlier try that is not forgotten was there.
            too_old = self._too_old(missing)
            young = [tried for tried in missing if tried.transaction_id not in too_old]
            try:
                self._append(young)
            except FilesSweptError:
                raise
            except CommitRefusedError:
                # Somebody was first, perhaps with one of these: look again, then decide.
                pause(attempt)
            except StorageError as error:
                failure = error
            else:
                return young, too_old
        raise CommitConflictError("half", f"other writers won {self._attempts} times; try again")

    def _too_old(self, tries: Sequence[KeyedTry]) -> Refused:
        """Return the errors of tries whose earlier try retention may have taken."""
        forgotten = self._forgotten.among([tried.transaction_id for tried in tries])
        return {name: InvalidMessageError("key_timestamp", _TOO_OLD) for name in forgotten}

    def _missing(
        self, tries: Sequence[KeyedTry], failure: StorageError | None
    ) -> Sequence[KeyedTry]:
        """Return the tries that have no halves in the newest half log.

        Raises: StorageError, or UnknownCommitError after the `failure` of a commit.
        """
        try:
            self._half.refresh()
            halves = self._half.log.halves_of([tried.transaction_id for tried in tries])
        except StorageError as error:
            if failure is None:
                raise
            problem = "gave no answer to a commit and cannot be read; call again with the same key"
            raise UnknownCommitError("half", problem) from error
        return [tried for tried in tries if tried.transaction_id not in halves]

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
        """Name a sixteenth of the group's keys, so that other keys seldom take turns."""
        return f"producer/{self._group}/{tried.transaction_id[-1]}"


class _KeyIds(NamedTuple):
    """The ids of the attempts under an idempotency key."""

    producer_group: str

    def candidates(self, key: IdempotencyKey, attempt: int) -> tuple[str, ...]:
        return key.transaction_ids(self.producer_group, attempt)

    def new(self, key: IdempotencyKey, attempt: int) -> str:
        return key.transaction_id(self.producer_group, attempt)

    def own_ends(self, reader: EndReader, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Read where transactions stand, without those that another group has begun."""
        return {
            name: end
            for name, end in reader.kept_ends_of(transaction_ids).items()
            if end.halves is None or end.halves.producer_group == self.producer_group
        }


# --- whether two tries send the same messages ---------------------------------------------------


def stored_messages(
    half: HalfLog, transaction_id: str, first_sequence: int, codec: BodyCodec | None = None
) -> Messages:
    """Read the messages of a transaction in the half log, a batch at a time."""
    messages = Messages(first_sequence, codec)
    sequences: set[int] = set()
    for file in half.table.files.holding("transaction_id", pa.array([transaction_id])):
        for batch in _batches(half, file):
            rows = python_rows(batch.filter(pc.equal(batch["transaction_id"], transaction_id)))
            # A retried append may have written a row twice.
            rows = [row for row in rows if row["sequence"] not in sequences]
            sequences.update(row["sequence"] for row in rows if row["sequence"] < first_sequence)
            messages.add(rows)
    return messages


def new_messages(
    half: HalfLog,
    single: pa.Table,
    files: Sequence[NewFile],
    first_sequence: int,
    codec: BodyCodec | None = None,
) -> Messages:
    """Return the messages of a try: its rows, and the files that Spark wrote for it."""
    messages = Messages(first_sequence, codec)
    for batch in single.select(list(_READ)).to_batches(_BATCH_ROWS):
        messages.add(batch.to_pylist())
    for file in files:
        for batch in _batches(half, DataFile(file.path, file.num_records, file.size_bytes, {})):
            messages.add(batch.to_pylist())
    return messages


@dataclass(slots=True)
class Messages:
    """What a try sends: single messages by their place, DataFrames by their place.

    Bodies are kept as digests, so memory does not grow with them.
    """

    first_sequence: int
    codec: BodyCodec | None = None
    single: dict[int, dict[str, bytes]] = field(default_factory=dict)
    frames: dict[int, _Rows] = field(default_factory=dict)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of the half log; heads without a message are left out."""
        for stored in rows:
            if stored["real_topic"] is None:
                continue
            row = _as_sent(stored, self.codec)
            offset = row["sequence"] - self.first_sequence
            if offset < 0:
                self.single[row["sequence"]] = _digests(row)
            else:
                place = offset // SEQUENCES_PER_DATAFRAME
                self.frames.setdefault(place, _Rows()).add(row)

    def differences(self, sent: Messages) -> list[str]:
        """Describe how these stored messages differ from those that are `sent`; name a few."""
        problems = [*self._of_single(sent), *self._of_frames(sent)]
        hidden = len(problems) - _SHOWN
        return [*problems[:_SHOWN], *([f"and {hidden:,} more"] if hidden > 0 else [])]

    def _of_single(self, sent: Messages) -> Iterator[str]:
        if len(self.single) != len(sent.single):
            yield f"{len(self.single):,} single messages there, {len(sent.single):,} here"
        for place in sorted(self.single.keys() & sent.single.keys()):
            stored, other = self.single[place], sent.single[place]
            # An erased message stays what the earlier try sent, and does not come back.
            compared = [name for name in COMPARED if name in stored]
            names = [_shown(name) for name in compared if stored[name] != other.get(name)]
            if names:
                yield f"message {place}: {', '.join(names)}"

    def _of_frames(self, sent: Messages) -> Iterator[str]:
        for place in sorted(self.frames.keys() | sent.frames.keys()):
            stored, other = self.frames.get(place, _Rows()), sent.frames.get(place, _Rows())
            if stored.count != other.count:
                yield f"DataFrame {place}: {stored.count:,} rows there, {other.count:,} here"
            elif not stored.has_erased and stored != other:
                yield f"DataFrame {place}: values of its rows"


@dataclass(slots=True)
class _Rows:
    """Many rows in any order, as their number and the sum of their digests.

    Of rows among which some were erased only the number can be compared.
    """

    count: int = 0
    digest: int = 0
    has_erased: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        self.count += 1
        self.has_erased = self.has_erased or is_erased(row["properties"])
        digest = hashlib.sha256(b"".join(_digests(row).values())).digest()
        self.digest = (self.digest + int.from_bytes(digest, "big")) % _DIGESTS


def _batches(half: HalfLog, file: DataFile) -> Iterator[pa.RecordBatch]:
    rows = _BATCH_BYTES * file.num_records // max(file.size_bytes, 1)
    return half.table.rows.batches(file, _READ, min(max(rows, 1), _BATCH_ROWS))


def _as_sent(row: Mapping[str, Any], codec: BodyCodec | None) -> Mapping[str, Any]:
    """Return a stored row with the body that was sent: another key may have encoded it since.

    A body that cannot be decoded any more is compared as one that was erased.
    """
    pairs = row["properties"] or ()
    if codec is None or BODY_KEY_ID not in dict(pairs):
        return row
    address = {
        "topic": row["real_topic"], "message_id": message_id(row["transaction_id"], row["sequence"])
    }  # fmt: skip
    others = [pair for pair in pairs if pair[0] not in BODY_MARKS]
    try:
        return {**row, "body": decoded({**row, **address}, codec), "properties": others}
    except BodyCodecError:
        return {**row, "properties": [(ERASED, "true")]}


def _digests(row: Mapping[str, Any]) -> dict[str, bytes]:
    names = _LEFT if is_erased(row["properties"]) else COMPARED
    return {name: hashlib.sha256(_plain(row[name])).digest() for name in names}


def _plain(value: Any) -> bytes:
    """Return a value as bytes. Null and no properties are the same; each try has its own trace."""
    if isinstance(value, list):
        value = [pair for pair in value if pair[0] not in (TRACEPARENT, TRACESTATE)]
    if value is None or value == []:
        return b"-"
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, list):
        return b"m" + repr(sorted(value)).encode()
    return b"t" + str(value).encode()


def _shown(name: str) -> str:
    return "topic" if name == "real_topic" else name
