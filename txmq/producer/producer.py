"""The producer: writes half messages, runs the user's local transaction, writes the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from txmq.delta.failures import refuse_fork
from txmq.errors import InvalidMessageError, ListenerError, NotAcceptedError
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.handles import OfOneProcess
from txmq.listeners.hooks import Hook, Hooks
from txmq.listeners.protocol import (
    CheckListener,
    ExecutingListener,
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
    wrapped,
)
from txmq.producer.asynchronous import AsyncLimits, AsyncSends
from txmq.producer.commits import ProducerCommits
from txmq.producer.contexts import AskedEnd
from txmq.producer.local import Execute, half_message, local_state
from txmq.producer.pipeline import SendRoom, StepFutures, waited
from txmq.producer.renewing import Renewing
from txmq.producer.routing import (
    MessageRouter,
    SendResult,
    TransactionSendResult,
    check_immunity_s,
)
from txmq.producer.transaction import ProducerParts, Transaction
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from datetime import datetime

    from txmq.ground.sessions import SparkSession
    from txmq.message.codec import BodyCodec
    from txmq.producer.routing import QueueSelector


class TransactionProducer(OfOneProcess):
    """Sends messages that become visible if and only if a local transaction took place.

    Needs no Spark. Safe for many threads; the threads share commits. Each method that reads or
    writes raises ClosedError after `close()`, and in a forked process. A forked process can have a
    producer of its own only if no store was used before the fork.

    Attributes:
        producer_group: the stored name of the group.

    Args:
        store: the store to send to.
        producer_group: the group that owns these transactions; only its producers may end them.
        listener: runs local transactions for `send_message_in_transaction`, and answers checks.
        clock: gives the time of rows, ids and claims; the system's clock by default.
        namespace: the namespace of the group's and the topics' names (R94).
        hooks: are told of sends, ends and checks; a CheckForbiddenHook may refuse a send (R89).
        body_codec: encodes the bodies, as `AesGcmCodec` does; a check sees the stored bytes.

    Raises:
        InvalidNameError: the name of the group or of the namespace is not allowed.
        ListenerError: `listener` has none of the methods of a listener.
        HookError: an element of `hooks` is no hook.
        ClosedError: the process was forked from one that had used a store.

    Example:
        >>> with producer.begin_transaction() as transaction:
        ...     transaction.send(Message("order-paid", b"42", keys="order-42"))
        ...     transaction.prepare()
        ...     transaction.commit()
    """

    def __init__(  # noqa: PLR0913 - the identity and the parts of a producer
        self,
        store: Store,
        *,
        producer_group: str,
        listener: CheckListener | None = None,
        clock: Clock | None = None,
        namespace: str | None = None,
        hooks: Iterable[Hook] = (),
        body_codec: BodyCodec | None = None,
    ) -> None:
        """Check the names, the listener and the hooks; read and write nothing."""
        check_store(store)
        refuse_fork()
        self.store = store
        self.namespace = None if namespace is None else check_namespace(namespace)
        stored_group = wrapped(check_group(producer_group), self.namespace)
        self.producer_group = check_stored_group(stored_group)
        self._group_without_namespace = producer_group
        self.clock: Clock = clock or SystemClock()
        self._listener = None if listener is None else check_listener(producer_group, listener)
        self._hooks = Hooks(hooks)
        namespace_stored = namespace_of(self.producer_group)
        self._router = MessageRouter(store, namespace_stored, self.clock, body_codec)
        self._commits = ProducerCommits(
            store, self.producer_group, self.clock, self._router, self._hooks
        )
        self._member: RemoteMember | None = None
        room = SendRoom(store.config.back_pressure_for_async_send_size_bytes)
        self._renewing = Renewing(
            store, producer_group=self.producer_group, client_id=self._commits.client_id,
            clock=self.clock,
        )  # fmt: skip
        limits = AsyncLimits.of(store.config)
        self._async = AsyncSends(self._commits, limits, room, self._renewing)
        futures = StepFutures(room, self._commits.check_open)
        self._parts = ProducerParts(self._commits, self._router, futures, self._renewing)
        self._execute: Execute | None = None

    # --- sending --------------------------------------------------------------------------

    def send(
        self,
        messages: Message | Iterable[Message],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> SendResult:
        """Send messages without a local transaction; on return they are durable and committed.

        A batch goes to one topic (R96) and is acknowledged as a whole; its messages may be delayed.

        Commits: one to half and one to op, shared with the other threads of this producer.
        Retry: each call sends new messages. After AlreadyResolvedError that transaction is rolled
        back: send its messages again. After StorageError its COMMIT may have landed, so a second
        call may send the messages twice.

        Args:
            messages: one message, or several to one topic. A batch above
                `max_transaction_size_bytes` is split into several transactions.
            queue_id: the queue of the topic. By default the sharding key chooses the queue;
                messages without a key take the queues in turn.
            queue_selector: is called with each message and the number of queues, and returns the
                queue_id.

        Returns:
            The ids of the messages and of their transactions, in the order of `messages`.

        Raises:
            MessageError: a message, its topic or its queue is not allowed; nothing was written.
            SendForbiddenError: a hook refused the send; nothing was written.
            AlreadyResolvedError: the send took longer than `transaction_timeout_s` and the check
                rolled it back.
            StorageError: a commit failed, or its answer was lost.

        Example:
            >>> producer.send(Message("order-paid", b"42", keys="order-42")).message_id
        """
        return waited(self._commits.send(self._commits.planned(messages, queue_id, queue_selector)))

    def send_async(
        self,
        messages: Message | Iterable[Message],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Future[SendResult]:
        """Send as `send` does, without waiting for the commits.

        The call blocks only while `back_pressure_for_async_send_num` sends wait for a commit, or
        while the sends without a result hold `back_pressure_for_async_send_size_bytes`. Callbacks
        of the future run in a committing thread and must be short.
        Commits and retry: as `send`; the commits are shared with all asynchronous sends.

        Args:
            messages, queue_id, queue_selector: as in `send`.

        Returns:
            A future with the result of `send`, or with its AlreadyResolvedError or StorageError.
            It cannot be cancelled.

        Raises:
            MessageError, SendForbiddenError: as `send`, at once.

        Example:
            >>> futures = [producer.send_async(message) for message in messages]
            >>> results = [future.result() for future in futures]
        """
        return self._async.send(self._commits.planned(messages, queue_id, queue_selector))

    def recall(self, message_id: str) -> None:
        """Take back a delayed message before it is due; any producer of its group may.

        When this returns, the message will never be delivered.
        Commits: one to op, shared; none if the message is recalled already.
        Retry: call it again with the same id; a message that is recalled already is no error.

        Args:
            message_id: as `send` returned it.

        Raises:
            NotRecalledError: the message is delivered already, is not delayed, or belongs to a
                transaction that is not committed (roll that transaction back instead).
            TransactionNotFoundError: no half of its transaction is durable.
            ProducerGroupMismatchError: another group sent it.
            StorageError: the claim may have landed; call again.
        """
        self._commits.check_open()
        waited(self._commits.recall(*message_address(message_id)))

    def send_message_in_transaction_async(
        self, message: Message, argument: object = None
    ) -> Future[TransactionSendResult]:
        """Send as `send_message_in_transaction` does, without waiting for the commits.

        `local_transaction_threads` threads call `execute_local_transaction`; SystemExit and the
        like count as UNKNOWN there. The call blocks as that of `send_async`.
        Commits and retry: as there; the commits are shared with all asynchronous sends.

        Args:
            message, argument: as in `send_message_in_transaction`.

        Returns:
            A future with the result, or with AlreadyResolvedError or StorageError. It cannot be
            cancelled.

        Raises:
            MessageError, SendForbiddenError, NotAcceptedError, ListenerError: as
                `send_message_in_transaction`, at once.
        """
        self._check_accepts()
        execute = self._execute or self._executing()
        routed = self._router.accept(message, is_transactional=True)
        return self._async.send_in_transaction(routed, execute, argument)

    def send_message_in_transaction(
        self, message: Message, argument: object = None
    ) -> TransactionSendResult:
        """Make the half durable, call `execute_local_transaction`, write its end (R5-R9).

        This is RocketMQ's call of the same name. An exception of the listener counts as UNKNOWN
        and is not raised again (R7); UNKNOWN leaves the end to the check service.

        Commits: one to half; one to op, unless the answer is UNKNOWN. Both are shared.
        Retry: each call begins a new transaction. After StorageError the local transaction may
        have run. For jobs that are retried use `begin_transaction` with an idempotency key.

        Args:
            message: to any topic; it may be delayed.
            argument: is passed to `execute_local_transaction`.

        Raises:
            MessageError: the message, its topic or its properties are not allowed.
            SendForbiddenError: a hook refused the send; nothing was written.
            NotAcceptedError: the store takes no transactions now (R25).
            ListenerError: the producer has no listener that executes local transactions.
            AlreadyResolvedError: the check ended the transaction first, with another end.
            StorageError: from the half commit: the listener was not called (R6). From the end
                commit: the check service will find or ask for the end.
        """
        executing = executing_listener(self.producer_group, self._listener)
        transaction = self.begin_transaction()
        transaction.send(message)
        transaction.prepare()
        try:
            state = self._executed(executing, transaction.id, message, argument)
            end = AskedEnd(transaction.id, state, [message], 1)
            if state is LocalTransactionState.UNKNOWN:
                self._commits.hooks.ended(end, None)
            else:
                transaction.end(end.kind)
        finally:
            # The traceback of an interrupt would hold the transaction, and so renew it.
            self._renewing.discard(transaction.id, transaction)
        return TransactionSendResult(transaction.id, message_id(transaction.id, 0), state)

    def begin_transaction(
        self,
        *,
        idempotency_key: str | None = None,
        key_timestamp: datetime | None = None,
        check_immunity_time_s: float = 0.0,
    ) -> Transaction:
        """Begin a transaction of one or more messages to one or more topics; 0 commits.

        From `prepare()` to the end of its block this process renews the transaction's immunity, so
        the local transaction may take hours: the check asks once this process has been gone, or
        suspended, for `producer_lease_s`, or has dropped the transaction.

        Retry: without a key each call begins a new transaction. With a key and its time, a retried
        job continues the transaction of its first try: `prepare()` uses halves that are durable
        already and compares their messages, and `state` says whether the work is done. After a
        rollback or an expiry the next call begins the next attempt, with another id.

        Args:
            idempotency_key: names the work, within the producer group; the same in every retry.
            key_timestamp: when the work came about, with a time zone; the same in every retry.
            check_immunity_time_s: the least time before the first check, also without a renewal:
                for a process that only prepares, while another one makes the end.

        Raises:
            NotAcceptedError: the store takes no transactions now (R25).
            InvalidMessageError: the key, its time or the immunity is missing or not allowed.
            StorageError: the attempts under the key cannot be read.

        Example:
            >>> producer.begin_transaction(idempotency_key="invoices", key_timestamp=month)
        """
        self._check_accepts()
        name, config = "check_immunity_time_s", self.store.config
        immunity_s = check_immunity_s("argument", name, check_immunity_time_s, config)
        begin = partial(Transaction, self._parts, listener=self._listener, immunity_s=immunity_s)
        if idempotency_key is None and key_timestamp is None:
            return begin(new_transaction_id(self.clock.now_ms()))
        now_ms, reserved_s = self.clock.now_ms(), self.store.config.file_reserved_time_h * 3600
        key = checked_key(idempotency_key, key_timestamp, now_ms=now_ms, reserved_s=reserved_s)
        attempt = self._commits.attempt_of(key)
        return begin(attempt.transaction_id, attempt=attempt)

    def end_transaction(self, transaction_id: str, state: LocalTransactionState) -> None:
        """End a transaction that any process of this group prepared.

        When this returns, the requested end is durable and is the transaction's end.
        Commits: one to op, shared; none for UNKNOWN, which changes nothing (R34), nor where
        retention has removed the halves and the end stands.
        Retry: call it again with the same state; a second equal claim has no effect.

        Args:
            transaction_id: the id of the transaction.
            state: COMMIT or ROLLBACK; UNKNOWN is told to hooks only.

        Raises:
            TransactionNotFoundError: no half of the transaction is durable.
            ProducerGroupMismatchError: another group sent it (R37).
            IncompleteTransactionError: COMMIT, but halves are missing or contradict each other.
            AlreadyResolvedError: the transaction has another end already.
            InvalidMessageError: `state` is no LocalTransactionState.
            StorageError: the claim may have landed; call again.
        """
        if not isinstance(state, LocalTransactionState):
            problem = f"must be a LocalTransactionState, not {type(state).__name__}"
            raise InvalidMessageError("state", problem)
        self._commits.end_by_id(check_transaction_id(transaction_id), state)
        self._renewing.discard_all(transaction_id)

    def answer_checks(self, *, spark: SparkSession | None = None) -> RemoteMember:
        """Answer the check service's questions about this group until `close()` (R72, R81).

        Use it if the check services have no listener of the group themselves. All producers of
        the group that answer share the questions; the producer that sent a transaction is asked
        first while it lives. The call starts a thread that reads new questions five times a
        second. A second call returns the thread that runs already.
        Commits: one to join, two for each share of questions, one to leave.

        Args:
            spark: a session, for a listener that answers with a DataFrame (SetListener).

        Returns:
            The handle of the thread; `close()` of the producer stops it.

        Raises:
            ListenerError: the producer has no listener that can answer checks.
            StorageError: the register of questions cannot be written; call again.
        """
        self._commits.check_open()
        if self._listener is None:
            raise ListenerError("none", "answer_checks() needs one; pass listener=")
        if self._member is None or not self._member.is_alive:
            self._member = RemoteMember(
                self.store, group=self.producer_group, client_id=self._commits.client_id,
                listener=self._listener, clock=self.clock, spark=spark, hooks=self._hooks,
            )  # fmt: skip
        return self._member

    def close(self) -> None:
        """Wait for running commits, flush the hooks and stop all threads.

        Later calls that write raise ClosedError. A transaction that is prepared and has no end is
        left to the check service. Call it before the process ends; a second call does nothing.
        """
        if self._member is not None:
            self._member.stop()
        self._async.close()
        self._parts.futures.close()
        self._renewing.stop()
        self._commits.close()
        self._hooks.flush()

    def __enter__(self) -> Self:
        """Return the producer; the end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the producer, also after an exception."""
        self.close()

    def _check_accepts(self) -> None:
        if self.store.config.reject_transaction_message:
            raise NotAcceptedError
        self._commits.check_open()

    def _executing(self) -> Execute:
        """Check the listener once and keep the result. Raises: ListenerError."""
        listener = executing_listener(self.producer_group, self._listener)
        self._execute = partial(self._executed, listener)
        return self._execute

    def _executed(
        self, listener: ExecutingListener, transaction_id: str, message: Message, argument: object
    ) -> LocalTransactionState:
        group = self._group_without_namespace
        half = half_message(transaction_id, group, message, self.clock.now_ms())
        with self._commits.hooks.local_transaction(transaction_id, message) as running:
            return local_state(listener, half, argument, running)
