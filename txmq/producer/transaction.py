"""A transaction of a producer: its messages, its local transaction and its end."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from txmq.errors import (
    AlreadyPreparedError,
    BatchTooLargeError,
    InvalidMessageError,
    NotEndedError,
    NotPreparedError,
)
from txmq.ground.handles import OfOneProcess
from txmq.message.ids import message_id
from txmq.message.lifecycle import FINAL_STATES, ClaimKind, TransactionState, end_asked_for
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.commits import ProducerCommits
from txmq.producer.contexts import AskedEnd
from txmq.producer.keyed import KeyedAttempt
from txmq.producer.pipeline import StepFutures, Steps, done, waited
from txmq.producer.renewing import Renewing
from txmq.producer.routing import MessageRouter, PlannedSend, QueueSelector, RoutedMessage
from txmq.user_data.database_marker import MARKER_TABLE
from txmq.user_data.local_transaction import LocalTransaction
from txmq.user_data.markers import SqlStatement

if TYPE_CHECKING:
    from txmq.ground.sessions import DataFrame, SparkSession
    from txmq.producer.routing import DataFrameSend


class MarkedTransaction(OfOneProcess, ABC):
    """What a Transaction offers to its local transaction. Not safe for several threads."""

    def __init__(self, transaction_id: str, listener: object) -> None:
        """Mark nothing yet; `listener` is the producer's."""
        self.id = transaction_id
        self._local = LocalTransaction(transaction_id, listener)

    @abstractmethod
    def _check_prepared(self) -> None:
        """Raise NotPreparedError before `prepare()`."""

    def delta_options(
        self, table: str | None = None, *, user_metadata: str | None = None
    ) -> dict[str, str]:
        """Return options that put this transaction's marker on one Spark write of a Delta table.

        If the local transaction makes several writes, put them on the last one: it decides. If a
        listener has set a fence before, Spark skips the write without an error. Therefore
        `commit()` looks for the marker before it writes the end.

        Args:
            table: the location of the table, or its name in a catalog; by default that of the
                producer's DeltaListener.
            user_metadata: what the commit should say besides. An option `userMetadata` of your own
                would take the place of the words by which Spark finds the marker.

        Returns:
            Options for `DataFrameWriter.options`.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionError: no table is given and the producer has no DeltaListener.

        Example:
            >>> options = transaction.delta_options(table)
            >>> orders.write.format("delta").mode("append").options(**options).save(table)
        """
        self._check_prepared()
        return self._local.delta_options(table, user_metadata)

    @contextmanager
    def delta_sql(self, spark: SparkSession, table: str | None = None) -> Iterator[SqlStatement]:
        """Put this transaction's marker on one MERGE, UPDATE, DELETE or INSERT.

        The marker is a setting of the session while the block runs. No other thread may write
        through the same session during the block.

        Args:
            spark: the session that runs the statement.
            table: as in `delta_options`.

        Yields:
            A function that runs one SQL statement.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionFencedError: a listener has set a fence; nothing was changed.
            LocalTransactionMissingError: no statement put the marker into the table.
            LocalTransactionError: no table is known, or the block runs a second statement.
            EnvironmentProblemError: the session refuses the marker's settings, as on serverless
                compute; `delta_options` needs none.

        Example:
            >>> with transaction.delta_sql(spark, table) as sql:
            ...     sql("MERGE INTO orders USING changes ON ...")
        """
        self._check_prepared()
        with self._local.delta_sql(spark, table) as statement:
            yield statement

    @contextmanager
    def delta_rs(self, table: str | None = None) -> Iterator[tuple[Any, Any]]:
        """Put this transaction's marker on one write by delta-rs.

        Args:
            table: as in `delta_options`.

        Yields:
            The DeltaTable to write through, and the CommitProperties with the marker.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionDoneError: an earlier try has made the write.
            LocalTransactionFencedError: a listener has set a fence; nothing was changed.
            LocalTransactionMissingError: the block made no write with these properties.
            LocalTransactionError: no table is known, or a RESTORE undid an earlier try.

        Example:
            >>> with transaction.delta_rs(table) as (handle, properties):
            ...     write_deltalake(handle, rows, mode="append", commit_properties=properties)
        """
        self._check_prepared()
        with self._local.delta_rs(table) as handle_and_properties:
            yield handle_and_properties

    @contextmanager
    def database(self, connection: Any, *, table: str = MARKER_TABLE) -> Iterator[None]:
        """Write this transaction's marker row as the first step of a database transaction.

        The caller then changes its rows, commits the connection, and calls `commit()` here.

        Args:
            connection: of a DB-API driver for Postgres, MySQL, MariaDB or SQLite, or of SQLAlchemy
                (a connection or a session).
            table: the name of the marker table; see `marker_table_ddl`.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionFencedError: a listener has set a fence; change nothing.
            LocalTransactionDoneError: an earlier try has made the change.
            LocalTransactionError: the connection is in autocommit mode.

        Example:
            >>> with psycopg.connect() as connection, transaction.database(connection):
            ...     connection.execute("UPDATE orders SET paid = true WHERE id = %s", [42])
            >>> transaction.commit()
        """
        self._check_prepared()
        with self._local.database(connection, table):
            yield

    def is_local_transaction_done(self, table: str | None = None) -> bool:
        """Tell whether the table holds a write with this transaction's marker; 0 commits.

        A retried job calls it first, to leave out a write that an earlier try has made.

        Args:
            table: as in `delta_options`.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionError: no table is known, or a RESTORE undid the write.
            StorageError: the table cannot be read.
        """
        self._check_prepared()
        return self._local.is_done(table)


class ProducerParts(NamedTuple):
    """What the transactions of one producer share."""

    commits: ProducerCommits
    router: MessageRouter
    futures: StepFutures
    renewing: Renewing


class _Phase(enum.Enum):
    COLLECTING = "collecting"
    PREPARING = "preparing"
    PREPARED = "prepared"
    DROPPED = "dropped"
    ENDED = "ended"


_UNPREPARED = (_Phase.COLLECTING, _Phase.PREPARING, _Phase.DROPPED)


class Transaction(MarkedTransaction):
    """Messages that are published together or not at all. Not safe for several threads.

    `TransactionProducer.begin_transaction` makes it. The order of calls is: `send` for each
    message, `prepare()`, the local transaction, then `commit()` or `rollback()`. After a crash
    between `prepare()` and the end, the check service asks the listener for the end. The same
    holds if an exception leaves the `with` block, because the local transaction may have taken
    place. After the producer is closed, all methods that write raise ClosedError.

    Attributes:
        id: the transaction id.
        state: where it stands, by all claims that are durable now.

    Example:
        >>> with producer.begin_transaction() as transaction:
        ...     transaction.send(Message("order-paid", b"42", keys="order-42"))
        ...     transaction.prepare()
        ...     orders.write.format("delta").options(**transaction.delta_options()).save(table)
        ...     transaction.commit()
    """

    def __init__(
        self,
        parts: ProducerParts,
        transaction_id: str,
        *,
        attempt: KeyedAttempt | None = None,
        listener: object = None,
        immunity_s: float = 0.0,
    ) -> None:
        """Call `TransactionProducer.begin_transaction` instead."""
        super().__init__(transaction_id, listener)
        self._attempt = attempt
        self._commits, self._router, self._futures, self._renewing = parts
        self._immunity_s = immunity_s
        self._messages: list[RoutedMessage] = []
        self._dataframes: list[DataFrameSend] = []
        self._size_bytes = 0
        # Where Spark writes its halves, and this process finds them in the half log.
        self._topic_of_spark: str | None = None
        self._phase = _Phase.COLLECTING
        is_done = attempt is not None and attempt.state is TransactionState.COMMITTED
        self._final_state = TransactionState.COMMITTED if is_done else None
        self._prepared_s = 0.0
        # A key's transaction may have been begun by others.
        self._since = iter((parts.commits.followed if attempt is None else None,))

    @property
    def state(self) -> TransactionState | None:
        """Where the transaction stands now; None while no log has anything of it.

        With an idempotency key this is the work of all tries, so a job that is run again sees
        COMMITTED before it sends anything. Reads: settled, op, half; nothing without a key before
        `prepare()`, nor after a final end. Commits: 0. Raises: StorageError.
        """
        if self._final_state is not None:
            return self._final_state
        if self._attempt is None and self._phase in _UNPREPARED:
            return None
        state = self._commits.state_of(self.id)
        if state in FINAL_STATES:
            self._final_state = state
        return state

    def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> str:
        """Add a message; 0 commits: `prepare()` writes it.

        Args:
            message: to any topic; it may be delayed.
            queue_id: the queue of the topic. By default the sharding key chooses the queue;
                messages without a key take the queues in turn.
            queue_selector: is called with the message and the number of queues, and returns the
                queue_id.

        Returns:
            The message_id.

        Raises:
            MessageTooLargeError, BatchTooLargeError: a limit of the store is exceeded.
            TopicConflictError, TopicNotFoundError, TopicKindError, InvalidBodyError: the topic
                does not take this message.
            InvalidMessageError: a field of the message or an argument is not allowed.
            AlreadyPreparedError: `prepare()` or an end was called before.
            StorageError: the settings of the topic cannot be read.
        """
        self._check_takes_messages()
        routed = self._router.accept(
            message, is_transactional=True, queue_id=queue_id, queue_selector=queue_selector
        )
        self._size_bytes = self._checked_size_bytes(routed.message)
        self._messages.append(routed)
        return message_id(self.id, len(self._messages) - 1)

    def send_dataframe(self, dataframe: DataFrame, *, topic: str) -> None:
        """Add each row of a DataFrame as a message; 0 commits.

        `prepare()` computes the DataFrame once and writes its rows.

        Args:
            dataframe: column body (binary or string); optional columns tags, keys, sharding_key
                (string), properties (map of string to string), delay_s (int or bigint) and
                deliver_timestamp (timestamp); no others. Without body all others are packed into
                one: by the schema of the topic, else as a JSON object.
            topic: the topic of all rows.

        Raises:
            SchemaMismatchError: a column is missing, unknown or of another type, or the DataFrame
                is a stream.
            InvalidNameError, TopicConflictError, TopicNotFoundError, TopicKindError: the topic
                does not take these rows.
            InvalidMessageError: `dataframe` is no Spark DataFrame.
            AlreadyPreparedError: `prepare()` or an end was called before.
            StorageError: the settings of the topic cannot be read.
        """
        self._check_takes_messages()
        self._dataframes.append(self._router.accept_dataframe(dataframe, topic))

    def write_options(self, topic: str) -> dict[str, str]:
        """Return options by which `df.write.format("txmq")` writes the messages; 0 commits.

        Each row becomes a message, as by `send_dataframe`; for what writes a DataFrame and has no
        transaction in hand, such as a library. The write makes the halves durable, and `prepare()`
        finds them. It takes one write, and the transaction can have no other messages.

        Args:
            topic: the topic of all rows, without the namespace of the producer.

        Raises:
            InvalidMessageError: the transaction has messages already.
            InvalidNameError, TopicConflictError, TopicNotFoundError, TopicKindError: the topic
                does not take these rows.
            AlreadyPreparedError: `prepare()` or an end was called before.

        Example:
            >>> options = transaction.write_options("order-paid")
            >>> paid.write.format("txmq").options(**options).mode("append").save()
            >>> transaction.prepare()
        """
        self._check_collecting()
        if self._messages or self._dataframes:
            problem = "has messages already; add a DataFrame to them by send_dataframe()"
            raise InvalidMessageError("transaction", problem)
        self._topic_of_spark = self._router.accept_rows(topic, (), is_transactional=True)
        # Another process appends the halves, and somebody may end them before this one looks.
        self._since = iter((None,))
        self._renewing.add(self.id, self)
        return self._commits.write_options(self.id, topic, self._immunity_s)

    def prepare(self) -> None:
        """Make all halves durable; run the local transaction only after this returned.

        Commits: one to half. It is shared with other threads, except with DataFrames. None if an
        earlier try with the same idempotency key has made the halves durable, whose messages are
        compared with these. If that try is COMMITTED, there is nothing left to do: `state` says so,
        and `commit()` returns at once.

        Retry: after an error begin the transaction again, with the same idempotency key if it has
        one. Of several tries at once one appends its halves; the others join it.

        Raises:
            StorageError: assume nothing to be durable; do not run the local transaction.
            SendForbiddenError: a hook refused the send; nothing was written.
            InvalidMessageError: the transaction has no message, a DataFrame has rows that cannot
                be messages, or the key is so old that retention may have taken an earlier try;
                nothing was committed.
            DifferentMessagesError: an earlier try with the same key has other messages, which
                stand; nothing was written.
            AlreadyResolvedError: an earlier try with the same key has another end than COMMIT.
            IncompleteTransactionError: halves of an earlier try contradict each other or are
                missing.
            AlreadyPreparedError: `prepare()` or an end was called before.
        """
        self._check_collecting()
        self._check_not_empty()
        self._renewing.add(self.id, self)
        waited(self._preparing())

    def prepare_async(self) -> Future[None]:
        """Prepare as `prepare` does, without waiting: the future is done when the halves stand.

        With an idempotency key or DataFrames a thread of the producer waits. With more than
        `back_pressure_for_async_send_size_bytes` on their way the caller waits; in an event loop
        a thread of the producer does, and in a callback nobody. Callbacks run in the committing
        thread; they must be short. The future cannot be cancelled.

        Commits, retry and errors of the future: as `prepare`. Raises: AlreadyPreparedError,
        InvalidMessageError, SendForbiddenError, ClosedError.
        """
        self._check_collecting()
        self._check_not_empty()
        steps, self._phase = self._preparing(), _Phase.PREPARING
        # Not by the steps: they may go on after the block was left.
        self._renewing.add(self.id, self)
        try:
            if self._attempt is not None or self._dataframes or self._topic_of_spark:
                return self._futures.in_thread(partial(waited, steps), self._size_bytes)
            return self._futures.of(steps, self._size_bytes)
        except BaseException:
            # The steps may not have begun, and may be over.
            self._renewing.discard(self.id, self)
            if self._phase is _Phase.PREPARING:
                self._phase = _Phase.COLLECTING
            raise

    def _preparing(self) -> Steps[None]:
        """Append the halves, and change the phase before the caller hears of it."""
        try:
            state = yield from self._halves_made()
        except BaseException:
            self._phase = _Phase.COLLECTING
            self._renewing.discard(self.id, self)
            raise
        if state is TransactionState.COMMITTED:
            self._final_state = state
        self._phase, self._prepared_s = _Phase.PREPARED, time.monotonic()
        if self._final_state is not None:
            self._renewing.discard(self.id, self)

    def _halves_made(self) -> Steps[TransactionState]:
        """Append the halves, or join those of others. Return PENDING, or COMMITTED by others."""
        planned = PlannedSend(self.id, self._messages, immunity_s=self._immunity_s)
        if self._topic_of_spark is not None:
            return self._commits.join_written(self.id, self._topic_of_spark)
        if self._attempt is not None:
            frames = self._dataframes
            return (yield from self._commits.prepare_keyed(self._attempt, planned, frames))
        if self._dataframes:
            yield from self._commits.prepare_dataframes(planned, self._dataframes)
        else:
            yield from self._commits.prepare(planned)
        return TransactionState.PENDING

    # --- the end ------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the transaction: on return its COMMIT is durable and is its end.

        The next round of the publisher makes the messages visible. Before it writes, `commit()`
        looks for the marker of each marked write of the local transaction; where there was none,
        it looks where the producer's DeltaListener, DatabaseListener or JdbcListener looks. Where
        the transaction is known to be committed it does nothing.

        Commits: one to op, shared. Retry: as `end`; a second call is allowed.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionError: a marked write is missing, was rolled back, met a fence, was
                undone by a RESTORE, or cannot be looked up; nothing was written.
            AlreadyResolvedError: the transaction has another end already.
            IncompleteTransactionError, TransactionForgottenError, StorageError: as `end`.
        """
        self._check_prepared()
        if self._final_state is not TransactionState.COMMITTED:
            self._local.confirm()
        self.end(ClaimKind.COMMIT)

    def rollback(self) -> None:
        """Roll the transaction back: on return its messages will never be visible.

        Undo the local transaction first, or do not make it; this does not undo it.

        Commits: one to op, shared; none before `prepare()`. Retry: as `end`; a second call is
        allowed.

        Raises:
            AlreadyResolvedError: the transaction has another end already.
            TransactionForgottenError, StorageError: as `end`.
        """
        if not self._is_dropped():
            self.end(ClaimKind.ROLLBACK)

    def _is_dropped(self) -> bool:
        """Drop what nobody has prepared; tell whether that is all of the rollback.

        Halves that Spark has written are there. Those with a key may be another try's, whose local
        transaction may have run.
        """
        if self._phase not in _UNPREPARED:
            return False
        is_own = self._topic_of_spark is not None and self._attempt is None
        if is_own and self._commits.state_of(self.id) is not None:
            self._phase = _Phase.PREPARED
            return False
        self._phase = _Phase.DROPPED
        self._renewing.discard(self.id, self)
        return True

    def end(self, kind: ClaimKind) -> None:
        """Claim an end and confirm that it took effect; `commit()` and `rollback()` call this.

        Unlike `commit()` it does not look for the markers of the local transaction.

        Commits: one to op, shared; none where this end is known to stand, or the halves are gone.

        Retry: call it again with the same kind. The first end counts for good (R38); a second equal
        claim has no effect. If the process dies, the check service asks for the end.

        Args:
            kind: COMMIT or ROLLBACK.

        Raises:
            NotPreparedError: `prepare()` was not called.
            AlreadyResolvedError: the transaction has another end, for example because the check
                rolled it back first; that end stands.
            IncompleteTransactionError: a COMMIT cannot take effect, because halves are missing or
                contradict each other.
            TransactionForgottenError: it had its end so long ago that retention has removed it.
            SourceRestoredError: the halves are gone, because the store went back to an older copy.
            StorageError: the claim may have landed; call again.
        """
        self._check_prepared()
        self._phase = _Phase.ENDED
        if self._final_state is end_asked_for(kind):
            return
        waited(self._ending(kind))

    def _ending(self, kind: ClaimKind) -> Steps[None]:
        try:
            yield from self._commits.end(self._asked_end(kind))
        finally:
            # Also after an error: then the check says how it ended.
            self._renewing.discard(self.id, self)
        self._final_state = end_asked_for(kind)

    def _asked_end(self, kind: ClaimKind) -> AskedEnd:
        # A transaction may be large, and most producers have no hooks.
        messages = [routed.message for routed in self._messages] if self._commits.hooks else ()
        are_counted = not (self._dataframes or self._topic_of_spark)
        count = len(self._messages) if are_counted else None
        state = LocalTransactionState(kind.value)
        is_shared = self._attempt is not None or self._topic_of_spark is not None
        is_doubtful = is_shared or self._is_old
        # Of two ends that are asked for, also by two threads, only the first is taken on trust.
        since = next(self._since, None)
        return AskedEnd(self.id, state, messages, count, is_doubtful, self._is_old, since)

    def commit_async(self) -> Future[None]:
        """Commit as `commit` does, without waiting: the future is done when the COMMIT stands.

        Marked writes to a database are looked up before this returns, in the caller's thread, as
        their connection may be of that thread; other markers by a thread of the producer.

        Commits, retry and errors of the future: as `commit`. Raises: NotPreparedError,
        LocalTransactionError, ClosedError.
        """
        self._check_prepared()
        is_done = self._final_state is TransactionState.COMMITTED
        if is_done or self._local.is_unmarked:
            return self.end_async(ClaimKind.COMMIT)
        if self._local.has_database:
            self._local.confirm()
            return self.end_async(ClaimKind.COMMIT)
        return self._futures.in_thread(self.commit)

    def rollback_async(self) -> Future[None]:
        """Roll back as `rollback` does, without waiting. Raises: ClosedError."""
        return done() if self._is_dropped() else self.end_async(ClaimKind.ROLLBACK)

    def end_async(self, kind: ClaimKind) -> Future[None]:
        """Claim an end as `end` does, without waiting.

        Callbacks of the future run in the committing thread; they must be short. It cannot be
        cancelled. Commits, retry and errors of the future: as `end`. Raises: NotPreparedError,
        ClosedError.
        """
        self._check_prepared()
        if self._final_state is end_asked_for(kind):
            self._phase = _Phase.ENDED
            return done()
        if self._is_old:
            return self._futures.in_thread(partial(self.end, kind))
        self._phase = _Phase.ENDED
        return self._futures.of(self._ending(kind))

    @property
    def _is_old(self) -> bool:
        """Whether retention may have removed what the op log and the half log had of it."""
        return time.monotonic() - self._prepared_s >= self._commits.trusted_s

    def __enter__(self) -> Self:
        """Return the transaction; the block must call commit() or rollback()."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise NotEndedError if the block ended normally without commit() or rollback().

        After an exception the end is left to the check service.
        """
        self._renewing.discard(self.id, self)
        if kind is None and self._phase not in (_Phase.ENDED, _Phase.DROPPED):
            raise NotEndedError(self.id)

    def _check_prepared(self) -> None:
        if self._phase in _UNPREPARED:
            raise NotPreparedError(self.id)

    def _check_not_empty(self) -> None:
        if not (self._messages or self._dataframes or self._topic_of_spark):
            raise InvalidMessageError("transaction", "has no message; call send() first")

    def _check_takes_messages(self) -> None:
        self._check_collecting()
        if self._topic_of_spark:
            problem = "has the rows that Spark writes by write_options(), and no others"
            raise InvalidMessageError("transaction", problem)

    def _check_collecting(self) -> None:
        if self._phase is not _Phase.COLLECTING:
            raise AlreadyPreparedError(self.id)

    def _checked_size_bytes(self, message: Message) -> int:
        """Return the bytes of all messages with this one. Raises: BatchTooLargeError."""
        limit = self._commits.store.config.max_transaction_size_bytes
        size_bytes = self._size_bytes + message.size_bytes
        # One message has limits of its own.
        if size_bytes > limit and self._size_bytes:
            raise BatchTooLargeError("transaction bytes", size_bytes, limit)
        return size_bytes
