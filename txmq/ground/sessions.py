"""A user's Spark session as the core sees it: it is handed on, and never looked into.

The core imports no pyspark. What it needs done with a session or with a DataFrame, the room `spark`
does, whose door `txmq/spark/door.py` lists it all. The face of the package (`txmq/__init__.py`)
says how the door is opened, so no name here leads upwards. It is opened only where a caller has
handed over a session or a DataFrame; whoever has no Spark never loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession  # noqa: TC004 - for signatures

__all__ = ["DOOR", "Column", "DataFrame", "SparkSession", "is_connect", "spark_room"]


class _Door:
    """How the room `spark` is loaded."""

    load: Callable[[], Any]


DOOR = _Door()


def spark_room() -> Any:
    """Load the door of the room `spark`. Raises: ImportError where pyspark is not installed."""
    return DOOR.load()


def is_connect(spark: object) -> bool:
    """Tell whether a session is one of Spark Connect, which runs no function of this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")
