"""What a producer writes: halves and ends, in commits that its threads share."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from txmq.body_schema import BodySchema
from txmq.clock import Clock
from txmq.dataframe_send import (
    SEQUENCES_PER_DATAFRAME,
    DataFrameSend,
    SendLimits,
)
from txmq.delivery_look import DeliveryLook, recall_problem
from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    InvalidMessageError,
    InvalidQueueError,
    NotRecalledError,
    TopicConflictError,
    shown,
)
from txmq.fail_points import FailPoint, reached
from txmq.group_commit import Answer, GroupCommitter, Row
from txmq.half_log import HalfOrigin, HalfRow, half_rows, half_table, head_row
from txmq.hooks import Hooks
from txmq.idempotency import IdempotencyKey
from txmq.lifecycle import ClaimKind, ClaimSource, DeliveryState, TransactionState
from txmq.message import Message, message_id
from txmq.namespaces import namespace_of, unwrapped, wrapped
from txmq.op_log import OpLog, OpRow, op_table
from txmq.producer_hooks import AskedEnd, ProducerHooks
from txmq.resolution import Resolution, Resolver
from txmq.storage import Table
from txmq.topic_catalog import TopicCatalog

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.store import Store

REOPEN_AFTER_COMMITS = 100
_TRIED_AGAIN = (TransactionState.ROLLED_BACK, TransactionState.EXPIRED)


class ProducerCommits:
    """All that one producer makes durable; its transactions call it from many threads."""

    def __init__(
        self, store: Store, producer_group: str, clock: Clock, hooks: Hooks | None = None
    ) -> None:
        """`producer_group` is the stored name; open nothing yet."""
        self.store = store
        self.producer_group = producer_group
        self._namespace = namespace_of(producer_group)
        self.hooks = ProducerHooks(hooks or Hooks(), producer_group)
        self.queues = QueueChoice(store)
        self._clock = clock
        # Asked for each message, and made of strings.
        self._delay_levels_s = store.config.delay_levels_s
        self._timeout_s = store.config.of_group(producer_group).transaction_timeout_s
        self._logs = _LogCommits(store, producer_group)

    def now_ms(self) -> int:
        """The producer's clock."""
        return self._clock.now_ms()

    def stored_topic(self, topic: str) -> str:
        """The name of a topic inside this producer's namespace, as it is stored."""
        return wrapped(topic, self._namespace)

    def check_open(self) -> None:
        """Raise ClosedError where nothing more can be committed."""
        self._logs.halves.check_usable()

    def close(self) -> None:
        """Wait for commits on their way."""
        self._logs.close()

    def close_halves(self) -> None:
        """Wait for halves on their way; ends are taken still."""
        self._logs.halves.close()

    def attempt_of(self, key: IdempotencyKey) -> str:
        """The id of the first attempt that was not rolled back or expired; 0 commits."""
        resolver = self._logs.new_resolver()
        for attempt in itertools.count():
            transaction_id = key.transaction_id(self.producer_group, attempt)
            if resolver.resolution(transaction_id).state not in _TRIED_AGAIN:
                return transaction_id
        raise AssertionError

    def is_prepared(self, transaction_id: str) -> bool:
        """Whether an earlier try made all halves durable and nobody ended it; 0 commits.

        Raises: AlreadyResolvedError, IncompleteTransactionError.
        """
        resolution = self._logs.new_resolver().resolution(transaction_id)
        halves = self.store.half_log().halves(transaction_id)
        if resolution.state is TransactionState.PENDING and (halves is None or not halves.problem):
            return halves is not None
        if halves is not None and halves.problem:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        raise AlreadyResolvedError(transaction_id, resolution.state.value, resolution.source)

    def half_rows(
        self, transaction_id: str, routed: Sequence[Routed], *, in_turn: bool, ordinary: bool
    ) -> list[HalfRow]:
        """The rows of a transaction that is sent message by message; nothing is written."""
        messages = [each.message for each in routed]
        queues = self.queues.queues_of(routed, in_turn=in_turn)
        origin = self._origin(transaction_id, messages, ordinary=ordinary)
        return half_rows(origin, messages, queues, len(messages))

    def prepare(
        self, transaction_id: str, routed: Sequence[Routed], *, in_turn: bool = True
    ) -> None:
        """All halves of a transaction: one commit, shared with others.

        Not `in_turn`: queues follow from the message's place, so that two tries at once agree.
        """
        rows = self.half_rows(transaction_id, routed, in_turn=in_turn, ordinary=False)
        with self.hooks.sending(transaction_id, [each.message for each in routed]):
            self._logs.halves.submit(rows).result()

    def prepare_then(
        self,
        rows: list[HalfRow],
        done: Callable[[BaseException | None], None],
        *,
        is_patient: bool,
    ) -> None:
        """Make rows durable; `done` is called by the thread that commits them.

        Rows of patient callers alone gather for `group_commit_linger_ms` first.
        """
        halves = self._logs.halves
        halves.submit_then(rows, lambda _, error: done(error), is_patient=is_patient)

    def prepare_dataframes(
        self,
        transaction_id: str,
        sends: Sequence[DataFrameSend],
        routed: Sequence[Routed],
        *,
        in_turn: bool = True,
    ) -> None:
        """All halves of a transaction with DataFrames: one commit of its own."""
        messages = [each.message for each in routed]
        origin = self._origin(transaction_id, messages)
        queues = self.queues.queues_of(routed, in_turn=in_turn)
        limits_of = partial(self.queues.send_limits, now_ms=self.now_ms())
        with self.hooks.sending(transaction_id, messages, [send.topic for send in sends]):
            self._logs.commit_dataframes(
                origin, sends, limits_of, lambda count: half_rows(origin, messages, queues, count)
            )

    def end(self, end: AskedEnd) -> None:
        """The end of a transaction: one commit, shared; returns if it is the one that counts.

        Raises: AlreadyResolvedError.
        """
        begun_s, found = time.monotonic(), None
        try:
            row = self._end_row(end.transaction_id, end.kind)
            found = self._logs.ends.submit([row]).result()[0]
            found.confirm(end.transaction_id, end.kind)
        except BaseException as error:
            self.hooks.ended(end, found, error, begun_s)
            raise
        self.hooks.ended(end, found, begun_s=begun_s)

    def end_then(
        self,
        ends: Sequence[tuple[str, ClaimKind]],
        done: Callable[[Sequence[Resolution], BaseException | None], None],
        *,
        is_patient: bool,
    ) -> None:
        """Ends of several transactions in one commit; `done` is told where each of them stands."""
        rows = [self._end_row(transaction_id, kind) for transaction_id, kind in ends]
        self._logs.ends.submit_then(rows, done, is_patient=is_patient)

    def recall(self, transaction_id: str, sequence: int) -> None:
        """Claim that a delayed message is never to be delivered: one commit, shared.

        Raises: NotRecalledError, TransactionNotFoundError, ProducerGroupMismatchError.
        """
        if self._recalled(transaction_id, sequence):
            return
        row = replace(self._end_row(transaction_id, ClaimKind.RECALL), sequences=(sequence,))
        self._logs.recalls.submit([row]).result()
        self._recalled(transaction_id, sequence)

    def _recalled(self, transaction_id: str, sequence: int) -> bool:
        """Whether it is recalled already; raises where it cannot be (any more)."""
        look = DeliveryLook(self.store)
        standing = look.standing(transaction_id, sequence, self.producer_group)
        problem = recall_problem(standing)
        if problem:
            own_id = message_id(transaction_id, sequence)
            state = standing.delivery or standing.state
            raise NotRecalledError(own_id, state.value, problem)
        return standing.delivery is DeliveryState.RECALLED

    def _end_row(self, transaction_id: str, kind: ClaimKind) -> OpRow:
        now_ms = self._clock.now_ms()
        return OpRow(transaction_id, kind, self.producer_group, ClaimSource.PRODUCER, now_ms)

    @property
    def client_id(self) -> str:
        """Names this producer alone; heads carry it."""
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


QueueSelector = Callable[[Message, int], int]


@dataclass(frozen=True, slots=True)
class Routed:
    """A message and the queue that its sender chose; None: by its sharding key, or in turn."""

    message: Message
    queue_id: int | None = None


class QueueChoice:
    """Which queue of a topic a message goes to, and whether the topic takes it."""

    def __init__(self, store: Store) -> None:
        """Look at the store's topics only when a topic is new."""
        self._store = store
        self._turn = itertools.count()
        self._spelled: dict[str, str] = {}
        self._catalog = TopicCatalog(store)

    def send_limits(self, topic: str, now_ms: int) -> SendLimits:
        """What a row of a DataFrame for a topic may hold."""
        config = self._store.config
        return SendLimits(
            config.max_message_size_bytes,
            config.max_properties_size_bytes,
            self._catalog.queue_count(topic),
            config.timer_max_delay_s,
            now_ms,
        )

    def routed(
        self,
        message: Message,
        queue_id: object = None,
        queue_selector: QueueSelector | None = None,
    ) -> Routed:
        """The message and the queue that its sender chose, if any.

        Raises: InvalidQueueError where the topic has no such queue, or a sharding key says another.
        """
        if queue_id is None and queue_selector is None:
            return Routed(message)
        count = self._catalog.queue_count(message.topic)
        if queue_selector is not None:
            _check_one_choice(message, queue_id)
            if not callable(queue_selector):
                problem = f"must be callable, not {type(queue_selector).__name__}"
                raise InvalidQueueError("queue_selector", problem)
            queue_id = queue_selector(_as_sent(message), count)
        _check_one_choice(message, None)
        return Routed(message, _checked_queue(queue_id, count))

    def queues_of(self, routed: Sequence[Routed], *, in_turn: bool) -> list[int]:
        """As chosen, else by sharding key, else in turn or by the place among these messages."""
        turns = self._turn if in_turn else itertools.count()
        return [self._queue_of(each, turns) for each in routed]

    def _queue_of(self, routed: Routed, turns: Iterator[int]) -> int:
        if routed.queue_id is not None:
            return routed.queue_id
        count = self._catalog.queue_count(routed.message.topic)
        key = routed.message.sharding_key
        if key is None:
            return next(turns) % count
        # Spark's crc32 gives the same number for the same bytes.
        return zlib.crc32(key.encode()) % count

    def check_message(self, message: Message, *, is_transactional: bool) -> None:
        """Raise where its topic does not take it.

        Raises: TopicConflictError, TopicNotFoundError, TopicKindError, InvalidBodyError,
            StorageError.
        """
        self.check_topic(message.topic)
        self._catalog.check_kind(
            message.topic,
            is_transactional=is_transactional,
            is_delayed=message.is_delayed,
            has_sharding_key=message.sharding_key is not None,
        )
        self._catalog.check_body(message.topic, message.body)

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has, or would have."""
        return self._catalog.queue_count(topic)

    def body_schema(self, topic: str) -> BodySchema | None:
        """What the bodies of a topic must be; None if they may be any bytes."""
        return self._catalog.body_schema(topic)

    def check_dataframe(self, topic: str, columns: Sequence[str]) -> None:
        """As `check_message`, for the rows of a DataFrame, which are transactional."""
        self.check_topic(topic)
        self._catalog.check_kind(
            topic,
            is_transactional=True,
            is_delayed=bool({"delay_s", "deliver_timestamp"} & set(columns)),
            has_sharding_key="sharding_key" in columns,
        )

    def check_topic(self, topic: str) -> None:
        """Raise TopicConflictError for a second spelling, TopicNotFoundError for an unknown one."""
        folded = topic.lower()
        if folded not in self._spelled:
            self._spelled.update({name.lower(): name for name in self._store.topics()})
        known = self._spelled.get(folded, topic)
        if known != topic:
            rule = f"the topic {known} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)
        self._catalog.check_is_there(topic)
        self._spelled[folded] = topic


def _as_sent(message: Message) -> Message:
    """With the name of its topic as its sender wrote it."""
    return message.to_stored_topic(unwrapped(message.topic))


def _check_one_choice(message: Message, queue_id: object) -> None:
    if message.sharding_key is not None:
        problem = "cannot be chosen for a message with a sharding_key; leave one of them out"
        raise InvalidQueueError("queue_id", problem)
    if queue_id is not None:
        raise InvalidQueueError("queue_id", "and queue_selector are both given; pass one")


def _checked_queue(queue_id: object, count: int) -> int:
    # bool is an int in Python.
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise InvalidQueueError("queue_id", f"must be an int, not {type(queue_id).__name__}")
    if not 0 <= queue_id < count:
        raise InvalidQueueError("queue_id", f"must be from 0 to {count - 1}, not {shown(queue_id)}")
    return queue_id


class _LogCommits:
    """The two committing threads of a process, one a log, and the look after each end."""

    def __init__(self, store: Store, producer_group: str) -> None:
        session = uuid.uuid4()
        self._half, self._op = store.half_log(), store.op_log()
        self._store, self._producer_group = store, producer_group
        self.client_id = str(session)
        self._session = f"txmq-producer/{session}"
        # DataFrames commit in their callers' threads. Under one number with the half thread, a
        # commit of either would answer for a lost one of the other.
        self._frame_session = f"txmq-producer/{uuid.uuid4()}"
        self._recall_session = f"txmq-producer/{uuid.uuid4()}"
        self._frame_lock = threading.Lock()
        # One queue a process: a group commit is then one file.
        self.queue_id = session.int % store.config.half_queues
        self._resolver: Resolver | None = None
        self._numbers = itertools.count(1)
        self.halves: GroupCommitter[HalfRow, None] = self._committer(
            self._commit_halves, "txmq-half"
        )
        self.ends: GroupCommitter[OpRow, Resolution] = self._committer(self._commit_ends, "txmq-op")
        # Recalls are few; a thread and a handle of their own keep the ends' look simple.
        self._recall_op: OpLog | None = None
        self.recalls: GroupCommitter[OpRow, None] = self._committer(
            self._commit_recalls, "txmq-recall"
        )

    def _committer(
        self, commit: Callable[[list[Row]], Sequence[Answer]], name: str
    ) -> GroupCommitter[Row, Answer]:
        config = self._store.config
        return GroupCommitter(
            commit,
            name=f"{name}-{self._producer_group}",
            max_rows=config.group_commit_max_rows,
            max_waiting=config.back_pressure_for_async_send_num,
            linger_s=config.group_commit_linger_ms / 1000,
        )

    def close(self) -> None:
        self.halves.close()
        self.ends.close()
        self.recalls.close()

    def _commit_halves(self, rows: list[HalfRow]) -> list[None]:
        self._append_halves(half_table(rows))
        return [None] * len(rows)

    def _append_halves(self, rows: pa.Table) -> None:
        number = next(self._numbers)
        reached(FailPoint.HALF_READY)
        self._half.table.append(rows, app_id=self._session, number=number)
        reached(FailPoint.HALF_COMMITTED)
        _reopen_sometimes(self._half.table, number)

    def commit_dataframes(
        self,
        origin: HalfOrigin,
        sends: Sequence[DataFrameSend],
        limits_of: Callable[[str], SendLimits],
        message_rows: Callable[[int], list[HalfRow]],
    ) -> None:
        """All halves of a transaction with DataFrames, one commit; the head is written last."""
        half = self._store.half_log().table
        message_count = len(message_rows(0))
        first = max(message_count, 1)
        files = [
            file
            for place, send in enumerate(sends)
            for file in send.write(
                half, origin, first + place * SEQUENCES_PER_DATAFRAME, limits_of(send.topic)
            )
        ]
        count = message_count + sum(file.num_records for file in files)
        if count == 0:
            raise InvalidMessageError("transaction", "has no message; the DataFrame is empty")
        head = half.new_files(half_table(message_rows(count) or [head_row(origin, count)]))
        reached(FailPoint.FRAMES_WRITTEN)
        with self._frame_lock:
            number = next(self._numbers)
            half.append_files([*files, *head], app_id=self._frame_session, number=number)
        reached(FailPoint.FRAMES_COMMITTED)

    def _commit_ends(self, rows: list[OpRow]) -> list[Resolution]:
        number = next(self._numbers)
        table = op_table(rows, self.queue_id)
        reached(FailPoint.END_READY)
        self._op.table.append(table, app_id=self._session, number=number)
        reached(FailPoint.END_COMMITTED)
        answers = self._looker().resolutions(rows)
        reached(FailPoint.END_CONFIRMED)
        _reopen_sometimes(self._op.table, number)
        return answers

    def _commit_recalls(self, rows: list[OpRow]) -> list[None]:
        if self._recall_op is None:
            self._recall_op = self._store.op_log()
        number = next(self._numbers)
        self._recall_op.append(rows, self.queue_id, app_id=self._recall_session, number=number)
        return [None] * len(rows)

    def new_resolver(self) -> Resolver:
        """With handles of its own, for the calling thread."""
        op = self._store.op_log()
        settled = self._store.settled_log(op.table.table_id)
        return Resolver(self._store.half_log(), op, settled)

    def _looker(self) -> Resolver:
        if self._resolver is None:
            settled = self._store.settled_log(self._op.table.table_id)
            self._resolver = Resolver(self._store.half_log(), self._op, settled)
        return self._resolver


def _reopen_sometimes(table: Table, number: int) -> None:
    # A handle grows with each commit it makes.
    if number % REOPEN_AFTER_COMMITS == 0:
        table.reopen()
