"""The deadline join of the check: joins heads and re-armed transactions with their ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.deadline_join import KEYS, changes, join_session, overdue, shown_by
from txmq.check.due import DUE, milliseconds_of
from txmq.check.rules import IMMUNITY_MAX_S
from txmq.clock import AffineClock, Clock, affine
from txmq.delta.schemas import HEAD_SEQUENCE
from txmq.lifecycle import ClaimKind
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# The join keeps ends at least this long; deadlines farther ahead are left to the recheck.
LEAST_HORIZON_S = 120.0
_HEAD_VERSION = -1
_ARMING = [ClaimKind.UNKNOWN.value, ClaimKind.RESUME.value]
_ENDING = [
    kind.value
    for kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK, ClaimKind.DISCARD, ClaimKind.EXPIRE)
]

OnBatch = Callable[["DataFrame"], None]


def horizon_s(config: Config) -> float:
    """How far ahead a deadline may lie for the join to watch it, in any group."""
    longest_s = [
        2 * max(settings.transaction_check_interval_s, settings.transaction_timeout_s)
        for settings in config.check_settings().values()
    ]
    return max(LEAST_HORIZON_S, *longest_s)


def start_check_stream(
    spark: SparkSession, store: Store, *, clock: Clock, checkpoint: str, on_batch: OnBatch
) -> StreamingQuery:
    """Start the join over rows that are appended from now on; `checkpoint` must be new.

    Reads: half, op (change feeds). Writes: the checkpoint. `on_batch` gets the due rows of each
    micro-batch, often none. It must read them, or Spark ends the query, see `dues_of`.
    """
    session = join_session(spark)
    due = due_transactions(session, store, affine(clock), versions_now(store))
    interval_ms = round(store.config.check_trigger_interval_s * 1000)

    return (
        due.writeStream.foreachBatch(lambda batch, _: on_batch(batch))
        .queryName(f"txmq-check-{checkpoint.rsplit('-', 1)[-1]}")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{interval_ms} milliseconds")
        .start()
    )


@dataclass(frozen=True, slots=True)
class LogVersions:
    """The first versions that the streams of a checkpoint read; they never change for it."""

    half: int
    op: int


def versions_now(store: Store) -> LogVersions:
    """The newest commits of half and op."""
    return LogVersions(store.tables.half_log().table.version, store.tables.op_log().table.version)


def due_transactions(
    session: SparkSession, store: Store, clock: AffineClock, begin: LogVersions
) -> DataFrame:
    """Transactions whose deadline passes without an end, from the commits since `begin`."""
    halves = changes(session, store.tables.half_log().table.location, begin.half)
    claims = changes(session, store.tables.op_log().table.location, begin.op)
    armed = heads(halves, clock).unionByName(rearmed(claims, clock))
    return overdue(armed, ends(claims), horizon_s=horizon_s(store.config), clock=clock)


def heads(halves: DataFrame, clock: AffineClock) -> DataFrame:
    """The heads, which are due one immunity after the store received them."""
    from pyspark.sql import functions as sql

    immunity_s = sql.col("check_immunity_time_s")
    # An invalid immunity gives no deadline here; the recheck uses the timeout for it.
    valid_s = sql.when((immunity_s > 0) & (immunity_s < IMMUNITY_MAX_S), immunity_s)
    immunity = sql.make_dt_interval(secs=valid_s)
    return halves.where(sql.col("sequence") == HEAD_SEQUENCE).select(
        *KEYS,
        sql.lit(0).alias("check_times"),
        sql.lit(0).alias("life"),
        sql.col("ordinary"),
        sql.lit(_HEAD_VERSION).cast("bigint").alias("armed_version"),
        (shown_by(clock, sql.col("_commit_timestamp")) + immunity).alias("deadline"),
    )


def rearmed(claims: DataFrame, clock: AffineClock) -> DataFrame:
    """The UNKNOWN and RESUME claims; a claim without a time is due at once."""
    from pyspark.sql import functions as sql

    committed = shown_by(clock, sql.col("_commit_timestamp"))
    return claims.where(sql.col("kind").isin(_ARMING)).select(
        *KEYS,
        sql.coalesce(sql.col("check_times"), sql.lit(0)).alias("check_times"),
        sql.coalesce(sql.col("life"), sql.lit(0)).alias("life"),
        sql.lit(False).alias("ordinary"),  # noqa: FBT003 - a value, not a flag
        sql.col("_commit_version").alias("armed_version"),
        sql.coalesce(sql.col("next_check_timestamp"), committed).alias("deadline"),
    )


def ends(claims: DataFrame) -> DataFrame:
    """Claims that may end a transaction."""
    from pyspark.sql import functions as sql

    return claims.where(sql.col("kind").isin(_ENDING)).select(
        *KEYS, sql.col("_commit_version").alias("end_version")
    )


def dues_of(batch: DataFrame) -> tuple[pa.Table, int]:
    """DUE of a micro-batch, and the clock value by which the rows are due.

    It reads all rows, also without any, because a batch that is not read loses the query's state.
    """
    rows = batch.toArrow()
    columns = {
        **{name: rows[name] for name in DUE.names if name in rows.column_names},
        "deadline_ms": milliseconds_of(rows["deadline"]),
        "has_returned": pa.array([False] * rows.num_rows, pa.bool_()),
    }
    clock_ms = pc.max(milliseconds_of(rows["event_time"])).as_py()
    dues = pa.table({name: columns[name] for name in DUE.names}).cast(DUE)
    return dues, clock_ms or 0
