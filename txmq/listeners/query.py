"""A listener that answers by a query: the row of the local transaction is there, or not yet."""

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
    """COMMIT where a query returns the key of the transaction; else UNKNOWN.

    Nothing keeps a local transaction that is still on its way from landing after it was rolled
    back, so ROLLBACK is only said where `rollback_after_s` states from which age on none can be.
    Where that is not known, mark the local transaction instead (DeltaListener, DatabaseListener).

    Args:
        query: Spark SQL over tables or views; its first column has the keys of what is there.
        key: where a head has its key: `keys`, `transaction_id`, `message_id`, `sharding_key`,
            `tags`, or `properties.NAME`.
        rollback_after_s: no local transaction lands so long after its half was born.

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
        """Run nothing yet. Raises: ListenerError."""
        if key not in _TEXT_COLUMNS and not key.startswith(_PROPERTY):
            problem = f"key must be one of {', '.join(_TEXT_COLUMNS)}, or {_PROPERTY}NAME"
            raise ListenerError(type(self).__name__, problem)
        self._query, self._key = query, key
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()
        wanted = {"transaction_id", "born_timestamp", key.partition(".")[0]}
        self.head_columns = tuple(name for name in HEAD_COLUMNS if name in wanted)

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """One join for all heads."""
        import pyspark.sql.functions as F  # noqa: N812

        found = heads.sparkSession.sql(self._query)
        there = found.select(F.col(f"`{found.columns[0]}`").cast("string").alias(_KEY)).distinct()
        asked = heads.withColumn("asked_key", self._key_of(F))
        joined = asked.join(there, asked["asked_key"] == there[_KEY], "left")
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
            found: Column = functions.col("properties")[self._key.removeprefix(_PROPERTY)]
            return found
        column: Column = functions.col(self._key)
        return column

    def _state(self, functions: Any, is_there: Column) -> Any:
        state = functions.when(is_there, LocalTransactionState.COMMIT.value)
        if self._rollback_after_s is not None:
            last_ms = self._clock.now_ms() - round(self._rollback_after_s * 1000)
            is_over = functions.col("born_timestamp") < functions.lit(timestamp(last_ms))
            state = state.when(is_over, LocalTransactionState.ROLLBACK.value)
        return state.otherwise(LocalTransactionState.UNKNOWN.value)
