"""An S3 server, and Spark that reaches it as conf/spark-s3.conf says."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import s3
from tests.kit.spark_environment import spark_environment as kit_environment
from tests.places.connect_server import connect_server
from txmq.spark.jars import spark_home
from txmq.user_data.s3_log_store import s3_log_store_jar

PROJECT = Path(__file__).parents[2]
SPARK_LIMIT_S = 600
# Runs one of the programs beside this file, and gives what it printed last.
RunSpark = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    with s3.moto(tmp_path_factory.mktemp("s3") / "moto.log") as running:
        yield running


@pytest.fixture(scope="session")
def connect_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server, for all that asks for one."""
    with connect_server(tmp_path_factory.mktemp("connect") / "server.log") as address:
        yield address


@pytest.fixture
def lake(server: s3.S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of the bucket; the credentials are in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.BUCKET}/{uuid.uuid4()}"


@pytest.fixture
def spark_environment() -> dict[str, str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    return {**kit_environment(), **python}


@pytest.fixture
def submit(server: s3.S3, spark_environment: dict[str, str]) -> RunSpark:
    """spark-submit, as the page of places says, with the address of the server."""
    environment = {**spark_environment, **server.environment}

    def run(program: Path, *arguments: str, settings: dict[str, str] | None = None) -> str:
        given = {
            "spark.hadoop.fs.s3a.endpoint": server.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": s3.REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.ui.enabled": "false",
            **(settings or {}),
        }
        command = [
            str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]",
            "--properties-file", str(PROJECT / "conf" / "spark-s3.conf"),
            "--jars", str(s3_log_store_jar()),
            *(text for pair in given.items() for text in ("--conf", "=".join(pair))),
            str(program), *arguments,
        ]  # fmt: skip
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SPARK_LIMIT_S,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
        return ended.stdout

    return run


@pytest.fixture
def run_spark(submit: Callable[..., str]) -> RunSpark:
    """A program beside this file; what it prints last is JSON."""

    def run(name: str, *arguments: str, settings: dict[str, str] | None = None) -> Any:
        said = submit(Path(__file__).with_name(name), *arguments, settings=settings)
        return json.loads(said.strip().splitlines()[-1])

    return run
