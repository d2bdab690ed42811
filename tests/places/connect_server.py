"""A Spark Connect server of this machine, with Delta."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.s3 import free_port
from tests.kit.spark_environment import spark_environment
from txmq.spark.jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    missing_jars,
    spark_home,
)
from txmq.spark.java import home_for_spark, require_java

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_S = 180.0
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
}


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """Its address, such as `sc://127.0.0.1:15002`."""
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    port = free_port()
    settings = {
        **_SETTINGS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [
        str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER,
        "--jars", ",".join(map(str, jar_paths(cache))),
        *(text for pair in settings.items() for text in ("--conf", "=".join(pair))),
        "spark-internal",
    ]  # fmt: skip
    environment = {**spark_environment(), "PYSPARK_PYTHON": sys.executable}
    with (
        log.open("w") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            _await(port, process, log)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.kill()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the Connect server does not listen: {log.read_text()[-1000:]}")
