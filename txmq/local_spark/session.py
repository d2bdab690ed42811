"""A quiet local Spark session with Delta, for the demo, the CLI, laptops and tests."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from txmq.errors import EnvironmentProblemError
from txmq.local_spark.jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    missing_jars,
    spark_home,
)
from txmq.local_spark.java import home_for_spark, java_options, require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_WITHOUT_SPARK = "Spark is not installed, and this call needs it"

_SETTINGS: Mapping[str, str] = {
    # Delta's SQL and its catalog: without both, MERGE and path tables fail.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # All times of txmq are UTC; a laptop's zone would shift what is shown.
    "spark.sql.session.timeZone": "UTC",
    # A snapshot has 50 partitions and a shuffle 200 by default: seconds of empty tasks here.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    # The default starts a program for each file of a checkpoint four times to read a link that is
    # none: a hundred processes a micro-batch. This one renames as atomically on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    # No web page and no progress bars across the program's own output.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Nothing listens outside this machine, and no host name need resolve.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Driver and executor are one process here, and share what Spark gives a driver alone.
    "spark.driver.memory": "2g",
}

# What lives for minutes runs most queries once, and compiling each costs more than it gains.
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
    """The active session if there is one, else a new local one with Delta.

    `for_minutes` lets Java and Spark compile less, which pays for demos and tests. An active
    session keeps its settings but for `extra`, which win over the defaults in both cases. The first
    start on a machine fetches Delta's jars (13 MB).

    Raises:
        EnvironmentProblemError: Spark, Java or Delta's jars are missing and cannot be had.
    """
    active = active_session()
    if active is not None:
        for key, value in (extra or {}).items():
            active.conf.set(key, value)
        return active
    settings = {"spark.master": master, **_SETTINGS, **(_FOR_MINUTES if for_minutes else {})}
    return _started(app_name, java_options(for_minutes=for_minutes), {**settings, **(extra or {})})


def active_session() -> SparkSession | None:
    """The session of a notebook, a job or an earlier call; None if there is none yet."""
    if find_spec("pyspark") is None:
        raise EnvironmentProblemError(_WITHOUT_SPARK, "Run `pip install 'txmq[spark]'`")
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _started(app_name: str, options: str, settings: Mapping[str, str]) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started Java already and chosen the jars.
        return _built(app_name, settings)
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    jars = ",".join(str(path) for path in jar_paths(cache))
    # glibc would keep an arena for each thread, some hundred megabytes.
    arenas = os.environ.get("MALLOC_ARENA_MAX", "2")
    with _environment(
        JAVA_HOME=str(java_home), SPARK_HOME=str(spark_home()), MALLOC_ARENA_MAX=arenas
    ):
        # Default options, so that `spark.driver.extraJavaOptions` in `extra` can add.
        started = {"spark.driver.defaultJavaOptions": options}
        return _built(app_name, {**started, **settings, "spark.jars": jars})


def _built(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Without this, Spark starts workers with whatever `python3` is on PATH.
    with _environment(PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", sys.executable)):
        return builder.getOrCreate()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for the start of Java only: the caller's own programs keep theirs."""
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
