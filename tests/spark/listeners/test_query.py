"""A query answers: the row is there, not there yet, or too late to come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.kit.asked import asked_about
from tests.kit.check_world import CheckWorld
from txmq.check.recheck import RecheckJob
from txmq.errors import ListenerError
from txmq.spark.listeners import QueryListener
from txmq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOW_MS = 1_800_000_000_000
PAID = "SELECT id FROM paid_orders"


@pytest.fixture
def paid(spark: SparkSession) -> Iterator[None]:
    spark.createDataFrame([(1,), (1,), (3,)], "id bigint").createOrReplaceTempView("paid_orders")
    yield
    spark.catalog.dropTempView("paid_orders")


def told(spark: SparkSession, listener: QueryListener, heads: pa.Table) -> dict[str, str]:
    rows = listener.check_local_transactions(spark.createDataFrame(heads)).toArrow().to_pylist()
    assert len(rows) == heads.num_rows
    return {row["transaction_id"]: row["state"] for row in rows}


def heads_of(keys: list[str | None], *, age_s: float = 0.0) -> pa.Table:
    ids = [f"t{number}" for number in range(len(keys))]
    heads = asked_about(ids, born_ms=NOW_MS - round(age_s * 1000))
    return heads.append_column("keys", pa.array(keys, pa.string()))


@pytest.mark.usefixtures("paid")
def test_key_that_the_query_returns_is_committed(spark: SparkSession) -> None:
    listener = QueryListener(PAID)

    found = told(spark, listener, heads_of(["1", "2", "3", None]))

    assert found == {"t0": "COMMIT", "t1": "UNKNOWN", "t2": "COMMIT", "t3": "UNKNOWN"}


@pytest.mark.usefixtures("paid")
def test_rollback_is_only_said_from_the_stated_age_on(spark: SparkSession) -> None:
    listener = QueryListener(PAID, rollback_after_s=60.0, clock=ManualClock(NOW_MS))

    young, old = heads_of(["1", "2"], age_s=59.0), heads_of(["1", "2"], age_s=61.0)

    assert told(spark, listener, young) == {"t0": "COMMIT", "t1": "UNKNOWN"}
    assert told(spark, listener, old) == {"t0": "COMMIT", "t1": "ROLLBACK"}


@pytest.mark.usefixtures("paid")
def test_property_may_be_the_key(spark: SparkSession) -> None:
    heads = asked_about(["t0", "t1"], born_ms=NOW_MS)
    properties = pa.array([[("order", "3")], []], pa.map_(pa.string(), pa.string()))
    listener = QueryListener(PAID, key="properties.order")

    found = told(spark, listener, heads.append_column("properties", properties))

    assert found == {"t0": "COMMIT", "t1": "UNKNOWN"}
    assert listener.head_columns == ("transaction_id", "properties", "born_timestamp")


@pytest.mark.parametrize("key", ["", "body", "id", "property.order"])
def test_key_that_no_head_has_is_refused(key: str) -> None:
    with pytest.raises(ListenerError, match="transaction_id"):
        QueryListener(PAID, key=key)


@pytest.mark.usefixtures("paid")
def test_check_answers_by_the_query(spark: SparkSession, tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=60.0, check_lease_s=120.0)
    ids = world.prepare(3)
    done = [(ids[0],)]
    spark.createDataFrame(done, "transaction_id string").createOrReplaceTempView("done_orders")
    listener: Any = QueryListener(
        "SELECT transaction_id FROM done_orders", key="transaction_id", rollback_after_s=5.0,
        clock=world.clock,
    )  # fmt: skip
    world.clock.advance(60)

    job = RecheckJob(world.store, listeners={"orders": listener}, clock=world.clock, spark=spark)
    checks = job.run_once().checks

    assert (checks.committed, checks.rolled_back) == (1, 2)


def test_query_that_fails_is_unknown_with_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=60.0, check_lease_s=120.0)
    world.prepare(1)
    world.clock.advance(60)
    listener: Any = QueryListener("SELECT id FROM no_such_table")

    RecheckJob(
        world.store, listeners={"orders": listener}, clock=world.clock, spark=spark
    ).run_once()

    (claim,) = world.claims()
    assert (claim["kind"], claim["reason"]) == ("UNKNOWN", "the listener raised AnalysisException")
