"""Streaming checkpoints that are damaged, lost, old, or another's (K1 to K4)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.kit.books import GROUP, SETTINGS, TOPICS, Books, sell
from tests.kit.reading import bodies, publish, topic_rows, wait_until
from tests.kit.truth import assert_topics_tell_the_truth
from txmq.message.message import Message
from txmq.ops.broker import Broker, BrokerHandle
from txmq.producer.producer import TransactionProducer
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store, service_checkpoint_location

TOPIC, OTHER_TOPIC = TOPICS
GARBAGE = b"\x00 no JSON"
Damage = Callable[[Path], Any]


def newest(folder: Path) -> Path:
    numbered = [file for file in folder.iterdir() if file.name.isdecimal()]
    return max(numbered, key=lambda file: int(file.name))


def filled_with(folder: str, content: bytes) -> Damage:
    """The newest file of a folder holds something else, and nothing gives it away before."""

    def damage(checkpoint: Path) -> None:
        file = newest(checkpoint / folder)
        file.write_bytes(content)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return damage


def copied_if_there(source: str, target: str) -> None:
    """Its owner is still writing, and renames files as it goes."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def remove(folder: Path) -> None:
    # Its owner may still be writing into it.
    shutil.rmtree(folder, ignore_errors=True)


DAMAGES: dict[str, Damage] = {
    "newest offsets empty": filled_with("offsets", b""),
    "newest offsets garbage": filled_with("offsets", GARBAGE),
    "newest commits empty": filled_with("commits", b""),
    "newest commits garbage": filled_with("commits", GARBAGE),
    "no metadata": lambda checkpoint: (checkpoint / "metadata").unlink(),
    "no commits": lambda checkpoint: remove(checkpoint / "commits"),
    "nothing left": remove,
}


# --- our services: a checkpoint for each start, and nothing depends on it -----------------


class Service:
    """A broker that starts its queries anew, each with a new checkpoint."""

    def __init__(self, store: Store, books: Books, spark: Any) -> None:
        self.broker = Broker(store, spark=spark, listeners={GROUP: books})
        self.folder = Path(service_checkpoint_location(store, "any")).parent
        self.handle: BrokerHandle = self.broker.start()

    def checkpoints(self) -> list[Path]:
        """Of the publisher and of the check, when both have been used."""
        wait_until(lambda: len(self._used()) == 2)
        return self._used()

    def _used(self) -> list[Path]:
        # A query whose checkpoint was removed may go on in the same folder, with its next number.
        commits = self.folder.glob("*/commits/*")
        return sorted({file.parent.parent for file in commits if file.name.isdecimal()})

    def assert_it_runs(self) -> None:
        assert self.handle.is_alive, self.handle.exception


@pytest.fixture
def store(tmp_path: Path) -> Store:
    times = {"transaction_timeout_s": 1.0, "publish_drain_s": 0.5, "check_trigger_interval_s": 0.5}
    settings = {**SETTINGS, **times, "deadline_join": "always"}
    return Store.create(tmp_path / "store", Config(**settings))


def swap(checkpoints: list[Path]) -> None:
    """Each service finds the checkpoint of the other in its place."""
    first, second = checkpoints
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def test_damaged_checkpoint_of_a_running_service_costs_no_message(
    store: Store, books: Books, spark: Any
) -> None:
    service = Service(store, books, spark)
    sold = 0
    for damage in (
        "newest offsets garbage",
        "newest commits garbage",
        "no metadata",
        "nothing left",
    ):
        for checkpoint in service.checkpoints():
            DAMAGES[damage](checkpoint)
        sell(store, books, 7, first=sold)
        sold += 7
        wait_for_all(store, books, service)
    swap(service.checkpoints())
    sell(store, books, 7, first=sold)
    wait_for_all(store, books, service)
    service.handle.stop()

    assert_topics_tell_the_truth(store, books)


def wait_for_all(store: Store, books: Books, service: Service) -> None:
    def is_all_there() -> bool:
        service.assert_it_runs()
        return len(topic_rows(store)) == len(books.paid())

    wait_until(is_all_there, 40.0)


def test_start_beside_damaged_checkpoints_takes_new_ones(
    store: Store, books: Books, spark: Any, tmp_path: Path
) -> None:
    service = Service(store, books, spark)
    found = service.checkpoints()
    for checkpoint in found:
        shutil.copytree(
            checkpoint, tmp_path / "kept" / checkpoint.name, copy_function=copied_if_there
        )
    service.handle.stop()
    shutil.copytree(tmp_path / "kept", service.folder, dirs_exist_ok=True)
    for checkpoint in found:
        filled_with("offsets", GARBAGE)(checkpoint)
    service.handle = service.broker.start()
    sell(store, books, 7)
    wait_for_all(store, books, service)
    service.handle.stop()

    assert_topics_tell_the_truth(store, books)


# --- a consumer's own checkpoint: Spark refuses it, or reads again ------------------------


@dataclass(frozen=True)
class Consumed:
    """A topic of three messages, of which a consumer has read one, then another."""

    store: Store
    spark: Any
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def read(self, topic: str = TOPIC) -> list[bytes]:
        """What the stream brings with this checkpoint."""
        seen: list[bytes] = []
        consumer = Consumer(self.store, consumer_group="billing")
        query = (
            consumer.read_stream(topic, spark=self.spark)
            .writeStream.foreachBatch(
                lambda batch, _: seen.extend(bytes(row["body"]) for row in batch.collect())
            )
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(seen)

    def send(self, body: bytes, topic: str = TOPIC) -> None:
        with TransactionProducer(self.store, producer_group=GROUP) as producer:
            transaction = producer.begin_transaction()
            transaction.send(Message(topic, body))
            transaction.prepare()
            transaction.commit()
        publish(self.store)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Consumed:
    folder = tmp_path_factory.mktemp("consumed")
    made = Consumed(Store.create(folder / "store"), spark, folder)
    made.send(b"1")
    assert made.read() == [b"1"]
    shutil.copytree(made.checkpoint, folder / "older")
    made.send(b"2")
    assert made.read() == [b"2"]
    made.send(b"3")
    made.send(b"4", OTHER_TOPIC)
    shutil.copytree(made.checkpoint, folder / "kept")
    return made


@pytest.fixture
def consumed(made: Consumed) -> Consumed:
    shutil.rmtree(made.checkpoint)
    shutil.copytree(made.folder / "kept", made.checkpoint)
    return made


REFUSALS = {
    "newest offsets empty": "Incomplete log file",
    "newest offsets garbage": "MALFORMED_LOG_FILE",
    "newest commits empty": "Incomplete log file",
    "newest commits garbage": "MALFORMED_LOG_FILE",
    "no metadata": "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
}


@pytest.mark.parametrize(("damage", "complaint"), REFUSALS.items(), ids=REFUSALS)
def test_damaged_checkpoint_of_a_consumer_is_refused_by_spark(
    consumed: Consumed, damage: str, complaint: str
) -> None:
    DAMAGES[damage](consumed.checkpoint)

    with pytest.raises(PySparkException, match=complaint):
        consumed.read()


READ_AGAIN = {"no commits": [b"2", b"3"], "nothing left": [b"1", b"2", b"3"]}


@pytest.mark.parametrize(("damage", "seen"), READ_AGAIN.items(), ids=READ_AGAIN)
def test_consumer_that_lost_its_checkpoint_reads_again_and_misses_nothing(
    consumed: Consumed, damage: str, seen: list[bytes]
) -> None:
    DAMAGES[damage](consumed.checkpoint)

    assert consumed.read() == seen


def test_consumer_with_an_older_checkpoint_reads_again_from_there(consumed: Consumed) -> None:
    shutil.rmtree(consumed.checkpoint)
    shutil.copytree(consumed.folder / "older", consumed.checkpoint)

    assert consumed.read() == [b"2", b"3"]


def test_checkpoint_of_another_topic_is_refused_by_spark(consumed: Consumed) -> None:
    with pytest.raises(PySparkException, match="DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"):
        consumed.read(OTHER_TOPIC)


def test_topic_that_was_made_anew_is_refused_to_an_old_checkpoint(consumed: Consumed) -> None:
    topic = Path(consumed.store.topic_location(TOPIC))
    aside = topic.rename(consumed.folder / "aside")
    consumed.store.tables.create_topic(TOPIC)
    try:
        with pytest.raises(PySparkException, match="DIFFERENT_DELTA_TABLE"):
            consumed.read()
    finally:
        shutil.rmtree(topic)
        aside.rename(topic)
    assert bodies(consumed.store, TOPIC) == [b"1", b"2", b"3"]
