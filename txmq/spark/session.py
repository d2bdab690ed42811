"""A quiet local Spark session with Delta, for the demo, the CLI, laptops and tests."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError, step_for_extra
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

    from pyspark.sql import SparkSession


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


def register_data_source(spark: SparkSession) -> None:
    """Let a session know `format("txmq")`; also one of Spark Connect. 0 commits.

    Args:
        spark: the session, of Spark 4.0 or newer; streams need 4.2.

    Example:
        >>> register_data_source(spark)
        >>> spark.read.format("txmq").option("topic", "order-paid").load("/lake/store")
    """
    from txmq.spark.data_source import TxmqDataSource

    spark.dataSource.register(TxmqDataSource)
