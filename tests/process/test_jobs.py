"""The scripts that a user submits, run as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import wait_until
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.spark.jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    missing_jars,
    spark_home,
)
from txmq.spark.java import home_for_spark, java_options, require_java
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

PROJECT = Path(__file__).parents[2]
START_LIMIT_S = 120
OPTIONS = "spark.driver.defaultJavaOptions"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    return {**os.environ, "JAVA_HOME": str(java_home), "SPARK_HOME": str(spark_home()), **python}


def spark_options() -> list[str]:
    """What users pass, but with the jars from the cache in the place of their download."""
    lines = (PROJECT / "conf" / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    kept = [f"{key}={value}" for key, value in pairs if key != "spark.jars.packages"]
    jars = ",".join(str(path) for path in jar_paths(cache_folder()))
    # These live for seconds: as `local_session(for_minutes=True)`.
    quick = f"{OPTIONS}={java_options(for_minutes=True)}"
    settings = (p for k in [*kept, quick] for p in ("--conf", k))
    return ["--master", "local[2]", "--jars", jars, *settings]


def submit(
    environment: dict[str, str], job: str, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = [str(spark_home() / "bin" / "spark-submit"), *spark_options(), *options]
    return started([*command, str(PROJECT / "jobs" / job), *arguments], environment)


def run_with_python(
    environment: dict[str, str], job: str, *arguments: str
) -> subprocess.Popen[str]:
    options = {"PYSPARK_SUBMIT_ARGS": shlex.join([*spark_options(), "pyspark-shell"])}
    command = [sys.executable, str(PROJECT / "jobs" / job), *arguments]
    return started(command, {**environment, **options})


def started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


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


@pytest.mark.parametrize(("run", "code"), [(run_with_python, 0), (submit, 143)])
def test_terminated_publisher_leaves_a_store_without_violations(
    run: Callable[..., subprocess.Popen[str]],
    code: int,
    store: Store,
    environment: dict[str, str],
) -> None:
    job = run(environment, "publisher.py", store.location)
    send_one(store)
    wait_until(store.topics, START_LIMIT_S, "a topic")

    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=START_LIMIT_S)

    # spark-submit's own process is Java, which ends at once; Python ends between two batches.
    assert job.returncode == code, said
    assert verify(store.location).is_clean


LISTENER = """
from txmq import LocalTransactionState

class Shop:
    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT
"""
QUERY = "txmq-check-"


class SparksPage:
    """What Spark's own page, which a user looks at, shows of a running job."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.options = ("--conf", f"spark.ui.port={self.port}")

    def batches(self) -> list[dict[str, Any]]:
        """The jobs of the check service's query; none while there is no page yet."""
        # While Spark starts it answers by a sentence.
        with suppress(OSError, json.JSONDecodeError):
            (application,) = json.loads(self._read("api/v1/applications"))
            jobs = json.loads(self._read(f"api/v1/applications/{application['id']}/jobs"))
            return [job for job in jobs if QUERY in job.get("description", "")]
        return []

    def queries(self) -> str:
        return self._read("StreamingQuery/")

    def _read(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}") as answer:
            return str(answer.read().decode())


def test_check_service_is_one_query_that_sparks_page_shows(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    # No commit for a while: the query goes on, and the orphan is found by one of two roads.
    store = Store.create(tmp_path / "store", Config(transaction_timeout_s=0.1))
    (tmp_path / "shop.py").write_text(LISTENER)
    path = os.pathsep.join((environment["PYTHONPATH"], str(tmp_path)))
    with_listener = {"PYTHONPATH": path, "TXMQ_LISTENERS": '{shop: "shop:Shop"}'}
    page, op = SparksPage(), store.tables.op_log()

    job = submit(
        {**environment, **with_listener}, "check_service.py", store.location, options=page.options
    )
    try:
        wait_until(page.batches, START_LIMIT_S, "a micro-batch")
        with TransactionProducer(store, producer_group="shop") as producer:
            transaction = producer.begin_transaction()
            transaction.send(Message("order-paid", b"42"))
            transaction.prepare()
            del transaction
            wait_until(op.table.log.has_news, START_LIMIT_S, "an answer")
        seen = len(page.batches())
        wait_until(lambda: len(page.batches()) > seen, START_LIMIT_S, "another micro-batch")
        runs, queries = {batch["jobGroup"] for batch in page.batches()}, page.queries()
    finally:
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=START_LIMIT_S)

    assert len(runs) == 1
    assert QUERY in queries
    assert "asked 1, discarded 0" in said
    # Spark tells of a query that is stopped while it plans by a trace, and of its work nothing.
    assert [line for line in said.splitlines() if " INFO " in line and " txmq" not in line] == []


@pytest.mark.parametrize("run", [run_with_python, submit])
def test_recheck_job_asks_once_and_ends(
    run: Callable[..., subprocess.Popen[str]], store: Store, environment: dict[str, str]
) -> None:
    send_one(store)

    job = run(environment, "recheck.py", store.location)
    said, _ = job.communicate(timeout=START_LIMIT_S)

    assert job.returncode == 0, said
    assert '"result": "RecheckResult"' in said
    assert '"is_complete": true' in said
