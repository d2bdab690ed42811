"""A user's Spark session as the core sees it: it is handed on, and never looked into.

The core imports no pyspark. What it needs done with a session or with a DataFrame, the room `spark`
does, whose door `txmq/spark/room.py` lists it all. The door is opened by its name, and only where a
caller has handed over a session or a DataFrame; so whoever has no Spark never loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession  # noqa: TC004 - for signatures

__all__ = ["Column", "DataFrame", "SparkSession", "is_connect", "spark_room"]


def spark_room() -> Any:
    """Load the door of the room `spark`. Raises: ImportError where pyspark is not installed."""
    return import_module("txmq.spark.room")


def is_connect(spark: object) -> bool:
    """Tell whether a session is one of Spark Connect, which runs no function of this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")
