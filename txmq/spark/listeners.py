"""Listeners that answer through Spark: by a query, or by marker rows that it reads over JDBC."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.listeners.database import ANSWERS, NOT_YET
from txmq.listeners.protocol import HEAD_COLUMNS, ages_s
from txmq.message.message import LocalTransactionState
from txmq.user_data.database_marker import DIALECTS, DONE, MARKER_TABLE, check_marker_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PROPERTY = "properties."
_KEY = "__txmq_key"
_TEXT_COLUMNS = ("keys", "transaction_id", "message_id", "sharding_key", "tags")
STATEMENT_IDS = 10_000
# An id made by txmq. A half written by hand may hold any text, which goes into no statement.
_SAFE_ID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
# Not jdbc:mariadb: for that URL Spark quotes names with the quotes of MariaDB's texts.
_URLS = ("jdbc:postgresql:", "jdbc:mysql:")


class QueryListener:
    """Answers COMMIT if a query returns the key of the transaction, else UNKNOWN.

    There is no fence: a local transaction that is still on its way can land after it was rolled
    back. So the answer is ROLLBACK only above the age `rollback_after_s`. If no such age is known,
    put a marker on the local transaction (DeltaListener, DatabaseListener).

    Args:
        query: Spark SQL over tables or views; its first column holds the keys that exist.
        key: the field of a head that holds its key: `keys`, `transaction_id`, `message_id`,
            `sharding_key`, `tags`, or `properties.NAME`.
        rollback_after_s: the age of a half after which its local transaction cannot land any more;
            None: no answer is ROLLBACK. It is the time of `clock` less the producer's, so add what
            these clocks may differ by.
        clock: the time for ages.

    Example:
        >>> QueryListener("SELECT order_id FROM orders WHERE paid", key="properties.order_id")
    """

    def __init__(
        self,
        query: str,
        *,
        key: str = "keys",
        rollback_after_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Run no query. Raises: ListenerError for a `key` that is no field of a head."""
        if key not in _TEXT_COLUMNS and not key.startswith(_PROPERTY):
            problem = f"key must be one of {', '.join(_TEXT_COLUMNS)}, or {_PROPERTY}NAME"
            raise ListenerError(type(self).__name__, problem)
        self._query, self._key = query, key
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()
        columns = {"transaction_id", "born_timestamp", key.partition(".")[0]}
        self.head_columns = tuple(name for name in HEAD_COLUMNS if name in columns)

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """Join all heads with the keys that the query returns: one Spark job. Commits: 0.

        Args:
            heads: transaction_id, born_timestamp and the column that holds the key.

        Returns: transaction_id, state and reason, one row for each head.

        Raises: Spark's own errors.
        """
        import pyspark.sql.functions as F  # noqa: N812

        rows = heads.sparkSession.sql(self._query)
        keys = rows.select(F.col(f"`{rows.columns[0]}`").cast("string").alias(_KEY)).distinct()
        questions = heads.withColumn("asked_key", self._key_of(F))
        joined = questions.join(keys, questions["asked_key"] == keys[_KEY], "left")
        is_there = F.col(_KEY).isNotNull()
        return joined.select(
            "transaction_id",
            self._state(F, is_there).alias("state"),
            F.when(is_there, "the query returns its key")
            .otherwise("the query does not return its key")
            .alias("reason"),
        )

    def _key_of(self, functions: Any) -> Column:
        if self._key.startswith(_PROPERTY):
            value: Column = functions.col("properties")[self._key.removeprefix(_PROPERTY)]
            return value
        column: Column = functions.col(self._key)
        return column

    def _state(self, functions: Any, is_there: Column) -> Any:
        state = functions.when(is_there, LocalTransactionState.COMMIT.value)
        if self._rollback_after_s is not None:
            last_ms = self._clock.now_ms() - round(self._rollback_after_s * 1000)
            is_over = functions.col("born_timestamp") < functions.lit(timestamp(last_ms))
            state = state.when(is_over, LocalTransactionState.ROLLBACK.value)
        return state.otherwise(LocalTransactionState.UNKNOWN.value)


class JdbcListener:
    """Answers as DatabaseListener, by Spark's JDBC source: Postgres, MySQL and MariaDB.

    Spark's JDBC source only reads. So the fence is the statement that Spark runs when it opens the
    session of a read (`sessionInitStatement`). If a local transaction is still running, that
    statement waits for it until the listener's time is over, and all transactions of the call are
    UNKNOWN.

    Args:
        url_variable: the environment variable of Spark's driver process that holds the JDBC URL.
            For MariaDB the URL begins with jdbc:mysql:.
        user_variable: the environment variable that holds the user, if the URL does not.
        password_variable: the environment variable that holds the password, if the URL does not.
        options: more options of Spark's JDBC source, such as `driver`.
        table: the marker table, see `marker_table_ddl`.
        rollback_after_s: a transaction without a marker is UNKNOWN, and is not fenced, below this
            age.
        clock: the time for ages.

    Example:
        >>> JdbcListener(url_variable="LEDGER_JDBC_URL", password_variable="LEDGER_PASSWORD")
    """

    head_columns = ("transaction_id", "born_timestamp")

    def __init__(  # noqa: PLR0913 - settings of a user's, each by its name
        self,
        *,
        url_variable: str,
        user_variable: str | None = None,
        password_variable: str | None = None,
        options: Mapping[str, str] | None = None,
        table: str = MARKER_TABLE,
        rollback_after_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Read the environment variables, and connect to nothing.

        Raises:
            EnvironmentProblemError: a variable is not set.
            ListenerError: the URL is of another database.
            InvalidNameError: `table` is no table name.
        """
        self._options = dict(options or {}) | _secrets(
            {"url": url_variable, "user": user_variable, "password": password_variable}
        )
        url = self._options["url"]
        if not url.startswith(_URLS):
            problem = f"{url_variable} must begin with {' or '.join(_URLS)} (MariaDB too)"
            raise ListenerError(type(self).__name__, problem)
        self._dialect = DIALECTS[url.split(":")[1]]
        self._table = check_marker_table(table)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """Look up the markers of all heads, and fence the transactions without one.

        Reads: the marker table once for every 10,000 heads, and once more where markers are
        missing. A retry reads the same markers and fences. Commits: the fences, in the database;
        none to the store.

        Args:
            heads: transaction_id and born_timestamp.

        Returns: transaction_id, state and reason, one row for each head whose id txmq made.

        Raises: Spark's own errors.
        """
        spark, questions = heads.sparkSession, heads.toArrow()
        ages = ages_s(questions, self._clock).tolist()
        age_s = dict(zip(questions["transaction_id"].to_pylist(), ages, strict=True))
        rows: list[tuple[str, str, str]] = []
        for chunk in _chunks([key for key in age_s if _SAFE_ID.fullmatch(key)]):
            outcomes = self._read(spark, chunk)
            missing = [key for key in chunk if key not in outcomes]
            old = [key for key in missing if age_s[key] >= self._rollback_after_s]
            if old:
                outcomes |= self._read(spark, old, fence=True)
            rows += [(key, *ANSWERS.get(outcomes.get(key, ""), NOT_YET)) for key in chunk]
        return spark.createDataFrame(rows, "transaction_id string, state string, reason string")

    def marker_place(self) -> str:
        """Return the name of the marker table."""
        return self._table

    def is_marked(self, transaction_id: str) -> bool | None:
        """Tell whether a local transaction is committed, by its marker row; nothing is fenced.

        Its producer asks in `commit()`. Reads: the marker table, by the active Spark session.

        Args:
            transaction_id: the id of the transaction.

        Returns: True if it is, False if it is fenced, None if there is no row.

        Raises:
            EnvironmentProblemError: no Spark session is active.
            Exception: Spark's own errors.
        """
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        if spark is None:
            problem = "commit() looks for the marker by Spark, and no session is active"
            raise EnvironmentProblemError(problem, "Start one, or use a DatabaseListener.")
        outcome = self._read(spark, [transaction_id]).get(transaction_id)
        return None if outcome is None else outcome == DONE

    def _read(
        self, spark: SparkSession, ids: Sequence[str], *, fence: bool = False
    ) -> dict[str, str]:
        """Read DONE or FENCED of the ids that have a row."""
        reader: Any = spark.read.format("jdbc").options(**self._options)
        if fence:
            reader = reader.option(
                "sessionInitStatement", self._with(self._dialect.insert_many, ids)
            )
        rows = reader.option("query", self._with(self._dialect.select_many, ids)).load().toArrow()
        keys, outcomes = rows.column(0).to_pylist(), rows.column(1).to_pylist()
        return dict(zip(keys, outcomes, strict=True))

    def _with(self, statement: str, ids: Sequence[str]) -> str:
        """Put the ids into the statement; each id is letters, digits and dashes."""
        return statement.format(table=self._table, p=f"'{json.dumps(list(ids))}'")


def _secrets(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Read options of Spark's JDBC source from the environment variables that hold them."""
    options = {}
    for option, variable in variables.items():
        if variable is None:
            continue
        value = os.environ.get(variable)
        if not value:
            problem = f"the environment variable {variable} is not set"
            raise EnvironmentProblemError(problem, f"Set it to the JDBC {option}.")
        options[option] = value
    return options


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), STATEMENT_IDS):
        yield ids[first : first + STATEMENT_IDS]
