"""Fences that Spark writes, over Spark Connect: races, kills, the rules of serverless compute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.fenced_by_spark import BY_OPTIONS, PLACES, WRITES, SparkOrders, race
from tests.kit.reading import bodies, publish, wait_until
from tests.places.fence_client import ASKER_STEPS, GROUP, WRITER_STEPS
from tests.places.serverless import ServerlessRules, serverless_session
from txmq.check.recheck import RecheckJob
from txmq.listeners.delta import DeltaListener
from txmq.spark.marked_table import SparkMarkedTable
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
RACES = int(os.environ.get("TXMQ_FENCE_RACES", "6"))
PATIENCE_S = 240.0
PROMPT = Config(
    transaction_timeout_s=0.5,
    transaction_check_interval_s=0.5,
    listener_timeout_s=20.0,
    check_lease_s=21.0,
    producer_lease_s=1.0,
)


@pytest.fixture
def spark(connect_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    # As in a process that can have no other session; PySpark's functions look at it.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(connect_address).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> SparkOrders:
    return SparkOrders(spark, str(tmp_path / "orders")).create(PLACES["path"], RACES)


def test_in_a_race_exactly_one_stands_and_the_loser_is_told(orders: SparkOrders) -> None:
    races = race(orders, WRITES, RACES)

    assert races.disagreements == []
    assert races.writes_won + races.fences_won == RACES


def test_rules_of_serverless_compute_allow_fences_and_marked_frames(
    connect_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    rules = ServerlessRules()
    session = serverless_session(connect_address, rules)
    try:
        orders = SparkOrders(session, str(tmp_path / "orders")).create(PLACES["path"], 2)
        races = race(orders, BY_OPTIONS, 2)
    finally:
        session.stop()

    assert races.disagreements == []
    assert rules.refused == []


def test_whoever_is_killed_where_rows_and_messages_agree(
    spark: SparkSession, connect_address: str, tmp_path: Path
) -> None:
    store = Store.create(tmp_path / "store", PROMPT)
    orders = SparkOrders(spark, str(tmp_path / "orders")).create(PLACES["path"])
    arguments = (connect_address, str(tmp_path / "store"), orders.location)

    for step in WRITER_STEPS:
        with killed(arguments, step) as process:
            if step == "writing":
                wait_until(Path(f"{orders.location}.begun").exists, PATIENCE_S)
                process.kill()
    for step in ASKER_STEPS:
        with killed(arguments, step):
            pass
    recheck(store, orders)
    Path(f"{orders.location}.free").touch()
    wait_until(lambda: recheck(store, orders) == 0, PATIENCE_S)
    publish(store)

    ids = {step: Path(f"{orders.location}.{step}.id").read_text() for step in WRITER_STEPS}
    told = {body.decode() for body in bodies(store)}
    assert told == {ids["written"], ids["committed"]}
    assert {status for _, status in orders.rows()} - {"open"} == told
    marked = SparkMarkedTable(spark, "orders", orders.location)
    assert [marked.is_done(each) for each in ids.values()] == [False, False, True, True]
    assert verify(store.location).is_clean


class killed:  # noqa: N801 - used as a function
    """A client that dies by SIGKILL before the block is over."""

    def __init__(self, arguments: tuple[str, ...], step: str) -> None:
        command = [sys.executable, "-m", "tests.places.fence_client", *arguments, step]
        self._process = subprocess.Popen(command, cwd=PROJECT)

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL


def recheck(store: Store, orders: SparkOrders) -> int:
    """The number of transactions that are open afterwards."""
    listener = DeltaListener(orders.location, spark=orders.spark)
    job = RecheckJob(store, listeners={GROUP: listener}, spark=orders.spark)
    return job.run_once().open_transactions
