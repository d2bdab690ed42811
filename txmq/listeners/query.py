"""A listener that answers by a query: it looks for the row that the local transaction wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txmq.clock import Clock, SystemClock, timestamp
from txmq.errors import ListenerError
from txmq.listeners.protocol import HEAD_COLUMNS
from txmq.message.message import LocalTransactionState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PROPERTY = "properties."
_KEY = "__txmq_key"
_TEXT_COLUMNS = ("keys", "transaction_id", "message_id", "sharding_key", "tags")


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
            None: no answer is ROLLBACK.
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
