"""A transaction as its producer sees it: messages, then the line, then one end."""

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
    """Messages that share one fate; made by `begin_transaction`, used by one thread.

    send… prepare() … local transaction … commit() or rollback(). A crash after prepare() leaves
    the end to the check service; a block left by an exception does so too, for the local
    transaction may have been done.
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
        """Use `begin_transaction`."""
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
        """Add a message; returns its message_id. Nothing is written before `prepare()`.

        Args:
            message: to any topic; it may be delayed.
            queue_id: the queue of the topic; else by sharding key, or in turn.
            queue_selector: called with the message and the number of queues, gives the queue_id.

        Raises: MessageTooLargeError, BatchTooLargeError, PropertyLimitError, TopicConflictError,
            TopicNotFoundError, TopicKindError, InvalidBodyError,
            InvalidPropertyError, InvalidDelayError, InvalidQueueError, AlreadyPreparedError.
        """
        self._check_collecting()
        routed = self._router.accept(
            message, is_transactional=True, queue_id=queue_id, queue_selector=queue_selector
        )
        self._size_bytes = self._checked_size_bytes(routed.message)
        self._messages.append(routed)
        return message_id(self.id, len(self._messages) - 1)

    def send_dataframe(self, dataframe: DataFrame, *, topic: str) -> None:
        """Add each row of a DataFrame as a message; it is computed and written by `prepare()`.

        Columns: body (binary or string); optional tags, keys, sharding_key (string), properties
        (map of string to string), delay_s (int) and deliver_timestamp (timestamp); no others.

        Raises: SchemaMismatchError, InvalidNameError, TopicNotFoundError, TopicKindError,
            AlreadyPreparedError.
        """
        self._check_collecting()
        self._dataframes.append(self._router.accept_dataframe(dataframe, topic))

    def prepare(self) -> None:
        """Make all halves durable in one commit; the line before the local transaction.

        With an idempotency key, halves of an earlier try are used as they are: 0 commits.

        Raises: StorageError: nothing may be assumed durable, and the local transaction must
            not run. With a key: AlreadyResolvedError, where an earlier try has ended (COMMITTED:
            the work is done); IncompleteTransactionError.
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
        """Options that put this transaction's marker on one Spark write of a Delta table.

        They go on the write that decides, the last one if there are several. `commit()` then
        looks whether it is there: where the check was first, Spark skips the write in silence.

        Args:
            table: its location; without one, that of the producer's DeltaListener.

        Raises: NotPreparedError; LocalTransactionError without any table.
        """
        self._check_prepared()
        return self._local.delta_options(table)

    @contextmanager
    def delta_sql(self, spark: SparkSession, table: str | None = None) -> Iterator[SqlStatement]:
        """As `delta_options`, for one MERGE, UPDATE, DELETE or INSERT.

        The marker is a setting of the session while the block runs: no other thread may write
        through the same session meanwhile.

        Raises: as `delta_options`; LocalTransactionFencedError, LocalTransactionMissingError.

        Example:
            >>> with transaction.delta_sql(spark, table) as sql:
            ...     sql("MERGE INTO orders USING changes ON ...")
        """
        self._check_prepared()
        with self._local.delta_sql(spark, table) as statement:
            yield statement

    @contextmanager
    def delta_rs(self, table: str | None = None) -> Iterator[tuple[Any, Any]]:
        """As `delta_options`, for one write by delta-rs: it must go through the handle given.

        Raises: as `delta_sql`; LocalTransactionDoneError where an earlier try did it already.

        Example:
            >>> with transaction.delta_rs(table) as (handle, properties):
            ...     write_deltalake(handle, rows, mode="append", commit_properties=properties)
        """
        self._check_prepared()
        with self._local.delta_rs(table) as marked:
            yield marked

    @contextmanager
    def database(self, connection: Any, *, table: str = MARKER_TABLE) -> Iterator[None]:
        """Put this transaction's marker row into the connection's own transaction, at its start.

        The caller commits the connection, then calls `commit()` here. The connection is of a
        DB-API driver for Postgres, MySQL, MariaDB or SQLite, or of SQLAlchemy (also a session).

        Raises: NotPreparedError; LocalTransactionFencedError where the check was first;
            LocalTransactionDoneError where an earlier try did it; LocalTransactionError where the
            connection is in autocommit.

        Example:
            >>> with psycopg.connect() as connection, transaction.database(connection):
            ...     connection.execute("UPDATE orders SET paid = true WHERE id = %s", [42])
            >>> transaction.commit()
        """
        self._check_prepared()
        with self._local.database(connection, table):
            yield

    def is_local_transaction_done(self, table: str | None = None) -> bool:
        """Whether a write with the marker is in the table: what a retried job asks first."""
        self._check_prepared()
        return self._local.is_done(table)

    # --- the end ------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make the messages visible: one op row, durable on return.

        Raises: NotPreparedError; AlreadyResolvedError if it has another end already;
            LocalTransactionError where a marked write is not there: nothing is written then.
        """
        self._check_prepared()
        self._local.confirm()
        self.end(ClaimKind.COMMIT)

    def rollback(self) -> None:
        """Drop the messages; before `prepare()` there is nothing to write."""
        if self._phase in _UNPREPARED:
            self._phase = _Phase.DROPPED
            return
        self.end(ClaimKind.ROLLBACK)

    def end(self, kind: ClaimKind) -> None:
        """Write the end and confirm that it is the one that took effect."""
        self._check_prepared()
        self._phase = _Phase.ENDED
        # A transaction may be large, and most producers have no hooks.
        messages = [each.message for each in self._messages] if self._commits.hooks else ()
        count = None if self._dataframes else len(self._messages)
        asked = LocalTransactionState(kind.value)
        self._commits.end(AskedEnd(self.id, asked, messages, count))

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
        if kind is None and self._phase not in (_Phase.ENDED, _Phase.DROPPED):
            raise NotEndedError(self.id)

    def _check_prepared(self) -> None:
        if self._phase in _UNPREPARED:
            raise NotPreparedError(self.id)

    def _check_collecting(self) -> None:
        if self._phase is not _Phase.COLLECTING:
            raise AlreadyPreparedError(self.id)

    def _checked_size_bytes(self, message: Message) -> int:
        """With this message. Raises: BatchTooLargeError."""
        limit = self._commits.store.config.max_transaction_size_bytes
        size_bytes = self._size_bytes + message.body_size_bytes
        if size_bytes > limit:
            raise BatchTooLargeError("transaction bytes", size_bytes, limit)
        return size_bytes
