"""The bodies of the jobs that need no Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.stores import fresh_store
from txmq.job import run_batch_job, run_broker_job, run_recheck_job, run_verify_job
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store
from txmq.testing import ManualClock


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


def test_broker_fails_the_job_where_a_topic_is_parked(store: Store) -> None:
    # The place of the topic's folder.
    Path(store.location, "topics").mkdir(exist_ok=True)
    Path(store.location, "topics", "order-paid").write_text("no table")

    with pytest.raises(SystemExit, match=r"parked; `txmq topics` names them; see docs/runbook"):
        run_broker_job([store.location, "--once", "--no-spark"])


def test_verify_fails_the_job_where_a_promise_is_broken(store: Store) -> None:
    # On its way while a broker runs, and lost where none is left to publish it.
    assert run_verify_job([store.location]) == 0

    with pytest.raises(SystemExit, match=r"^\d+ violations in .*docs/runbook.md$") as caught:
        run_verify_job([store.location, "--drained"])

    assert caught.value.code not in (None, 0)


def test_recheck_fails_the_job_where_nobody_can_be_asked(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop", clock=ManualClock()) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
        # The deadline counts from the commit file, so its time is set back.
        for commit in Path(store.location, "half", "_delta_log").iterdir():
            os.utime(commit, (0, 0))

        # In the second one its pause is not over.
        for _ in range(2):
            with pytest.raises(SystemExit, match=r"no listener .*: shop; see docs/runbook"):
                run_recheck_job([store.location])
        transaction.commit()

    assert run_recheck_job([store.location]) == 0


def test_maintenance_fails_the_job_where_a_table_failed(store: Store) -> None:
    assert run_batch_job("maintenance", Maintenance, [store.location]) == 0
    (newest,) = Path(store.location, "op", "_delta_log").glob("*1.json")
    newest.write_text("{")

    with pytest.raises(SystemExit, match=r"^failed: .*op: .*docs/runbook.md$"):
        run_batch_job("maintenance", Maintenance, [store.location])
