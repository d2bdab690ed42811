"""A checkpoint of a stream is lost or older: what becomes of each kind of sink."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.reading import rows_of
from txmq.listeners.delta import DeltaListener
from txmq.producer.producer import TransactionProducer
from txmq.spark.micro_batches import BatchTransactions
from txmq.spark.streams import Consumer
from txmq.user_data.delta_inbox import DeltaInbox

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.producer.transaction import Transaction

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"
COLUMNS = ("message_id", "queue_id", "queue_offset", "CAST(body AS STRING) AS name")


@dataclass(frozen=True)
class Job:
    """A stream of a topic into a table, that runs from time to time."""

    world: DelayWorld
    spark: SparkSession
    folder: Path

    @property
    def table(self) -> str:
        return str(self.folder / "table")

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def rows(self) -> DataFrame:
        consumer = Consumer(self.world.store, consumer_group="billing")
        return consumer.read_stream(TOPIC, spark=self.spark).selectExpr(*COLUMNS)

    def run(self, writer: Any) -> None:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def into_delta(self, stream: Any = None) -> None:
        rows = self.rows() if stream is None else stream.selectExpr(*COLUMNS)
        self.run(rows.writeStream.format("delta").option("path", self.table))

    def by_inbox(self, name: str = "june", *, says_rows: bool = True) -> None:
        inbox = DeltaInbox("billing", self.table)

        def book(batch: DataFrame, batch_id: int) -> None:
            rows = batch if says_rows else None
            options = inbox.batch_options(batch_id, checkpoint=name, rows=rows)
            batch.write.format("delta").mode("append").options(**options).save(self.table)

        self.run(self.rows().writeStream.foreachBatch(book))

    def by_transactions(self) -> None:
        def tell(batch: DataFrame, transaction: Transaction) -> None:
            transaction.send_dataframe(batch.selectExpr("name AS body"), topic="told")

        def book(batch: DataFrame, transaction: Transaction) -> None:
            writer = batch.write.format("delta").mode("append")
            writer.options(**transaction.delta_options()).save(self.table)

        store, listener = self.world.store, DeltaListener(self.table)
        with TransactionProducer(store, producer_group="booking", listener=listener) as own:
            batches = BatchTransactions(own, query_name="booking", send=tell, change=book)
            self.run(batches.write_stream(self.rows()))
        self.world.publisher.run_once()

    def in_table(self) -> list[str]:
        return sorted(row["name"] for row in rows_of(self.table))

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def back_up_checkpoint(self) -> None:
        shutil.copytree(self.checkpoint, self.folder / "older", dirs_exist_ok=True)

    def put_back_checkpoint(self) -> None:
        self.lose_checkpoint()
        shutil.copytree(self.folder / "older", self.checkpoint)


@pytest.fixture
def job(tmp_path: Path, spark: SparkSession) -> Iterator[Job]:
    world = DelayWorld(tmp_path)
    job = Job(world, spark, tmp_path)
    spark.createDataFrame(
        [], "message_id STRING, queue_id INT, queue_offset BIGINT, name STRING"
    ).write.format("delta").save(job.table)
    yield job
    world.producer.close()


# --- the sink of Delta ----------------------------------------------------------------------------


def test_a_delta_sink_passes_over_the_batches_of_an_older_checkpoint(job: Job) -> None:
    """What Delta does, so that docs/faults.md tells the truth: messages are lost in silence."""
    job.world.send("a")
    job.into_delta()
    job.back_up_checkpoint()
    job.world.send("b")
    job.into_delta()
    job.world.send("c")

    job.put_back_checkpoint()
    job.into_delta()

    assert job.in_table() == ["a", "b"]


def test_a_delta_sink_goes_on_by_a_new_checkpoint_at_its_own_offsets(job: Job) -> None:
    job.world.send("a", "b")
    job.into_delta()
    job.world.send("c")

    job.lose_checkpoint()
    (block,) = re.findall(r"```python\n(rows = .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    consumer = Consumer(job.world.store, consumer_group="billing")
    names = {"spark": job.spark, "table": job.table, "consumer": consumer}
    exec(block, names)  # noqa: S102 - our own page
    job.into_delta(names["stream"])

    assert job.in_table() == ["a", "b", "c"]


# --- an inbox by batch numbers --------------------------------------------------------------------


def test_an_inbox_refuses_a_batch_with_other_rows_under_a_number_that_is_done(job: Job) -> None:
    """The checkpoint is older by one batch; under another name its messages come again."""
    job.world.send("a")
    job.by_inbox()
    job.back_up_checkpoint()
    job.world.send("b")
    job.by_inbox()
    job.world.send("c")

    job.put_back_checkpoint()
    with pytest.raises(StreamingQueryException, match="other rows"):
        job.by_inbox()
    assert job.in_table() == ["a", "b"]

    job.put_back_checkpoint()
    job.by_inbox("july")
    assert job.in_table() == ["a", "b", "b", "c"]


def test_an_inbox_refuses_the_first_batch_of_a_new_checkpoint_of_the_same_name(job: Job) -> None:
    job.world.send("a")
    job.by_inbox()
    job.world.send("b")

    job.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match="other rows"):
        job.by_inbox()


def test_an_inbox_refuses_an_earlier_batch_number(job: Job) -> None:
    for number in range(3):
        job.world.send(str(number))
        job.by_inbox(says_rows=False)
        if not number:
            job.back_up_checkpoint()

    job.put_back_checkpoint()
    with pytest.raises(StreamingQueryException, match="comes after batch 2"):
        job.by_inbox(says_rows=False)


# --- transactions ---------------------------------------------------------------------------------


def test_batch_transactions_lose_nothing_by_an_older_checkpoint(job: Job) -> None:
    job.world.send("a")
    job.by_transactions()
    job.back_up_checkpoint()
    job.world.send("b")
    job.by_transactions()
    job.world.send("c")

    job.put_back_checkpoint()
    job.by_transactions()

    told = sorted(job.world.visible("told"))
    assert told == job.in_table() == ["a", "b", "b", "c"]
