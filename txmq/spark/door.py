"""The door of this room: all that the core asks of Spark, by the protocol that each thing fills.

The core opens it by `txmq.ground.sessions.spark_room`. Each function loads its module when
it is called, so a job that only sends a DataFrame loads no stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from txmq.check.service import LogTrigger, Trigger
    from txmq.ground.clock import Clock
    from txmq.ground.handles import Running, TimedRounds
    from txmq.message.body_schema import BodySchema
    from txmq.message.conditions import Condition
    from txmq.producer.routing import DataFrameSend
    from txmq.publish.plan import DistributedEngine
    from txmq.store.store import Store
    from txmq.user_data.delta_inbox import BatchMarks
    from txmq.user_data.markers import DeltaMarkers


def dataframe_send(
    dataframe: DataFrame, topic: str, body_schema: BodySchema | None
) -> DataFrameSend:
    """Check a DataFrame whose rows a transaction sends. See `spark.dataframe`."""
    from txmq.spark.dataframe import DataFrameSend

    return DataFrameSend(dataframe, topic, body_schema)


def payload_engine(spark: SparkSession | None, batch_bytes: int) -> DistributedEngine:
    """Make the engine that copies large plans. Raises: EnvironmentProblemError."""
    from txmq.spark.payload_engine import SparkEngine

    return SparkEngine(spark, batch_bytes)


def start_timer(spark: SparkSession, store: Store, rounds: TimedRounds) -> Running:
    """Start the query that runs the publisher's rounds. See `spark.queries`."""
    from txmq.spark import queries

    return queries.start_timer(spark, store, rounds)


def join_trigger(
    spark: SparkSession, store: Store, clock: Clock, by_logs: LogTrigger, *, rests: bool
) -> Trigger:
    """Make the trigger of the check service that runs the deadline join."""
    from txmq.spark.join_trigger import StreamTrigger

    return StreamTrigger(spark, store, clock, by_logs, rests=rests)


def column_of(condition: Condition) -> Column:
    """Return a condition of a filter as a column that is never null."""
    from txmq.spark import columns

    return columns.column_of(condition)


def digest_of(rows: DataFrame) -> str:
    """Tell the rows of a micro-batch from others. See `spark.columns`."""
    from txmq.spark import columns

    return columns.digest_of(rows)


def session_settings(
    spark: SparkSession, settings: Mapping[str, str], *, way_out: str
) -> AbstractContextManager[None]:
    """Change settings of a session for a block. See `spark.session`."""
    from txmq.spark import session

    return session.session_settings(spark, settings, way_out=way_out)


def setting_of(spark: SparkSession, name: str) -> str | None:
    """Return a setting of a session; None where it has none."""
    from txmq.spark import session

    return session.setting_of(spark, name)


def marked_table(spark: SparkSession, name: str, location: str) -> DeltaMarkers:
    """Return the markers of a user's table, which Spark reads and fences."""
    from txmq.spark.marked_table import SparkMarkedTable

    return SparkMarkedTable(spark, name, location)


def batch_marks(spark: SparkSession, name: str, location: str) -> BatchMarks:
    """Return the marks of micro-batches in a user's table, which Spark reads."""
    from txmq.spark.marked_table import SparkBatchMarks

    return SparkBatchMarks(spark, name, location)
