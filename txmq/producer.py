"""The producer: half messages first, then the user's local transaction, then its end."""

from __future__ import annotations

import enum
import itertools
import logging
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from txmq.clock import Clock, SystemClock, timestamp
from txmq.dataframe_send import SEQUENCES_PER_DATAFRAME, DataFrameSend, SendLimits, partition_of
from txmq.data_files import write_file
from txmq.errors import (
    AlreadyPreparedError,
    BatchTooLargeError,
    IncompleteTransactionError,
    InvalidMessageError,
    InvalidMessageTypeError,
    ListenerError,
    NotAcceptedError,
    NotEndedError,
    NotPreparedError,
    ProducerGroupMismatchError,
    TopicConflictError,
    TransactionNotFoundError,
)
from txmq.group_commit import GroupCommitter
from txmq.half_log import HalfOrigin, HalfRow, half_rows, half_table, head_row
from txmq.lifecycle import ClaimKind, ClaimSource
from txmq.listeners import HalfMessage, TransactionListener, answer_of, check_listener
from txmq.message import (
    LocalTransactionState,
    Message,
    check_transaction_id,
    message_id,
    new_transaction_id,
)
from txmq.names import check_group, check_topic
from txmq.op_log import OpRow, op_table
from txmq.resolution import Resolution, Resolver
from txmq.schemas import HALF
from txmq.storage import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txmq.store import Store

logger = logging.getLogger(__name__)

REOPEN_AFTER_COMMITS = 100
_END_KINDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What `send_message_in_transaction` came to; UNKNOWN leaves the end to the check service."""

    transaction_id: str
    message_id: str
    local_transaction_state: LocalTransactionState


class _Phase(enum.Enum):
    COLLECTING = "collecting"
    PREPARED = "prepared"
    ENDED = "ended"


class TransactionProducer:
    """Sends messages that become visible if and only if a local transaction took place.

    Needs no Spark. Safe for many threads, which share commits; a forked process needs its own.

    Args:
        store: where the logs are.
        producer_group: who may end these transactions.
        listener: needed by `send_message_in_transaction` only.

    Example:
        >>> with producer.begin_transaction() as transaction:
        ...     transaction.send(Message("order-paid", b"42", keys="order-42"))
        ...     transaction.prepare()
        ...     transaction.commit()
    """

    def __init__(
        self,
        store: Store,
        *,
        producer_group: str,
        listener: TransactionListener | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Check the group and the listener; nothing is read or written yet."""
        self.store = store
        self.producer_group = check_group(producer_group)
        self.clock: Clock = clock or SystemClock()
        self._listener = None if listener is None else check_listener(producer_group, listener)
        self._queues = _QueueChoice(store)
        self._commits = _Commits(store, self.producer_group)

    # --- sending --------------------------------------------------------------------------

    def send_message_in_transaction(
        self, message: Message, argument: object = None
    ) -> TransactionSendResult:
        """RocketMQ's call: half durable, then `execute_local_transaction`, then the end (R5-R9).

        Commits: one to half; one to op unless the answer was UNKNOWN (an exception is UNKNOWN and
        is not raised again, R7).

        Raises: MessageError and StorageError before the listener is called (R6);
            AlreadyResolvedError if the check came first with another end.
        """
        if self._listener is None:
            raise ListenerError("none", "send_message_in_transaction needs one; pass listener=")
        transaction = self.begin_transaction()
        transaction.send(message)
        transaction.prepare()
        state = self._executed(self._listener, transaction, message, argument)
        if state is not LocalTransactionState.UNKNOWN:
            transaction.end(_END_KINDS[state])
        return TransactionSendResult(transaction.id, message_id(transaction.id, 0), state)

    def begin_transaction(self) -> Transaction:
        """A transaction of one to many messages to one to many topics; 0 commits."""
        if self.store.config.reject_transaction_message:
            message = "the store takes no transactions now (reject_transaction_message); try later"
            raise NotAcceptedError(message)
        self._commits.check_open()
        return Transaction(self, new_transaction_id(self.clock.now_ms()))

    def end_transaction(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction that any process of this group prepared; UNKNOWN changes nothing (R34).

        Commits: one to op. Returns when the end asked for is durable and is the transaction's end.

        Raises: TransactionNotFoundError, ProducerGroupMismatchError (R37),
            IncompleteTransactionError, AlreadyResolvedError.
        """
        if not isinstance(state, LocalTransactionState):
            problem = f"must be a LocalTransactionState, not {type(state).__name__}"
            raise InvalidMessageTypeError("state", problem)
        self._check_may_end(check_transaction_id(transaction_id), state)
        if state is not LocalTransactionState.UNKNOWN:
            self._end(transaction_id, _END_KINDS[state])

    def close(self) -> None:
        """Wait for commits on their way; later calls raise ClosedError."""
        self._commits.close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close whatever happened."""
        self.close()

    # --- what transactions call -------------------------------------------------------------

    def _prepare(self, transaction: Transaction, messages: Sequence[Message]) -> None:
        queues = [self._queues.queue_of(message) for message in messages]
        origin = self._origin(transaction.id, messages)
        self._commits.halves.submit(half_rows(origin, messages, queues, len(messages))).result()

    def _prepare_dataframes(
        self, transaction: Transaction, sends: Sequence[DataFrameSend], messages: Sequence[Message]
    ) -> None:
        origin = self._origin(transaction.id, messages)
        queues = [self._queues.queue_of(message) for message in messages]
        limits = self._queues.send_limits()
        self._commits.commit_dataframes(
            origin, sends, limits, lambda count: half_rows(origin, messages, queues, count)
        )

    def _origin(self, transaction_id: str, messages: Sequence[Message]) -> HalfOrigin:
        timeout_s = self.store.config.transaction_timeout_s
        immunity_s = max((m.immunity_time_s(timeout_s) for m in messages), default=timeout_s)
        return HalfOrigin(
            transaction_id,
            self.producer_group,
            self._commits.queue_id,
            immunity_s,
            self.clock.now_ms(),
        )

    def _end(self, transaction_id: str, kind: ClaimKind) -> None:
        now_ms = self.clock.now_ms()
        row = OpRow(transaction_id, kind, self.producer_group, ClaimSource.PRODUCER, now_ms)
        resolution = self._commits.ends.submit([row]).result()[0]
        resolution.confirm(transaction_id, kind)

    def _check_may_end(self, transaction_id: str, state: LocalTransactionState) -> None:
        half = self.store.half_log()
        halves = half.halves(transaction_id)
        if halves is None:
            raise TransactionNotFoundError(transaction_id)
        if halves.producer_group != self.producer_group:
            raise ProducerGroupMismatchError(
                transaction_id, halves.producer_group, self.producer_group
            )
        if halves.problem and state is LocalTransactionState.COMMIT:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)

    def _executed(
        self,
        listener: TransactionListener,
        transaction: Transaction,
        message: Message,
        argument: object,
    ) -> LocalTransactionState:
        half = _half_message(transaction.id, self.producer_group, message, self.clock.now_ms())
        try:
            answer = listener.execute_local_transaction(half, argument)
        except Exception as error:  # noqa: BLE001 - R7: an exception is UNKNOWN
            logger.warning("transaction %s: listener raised %s", transaction.id, type(error).__name__)
            return LocalTransactionState.UNKNOWN
        state, problem = answer_of(answer)
        if problem:
            logger.warning("transaction %s: %s", transaction.id, problem)
        return state


class Transaction:
    """Messages that share one fate; made by `begin_transaction`, used by one thread.

    send… prepare() – local transaction – commit() or rollback(). A crash after prepare() leaves
    the end to the check service; a block left by an exception does so too, for the local
    transaction may have been done.
    """

    def __init__(self, producer: TransactionProducer, transaction_id: str) -> None:
        """Use `begin_transaction`."""
        self.id = transaction_id
        self._producer = producer
        self._messages: list[Message] = []
        self._dataframes: list[DataFrameSend] = []
        self._size_bytes = 0
        self._phase = _Phase.COLLECTING

    def send(self, message: Message) -> str:
        """Add a message; returns its message_id. Nothing is written before `prepare()`.

        Raises: MessageTooLargeError, BatchTooLargeError, PropertyLimitError, TopicConflictError,
            AlreadyPreparedError.
        """
        if not isinstance(message, Message):
            problem = f"must be a Message, not {type(message).__name__}"
            raise InvalidMessageTypeError("message", problem)
        self._check_collecting()
        self._check_sizes(message)
        self._producer._queues.check_topic_case(message.topic)
        self._messages.append(message)
        self._size_bytes += message.body_size_bytes
        return message_id(self.id, len(self._messages) - 1)

    def send_dataframe(self, dataframe: DataFrame, *, topic: str) -> None:
        """Add each row of a DataFrame as a message; it is computed and written by `prepare()`.

        Columns: body (binary or string); optional tags, keys, sharding_key (string) and
        properties (map of string to string); no others.

        Raises: SchemaMismatchError, InvalidNameError, AlreadyPreparedError.
        """
        self._check_collecting()
        send = DataFrameSend(dataframe, check_topic(topic))
        self._producer._queues.check_topic_case(topic)
        self._dataframes.append(send)

    def prepare(self) -> None:
        """Make all halves durable in one commit; the line before the local transaction.

        Raises: StorageError: nothing may be assumed durable, and the local transaction must
            not run.
        """
        self._check_collecting()
        if not self._messages and not self._dataframes:
            raise InvalidMessageError("transaction", "has no message; call send() first")
        if self._dataframes:
            self._producer._prepare_dataframes(self, self._dataframes, self._messages)
        else:
            self._producer._prepare(self, self._messages)
        self._phase = _Phase.PREPARED

    def commit(self) -> None:
        """Make the messages visible: one op row, durable on return.

        Raises: NotPreparedError; AlreadyResolvedError if it has another end already.
        """
        self.end(ClaimKind.COMMIT)

    def rollback(self) -> None:
        """Drop the messages; before `prepare()` there is nothing to write."""
        if self._phase is _Phase.COLLECTING:
            self._phase = _Phase.ENDED
            return
        self.end(ClaimKind.ROLLBACK)

    def end(self, kind: ClaimKind) -> None:
        """Write the end and confirm that it is the one that took effect."""
        if self._phase is _Phase.COLLECTING:
            raise NotPreparedError(self.id)
        self._phase = _Phase.ENDED
        self._producer._end(self.id, kind)

    def __enter__(self) -> Self:
        """The block must call commit() or rollback()."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """An exception leaves the end to the check; a block without an end raises."""
        if kind is None and self._phase is not _Phase.ENDED:
            raise NotEndedError(self.id)

    def _check_collecting(self) -> None:
        if self._phase is not _Phase.COLLECTING:
            raise AlreadyPreparedError(self.id)

    def _check_sizes(self, message: Message) -> None:
        config = self._producer.store.config
        message.check_sizes(
            max_message_size_bytes=config.max_message_size_bytes,
            max_properties_size_bytes=config.max_properties_size_bytes,
        )
        size_bytes = self._size_bytes + message.body_size_bytes
        if size_bytes > config.max_transaction_size_bytes:
            raise BatchTooLargeError(
                "transaction bytes", size_bytes, config.max_transaction_size_bytes
            )


class _QueueChoice:
    """Which queue of a topic a message goes to, and that no two topics differ in case alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = itertools.count()
        self._spelled: dict[str, str] = {}
        self.queue_count = store.config.default_topic_queue_nums

    def send_limits(self) -> SendLimits:
        config = self._store.config
        return SendLimits(
            config.max_message_size_bytes, config.max_properties_size_bytes, self.queue_count
        )

    def queue_of(self, message: Message) -> int:
        if message.sharding_key is None:
            return next(self._turn) % self.queue_count
        # Spark's crc32 gives the same number for the same bytes.
        return zlib.crc32(message.sharding_key.encode()) % self.queue_count

    def check_topic_case(self, topic: str) -> None:
        folded = topic.lower()
        if folded not in self._spelled:
            self._spelled.update({name.lower(): name for name in self._store.topics()})
        if self._spelled.setdefault(folded, topic) != topic:
            rule = f"the topic {self._spelled[folded]} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)


class _Commits:
    """The two committing threads of a process, one a log, and the look after each end."""

    def __init__(self, store: Store, producer_group: str) -> None:
        session = uuid.uuid4()
        self._half, self._op = store.half_log(), store.op_log()
        self._store = store
        self._session = f"txmq-producer/{session}"
        # One queue a process: a group commit is then one file.
        self.queue_id = session.int % store.config.half_queues
        self._resolver: Resolver | None = None
        self._numbers = itertools.count(1)
        max_rows = store.config.group_commit_max_rows
        self.halves: GroupCommitter[HalfRow, None] = GroupCommitter(
            self._commit_halves, name=f"txmq-half-{producer_group}", max_rows=max_rows
        )
        self.ends: GroupCommitter[OpRow, Resolution] = GroupCommitter(
            self._commit_ends, name=f"txmq-op-{producer_group}", max_rows=max_rows
        )

    def check_open(self) -> None:
        self.halves.check_usable()

    def close(self) -> None:
        self.halves.close()
        self.ends.close()

    def _commit_halves(self, rows: list[HalfRow]) -> list[None]:
        self._append_halves(half_table(rows))
        return [None] * len(rows)

    def _append_halves(self, rows: pa.Table) -> None:
        number = next(self._numbers)
        self._half.table.append(rows, app_id=self._session, number=number)
        _reopen_sometimes(self._half.table, number)

    def commit_dataframes(
        self,
        origin: HalfOrigin,
        sends: Sequence[DataFrameSend],
        limits: SendLimits,
        message_rows: Callable[[int], list[HalfRow]],
    ) -> None:
        """All halves of a transaction with DataFrames, one commit; the head is written last."""
        half = self._store.half_log().table
        message_count = len(message_rows(0))
        first = max(message_count, 1)
        files = [
            file
            for place, send in enumerate(sends)
            for file in send.write(half, origin, first + place * SEQUENCES_PER_DATAFRAME, limits)
        ]
        count = message_count + sum(file.num_records for file in files)
        if count == 0:
            raise InvalidMessageError("transaction", "has no message; the DataFrame is empty")
        rows = half_table(message_rows(count) or [head_row(origin, count)])
        stored = rows.drop_columns(list(HALF.partition_by))
        head = write_file(
            [stored], stored.schema, half.filesystem, HALF.statistics_columns, partition_of(origin)
        )
        half.append_files([*files, head], app_id=self._session, number=next(self._numbers))

    def _commit_ends(self, rows: list[OpRow]) -> list[Resolution]:
        number = next(self._numbers)
        table = op_table(rows, self.queue_id)
        self._op.table.append(table, app_id=self._session, number=number)
        answers = self._looker().resolutions(rows)
        _reopen_sometimes(self._op.table, number)
        return answers

    def _looker(self) -> Resolver:
        if self._resolver is None:
            settled = self._store.settled_log(self._op.table.table_id)
            self._resolver = Resolver(self._store.half_log(), self._op, settled)
        return self._resolver


def _reopen_sometimes(table: Table, number: int) -> None:
    # A handle grows with each commit it makes.
    if number % REOPEN_AFTER_COMMITS == 0:
        table.reopen()


def _half_message(
    transaction_id: str, producer_group: str, message: Message, now_ms: int
) -> HalfMessage:
    return HalfMessage(
        transaction_id=transaction_id,
        message_id=message_id(transaction_id, 0),
        producer_group=producer_group,
        topic=message.topic,
        body=message.body,
        tags=message.tags,
        keys=message.joined_keys,
        properties=message.properties,
        sharding_key=message.sharding_key,
        born_timestamp=timestamp(now_ms),
        message_count=1,
    )
