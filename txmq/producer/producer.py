"""The producer: half messages first, then the user's local transaction, then its end."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Self

from txmq.clock import Clock, SystemClock, timestamp
from txmq.errors import (
    IncompleteTransactionError,
    InvalidMessageTypeError,
    ListenerError,
    NotAcceptedError,
    ProducerGroupMismatchError,
    TransactionNotFoundError,
)
from txmq.hooks import Hook, Hooks
from txmq.lifecycle import ClaimKind
from txmq.listeners.protocol import (
    CheckListener,
    ExecutingListener,
    HalfMessage,
    answer_of,
    check_listener,
    executing_listener,
)
from txmq.listeners.remote_member import RemoteMember
from txmq.message.ids import (
    check_transaction_id,
    checked_key,
    message_address,
    message_id,
    new_transaction_id,
)
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import (
    check_group,
    check_namespace,
    check_stored_group,
    namespace_of,
    unwrapped,
    wrapped,
)
from txmq.producer.asynchronous import AsyncLimits, AsyncSends, Execute
from txmq.producer.commits import ProducerCommits
from txmq.producer.contexts import AskedEnd
from txmq.producer.ordinary import OrdinaryMessages
from txmq.producer.results import SendResult, TransactionSendResult
from txmq.producer.routing import MessageRouter
from txmq.producer.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from datetime import datetime

    from pyspark.sql import SparkSession

    from txmq.producer.routing import QueueSelector
    from txmq.store.config import Config
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

_END_KINDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}


class TransactionProducer:
    """Sends messages that become visible if and only if a local transaction took place.

    Needs no Spark. Safe for many threads, which share commits; a forked process needs its own.

    Args:
        store: where the logs are.
        producer_group: who may end these transactions.
        listener: runs local transactions for `send_message_in_transaction`, and answers checks.
        namespace: in which names of topics and of the group are meant (R94).
        hooks: told of sends and ends, or asked whether a send is forbidden (R89).

    Example:
        >>> with producer.begin_transaction() as transaction:
        ...     transaction.send(Message("order-paid", b"42", keys="order-42"))
        ...     transaction.prepare()
        ...     transaction.commit()
    """

    def __init__(  # noqa: PLR0913 - what a producer is told once
        self,
        store: Store,
        *,
        producer_group: str,
        listener: CheckListener | None = None,
        clock: Clock | None = None,
        namespace: str | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Check the names, the listener and the hooks; nothing is read or written yet.

        `producer_group` of the object is the stored name.
        """
        self.store = store
        self.namespace = None if namespace is None else check_namespace(namespace)
        own = wrapped(check_group(producer_group), self.namespace)
        self.producer_group = check_stored_group(own)
        self._own_group = producer_group
        self.clock: Clock = clock or SystemClock()
        self._listener = None if listener is None else check_listener(producer_group, listener)
        self._hooks = Hooks(hooks)
        self._router = MessageRouter(store, namespace_of(self.producer_group), self.clock)
        self._commits = ProducerCommits(
            store, self.producer_group, self.clock, self._router, self._hooks
        )
        self._member: RemoteMember | None = None
        self._ordinary = OrdinaryMessages(self._commits, self._router)
        self._async = AsyncSends(self._commits, _limits(store.config))
        self._execute: Execute | None = None

    # --- sending --------------------------------------------------------------------------

    def send(
        self,
        messages: Message | Iterable[Message],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> SendResult:
        """Send without a local transaction; durable and acknowledged on return.

        Several messages go to one topic (R96), are acknowledged together, and may be delayed. What
        was not acknowledged is never shown. Commits: one to half and one to op, shared with the
        other threads of this producer.

        Args:
            messages: one, or several to one topic; more than `max_transaction_size_bytes` are
                split into several transactions.
            queue_id: the queue of the topic; else by sharding key, or in turn.
            queue_selector: called with each message and the number of queues, gives its queue_id.

        Raises: MessageError and its kinds before anything is written; ClosedError; StorageError;
            AlreadyResolvedError where it took longer than `transaction_timeout_s` and the check
            rolled it back: send it again.
        """
        return self._ordinary.send(self._ordinary.planned(messages, queue_id, queue_selector))

    def send_async(
        self,
        messages: Message | Iterable[Message],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Future[SendResult]:
        """As `send`, but what `send` returns or raises later is in the future.

        Waits only where `back_pressure_for_async_send_num` sends wait for a commit. Callbacks of
        the future run in a committing thread and must be short.
        """
        return self._async.send(self._ordinary.planned(messages, queue_id, queue_selector))

    def recall(self, message_id: str) -> None:
        """Take back a delayed message before it is due, by any producer of its group; one commit.

        Returns when it is certain never to be delivered; one that was recalled before is fine.

        Raises: NotRecalledError where it was due first, is not delayed, or is not committed (roll
            that back instead); TransactionNotFoundError, ProducerGroupMismatchError.
        """
        self._commits.check_open()
        self._commits.recall(*message_address(message_id))

    def send_message_in_transaction_async(
        self, message: Message, argument: object = None
    ) -> Future[TransactionSendResult]:
        """As `send_message_in_transaction`, without waiting: many share each commit.

        `execute_local_transaction` is called in `local_transaction_threads` threads. Waits only
        where `back_pressure_for_async_send_num` sends wait for a commit.

        Raises at once: MessageError, NotAcceptedError, ListenerError, ClosedError; all else is in
        the future.
        """
        self._check_accepts()
        execute = self._execute or self._executing()
        routed = self._router.accept(message, is_transactional=True)
        return self._async.send_in_transaction(routed, execute, argument)

    def send_message_in_transaction(
        self, message: Message, argument: object = None
    ) -> TransactionSendResult:
        """RocketMQ's call: half durable, then `execute_local_transaction`, then the end (R5-R9).

        Commits: one to half; one to op unless the answer was UNKNOWN (an exception is UNKNOWN and
        is not raised again, R7).

        Raises: MessageError and StorageError before the listener is called (R6);
            AlreadyResolvedError if the check came first with another end.
        """
        executing = executing_listener(self.producer_group, self._listener)
        transaction = self.begin_transaction()
        transaction.send(message)
        transaction.prepare()
        state = self._executed(executing, transaction.id, message, argument)
        if state is LocalTransactionState.UNKNOWN:
            self._commits.hooks.ended(AskedEnd(transaction.id, state, [message], 1), None)
        else:
            transaction.end(_END_KINDS[state])
        return TransactionSendResult(transaction.id, message_id(transaction.id, 0), state)

    def begin_transaction(
        self, *, idempotency_key: str | None = None, key_timestamp: datetime | None = None
    ) -> Transaction:
        """A transaction of one to many messages to one to many topics; 0 commits.

        With a key and its time (aware, both the same in every retry) a retried job continues the
        transaction of its first try: `prepare()` uses halves that are there already and raises
        AlreadyResolvedError where it was committed. After a rollback it is the next attempt, with
        another id. Keys belong to the producer group.

        Raises: NotAcceptedError (R25), ClosedError, InvalidMessageError.
        """
        self._check_accepts()
        if idempotency_key is None and key_timestamp is None:
            own_id = new_transaction_id(self.clock.now_ms())
            return Transaction(self._commits, self._router, own_id, listener=self._listener)
        key = checked_key(
            idempotency_key,
            key_timestamp,
            now_ms=self.clock.now_ms(),
            reserved_s=self.store.config.file_reserved_time_h * 3600,
        )
        attempt = self._commits.attempt_of(key)
        return Transaction(
            self._commits, self._router, attempt, is_keyed=True, listener=self._listener
        )

    def end_transaction(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction that any process of this group prepared; UNKNOWN changes nothing (R34).

        Commits: one to op. Returns when the end asked for is durable and is the transaction's end.

        Raises: TransactionNotFoundError, ProducerGroupMismatchError (R37),
            IncompleteTransactionError, AlreadyResolvedError.
        """
        if not isinstance(state, LocalTransactionState):
            problem = f"must be a LocalTransactionState, not {type(state).__name__}"
            raise InvalidMessageTypeError("state", problem)
        count = self._checked_count(check_transaction_id(transaction_id), state)
        end = AskedEnd(transaction_id, state, message_count=count)
        if state is LocalTransactionState.UNKNOWN:
            self._commits.hooks.ended(end, None)
        else:
            self._commits.end(end)

    def answer_checks(self, *, spark: SparkSession | None = None) -> RemoteMember:
        """Answer questions of the check service about this group until `close()` (R72, R81).

        For check services that have no listener of the group themselves. All producers of the
        group that do so share the questions; the one that sent a transaction is asked first while
        it lives. Starts a thread that looks for questions five times a second; commits: one to
        join, two for each share of questions, one to leave.

        Args:
            spark: needed by a listener that answers with a DataFrame (SetListener).

        Raises: ListenerError without a listener that can answer; ClosedError, StorageError.
        """
        self._commits.check_open()
        if self._listener is None:
            raise ListenerError("none", "answer_checks() needs one; pass listener=")
        if self._member is None or not self._member.is_alive:
            self._member = RemoteMember(
                self.store, group=self.producer_group, client_id=self._commits.client_id,
                listener=self._listener, clock=self.clock, spark=spark,
            )  # fmt: skip
        return self._member

    def close(self) -> None:
        """Wait for commits on their way and let hooks flush; later calls raise ClosedError."""
        if self._member is not None:
            self._member.stop()
        self._async.close()
        self._commits.close()
        self._hooks.flush()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close whatever happened."""
        self.close()

    def _check_accepts(self) -> None:
        if self.store.config.reject_transaction_message:
            message = "the store takes no transactions now (reject_transaction_message); try later"
            raise NotAcceptedError(message)
        self._commits.check_open()

    def _executing(self) -> Execute:
        """Looked at once: it is asked for with each message. Raises: ListenerError."""
        listener = executing_listener(self.producer_group, self._listener)
        self._execute = partial(self._executed, listener)
        return self._execute

    def _checked_count(self, transaction_id: str, state: LocalTransactionState) -> int | None:
        """The number of messages that its head promises, if this group may end it so."""
        half = self.store.tables.half_log()
        halves = half.halves(transaction_id)
        if halves is None:
            raise TransactionNotFoundError(transaction_id)
        if halves.producer_group != self.producer_group:
            raise ProducerGroupMismatchError(
                transaction_id, halves.producer_group, self.producer_group
            )
        if halves.problem and state is LocalTransactionState.COMMIT:
            raise IncompleteTransactionError(transaction_id, halves.message_count, halves.found)
        return halves.message_count

    def _executed(
        self,
        listener: ExecutingListener,
        transaction_id: str,
        message: Message,
        argument: object,
    ) -> LocalTransactionState:
        half = _half_message(transaction_id, self._own_group, message, self.clock.now_ms())
        try:
            answer = listener.execute_local_transaction(half, argument)
        except Exception as error:  # noqa: BLE001 - R7: an exception is UNKNOWN
            logger.warning(
                "transaction %s: listener raised %s", transaction_id, type(error).__name__
            )
            return LocalTransactionState.UNKNOWN
        state, problem = answer_of(answer)
        if problem:
            logger.warning("transaction %s: %s", transaction_id, problem)
        return state


def _limits(config: Config) -> AsyncLimits:
    return AsyncLimits(
        threads=config.local_transaction_threads,
        max_waiting=config.back_pressure_for_async_send_num,
        max_rows=config.group_commit_max_rows,
        linger_s=config.group_commit_linger_ms / 1000,
    )


def _half_message(
    transaction_id: str, producer_group: str, message: Message, now_ms: int
) -> HalfMessage:
    return HalfMessage(
        transaction_id=transaction_id,
        message_id=message_id(transaction_id, 0),
        producer_group=producer_group,
        topic=unwrapped(message.topic),
        body=message.body,
        tags=message.tags,
        keys=message.joined_keys,
        properties=message.properties,
        sharding_key=message.sharding_key,
        born_timestamp=timestamp(now_ms),
        message_count=1,
    )
