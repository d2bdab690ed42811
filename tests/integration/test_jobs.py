"""The scripts that a user submits, run as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from txmq.delta_jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    missing_jars,
    spark_home,
)
from txmq.java_runtime import home_for_spark, require_java
from txmq.message import Message
from txmq.producer import TransactionProducer
from txmq.store import Store

PROJECT = Path(__file__).parents[2]
START_LIMIT_S = 120


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    return {**os.environ, "JAVA_HOME": str(java_home), "SPARK_HOME": str(spark_home()), **python}


def submit(environment: dict[str, str], job: str, *arguments: str) -> subprocess.Popen[str]:
    settings = (PROJECT / "conf" / "spark-defaults.conf").read_text().splitlines()
    # The jars are in the cache already; everything else is the file that users pass.
    pairs = [line.split(None, 1) for line in settings if line and not line.startswith("#")]
    kept = [f"{key}={value}" for key, value in pairs if key != "spark.jars.packages"]
    options = [part for pair in kept for part in ("--conf", pair)]
    jars = ",".join(str(path) for path in jar_paths(cache_folder()))
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jars]
    return subprocess.Popen(
        [*command, *options, str(PROJECT / "jobs" / job), *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def send_one(store: Store) -> None:
    with (
        TransactionProducer(store, producer_group="shop") as producer,
        producer.begin_transaction() as transaction,
    ):
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
        transaction.commit()


def test_submitted_broker_publishes_what_is_there_and_ends(
    store: Store, environment: dict[str, str]
) -> None:
    send_one(store)

    job = submit(environment, "broker.py", store.location, "--once")
    said, _ = job.communicate(timeout=START_LIMIT_S)

    assert job.returncode == 0, said
    assert store.topics() == ["order-paid"]


def test_submitted_job_without_a_store_fails_with_the_next_step(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    job = submit(environment, "check_service.py", str(tmp_path / "nothing"), "--once")
    said, _ = job.communicate(timeout=START_LIMIT_S)

    assert job.returncode != 0
    assert "txmq init" in said


def test_terminated_publisher_ends_between_two_batches_with_code_0(
    store: Store, environment: dict[str, str]
) -> None:
    job = submit(environment, "publisher.py", store.location)
    send_one(store)
    deadline_s = time.monotonic() + START_LIMIT_S
    while not store.topics() and time.monotonic() < deadline_s:
        time.sleep(0.2)

    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=START_LIMIT_S)

    assert store.topics() == ["order-paid"], said
    assert job.returncode == 0, said


def test_quickstart_notebook_runs_as_it_stands() -> None:
    notebook = PROJECT / "notebooks" / "quickstart.py"

    finished = subprocess.run(
        [sys.executable, str(notebook)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, timeout=2 * START_LIMIT_S, check=False,
    )  # fmt: skip

    assert finished.returncode == 0, finished.stderr
    assert "order-42" in finished.stdout
    assert "order-44" not in finished.stdout
    assert "0 violations" in finished.stdout
