"""What a producer writes: halves, ends and recalls, as operations of the pipeline.

ProducerCommits says what each operation does, with its hooks and its errors. LogCommits, below it,
has the threads that commit; all who call at about the same time share their commits.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from txmq.delta.actions import session_mark
from txmq.delta.parquet import NewFile
from txmq.errors import (
    IncompleteTransactionError,
    InvalidMessageError,
    ProducerGroupMismatchError,
    TopicChangedError,
    TransactionForgottenError,
    TransactionNotFoundError,
    TxmqError,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.handles import close_at_exit
from txmq.listeners.hooks import Hooks
from txmq.message.ids import IdempotencyKey, new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import namespace_of, unwrapped
from txmq.message.trace_context import carrying
from txmq.producer.body_check import NONE_REFUSED, BodyWatch, FrameTopic, Refused
from txmq.producer.contexts import AskedEnd, ProducerHooks, Sending
from txmq.producer.ends import AskedEnds, EndCommits, asked_ends, trusted_s
from txmq.producer.group_commit import Answer, Answered, GroupCommitter, Item, Size
from txmq.producer.keyed import KeyedAttempt, KeyedHalves, KeyedTry
from txmq.producer.once import discard_files
from txmq.producer.pipeline import SendFuture, Steps, waited
from txmq.producer.query_batches import BatchSender, QueryBatch
from txmq.producer.recall import RecallCheck
from txmq.producer.routing import (
    DataFrameSend,
    MessageRouter,
    PlannedSend,
    QueueSelector,
    RoutedMessage,
    SendLimits,
    SendResult,
    WrittenRows,
    send_result,
)
from txmq.store.claim_writer import ClaimWriter, NumberedCommits
from txmq.store.half import SEQUENCES_PER_DATAFRAME, HalfOrigin, HalfTransaction, half_table
from txmq.store.known import Forgotten
from txmq.store.logs import EndReader, Resolution
from txmq.store.op import OpRow

if TYPE_CHECKING:
    from txmq.message.codec import BodyCodec
    from txmq.store.store import Store


# Halves that are committed together, and what they add to a commit.
HalvesOfCommit = tuple[Sequence[HalfTransaction], Size]


class ProducerCommits:
    """Makes the halves and claims of one producer durable. Safe for many threads.

    Methods that return Steps do nothing before `waited` or `StepFutures.of` makes the steps.
    """

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

    @property
    def followed(self) -> int | None:
        """The op version that was followed so far; see AskedEnds."""
        return self._logs.followed

    @property
    def client_id(self) -> str:
        """The id of this producer alone; the heads of its transactions carry it."""
        return self._logs.client_id

    def now_ms(self) -> int:
        """Return the time of the producer's clock."""
        return self._clock.now_ms()

    def check_open(self) -> None:
        """Raise ClosedError if nothing more can be committed."""
        self._logs.halves.check_usable()

    def is_giver(self) -> bool:
        """Tell whether others wait for the calling thread, as it commits and runs callbacks."""
        return self._logs.is_giver()

    def close(self) -> None:
        """Wait for running commits and end the committing threads."""
        self._logs.close()

    # --- sends and prepares ---------------------------------------------------------------------

    def planned(
        self,
        messages: object,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> list[PlannedSend]:
        """Plan one ordinary message or a batch as transactions within the size limit; 0 commits.

        Raises: MessageError and its kinds, ClosedError.
        """
        splits = self._router.accept_batch(messages, queue_id, queue_selector)
        self.check_open()
        return self.begun(splits)

    def begun(self, splits: Iterable[Sequence[RoutedMessage]]) -> list[PlannedSend]:
        """Begin a transaction for each of these lists; 0 commits.

        Raises: BodyCodecError, MessageTooLargeError.
        """
        since, now_ms = self._logs.followed, self._clock.now_ms()
        encoding = self._router.encoding
        return [encoding(PlannedSend(new_transaction_id(now_ms), split, since)) for split in splits]

    def send(self, sends: Sequence[PlannedSend]) -> Steps[SendResult]:
        """Append all halves of ordinary messages, then all COMMITs in one commit; both are shared.

        So a batch that was split is acknowledged as a whole, or not at all.

        Raises: SendForbiddenError, InvalidBodyError, ClosedError, StorageError;
            AlreadyResolvedError if the send took longer than `transaction_timeout_s` and the check
            rolled it back.
        """
        with self.begin_send(sends, ordinary=True) as sending:
            halves = [self.carrying(self.half_of(send, ordinary=True), sending) for send in sends]
            commits = [([half], half_size(send)) for half, send in zip(halves, sends, strict=True)]
            _raise_first((yield from self.append(commits)))
            kinds = [ClaimKind.COMMIT] * len(sends)
            resolutions = yield from self.claim(asked_ends(sends, kinds))
            for send, resolution in zip(sends, resolutions, strict=True):
                resolution.confirm(send.transaction_id, ClaimKind.COMMIT)
        return send_result(sends)

    def prepare(self, send: PlannedSend) -> Steps[None]:
        """Append all halves of a transaction: one commit, shared."""
        half = self.half_of(send)
        with self._begin_prepare(half) as sending:
            halves = [self.carrying(half, sending)]
            _raise_first((yield from self.append([(halves, half_size(send))])))

    def send_dataframe(self, send: PlannedSend, rows: DataFrameSend) -> Steps[None]:
        """Append the halves of ordinary messages, then their COMMIT; neither commit is shared.

        Raises: as `send`; InvalidMessageError for no rows.
        """
        yield from self.prepare_dataframes(send, [rows], ordinary=True)
        (resolution,) = yield from self.claim(asked_ends([send], [ClaimKind.COMMIT]))
        resolution.confirm(send.transaction_id, ClaimKind.COMMIT)

    def send_batch(self, send: PlannedSend, rows: DataFrameSend, batch: QueryBatch) -> None:
        """Do as `send_dataframe` for a micro-batch of a stream, once however often it runs.

        A batch without rows sends nothing. Raises: as BatchSender.
        """
        self._logs.check_key()
        single, topic = self.half_of(send, ordinary=True), rows.topic
        half = self.store.tables.half_log().table
        files = rows.write(half, single.origin, single.rows, self._router.send_limits(topic))
        head = single._replace(message_count=sum(file.num_records for file in files))
        watch = BodyWatch(self._router.catalog)
        sender = BatchSender(self.store, self.producer_group, self._clock, watch)
        sender.send(batch, head, files, _frames_of([rows]))

    def prepare_dataframes(
        self, send: PlannedSend, sends: Sequence[DataFrameSend], *, ordinary: bool = False
    ) -> Steps[None]:
        """Append all halves of a transaction with DataFrames: one commit, not shared."""
        single = self.half_of(send, ordinary=ordinary)
        with self._begin_prepare(single, sends, ordinary=ordinary) as sending:
            single = self.carrying(single, sending)
            head, files = self._logs.frame_files(single, sends, self._router.send_limits)
            refused = self._logs.commit_frames(head, files, _frames_of(sends))
            yield from self._end_changed(refused)
            _raise_first(refused)

    def prepare_keyed(
        self,
        attempt: KeyedAttempt,
        send: PlannedSend,
        sends: Sequence[DataFrameSend],
    ) -> Steps[TransactionState]:
        """Append the halves of a transaction with a key, or join those of an earlier try.

        Queues follow from the places in the transaction, so that all tries choose the same.
        A try that must not go on ends nothing: another one may have joined the same halves, and
        its local transaction may have run.

        Returns: PENDING, or COMMITTED where an earlier try is done.

        Raises: as `Transaction.prepare`.
        """
        single = self.half_of(send, in_turn=False)
        if attempt.state is not None:
            return self._joined(self._tried(attempt, single, sends))
        with self._begin_prepare(single, sends) as sending:
            tried = self._tried(attempt, self.carrying(single, sending), sends)
            answer: bool | TxmqError = yield partial(self._logs.keyed.append, tried)
            if isinstance(answer, TxmqError):
                raise answer
        return TransactionState.PENDING if answer else self._joined(tried)

    def join_written(self, transaction_id: str, topic: str) -> TransactionState:
        """Return the state of a transaction whose halves another process has written; 0 commits.

        Raises: InvalidMessageError if there are none; SendForbiddenError; as `KeyedHalves.join`.
        """
        self.check_open()
        half = self.half_of(PlannedSend(transaction_id, ()))
        with self._begin_prepare(half, [WrittenRows(topic, None, ())]):
            try:
                return self._logs.keyed.join(KeyedTry("", half))
            except TransactionForgottenError as error:
                problem = "has no message; write a DataFrame with write_options() before prepare()"
                raise InvalidMessageError("transaction", problem) from error

    def write_options(self, transaction_id: str, topic: str, immunity_s: float) -> dict[str, str]:
        """Return the options by which Spark writes the halves of a transaction."""
        self.check_open()
        namespace = namespace_of(self.producer_group)
        return {
            "path": self.store.location,
            "topic": topic,
            "producerGroup": unwrapped(self.producer_group),
            "transaction": transaction_id,
            "checkImmunityTime": str(immunity_s),
            **({} if namespace is None else {"namespace": namespace}),
        }

    def _begin_prepare(
        self,
        half: HalfTransaction,
        frames: Sequence[DataFrameSend] = (),
        *,
        ordinary: bool = False,
    ) -> Sending:
        """Tell the hooks that a prepare begins; its block tells them the end.

        Raises: as `begin_send`.
        """
        self._logs.check_key()
        messages = {half.origin.transaction_id: half.messages}
        topics = [frame.topic for frame in frames]
        return self.hooks.begin_send(messages, ordinary=ordinary, dataframe_topics=topics)

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
            discard_files(self.store.tables.half_log().table, tried.files)

    # --- ends and recalls -----------------------------------------------------------------------

    def end(self, end: AskedEnd) -> Steps[None]:
        """Claim the end of a transaction and confirm that it took effect: one commit, shared.

        Makes no commit where retention has removed the halves: such a claim comes to nothing.

        Raises: as `Resolution.confirm`.
        """
        begun_s, resolution = time.monotonic(), None
        try:
            resolution = self._end_without_halves(end) if end.is_old else None
            if resolution is None:
                asked = AskedEnds([(end.transaction_id, end.kind)], end.is_doubtful, end.since)
                (resolution,) = yield from self.claim(asked)
            resolution.confirm(end.transaction_id, end.kind)
        except BaseException as error:
            self.hooks.ended(end, resolution, error, begun_s)
            raise
        self.hooks.ended(end, resolution, begun_s=begun_s)

    def _end_without_halves(self, end: AskedEnd) -> Resolution | None:
        """Return where a transaction without halves stands; None if it has its halves."""
        resolution = EndReader(self.store.tables.logs()).end_of(end.transaction_id)
        if resolution.halves is not None:
            return None
        return Forgotten(self.store).explained(end.transaction_id, resolution)

    def end_by_id(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction whose halves this process need not know: one commit, shared.

        Makes no commit for UNKNOWN, nor where the halves are gone and the requested end stands.

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
            waited(self.end(end))

    def _confirm_kept(self, end: AskedEnd) -> None:
        """Compare an end with the one that stands where the halves are gone."""
        resolution = EndReader(self.store.tables.logs()).end_of(end.transaction_id)
        if not resolution.is_kept:
            raise TransactionNotFoundError(end.transaction_id)
        if end.asked is not LocalTransactionState.UNKNOWN:
            resolution.confirm(end.transaction_id, end.kind)

    def recall(self, transaction_id: str, sequence: int) -> Steps[None]:
        """Claim the RECALL of a delayed message and confirm it: one commit, shared.

        Raises: NotRecalledError, TransactionNotFoundError, ProducerGroupMismatchError.
        """
        address = (transaction_id, sequence, self.producer_group)
        if RecallCheck(self.store).is_recalled(*address):
            return
        self._logs.check_key()
        row = OpRow(
            transaction_id, ClaimKind.RECALL, self.producer_group, ClaimSource.PRODUCER,
            self.now_ms(), sequences=(sequence,),
        )  # fmt: skip
        yield partial(self._logs.recall, row)
        RecallCheck(self.store).is_recalled(*address)

    # --- what several of them do ----------------------------------------------------------------

    def begin_send(self, sends: Sequence[PlannedSend], *, ordinary: bool) -> Sending:
        """Tell the hooks that these sends begin.

        Raises: SendForbiddenError; ConfigError if a broker does not know the key of claims.
        """
        self._logs.check_key()
        if not self.hooks:
            return self.hooks.without_context
        messages = {send.transaction_id: send.messages for send in sends}
        return self.hooks.begin_send(messages, ordinary=ordinary)

    def half_of(
        self, send: PlannedSend, *, in_turn: bool = True, ordinary: bool = False
    ) -> HalfTransaction:
        """Return the halves of a transaction that is sent message by message; 0 commits."""
        messages = send.stored
        if messages is None:
            messages = self._router.encoded(send.messages, send.transaction_id)
        queues = self._router.queues_of(send.routed, in_turn=in_turn)
        origin = self._origin(send, messages, ordinary=ordinary)
        return HalfTransaction(origin, messages, queues, len(messages))

    def _origin(
        self, send: PlannedSend, messages: Sequence[Message], *, ordinary: bool = False
    ) -> HalfOrigin:
        timeout_s = self._timeout_s
        immunity_s = max(timeout_s, send.immunity_s)
        for message in messages:
            if message.properties:
                immunity_s = max(immunity_s, message.immunity_time_s(timeout_s))
        return HalfOrigin(
            send.transaction_id,
            self.producer_group,
            self._logs.queue_id,
            immunity_s,
            self._clock.now_ms(),
            self._logs.client_id,
            ordinary,
            self._delay_levels_s,
        )

    def carrying(self, half: HalfTransaction, sending: Sending) -> HalfTransaction:
        """Return the halves with the trace context that hooks gave to this send."""
        if not sending.carried:
            return half
        limit = self.store.config.max_properties_size_bytes
        return half._replace(messages=carrying(half.messages, sending.carried, limit))

    def append(self, commits: Sequence[HalvesOfCommit]) -> Steps[Refused]:
        """Append halves, each list in one shared commit. Return when all are durable.

        Returns: the errors of transactions that must not be used; those are rolled back.
        """
        refused: Refused = yield partial(self._logs.append, commits)
        if refused:
            yield from self._end_changed(refused)
        return refused

    def _end_changed(self, refused: Refused) -> Steps[None]:
        """Roll back what is durable and must not be used, so that nobody is asked about it."""
        ids = [key for key, error in refused.items() if isinstance(error, TopicChangedError)]
        # Where this fails the check does it.
        with suppress(TxmqError):
            yield from self.claim(AskedEnds([(key, ClaimKind.ROLLBACK) for key in ids]))

    def claim(self, asked: AskedEnds) -> Steps[Sequence[Resolution]]:
        """Claim ends in one shared commit. Return the state of each transaction after it."""
        if not asked.ends:
            return ()
        resolutions: Sequence[Resolution] = yield partial(self._logs.claim, asked)
        return resolutions

    # --- reading --------------------------------------------------------------------------------

    def attempt_of(self, key: IdempotencyKey) -> KeyedAttempt:
        """Return the first attempt under a key that was not rolled back or expired; 0 commits."""
        return self._logs.keyed.attempt_of(key)

    def state_of(self, transaction_id: str) -> TransactionState | None:
        """Read the state by all durable claims; None if no log keeps anything; 0 commits.

        Raises: StorageError.
        """
        end = EndReader(self.store.tables.logs()).end_of(transaction_id)
        return end.state if end.is_kept else None


def half_size(*sends: PlannedSend) -> Size:
    """Return what these halves add to a commit; a transaction without messages has a head."""
    rows = size_bytes = 0
    for send in sends:
        rows, size_bytes = rows + (len(send.routed) or 1), size_bytes + send.size_bytes
    return Size(rows, size_bytes)


def _frames_of(sends: Sequence[DataFrameSend]) -> list[FrameTopic]:
    return [FrameTopic(send.topic, send.body_schema) for send in sends]


def _raise_first(refused: Refused) -> None:
    for error in refused.values():
        raise error


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
        self._end_commits = EndCommits(store, producer_group, clock, self._half.table.log)
        self._recall_claims = ClaimWriter(
            store.tables.op_log(), "producer", store.config.half_queues
        )
        self.client_id = str(self._end_commits.session)
        self.queue_id = self._end_commits.queue_id
        # Refuses to write what ends by a key that a running broker does not know; each send asks.
        self.check_key = self._end_commits.signing.check
        # DataFrames commit in their callers' threads, so they count under a session of their own.
        # With a shared counter, a commit of one thread would be taken for the lost commit of
        # another.
        self._frame_session = session_mark("producer", uuid.uuid4())
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

    @property
    def followed(self) -> int | None:
        """The op version that the ends have followed so far."""
        return self._end_commits.followed

    def is_giver(self) -> bool:
        """Tell whether the calling thread commits halves or ends, and runs their callbacks."""
        return self.halves.is_own_thread or self.ends.is_own_thread

    def close(self) -> None:
        """Wait for running commits and end the threads."""
        self.halves.close()
        self.keyed.close()
        self.ends.close()
        self.recalls.close()

    # --- what is queued for a shared commit -----------------------------------------------------

    def append(self, commits: Sequence[HalvesOfCommit], answered: Answered[Refused]) -> None:
        """Queue halves, each list for one shared commit. The answer is there when all are durable.

        Raises: ClosedError.
        """
        if len(commits) == 1:
            halves, size = commits[0]
            self.halves.submit_to(answered, halves, size)
            return
        futures = [SendFuture() for _ in commits]
        for future, (halves, size) in zip(futures, commits, strict=True):
            # All are called by the committing thread.
            future.add_done_callback(partial(_answer_when_all_are_done, futures, answered))
            self.halves.submit_to(future, halves, size)

    def claim(self, asked: AskedEnds, answered: Answered[list[Resolution]]) -> None:
        """Queue ends for a shared commit. Raises: ClosedError."""
        self.ends.submit_to(answered, asked, Size(len(asked.ends)))

    def recall(self, row: OpRow, answered: Answered[None]) -> None:
        """Queue a recall for a shared commit. Raises: ClosedError."""
        self.recalls.submit_to(answered, row, Size(1))

    # --- DataFrames ---------------------------------------------------------------------------

    def frame_files(
        self,
        single: HalfTransaction,
        sends: Sequence[DataFrameSend],
        limits_of: Callable[[str], SendLimits],
    ) -> tuple[HalfTransaction, list[NewFile]]:
        """Compute DataFrames into files; 0 commits.

        Returns: `single` with the number of all messages, and the files.

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
        """Commit the halves of a transaction with DataFrames; the file of the head is last.

        Returns: its error if it must not be used.
        """
        by_id = {single.origin.transaction_id: frames}
        refused, retypings = self._watch.before([single], by_id)
        if refused:
            return refused
        half = self._store.tables.half_log().table
        head = half.writer.new_files(half_table([single]))
        reached(FailPoint.FRAMES_WRITTEN)
        with self._frame_lock:
            number = next(self._frame_numbers)
            half.writer.append_files([*files, *head], app_id=self._frame_session, number=number)
        reached(FailPoint.FRAMES_COMMITTED)
        return self._watch.after([single], retypings, by_id)

    # --- in the committing threads ----------------------------------------------------------------

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
            rows, lambda app_id, number: half.writer.append(rows, app_id=app_id, number=number)
        )
        reached(FailPoint.HALF_COMMITTED)

    def _commit_ends(self, items: list[AskedEnds]) -> list[list[Resolution]]:
        answers = iter(self._end_commits.commit_all(items))
        return [list(islice(answers, len(item.ends))) for item in items]

    def _commit_recalls(self, rows: list[OpRow]) -> list[None]:
        self._recall_claims.append(rows)
        return [None] * len(rows)


def _answer_when_all_are_done(
    futures: Sequence[SendFuture], answered: Answered[Refused], _: object
) -> None:
    """Give the answers of several commits as one, or the first error of them."""
    if not all(future.done() for future in futures):
        return
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        answered.set_exception(errors[0])
    else:
        refused = (future.result().items() for future in futures)
        answered.set_result(dict(chain.from_iterable(refused)))


def _refused_of(item: Sequence[HalfTransaction], refused: Refused) -> Refused:
    ids = [half.origin.transaction_id for half in item]
    return {key: refused[key] for key in ids if key in refused}
