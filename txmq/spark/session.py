"""Sessions of Spark: a quiet local one with Delta, and what is asked of a user's.

A session may refuse a setting: serverless compute takes six of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError, shown, step_for_extra
from txmq.ground.handles import GATEWAY_PORT
from txmq.spark.jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    local_checkpoint_files,
    missing_jars,
    spark_home,
)
from txmq.spark.java import home_for_spark, java_options, require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_WITHOUT_SPARK = "Spark is not installed, and this call needs it"

_SETTINGS: Mapping[str, str] = {
    # Delta's SQL and its catalog: without both, MERGE and path tables fail.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # All times of txmq are UTC; Spark would show them in the zone of the laptop.
    "spark.sql.session.timeZone": "UTC",
    # By default a snapshot has 50 partitions and a shuffle 200: seconds of empty tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    # No web page, and no progress bars in the output of the program.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark listens on this machine only, and needs no host name that resolves.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Driver and executor are one process and share this memory.
    "spark.driver.memory": "2g",
}

# A session of some minutes runs most queries once; compiling them costs more than it saves.
_FOR_MINUTES: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

# With one of these Spark leaves out the rows of a file that is gone or damaged, and says nothing.
_PASSING_OVER = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


# --- a local session ------------------------------------------------------------------------------


def local_session(
    app_name: str = "txmq",
    *,
    master: str = "local[2]",
    extra: Mapping[str, str] | None = None,
    for_minutes: bool = False,
) -> SparkSession:
    """Return the active session, or make a local session with Delta.

    The first start on a machine fetches Delta's jars (13 MB).

    Args:
        app_name: the name of the Spark application.
        master: Spark's master URL.
        extra: settings that override the defaults; they are set on an active session too.
        for_minutes: let Java and Spark compile less, which suits demos and tests.

    Raises:
        EnvironmentProblemError: Spark, Java or Delta's jars are missing and cannot be fetched.
    """
    active = active_session()
    if active is not None:
        for key, value in (extra or {}).items():
            active.conf.set(key, value)
        return active
    settings = {"spark.master": master, **_SETTINGS, **local_checkpoint_files(version("pyspark"))}
    settings |= _FOR_MINUTES if for_minutes else {}
    return _started(app_name, java_options(for_minutes=for_minutes), {**settings, **(extra or {})})


def active_session() -> SparkSession | None:
    """Return the session of a notebook, a job or an earlier call; None without one.

    Raises: EnvironmentProblemError where Spark is not installed.
    """
    if find_spec("pyspark") is None:
        raise EnvironmentProblemError(_WITHOUT_SPARK, step_for_extra("spark"))
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _started(app_name: str, options: str, settings: Mapping[str, str]) -> SparkSession:
    if GATEWAY_PORT in os.environ:
        # spark-submit has already started Java and chosen the jars.
        return _built(app_name, settings)
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    jars = ",".join(filter(None, [*map(str, jar_paths(cache)), settings.get("spark.jars")]))
    # By default glibc keeps an arena for each thread, some hundred megabytes in all.
    arenas = os.environ.get("MALLOC_ARENA_MAX", "2")
    with _environment(
        JAVA_HOME=str(java_home), SPARK_HOME=str(spark_home()), MALLOC_ARENA_MAX=arenas
    ):
        # Default options, so that `spark.driver.extraJavaOptions` in `extra` can add to them.
        started = {"spark.driver.defaultJavaOptions": options}
        return _built(app_name, {**started, **settings, "spark.jars": jars})


def _built(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Without this, Spark starts workers with the `python3` on PATH.
    with _environment(PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", sys.executable)):
        return builder.getOrCreate()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables while Java starts, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- a user's session -----------------------------------------------------------------------------


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return columns as tasks have them, with times in UTC, which Spark 4.2 has to be told."""
    from pyspark.sql.pandas.types import to_arrow_schema

    is_told = "timezone" in signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if is_told else to_arrow_schema(schema)


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
