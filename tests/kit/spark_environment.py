"""The environment of a Spark process that a test starts."""

from __future__ import annotations

import os

from txmq.spark.jars import cache_folder, spark_home
from txmq.spark.java import home_for_spark, require_java

# What a session of Spark Connect leaves in its process, and what would make others use Connect.
_OF_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")


def spark_environment() -> dict[str, str]:
    """That of this process, with a Java and a Spark, and without Connect."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_CONNECT}
    java_home = home_for_spark(require_java(), cache_folder())
    return {**kept, "JAVA_HOME": str(java_home), "SPARK_HOME": str(spark_home())}


def forget_connect() -> None:
    """Take from this process what a session of Connect left in the one that started it."""
    for name in _OF_CONNECT:
        os.environ.pop(name, None)
