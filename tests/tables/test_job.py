"""The bodies of the jobs that need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.stores import fresh_store
from txmq.job import run_broker_job, run_verify_job
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = fresh_store(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send([Message("order-paid", b"42")])
    return store


def test_broker_without_spark_publishes_what_is_there_and_ends(store: Store) -> None:
    run_broker_job([store.location, "--once", "--no-spark"])

    assert store.topics() == ["order-paid"]
    assert run_verify_job([store.location, "--drained"]) == 0


def test_verify_fails_the_job_where_a_promise_is_broken(store: Store) -> None:
    # On its way while a broker runs, and lost where none is left to publish it.
    assert run_verify_job([store.location]) == 0

    with pytest.raises(SystemExit, match=r"^\d+ violations in .*docs/runbook.md$") as caught:
        run_verify_job([store.location, "--drained"])

    assert caught.value.code not in (None, 0)
