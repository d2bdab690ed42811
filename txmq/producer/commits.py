"""Commits a producer's halves, ends and recalls; its threads share the commits."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from txmq.delta.parquet import NewFile
from txmq.errors import (
    IncompleteTransactionError,
    InvalidMessageError,
    ProducerGroupMismatchError,
    TopicChangedError,
    TransactionNotFoundError,
    TxmqError,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.handles import close_at_exit
from txmq.listeners.hooks import Hooks
from txmq.message.ids import IdempotencyKey
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.message.trace_context import carrying
from txmq.producer.body_check import NONE_REFUSED, BodyWatch, FrameTopic, Refused
from txmq.producer.contexts import AskedEnd, ProducerHooks, Sending
from txmq.producer.ends import AskedEnds, EndCommits, trusted_s
from txmq.producer.group_commit import Answer, Answered, GroupCommitter, Item, Size
from txmq.producer.keyed import KeyedAttempt, KeyedHalves, KeyedTry
from txmq.producer.recall import RecallCheck
from txmq.producer.routing import (
    DataFrameSend,
    MessageRouter,
    PlannedSend,
    RoutedMessage,
    SendLimits,
)
from txmq.store.claim_writer import ClaimWriter, NumberedCommits
from txmq.store.half import SEQUENCES_PER_DATAFRAME, HalfOrigin, HalfTransaction, half_table
from txmq.store.logs import EndReader, Resolution
from txmq.store.op import OpRow

if TYPE_CHECKING:
    from txmq.message.codec import BodyCodec
    from txmq.store.store import Store


# --- log_commits:


class LogCommits:
    """The committing threads of one producer; each starts with its first commit."""

    def __init__(
        self,
        store: Store,
        producer_group: str,
        clock: Clock,
        watch: BodyWatch,
        codec: BodyCodec | None = None,
    ) -> None:
        """Open nothing yet."""
        self._half = store.tables.half_log()
        self._store, self._producer_group, self._watch = store, producer_group, watch
        self._half_commits = NumberedCommits(self._half.table, "producer")
        self._end_commits = EndCommits(store, producer_group, clock)
        self._recall_claims = ClaimWriter(
            store.tables.op_log(), "producer", store.config.half_queues
        )
        self.client_id = str(self._end_commits.session)
        self.queue_id = self._end_commits.queue_id
        # DataFrames commit in their callers' threads, so they count under a session of their own.
        # With a shared counter, a commit of one thread would be taken for the lost commit of
        # another.
        self._frame_session = f"txmq-producer/{uuid.uuid4()}"
        self._frame_numbers, self._frame_lock = itertools.count(1), threading.Lock()
        self.halves: GroupCommitter[Sequence[HalfTransaction], Refused] = self._committer(
            self._commit_halves, "txmq-half"
        )
        self.ends: GroupCommitter[AskedEnds, list[Resolution]] = self._committer(
            self._commit_ends, "txmq-op"
        )
        # Recalls are rare; a thread and a table handle of their own keep the code of ends simple.
        self.recalls: GroupCommitter[OpRow, None] = self._committer(
            self._commit_recalls, "txmq-recall"
        )
        self.keyed = KeyedHalves(store, producer_group, watch, codec)

    @property
    def followed(self) -> int | None:
        """The op version that the ends have followed so far."""
        return self._end_commits.followed

    def _committer(
        self, commit: Callable[[list[Item]], Sequence[Answer]], name: str
    ) -> GroupCommitter[Item, Answer]:
        config = self._store.config
        return GroupCommitter(
            commit,
            name=f"{name}-{self._producer_group}",
            owner=f"the producer of group {self._producer_group}",
            max_rows=config.group_commit_max_rows,
            max_bytes=config.group_commit_max_bytes,
            may_pass=self.is_giver,
        )

    def is_giver(self) -> bool:
        """Whether the calling thread commits halves or ends, and runs the callbacks of these."""
        return self.halves.is_own_thread or self.ends.is_own_thread

    def close(self) -> None:
        """Wait for running commits and end the threads."""
        self.halves.close()
        self.keyed.close()
        self.ends.close()
        self.recalls.close()

    def _commit_halves(self, items: list[Sequence[HalfTransaction]]) -> list[Refused]:
        halves = list(chain.from_iterable(items))
        refused, retypings = self._watch.before(halves)
        if refused:
            halves = [half for half in halves if half.origin.transaction_id not in refused]
        if halves:
            self._append(halves)
            refused = {**refused, **self._watch.after(halves, retypings)}
        if not refused:
            return [NONE_REFUSED] * len(items)
        return [_refused_of(item, refused) for item in items]

    def _append(self, halves: Sequence[HalfTransaction]) -> None:
        rows, half = half_table(halves), self._half.table
        reached(FailPoint.HALF_READY)
        self._half_commits.commit(
            rows, lambda app_id, number: half.append(rows, app_id=app_id, number=number)
        )
        reached(FailPoint.HALF_COMMITTED)

    # --- DataFrames ---------------------------------------------------------------------------

    def frame_files(
        self,
        single: HalfTransaction,
        sends: Sequence[DataFrameSend],
        limits_of: Callable[[str], SendLimits],
    ) -> tuple[HalfTransaction, list[NewFile]]:
        """Compute DataFrames into files, and `single` with the number of all messages; 0 commits.

        Args:
            single: the messages that were sent one by one, with the head.
            sends: the DataFrames.
            limits_of: the limits of a topic.
        """
        half, first = self._store.tables.half_log().table, single.rows
        files = [
            file
            for place, send in enumerate(sends)
            for file in send.write(
                half, single.origin, first + place * SEQUENCES_PER_DATAFRAME, limits_of(send.topic)
            )
        ]
        count = single.message_count + sum(file.num_records for file in files)
        if count == 0:
            raise InvalidMessageError("transaction", "has no message; the DataFrame is empty")
        return single._replace(message_count=count), files

    def commit_frames(
        self,
        single: HalfTransaction,
        files: Sequence[NewFile],
        frames: Sequence[FrameTopic],
    ) -> Refused:
        """Commit the halves of a transaction with DataFrames; the file of the head is last."""
        by_id = {single.origin.transaction_id: frames}
        refused, retypings = self._watch.before([single], by_id)
        if refused:
            return refused
        half = self._store.tables.half_log().table
        head = half.new_files(half_table([single]))
        reached(FailPoint.FRAMES_WRITTEN)
        with self._frame_lock:
            number = next(self._frame_numbers)
            half.append_files([*files, *head], app_id=self._frame_session, number=number)
        reached(FailPoint.FRAMES_COMMITTED)
        return self._watch.after([single], retypings, by_id)

    # --- claims -------------------------------------------------------------------------------

    def _commit_ends(self, items: list[AskedEnds]) -> list[list[Resolution]]:
        answers = iter(self._end_commits.commit_all(items))
        return [list(islice(answers, len(item.ends))) for item in items]

    def _commit_recalls(self, rows: list[OpRow]) -> list[None]:
        self._recall_claims.append(rows)
        return [None] * len(rows)


def _refused_of(item: Sequence[HalfTransaction], refused: Refused) -> Refused:
    ids = [half.origin.transaction_id for half in item]
    return {key: refused[key] for key in ids if key in refused}


# --- commits:


class ProducerCommits:
    """Makes the halves and claims of one producer durable. Safe for many threads."""

    def __init__(
        self,
        store: Store,
        producer_group: str,
        clock: Clock,
        router: MessageRouter,
        hooks: Hooks | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            store: the store to write to.
            producer_group: the stored name.
            clock: gives the time of rows and claims.
            router: chooses queues for messages whose sender chose none.
            hooks: are told of sends and ends.
        """
        self.store = store
        self.producer_group = producer_group
        self.hooks = ProducerHooks(Hooks() if hooks is None else hooks, producer_group)
        self._router = router
        self._clock = clock
        # Each message needs it, and the property parses a string.
        self._delay_levels_s = store.config.delay_levels_s
        self._timeout_s = store.config.of_group(producer_group).transaction_timeout_s
        self.trusted_s = trusted_s(store.config.file_reserved_time_h)
        watch = BodyWatch(router.catalog)
        self._logs = LogCommits(store, producer_group, clock, watch, router.codec)
        close_at_exit(self.close)

    def now_ms(self) -> int:
        """The time of the producer's clock."""
        return self._clock.now_ms()

    def is_giver(self) -> bool:
        """Whether others wait for the calling thread, as it commits and runs callbacks."""
        return self._logs.is_giver()

    def check_open(self) -> None:
        """Raise ClosedError if nothing more can be committed."""
        self._logs.halves.check_usable()

    def close(self) -> None:
        """Wait for running commits and end the committing threads."""
        self._logs.close()

    def attempt_of(self, key: IdempotencyKey) -> KeyedAttempt:
        """The first attempt under a key that was not rolled back or expired; 0 commits."""
        return self._logs.keyed.attempt_of(key)

    def state_of(self, transaction_id: str) -> TransactionState | None:
        """The state by all claims that are durable now; None if no log keeps anything; 0 commits.

        Raises: StorageError.
        """
        end = EndReader(self.store.tables.logs()).end_of(transaction_id)
        return end.state if end.is_kept else None

    def end_by_id(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction whose halves this process need not know: one commit, shared.

        None for UNKNOWN, and where the halves are gone and the end that is asked for stands.

        Raises: as `TransactionProducer.end_transaction`.
        """
        halves = self.store.tables.half_log().halves(transaction_id)
        if halves is None:
            self._confirm_kept(AskedEnd(transaction_id, state))
            return
        if halves.producer_group != self.producer_group:
            group = halves.producer_group
            raise ProducerGroupMismatchError(transaction_id, group, self.producer_group)
        if halves.problem and state is LocalTransactionState.COMMIT:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        end = AskedEnd(transaction_id, state, message_count=halves.message_count)
        if state is LocalTransactionState.UNKNOWN:
            self.hooks.ended(end, None)
        else:
            self.end(end)

    def _confirm_kept(self, end: AskedEnd) -> None:
        """Compare an end with the one that stands where the halves are gone."""
        resolution = EndReader(self.store.tables.logs()).end_of(end.transaction_id)
        if not resolution.is_kept:
            raise TransactionNotFoundError(end.transaction_id)
        if end.asked is not LocalTransactionState.UNKNOWN:
            resolution.confirm(end.transaction_id, end.kind)

    def encoding(self, send: PlannedSend) -> PlannedSend:
        """As that of the router. Raises: BodyCodecError, MessageTooLargeError."""
        return self._router.encoding(send)

    def half_of(
        self, send: PlannedSend, *, in_turn: bool = True, ordinary: bool = False
    ) -> HalfTransaction:
        """The halves of a transaction that is sent message by message; 0 commits."""
        messages = send.stored
        if messages is None:
            messages = self._router.encoded(send.messages, send.transaction_id)
        queues = self._router.queues_of(send.routed, in_turn=in_turn)
        origin = self._origin(send.transaction_id, messages, ordinary=ordinary)
        return HalfTransaction(origin, messages, queues, len(messages))

    def carrying(self, half: HalfTransaction, sending: Sending) -> HalfTransaction:
        """The same halves with the trace context that hooks gave to this send."""
        if not sending.carried:
            return half
        limit = self.store.config.max_properties_size_bytes
        return half._replace(messages=carrying(half.messages, sending.carried, limit))

    def prepare(self, transaction_id: str, routed: Sequence[RoutedMessage]) -> None:
        """Append all halves of a transaction: one commit, shared."""
        send = PlannedSend(transaction_id, routed)
        half = self.half_of(send)
        with self.hooks.sending(transaction_id, half.messages) as sending:
            half = self.carrying(half, sending)
            _raise_first(self.append_halves([([half], half_size(send))]))

    def append_halves(self, commits: Sequence[tuple[Sequence[HalfTransaction], Size]]) -> Refused:
        """Append transactions, each list in one shared commit; return when all are durable.

        Returns: the errors of transactions that must not be used.
        """
        answers = [self._logs.halves.submit(halves, size) for halves, size in commits]
        refused: dict[str, TxmqError] = {}
        for answer in answers:
            refused |= answer.result()
        if refused:
            self.end_changed(refused)
        return refused

    def submit_halves(
        self, halves: Sequence[HalfTransaction], answered: Answered[Refused], size: Size
    ) -> None:
        """Append halves in a shared commit, and wait for nothing. Raises: ClosedError."""
        self._logs.halves.submit_to(answered, halves, size)

    def submit_ends(
        self, asked: AskedEnds, answered: Answered[list[Resolution]], size: Size
    ) -> None:
        """Claim ends in a shared commit, and wait for nothing. Raises: ClosedError."""
        self._logs.ends.submit_to(answered, asked, size)

    def end_changed(self, refused: Refused) -> None:
        """Roll back what is durable and must not be used, so that nobody is asked about it."""
        ids = [key for key, error in refused.items() if isinstance(error, TopicChangedError)]
        # Where this fails the check does it.
        with suppress(TxmqError):
            ends = [(transaction_id, ClaimKind.ROLLBACK) for transaction_id in ids]
            self.append_ends(AskedEnds(ends))

    def begin_send(self, sends: Sequence[PlannedSend], *, ordinary: bool) -> Sending:
        """Tell the hooks that these sends begin. Raises: SendForbiddenError."""
        if not self.hooks:
            return self.hooks.without_context
        messages = {send.transaction_id: send.messages for send in sends}
        return self.hooks.begin_send(messages, ordinary=ordinary)

    def prepare_dataframes(
        self,
        transaction_id: str,
        sends: Sequence[DataFrameSend],
        routed: Sequence[RoutedMessage],
    ) -> None:
        """Append all halves of a transaction with DataFrames: one commit, not shared."""
        single = self.half_of(PlannedSend(transaction_id, routed))
        topics = [send.topic for send in sends]
        with self.hooks.sending(transaction_id, single.messages, topics) as sending:
            single = self.carrying(single, sending)
            head, files = self._logs.frame_files(single, sends, self._router.send_limits)
            refused = self._logs.commit_frames(head, files, _frames_of(sends))
            self.end_changed(refused)
            _raise_first(refused)

    def prepare_keyed(
        self,
        attempt: KeyedAttempt,
        sends: Sequence[DataFrameSend],
        routed: Sequence[RoutedMessage],
    ) -> TransactionState:
        """Append the halves of a transaction with a key, or join those of an earlier try.

        Queues follow from the places in the transaction, so that all tries choose the same.

        Returns: PENDING, or COMMITTED where an earlier try is done.

        Raises: as `Transaction.prepare`.
        """
        send = PlannedSend(attempt.transaction_id, routed)
        single = self.half_of(send, in_turn=False)
        if attempt.state is not None:
            return self._joined(self._tried(attempt, single, sends))
        topics = [frame.topic for frame in sends]
        with self.hooks.sending(attempt.transaction_id, single.messages, topics) as sending:
            tried = self._tried(attempt, self.carrying(single, sending), sends)
            try:
                if self._logs.keyed.append(tried):
                    return TransactionState.PENDING
            except TopicChangedError as error:
                self.end_changed({attempt.transaction_id: error})
                raise
        return self._joined(tried)

    def _tried(
        self, attempt: KeyedAttempt, single: HalfTransaction, sends: Sequence[DataFrameSend]
    ) -> KeyedTry:
        if not sends:
            return KeyedTry(attempt.key, single)
        head, files = self._logs.frame_files(single, sends, self._router.send_limits)
        return KeyedTry(attempt.key, head, files, _frames_of(sends))

    def _joined(self, tried: KeyedTry) -> TransactionState:
        try:
            return self._logs.keyed.join(tried)
        finally:
            self._logs.keyed.remove_files(tried)

    def end(self, end: AskedEnd) -> None:
        """Claim the end of a transaction and confirm that it took effect: one commit, shared.

        None where retention has removed the halves: such a claim comes to nothing.

        Raises: as `Resolution.confirm`.
        """
        begun_s, resolution = time.monotonic(), None
        try:
            resolution = self._end_without_halves(end) if end.is_old else None
            if resolution is None:
                ends = [(end.transaction_id, end.kind)]
                asked = AskedEnds(ends, end.is_doubtful, end.since)
                (resolution,) = self.append_ends(asked)
            resolution.confirm(end.transaction_id, end.kind)
        except BaseException as error:
            self.hooks.ended(end, resolution, error, begun_s)
            raise
        self.hooks.ended(end, resolution, begun_s=begun_s)

    def _end_without_halves(self, end: AskedEnd) -> Resolution | None:
        """Where a transaction stands whose halves are gone; None if it has its halves."""
        resolution = EndReader(self.store.tables.logs()).end_of(end.transaction_id)
        return resolution if resolution.halves is None else None

    def append_ends(self, asked: AskedEnds) -> Sequence[Resolution]:
        """Claim ends in one shared commit, and read the state of each transaction after it."""
        if not asked.ends:
            return ()
        return self._logs.ends.submit(asked, Size(len(asked.ends))).result()

    @property
    def followed(self) -> int | None:
        """The op version that was followed so far; see AskedEnds."""
        return self._logs.followed

    def recall(self, transaction_id: str, sequence: int) -> None:
        """Claim the RECALL of a delayed message and confirm it: one commit, shared.

        Raises: NotRecalledError, TransactionNotFoundError, ProducerGroupMismatchError.
        """
        address = (transaction_id, sequence, self.producer_group)
        if RecallCheck(self.store).is_recalled(*address):
            return
        row = OpRow(
            transaction_id, ClaimKind.RECALL, self.producer_group, ClaimSource.PRODUCER,
            self.now_ms(), sequences=(sequence,),
        )  # fmt: skip
        self._logs.recalls.submit(row, Size(1)).result()
        RecallCheck(self.store).is_recalled(*address)

    @property
    def client_id(self) -> str:
        """The id of this producer alone; the heads of its transactions carry it."""
        return self._logs.client_id

    def _origin(
        self, transaction_id: str, messages: Sequence[Message], *, ordinary: bool = False
    ) -> HalfOrigin:
        immunity_s = timeout_s = self._timeout_s
        for message in messages:
            if message.properties:
                immunity_s = max(immunity_s, message.immunity_time_s(timeout_s))
        return HalfOrigin(
            transaction_id,
            self.producer_group,
            self._logs.queue_id,
            immunity_s,
            self._clock.now_ms(),
            self.client_id,
            ordinary,
            self._delay_levels_s,
        )


def half_size(*sends: PlannedSend) -> Size:
    """What the halves of these add to a commit; a transaction without messages has a head."""
    rows = size_bytes = 0
    for send in sends:
        rows, size_bytes = rows + (len(send.routed) or 1), size_bytes + send.size_bytes
    return Size(rows, size_bytes)


def _frames_of(sends: Sequence[DataFrameSend]) -> list[FrameTopic]:
    return [FrameTopic(send.topic, send.body_schema) for send in sends]


def _raise_first(refused: Refused) -> None:
    for error in refused.values():
        raise error
