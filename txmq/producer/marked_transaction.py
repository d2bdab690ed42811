"""The local transaction of a transaction: how its write gets the marker that listeners look for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.user_data.database_marker import MARKER_TABLE
from txmq.user_data.delta_marker import SqlStatement
from txmq.user_data.local_transaction import LocalTransaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MarkedTransaction(ABC):
    """What a Transaction offers to its local transaction. Not safe for several threads."""

    def __init__(self, transaction_id: str, listener: object) -> None:
        """Nothing is marked yet; `listener` is the producer's."""
        self.id = transaction_id
        self._local = LocalTransaction(transaction_id, listener)

    @abstractmethod
    def _check_prepared(self) -> None:
        """Raise NotPreparedError before `prepare()`."""

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
