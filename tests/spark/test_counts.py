"""Commits and files per 1,000 messages: they set the cost, and no loaded machine changes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.kit.builders import GROUP, halves, messages, op_row, table_versions
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.op import op_table
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000
CALLERS = 50
TOPIC = "order-paid"
TABLES = ("half", "op", "settled")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What was written to one table; the commit that made it does not count."""

    commits: int
    files: int


def costs(store: Store) -> dict[str, Cost]:
    return {
        name: Cost(version, _files(Path(store.location) / name))
        for name, version in table_versions(store).items()
    }


def of_logs(store: Store) -> dict[str, Cost]:
    found = costs(store)
    return {name: found[name] for name in TABLES}


def topic_cost(store: Store, topic: str = TOPIC) -> Cost:
    return costs(store)[f"topics/{topic}"]


def _files(table: Path) -> int:
    paths = table.rglob("*.parquet")
    return sum("_delta_log" not in path.parts for path in paths)


def same_for_all(cost: Cost) -> Mapping[str, Cost]:
    return dict.fromkeys(TABLES, cost)


def append_backlog(store: Store, commits: int) -> None:
    """1,000 one-message transactions and their ends, in so many commits of each log."""
    half, op = store.tables.half_log().table, store.tables.op_log().table
    share = MESSAGES // commits
    for number in range(commits):
        own = range(number * share, (number + 1) * share)
        rows = pa.concat_tables([halves(each) for each in own])
        half.writer.append(rows, app_id="test", number=number + 1)
        ends = op_table([op_row(each) for each in own], 0)
        op.writer.append(ends, app_id="test", number=number + 1)


def send_one(producer: TransactionProducer) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"body"))
        transaction.prepare()
        transaction.commit()


def test_a_transaction_of_1000_messages_is_one_commit_and_one_file_a_table(store: Store) -> None:
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        producer.begin_transaction() as transaction,
    ):
        for message in messages(MESSAGES):
            transaction.send(message)
        transaction.prepare()
        transaction.commit()
    Publisher(store).run_once()
    assert of_logs(store) == same_for_all(Cost(1, 1))
    assert topic_cost(store) == Cost(1, 1)


def test_a_transaction_to_four_topics_is_one_commit_and_one_file_a_topic(store: Store) -> None:
    topics = [f"topic-{number}" for number in range(4)]
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        producer.begin_transaction() as transaction,
    ):
        for number in range(MESSAGES):
            transaction.send(Message(topics[number % 4], b"body"))
        transaction.prepare()
        transaction.commit()
    Publisher(store).run_once()
    assert of_logs(store) == same_for_all(Cost(1, 1))
    assert [topic_cost(store, topic) for topic in topics] == [Cost(1, 1)] * 4


@pytest.mark.parametrize("commits", [1, 10, 50])
def test_a_backlog_is_settled_and_published_in_one_commit_however_many_it_came_in(
    store: Store, commits: int
) -> None:
    append_backlog(store, commits)
    Publisher(store).run_once()
    assert of_logs(store)["settled"] == Cost(1, 1)
    assert topic_cost(store) == Cost(1, 1)


def test_the_publisher_writes_its_progress_once_a_call(store: Store) -> None:
    before = costs(store)["state/publisher"].commits
    append_backlog(store, 10)
    Publisher(store).run_once()
    assert costs(store)["state/publisher"].commits == before + 1


def test_a_publisher_without_news_commits_nothing(store: Store) -> None:
    append_backlog(store, 1)
    Publisher(store).run_once()
    before = costs(store)
    for _ in range(3):
        Publisher(store).run_once()
    assert costs(store) == before


def test_a_rollback_costs_no_topic_commit(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"body"))
        transaction.prepare()
        transaction.rollback()
    Publisher(store).run_once()
    assert of_logs(store) == same_for_all(Cost(1, 1))
    assert store.topics() == []


def test_a_caller_alone_makes_two_commits_and_two_files_a_transaction(store: Store) -> None:
    alone = 20
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for _ in range(alone):
            send_one(producer)
    found = of_logs(store)
    assert found["half"] == found["op"] == Cost(alone, alone)


def test_callers_that_send_at_the_same_time_share_commits(store: Store) -> None:
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        for sent in [pool.submit(send_one, producer) for _ in range(MESSAGES)]:
            sent.result()
    found = of_logs(store)
    # Each commit of a log is one file; 20 commits of 50 would be perfect.
    assert found["half"].files == found["half"].commits <= MESSAGES // 5
    assert found["op"].files == found["op"].commits <= MESSAGES // 5


def test_a_dataframe_of_1000_messages_is_one_commit_and_a_file_for_each_partition_and_its_head(
    store: Store, spark: SparkSession
) -> None:
    partitions = 2
    frame = spark.range(MESSAGES, numPartitions=partitions).selectExpr("string(id) as body")
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        producer.begin_transaction() as transaction,
    ):
        transaction.send_dataframe(frame, topic=TOPIC)
        transaction.prepare()
        transaction.commit()
    Publisher(store).run_once()
    assert of_logs(store)["half"] == Cost(1, partitions + 1)
    assert of_logs(store)["op"] == of_logs(store)["settled"] == Cost(1, 1)
    assert topic_cost(store) == Cost(1, 1)
