"""Fences on tables that Spark alone writes: row tracking, clustering, times in commits, more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.kit.asked import prepared, states
from tests.kit.reading import bodies, publish, wait_until
from tests.spark.listeners.test_delta import GROUP, WRITES, Orders
from txmq.errors import LocalTransactionFencedError
from txmq.listeners.delta import DeltaListener
from txmq.message.ids import new_transaction_id
from txmq.producer.producer import TransactionProducer
from txmq.user_data.delta_marker import DONE, FENCED, LOOKED_UP_SINGLY, MarkedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.store.store import Store

# As they are on Databricks; checkpoints come often, so that some are of the second kind.
USUAL = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.checkpointPolicy": "v2",
    "delta.enableTypeWidening": "true",
    "delta.checkpointInterval": "5",
}
FEATURES = {"clustering", "domainMetadata", "inCommitTimestamp", "rowTracking", "typeWidening"}
# Each takes seconds; the others are tried on a table without features.
BY_SPARK = ["append", "MERGE", "UPDATE", "DELETE"]


class UsualOrders(Orders):
    """As Orders, read by Spark: delta-rs does not read each of these tables."""

    def create(self) -> None:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in USUAL.items())
        self.spark.sql(
            f"CREATE TABLE delta.`{self.location}` (id BIGINT, status STRING) USING delta "
            f"CLUSTER BY (id) TBLPROPERTIES ({properties})"
        )
        self.spark.sql(f"INSERT INTO delta.`{self.location}` VALUES (1, 'open'), (2, 'open')")

    def rows(self) -> list[tuple[int, str]]:
        found = self.spark.read.format("delta").load(self.location).collect()
        return sorted((row["id"], row["status"]) for row in found)

    def times_ms(self) -> list[int]:
        """The time that each commit names."""
        logs = sorted(Path(self.location, "_delta_log").glob("*.json"))
        first = [json.loads(log.read_text().splitlines()[0]) for log in logs if log.stem.isdigit()]
        return [line["commitInfo"]["inCommitTimestamp"] for line in first]


@pytest.fixture
def orders(tmp_path: Path, spark: SparkSession) -> UsualOrders:
    orders = UsualOrders(str(tmp_path / "orders"), spark)
    orders.create()
    assert set(DeltaTable(orders.location).protocol().writer_features or ()) >= FEATURES
    return orders


@pytest.fixture
def listener(orders: UsualOrders) -> DeltaListener:
    return DeltaListener(orders.location)


@pytest.fixture
def producer(store: Store, listener: DeltaListener) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        yield producer


@pytest.mark.parametrize("name", BY_SPARK)
def test_each_write_counts_or_is_fenced(
    name: str, orders: UsualOrders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    write, after = WRITES[name]
    before, late, done = orders.rows(), prepared(producer), prepared(producer)

    assert states(listener, late.id) == ["ROLLBACK"]
    with pytest.raises(LocalTransactionFencedError):
        write(orders, late)
        late.commit()
    assert orders.rows() == before

    write(orders, done)
    assert states(listener, done.id) == ["COMMIT"]
    done.commit()
    assert orders.rows() == after
    publish(producer.store)
    assert bodies(producer.store) == [done.id.encode()]


def test_write_on_its_way_loses_to_its_fence_and_others_pass(
    orders: UsualOrders, listener: DeltaListener, producer: TransactionProducer
) -> None:
    from delta.exceptions import ConcurrentTransactionException

    transaction = prepared(producer)
    with (
        slow_append(orders, **transaction.delta_options()) as (marked, go_on),
        slow_append(orders) as (other, go_on_too),
    ):
        assert states(listener, transaction.id) == ["ROLLBACK"]
        go_on()
        with pytest.raises(ConcurrentTransactionException):
            marked.result(60)
        go_on_too()
        other.result(60)

    assert orders.rows() == [(1, "open"), (1, "paid"), (2, "open"), (3, "paid")]
    times_ms = orders.times_ms()
    assert times_ms == sorted(set(times_ms))


def test_fences_are_found_after_checkpoints(orders: UsualOrders) -> None:
    ids = [new_transaction_id(1_800_000_000_000 + number) for number in range(60)]
    assert len(ids) > LOOKED_UP_SINGLY
    marked = MarkedTable("orders", orders.location)
    marked.commit_marks(dict.fromkeys(ids[:20], DONE))

    assert marked.fence(ids) == dict.fromkeys(ids[:20], DONE) | dict.fromkeys(ids[20:], FENCED)

    while orders.version % int(USUAL["delta.checkpointInterval"]):
        orders.spark.sql(f"INSERT INTO delta.`{orders.location}` VALUES (4, 'open')")
    assert list(Path(orders.location, "_delta_log").glob("*.checkpoint.*"))
    again = MarkedTable("orders", orders.location)
    assert again.markers(ids) == {each: again.mark(each) for each in ids}
    assert again.markers(ids[:1] + ids[-1:]) == {ids[0]: DONE, ids[-1]: FENCED}


@contextmanager
def slow_append(
    orders: Orders, **options: str
) -> Iterator[tuple[Future[None], Callable[[], None]]]:
    """An append by Spark that has begun, and what lets it go on."""
    import pyspark.sql.functions as F  # noqa: N812

    begun = Path(f"{orders.location}.begun.{len(options)}")
    free = Path(f"{orders.location}.free.{len(options)}")

    def slow(status):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - hints choose a kind
        begun.touch()
        for _ in range(1_200):
            if free.exists():
                break
            time.sleep(0.05)
        return status

    rows = orders.changes().coalesce(1).withColumn("status", F.udf(slow, "string")("status"))
    writer: Any = rows.write.format("delta").mode("append").options(**options)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.save, orders.location)
        try:
            wait_until(begun.exists)
            yield writing, free.touch
        finally:
            free.touch()
