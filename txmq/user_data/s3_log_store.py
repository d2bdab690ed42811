"""Settings with which open-source Spark writes Delta tables on S3 and overwrites no other commit.

Spark looks whether a commit file is there and then writes it, so a fence, or a local transaction,
that comes in between is lost without an error (decision 0012). The log store in the jar beside this
module puts each commit if absent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.errors import UnsupportedPlaceError, shown
from txmq.ground.sessions import spark_room

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

LOG_STORE_CLASS = "io.txmq.spark.S3ConditionalLogStore"
SCHEMES = ("s3", "s3a", "s3n")
_JAR = Path(__file__).with_name("java") / "txmq-s3-log-store.jar"
_ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"


def s3_log_store_jar() -> Path:
    """Return the jar for `spark.jars`; it needs Hadoop 3.4.2 or newer, and says so."""
    return _JAR


def s3_log_store_settings() -> dict[str, str]:
    """Return settings of a new Spark session: the jar, and the log store for each scheme of S3.

    Example:
        >>> spark = local_session(extra=s3_log_store_settings())
    """
    return {"spark.jars": str(_JAR), **{_setting(scheme): LOG_STORE_CLASS for scheme in SCHEMES}}


def check_log_store(spark: SparkSession | None, location: str) -> None:
    """Refuse a table whose commits Spark may overwrite; 0 commits.

    Args:
        spark: the session that writes the table; without one nothing is known, nor refused.
        location: of the table.

    Raises: UnsupportedPlaceError.
    """
    scheme = location.partition("://")[0].lower()
    if spark is None or scheme not in SCHEMES:
        return
    setting_of = spark_room().setting_of
    log_stores = {setting_of(spark, _setting(name)) for name in (scheme, "s3a")}
    if problem := log_store_problem(log_stores, os.environ):
        raise UnsupportedPlaceError(f"table {shown(location)}", problem)


def is_committed_by_service(location: str) -> bool:
    """Tell whether Databricks puts the commits of a table by a service that txmq does not know."""
    scheme = location.partition("://")[0].lower()
    return scheme in SCHEMES and _ON_DATABRICKS in os.environ


def active_session() -> SparkSession | None:
    """Return the session of this thread, or else of this process; None if Spark has none."""
    # Another thread may be loading it at this moment.
    session = getattr(sys.modules.get("pyspark.sql"), "SparkSession", None)
    # It says by an error that there is none.
    with suppress(RuntimeError):
        return None if session is None else session.active()
    return None


def log_store_problem(
    log_stores: Collection[str | None], environment: Mapping[str, str]
) -> str | None:
    """Tell why a marker or a fence in a table on S3 could be lost; None if it cannot."""
    if _ON_DATABRICKS in environment:
        return (
            "is on S3, where Databricks commits by a service that knows nothing of fences by "
            "delta-rs; let Spark put them (DeltaListener(..., spark=spark))"
        )
    if LOG_STORE_CLASS in log_stores:
        return None
    return (
        f"is on S3, where Spark overwrites commits that came first ({_setting('s3a')} is not "
        f"{LOG_STORE_CLASS}); start the session with s3_log_store_settings(), or write the table "
        "by delta_rs()"
    )


def _setting(scheme: str) -> str:
    return f"spark.delta.logStore.{scheme}.impl"
