"""The example listener of the bundle for Databricks, asked by the bundle's own task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from tests.kit import bundle
from txmq.job import run_recheck_job
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

GROUP = "order-service"
SETTINGS = bundle.FOLDER / "settings.yaml"


@pytest.fixture
def given_to_recheck() -> list[str]:
    """What the bundle passes to its task, but for the location."""
    (task,) = (task for _, job, task in bundle.tasks() if job["name"] == "txmq-recheck")
    parameters = task["python_wheel_task"]["parameters"]
    return [bundle.filled(each) for each in parameters if "${var.location}" not in each]


def test_recheck_of_the_bundle_asks_the_listener_of_its_wheel(
    spark: SparkSession,
    given_to_recheck: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is sent is due at once.
    store = Store.create(
        tmp_path / "store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    with TransactionProducer(store, producer_group=GROUP) as producer:
        saved, on_its_way = (producer.begin_transaction() for _ in range(2))
        for transaction in (saved, on_its_way):
            transaction.send(Message("order-paid", b"42"))
            transaction.prepare()
    rows = spark.createDataFrame([(saved.id,)], "transaction_id string")
    rows.createOrReplaceTempView("saved_orders")
    monkeypatch.syspath_prepend(bundle.FOLDER / "listeners")
    monkeypatch.setattr(importlib.import_module("order_listeners"), "ORDERS", "saved_orders")

    assert f"--config={SETTINGS}" in given_to_recheck
    assert run_recheck_job([store.location, *given_to_recheck]) == 0

    # A row that is not there may be on its way, so its transaction is asked about again.
    lives = [Admin(store).transaction(each.id) for each in (saved, on_its_way)]
    assert [life.check_times for life in lives] == [0, 1]
    assert [life.events[-1].title for life in lives] == ["COMMIT", "UNKNOWN"]
