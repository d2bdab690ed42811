"""Commits a producer's halves, ends and recalls; its threads share the commits."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from txmq.clock import Clock
from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    InvalidMessageError,
    NotRecalledError,
    ProducerGroupMismatchError,
    TransactionNotFoundError,
)
from txmq.fail_points import FailPoint, reached
from txmq.handles import close_at_exit
from txmq.hooks import Hooks
from txmq.lifecycle import ClaimKind, ClaimSource, DeliveryState, TransactionState
from txmq.message.ids import IdempotencyKey, message_id
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.attempts import attempts_that_count
from txmq.producer.contexts import AskedEnd, ProducerHooks, Sending
from txmq.producer.dataframe import SEQUENCES_PER_DATAFRAME, DataFrameSend, SendLimits
from txmq.producer.ends import EndCommits, Ends
from txmq.producer.group_commit import Answer, GroupCommitter, Item
from txmq.producer.recall import RecallCheck, recall_problem
from txmq.producer.routing import MessageRouter, PlannedSend, RoutedMessage
from txmq.store.claim_writer import ClaimWriter
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.numbered import NumberedCommits
from txmq.store.op import OpRow
from txmq.store.resolution import EndReader, Resolution

if TYPE_CHECKING:
    from txmq.store.store import Store


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
        self.hooks = ProducerHooks(hooks or Hooks(), producer_group)
        self._router = router
        self._clock = clock
        # Each message needs it, and the property parses a string.
        self._delay_levels_s = store.config.delay_levels_s
        self._timeout_s = store.config.of_group(producer_group).transaction_timeout_s
        self._logs = _LogCommits(store, producer_group, clock)
        close_at_exit(self.close)

    def now_ms(self) -> int:
        """The time of the producer's clock."""
        return self._clock.now_ms()

    def check_open(self) -> None:
        """Raise ClosedError if nothing more can be committed."""
        self._logs.halves.check_usable()

    def close(self) -> None:
        """Wait for running commits and end the committing threads."""
        self._logs.close()

    def attempt_of(self, key: IdempotencyKey) -> str:
        """The id of the first attempt that was not rolled back or expired; 0 commits."""
        ids, reader = _KeyIds(self.producer_group), EndReader(self.store.tables.logs())
        (attempt,) = attempts_that_count([key], ids, reader.ends_of)
        return attempt.transaction_id

    def is_prepared(self, transaction_id: str) -> bool:
        """Whether an earlier try made all halves durable and the transaction is open; 0 commits.

        Raises: AlreadyResolvedError, IncompleteTransactionError.
        """
        logs = self.store.tables.logs()
        resolution = EndReader(logs).end_of(transaction_id)
        halves = logs.half.halves(transaction_id)
        if resolution.state is TransactionState.PENDING and (halves is None or not halves.problem):
            return halves is not None
        if halves is not None and halves.problem:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        raise AlreadyResolvedError(transaction_id, resolution.state.value, resolution.source)

    def count_before_end(self, transaction_id: str, state: LocalTransactionState) -> int | None:
        """The message count of the head, after a check that this group may ask for this end.

        Raises: TransactionNotFoundError, ProducerGroupMismatchError, IncompleteTransactionError.
        """
        halves = self.store.tables.half_log().halves(transaction_id)
        if halves is None:
            raise TransactionNotFoundError(transaction_id)
        if halves.producer_group != self.producer_group:
            raise ProducerGroupMismatchError(
                transaction_id, halves.producer_group, self.producer_group
            )
        if halves.problem and state is LocalTransactionState.COMMIT:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        return halves.message_count

    def half_of(
        self, send: PlannedSend, *, in_turn: bool = True, ordinary: bool = False
    ) -> HalfTransaction:
        """The halves of a transaction that is sent message by message; 0 commits."""
        messages = send.messages
        queues = self._router.queues_of(send.routed, in_turn=in_turn)
        origin = self._origin(send.transaction_id, messages, ordinary=ordinary)
        return HalfTransaction(origin, messages, queues, len(messages))

    def prepare(
        self, transaction_id: str, routed: Sequence[RoutedMessage], *, in_turn: bool = True
    ) -> None:
        """Append all halves of a transaction: one commit, shared.

        Without `in_turn` the queue of a message follows from its place in the transaction, so that
        two concurrent tries choose the same queues.
        """
        send = PlannedSend(transaction_id, routed)
        half = self.half_of(send, in_turn=in_turn)
        with self.hooks.sending(transaction_id, send.messages):
            self.append_halves([[half]])

    def append_halves(self, commits: Sequence[Sequence[HalfTransaction]]) -> None:
        """Append transactions, each list in one shared commit; return when all are durable."""
        futures = [
            self._logs.halves.submit(halves, sum([half.rows for half in halves]))
            for halves in commits
        ]
        for future in futures:
            future.result()

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
        *,
        in_turn: bool = True,
    ) -> None:
        """Append all halves of a transaction with DataFrames: one commit, not shared."""
        messages = PlannedSend(transaction_id, routed).messages
        origin = self._origin(transaction_id, messages)
        queues = self._router.queues_of(routed, in_turn=in_turn)
        with self.hooks.sending(transaction_id, messages, [send.topic for send in sends]):
            self._logs.commit_dataframes(
                HalfTransaction(origin, messages, queues, len(messages)),
                sends,
                self._router.send_limits,
            )

    def end(self, end: AskedEnd) -> None:
        """Claim the end of a transaction and confirm that it took effect: one commit, shared.

        Raises: AlreadyResolvedError.
        """
        begun_s, resolution = time.monotonic(), None
        try:
            (resolution,) = self.append_ends([(end.transaction_id, end.kind)])
            resolution.confirm(end.transaction_id, end.kind)
        except BaseException as error:
            self.hooks.ended(end, resolution, error, begun_s)
            raise
        self.hooks.ended(end, resolution, begun_s=begun_s)

    def append_ends(self, ends: Sequence[tuple[str, ClaimKind]]) -> Sequence[Resolution]:
        """Claim ends in one shared commit, and read the state of each transaction after it."""
        if not ends:
            return ()
        return self._logs.ends.submit(ends, len(ends)).result()

    def recall(self, transaction_id: str, sequence: int) -> None:
        """Claim the RECALL of a delayed message and confirm it: one commit, shared.

        Raises: NotRecalledError, TransactionNotFoundError, ProducerGroupMismatchError.
        """
        if self._recalled(transaction_id, sequence):
            return
        row = OpRow(
            transaction_id, ClaimKind.RECALL, self.producer_group, ClaimSource.PRODUCER,
            self.now_ms(), sequences=(sequence,),
        )  # fmt: skip
        self._logs.recalls.submit(row, 1).result()
        self._recalled(transaction_id, sequence)

    def _recalled(self, transaction_id: str, sequence: int) -> bool:
        """Whether it is recalled already. Raises: NotRecalledError if it cannot be recalled."""
        standing = RecallCheck(self.store).standing(transaction_id, sequence, self.producer_group)
        problem = recall_problem(standing)
        if problem:
            address = message_id(transaction_id, sequence)
            state = standing.delivery or standing.state
            raise NotRecalledError(address, state.value, problem)
        return standing.delivery is DeliveryState.RECALLED

    @property
    def client_id(self) -> str:
        """The id of this producer alone; the heads of its transactions carry it."""
        return self._logs.client_id

    def _origin(
        self, transaction_id: str, messages: Sequence[Message], *, ordinary: bool = False
    ) -> HalfOrigin:
        timeout_s = self._timeout_s
        immunity_s = max((m.immunity_time_s(timeout_s) for m in messages), default=timeout_s)
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


class _KeyIds(NamedTuple):
    """The ids of the attempts under an idempotency key."""

    producer_group: str

    def candidates(self, key: IdempotencyKey, attempt: int) -> tuple[str]:
        return (self.new(key, attempt),)

    def new(self, key: IdempotencyKey, attempt: int) -> str:
        return key.transaction_id(self.producer_group, attempt)


class _LogCommits:
    """The committing threads of one producer: for halves, for ends and for recalls."""

    def __init__(self, store: Store, producer_group: str, clock: Clock) -> None:
        self._half = store.tables.half_log()
        self._store, self._producer_group = store, producer_group
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
        self.halves: GroupCommitter[Sequence[HalfTransaction], None] = self._committer(
            self._commit_halves, "txmq-half"
        )
        self.ends: GroupCommitter[Ends, list[Resolution]] = self._committer(
            self._commit_ends, "txmq-op"
        )
        # Recalls are rare; a thread and a table handle of their own keep the code of ends simple.
        self.recalls: GroupCommitter[OpRow, None] = self._committer(
            self._commit_recalls, "txmq-recall"
        )

    def _committer(
        self, commit: Callable[[list[Item]], Sequence[Answer]], name: str
    ) -> GroupCommitter[Item, Answer]:
        config = self._store.config
        return GroupCommitter(
            commit,
            name=f"{name}-{self._producer_group}",
            max_rows=config.group_commit_max_rows,
        )

    def close(self) -> None:
        self.halves.close()
        self.ends.close()
        self.recalls.close()

    def _commit_halves(self, items: list[Sequence[HalfTransaction]]) -> list[None]:
        rows, half = half_table(chain.from_iterable(items)), self._half.table
        reached(FailPoint.HALF_READY)
        self._half_commits.commit(
            rows, lambda app_id, number: half.append(rows, app_id=app_id, number=number)
        )
        reached(FailPoint.HALF_COMMITTED)
        return [None] * len(items)

    def commit_dataframes(
        self,
        single: HalfTransaction,
        sends: Sequence[DataFrameSend],
        limits_of: Callable[[str], SendLimits],
    ) -> None:
        """Commit the halves of a transaction with DataFrames; the file of the head is last.

        Args:
            single: the messages that were sent one by one, with the head.
            sends: the DataFrames.
            limits_of: the limits of a topic.
        """
        half = self._store.tables.half_log().table
        first = single.rows
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
        head = half.new_files(half_table([single._replace(message_count=count)]))
        reached(FailPoint.FRAMES_WRITTEN)
        with self._frame_lock:
            number = next(self._frame_numbers)
            half.append_files([*files, *head], app_id=self._frame_session, number=number)
        reached(FailPoint.FRAMES_COMMITTED)

    def _commit_ends(self, items: list[Ends]) -> list[list[Resolution]]:
        ends = list(chain.from_iterable(items))
        answers = iter(self._end_commits.commit(ends))
        return [list(islice(answers, len(item))) for item in items]

    def _commit_recalls(self, rows: list[OpRow]) -> list[None]:
        self._recall_claims.append(rows)
        return [None] * len(rows)
