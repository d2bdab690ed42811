"""Settings of a user's Spark session.

A session may refuse a setting: serverless compute takes six of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# With one of these Spark leaves out the rows of a file that is gone or damaged, and says nothing.
_PASSING_OVER = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


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
    """Return a setting, or None where it has no value or the session tells none."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def check_passes_over_no_file(spark: SparkSession) -> None:
    """Raise EnvironmentProblemError where the session would leave out messages in silence.

    An option of a reader does not help: Delta hands it to no scan.
    """
    for name in _PASSING_OVER:
        if (setting_of(spark, name) or "").lower() == "true":
            problem = f"{name} is true: messages in a file that is gone or damaged would be lost"
            step = f"Set it to false in this session (spark.conf.set({name!r}, 'false'))."
            raise EnvironmentProblemError(problem, step)


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
