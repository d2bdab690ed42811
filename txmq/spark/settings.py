"""Settings of a user's Spark session, which may refuse them: serverless compute takes six."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Few engines read Spark's default, INT96.
MICROSECONDS: Mapping[str, str] = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def change_setting(spark: SparkSession, name: str, value: str | None, *, way_out: str) -> None:
    """Set one setting, or unset it (None).

    Args:
        spark: the session; one of Spark Connect too.
        name: of the setting.
        value: None for the default.
        way_out: the next step of the error.

    Raises: EnvironmentProblemError where the session refuses the setting.
    """
    from pyspark.errors import PySparkException

    try:
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    except PySparkException as error:
        raise _refused(name, error, way_out) from error


def setting_of(spark: SparkSession, name: str) -> str | None:
    """The value of a setting; None where it has none, or where the session tells none."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


@contextmanager
def session_settings(
    spark: SparkSession, settings: Mapping[str, str], *, way_out: str
) -> Iterator[None]:
    """Change settings of the session for a block, and restore them after it.

    Raises: EnvironmentProblemError as `change_setting`, before the block; then none is changed.
    """
    with ExitStack() as restoring:
        for name, value in settings.items():
            before = setting_of(spark, name)
            change_setting(spark, name, value, way_out=way_out)
            restoring.callback(change_setting, spark, name, before, way_out=way_out)
        yield


def _refused(name: str, error: Exception, way_out: str) -> EnvironmentProblemError:
    said = (str(error).splitlines() or [type(error).__name__])[0]
    problem = f"the session of Spark refuses the setting {name}: {shown(said)}"
    return EnvironmentProblemError(problem, way_out)
