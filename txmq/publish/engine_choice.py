"""Which engine copies the bodies of a plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from txmq.delta.storage import Table
from txmq.errors import EnvironmentProblemError
from txmq.publish.arrow_engine import ArrowEngine, batch_bytes_of
from txmq.publish.plan import PayloadEngine, Plan
from txmq.publish.spark_engine import SparkEngine, suits_spark
from txmq.store.typed import body_schema_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.store.config import Config


logger = logging.getLogger(__name__)


class EngineChoice:
    """Chooses the engine that copies a plan."""

    def __init__(self, config: Config, spark: SparkSession | None) -> None:
        """With auto, Spark copies plans of `payload_engine_spark_bytes` or more."""
        setting = config.payload_engine
        batch_bytes = batch_bytes_of(config.publish_batch_bytes, config.publish_threads)
        self._arrow = ArrowEngine(batch_bytes)
        self._spark = _spark_engine(spark, setting)
        self._setting, self._spark_bytes = setting, config.payload_engine_spark_bytes

    def engine_for(self, plan: Plan, topic: Table) -> PayloadEngine:
        """The engine for the rows of one topic."""
        # Only the Arrow engine can turn bodies into columns.
        suits = suits_spark(plan) and body_schema_in(topic) is None
        if self._spark is None or self._setting == "arrow" or not suits:
            return self._arrow
        if self._setting == "spark" or plan.size_bytes() >= self._spark_bytes:
            return self._spark
        return self._arrow


def _spark_engine(spark: SparkSession | None, setting: str) -> SparkEngine | None:
    """The engine, where it may be chosen; a session can be one for consumers and listeners alone.

    Raises: EnvironmentProblemError where the setting demands an engine that cannot be.
    """
    if setting == "arrow" or (spark is None and setting != "spark"):
        return None
    try:
        return SparkEngine(spark)
    except EnvironmentProblemError as error:
        if setting == "spark":
            raise
        logger.info("this process copies all messages itself: %s", error)
        return None
