"""A transaction of a producer: its messages, its local transaction and its end."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txmq.errors import (
    AlreadyPreparedError,
    BatchTooLargeError,
    InvalidMessageError,
    NotEndedError,
    NotPreparedError,
)
from txmq.lifecycle import ClaimKind
from txmq.message.ids import message_id
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.commits import ProducerCommits
from txmq.producer.contexts import AskedEnd
from txmq.producer.dataframe import DataFrameSend
from txmq.producer.routing import MessageRouter, QueueSelector, RoutedMessage
from txmq.user_data.database_marker import MARKER_TABLE
from txmq.user_data.delta_marker import SqlStatement
from txmq.user_data.local_transaction import LocalTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Phase(enum.Enum):
    COLLECTING = "collecting"
    PREPARED = "prepared"
    DROPPED = "dropped"
    ENDED = "ended"


_UNPREPARED = (_Phase.COLLECTING, _Phase.DROPPED)


class Transaction:
    """Messages that are published together or not at all. Not safe for several threads.

    `TransactionProducer.begin_transaction` makes it. The order of calls is: `send` for each
    message, `prepare()`, the local transaction, then `commit()` or `rollback()`. After a crash
    between `prepare()` and the end, the check service asks the listener for the end. The same
    holds if an exception leaves the `with` block, because the local transaction may have taken
    place. After the producer is closed, all methods that write raise ClosedError.

    Attributes:
        id: the transaction id.

    Example:
        >>> with producer.begin_transaction() as transaction:
        ...     transaction.send(Message("order-paid", b"42", keys="order-42"))
        ...     transaction.prepare()
        ...     orders.write.format("delta").options(**transaction.delta_options()).save(table)
        ...     transaction.commit()
    """

    def __init__(
        self,
        commits: ProducerCommits,
        router: MessageRouter,
        transaction_id: str,
        *,
        is_keyed: bool = False,
        listener: object = None,
    ) -> None:
        """Call `TransactionProducer.begin_transaction` instead."""
        self.id = transaction_id
        self._local = LocalTransaction(transaction_id, listener)
        self._is_keyed = is_keyed
        self._commits, self._router = commits, router
        self._messages: list[RoutedMessage] = []
        self._dataframes: list[DataFrameSend] = []
        self._size_bytes = 0
        self._phase = _Phase.COLLECTING

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
            MessageTooLargeError, BatchTooLargeError, PropertyLimitError: a limit of the store is
                exceeded.
            TopicConflictError, TopicNotFoundError, TopicKindError, InvalidBodyError: the topic
                does not take this message.
            InvalidMessageTypeError, InvalidPropertyError, InvalidDelayError, InvalidQueueError: a
                field of the message or an argument is not allowed.
            AlreadyPreparedError: `prepare()` or an end was called before.
            StorageError: the settings of the topic cannot be read.
        """
        self._check_collecting()
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
                deliver_timestamp (timestamp); no others.
            topic: the topic of all rows.

        Raises:
            SchemaMismatchError: a column is missing, unknown or of another type, or the DataFrame
                is a stream.
            InvalidNameError, TopicConflictError, TopicNotFoundError, TopicKindError: the topic
                does not take these rows.
            InvalidMessageTypeError: `dataframe` is no Spark DataFrame.
            AlreadyPreparedError: `prepare()` or an end was called before.
            StorageError: the settings of the topic cannot be read.
        """
        self._check_collecting()
        self._dataframes.append(self._router.accept_dataframe(dataframe, topic))

    def prepare(self) -> None:
        """Make all halves durable; run the local transaction only after this returned.

        Commits: one to half. It is shared with other threads, except with DataFrames. None if an
        earlier try with the same idempotency key has made the halves durable.

        Retry: after an error begin the transaction again, with the same idempotency key if it has
        one.

        Raises:
            StorageError: assume nothing to be durable; do not run the local transaction.
            SendForbiddenError: a hook refused the send; nothing was written.
            InvalidMessageError: the transaction has no message, or a DataFrame has rows that cannot
                be messages; nothing was committed.
            AlreadyResolvedError: an earlier try with the same key has an end; if it is COMMITTED,
                the work is done.
            IncompleteTransactionError: halves of an earlier try contradict each other or are
                missing.
            AlreadyPreparedError: `prepare()` or an end was called before.
        """
        self._check_collecting()
        if not self._messages and not self._dataframes:
            raise InvalidMessageError("transaction", "has no message; call send() first")
        if self._is_keyed and self._commits.is_prepared(self.id):
            self._phase = _Phase.PREPARED
            return
        if self._dataframes:
            self._commits.prepare_dataframes(
                self.id, self._dataframes, self._messages, in_turn=not self._is_keyed
            )
        else:
            self._commits.prepare(self.id, self._messages, in_turn=not self._is_keyed)
        self._phase = _Phase.PREPARED

    # --- the local transaction ----------------------------------------------------------------

    def delta_options(self, table: str | None = None) -> dict[str, str]:
        """The options that put this transaction's marker on one Spark write of a Delta table.

        If the local transaction makes several writes, put them on the last one: it decides. If a
        listener has set a fence before, Spark skips the write without an error. Therefore
        `commit()` looks for the marker before it writes the end.

        Args:
            table: the location of the table; by default that of the producer's DeltaListener.

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
        return self._local.delta_options(table)

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
            LocalTransactionError: no table is known.

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
        """Whether the table holds a write with this transaction's marker; 0 commits.

        A retried job calls it first, to leave out a write that an earlier try has made.

        Args:
            table: as in `delta_options`.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionError: no table is known.
            StorageError: the table cannot be read.
        """
        self._check_prepared()
        return self._local.is_done(table)

    # --- the end ------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the transaction: on return its COMMIT is durable and is its end.

        The next round of the publisher makes the messages visible. Before it writes, `commit()`
        confirms that each marked write of the local transaction is there.

        Commits: one to op, shared. Retry: as `end`; a second call is allowed.

        Raises:
            NotPreparedError: `prepare()` was not called.
            LocalTransactionError: a marked write is missing, or met a fence; nothing was written.
            AlreadyResolvedError: the transaction has another end already.
            StorageError: the COMMIT may have landed; call again.
        """
        self._check_prepared()
        self._local.confirm()
        self.end(ClaimKind.COMMIT)

    def rollback(self) -> None:
        """Roll the transaction back: on return its messages will never be visible.

        Undo the local transaction first, or do not make it; this does not undo it.

        Commits: one to op, shared; none before `prepare()`. Retry: as `end`; a second call is
        allowed.

        Raises:
            AlreadyResolvedError: the transaction has another end already.
            StorageError: the ROLLBACK may have landed; call again.
        """
        if self._phase in _UNPREPARED:
            self._phase = _Phase.DROPPED
            return
        self.end(ClaimKind.ROLLBACK)

    def end(self, kind: ClaimKind) -> None:
        """Claim an end and confirm that it took effect; `commit()` and `rollback()` call this.

        Unlike `commit()` it does not look for the markers of the local transaction.

        Commits: one to op, shared.

        Retry: call it again with the same kind. The first end counts for good (R38); a second equal
        claim has no effect. If the process dies, the check service asks for the end.

        Args:
            kind: COMMIT or ROLLBACK.

        Raises:
            NotPreparedError: `prepare()` was not called.
            AlreadyResolvedError: the transaction has another end, for example because the check
                rolled it back first; that end stands.
            StorageError: the claim may have landed; call again.
        """
        self._check_prepared()
        self._phase = _Phase.ENDED
        # A transaction may be large, and most producers have no hooks.
        messages = [routed.message for routed in self._messages] if self._commits.hooks else ()
        count = None if self._dataframes else len(self._messages)
        state = LocalTransactionState(kind.value)
        self._commits.end(AskedEnd(self.id, state, messages, count))

    def __enter__(self) -> Self:
        """The block must call commit() or rollback()."""
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
        if kind is None and self._phase not in (_Phase.ENDED, _Phase.DROPPED):
            raise NotEndedError(self.id)

    def _check_prepared(self) -> None:
        if self._phase in _UNPREPARED:
            raise NotPreparedError(self.id)

    def _check_collecting(self) -> None:
        if self._phase is not _Phase.COLLECTING:
            raise AlreadyPreparedError(self.id)

    def _checked_size_bytes(self, message: Message) -> int:
        """The bytes of all bodies with this message. Raises: BatchTooLargeError."""
        limit = self._commits.store.config.max_transaction_size_bytes
        size_bytes = self._size_bytes + message.body_size_bytes
        if size_bytes > limit:
            raise BatchTooLargeError("transaction bytes", size_bytes, limit)
        return size_bytes
