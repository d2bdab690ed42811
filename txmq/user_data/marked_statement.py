"""A mark of Delta on one SQL statement of a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SqlStatement = Callable[..., "DataFrame"]


class OneStatement:
    """`spark.sql`, once: Spark would skip a second statement with the same mark in silence."""

    def __init__(self, spark: SparkSession, second: Exception) -> None:
        """`second` is raised by a second call."""
        self._spark, self._second = spark, second
        self._is_used = False

    def __call__(self, statement: str, args: Any = None) -> DataFrame:
        """Run the statement."""
        if self._is_used:
            raise self._second
        self._is_used = True
        return self._spark.sql(statement) if args is None else self._spark.sql(statement, args)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for a block, and what they were before after it."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)
