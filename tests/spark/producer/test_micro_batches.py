"""What Spark gives to a micro-batch that it runs again, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.builders import table_versions
from tests.kit.reading import publish, rows_of, topic_rows
from txmq.listeners.delta import DeltaListener
from txmq.producer.producer import TransactionProducer
from txmq.spark.micro_batches import BatchTransactions
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.producer.transaction import Transaction
    from txmq.store.store import Store

SCHEMA = "payment string"
TOPIC = "payment-booked"


def nothing(*_: object) -> None:
    """No fault."""


@dataclass
class Job:
    """A job over a folder of files, one a micro-batch."""

    spark: SparkSession
    store: Store
    folder: Path
    after_write: Callable[..., None] = nothing
    transactions: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    def receive(self, name: str, *payments: str) -> None:
        lines = "\n".join(json.dumps({"payment": payment}) for payment in payments)
        (self.folder / "payments").mkdir(exist_ok=True)
        (self.folder / "payments" / f"{name}.json").write_text(lines)

    def tell(self, batch: DataFrame, transaction: Transaction) -> None:
        self.transactions.append(transaction.id)
        self.columns = batch.columns
        transaction.send_dataframe(batch.selectExpr("payment AS body"), topic=TOPIC)

    def book(self, batch: DataFrame, transaction: Transaction) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.options(**transaction.delta_options()).save(self.table)
        self.after_write()

    def merge(self, batch: DataFrame, transaction: Transaction) -> None:
        """Not idempotent: each run would add a row."""
        batch.createOrReplaceTempView("batch")
        with transaction.delta_sql(batch.sparkSession) as sql:
            sql(f"MERGE INTO delta.`{self.table}` AS t USING batch AS b ON false "
                "WHEN NOT MATCHED THEN INSERT *")  # fmt: skip
        self.after_write()

    @property
    def table(self) -> str:
        return str(self.folder / "booked")

    def run(
        self, *, checkpoint: str = "checkpoint", where: str = "true", change: Any = None
    ) -> None:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        listener = DeltaListener(self.table)
        with TransactionProducer(self.store, producer_group="booking", listener=listener) as own:
            batches = BatchTransactions(
                own, query_name="booking", send=self.tell, change=change or self.book
            )
            writer = batches.write_stream(stream.json(f"{self.folder}/payments").where(where))
            writer = writer.option("checkpointLocation", f"{self.folder}/{checkpoint}")
            writer.trigger(availableNow=True).start().awaitTermination()

    def run_until_it_dies(self, **options: Any) -> None:
        from pyspark.errors import StreamingQueryException

        def die() -> None:
            raise RuntimeError("here the job dies")

        self.after_write = die
        with pytest.raises(StreamingQueryException):
            self.run(**options)
        self.after_write = nothing

    def booked(self) -> list[str]:
        return sorted(row["payment"] for row in rows_of(self.table))

    def shown(self) -> list[str]:
        publish(self.store)
        assert verify(self.store.location).is_clean
        return sorted(row["body"].decode() for row in topic_rows(self.store, TOPIC))


@pytest.fixture
def job(spark: SparkSession, store: Store, tmp_path: Path) -> Job:
    made = Job(spark, store, tmp_path)
    write_deltalake(made.table, pa.table({"payment": pa.array([], pa.string())}))
    return made


@pytest.mark.parametrize("kind", ["book", "merge"])
def test_micro_batch_that_runs_again_is_the_same_transaction(job: Job, kind: str) -> None:
    change = getattr(job, kind)
    job.receive("a", "1", "2")
    job.receive("b", "3")

    job.run_until_it_dies(change=change)
    job.run(change=change)

    first, again, second = job.transactions
    assert first == again != second
    assert job.booked() == job.shown() == ["1", "2", "3"]
    assert job.columns == ["payment"]


def test_new_checkpoint_is_new_work(job: Job) -> None:
    job.receive("a", "1")

    job.run()
    job.run(checkpoint="another")

    assert len(set(job.transactions)) == 2
    # As with any sink of Spark; what must not be is rows without messages or the reverse.
    assert job.booked() == job.shown() == ["1", "1"]


def test_micro_batch_without_rows_is_no_transaction(job: Job) -> None:
    job.receive("a", "1")
    before = table_versions(job.store)

    job.run(where="payment = 'none'")

    assert table_versions(job.store) == before
    assert job.transactions == []
