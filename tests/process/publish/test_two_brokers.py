"""Two brokers on one store: both work, nothing is doubled; the compare-and-swap makes it so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.kit.reading import are_gap_free, topic_rows, wait_until
from tests.kit.steps import REPOSITORY
from tests.process.publish.follower import run_once
from txmq.consumer.offsets import TopicOffsets
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import VerifyReport, verify

NAMES = ("first", "second")
TOPICS = ("order-paid", "stock-reserved")
MESSAGES = 100
THREADS = 2


@dataclass(frozen=True)
class Outcome:
    """What became of a store that two brokers served."""

    results: list[PublishResult]
    were_alive: bool
    sent: int
    rows: int
    report: VerifyReport

    @property
    def published(self) -> int:
        return sum(result.published for result in self.results)


def send_all(store: Store, transactions: int) -> None:
    with TransactionProducer(store, producer_group="orders-service") as producer:

        def send(number: int) -> None:
            with producer.begin_transaction() as transaction:
                for place in range(MESSAGES):
                    topic = TOPICS[place % len(TOPICS)]
                    transaction.send(Message(topic, b"%d %d" % (number, place)))
                transaction.prepare()
                transaction.commit()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(send, range(transactions)))


def send_until_both_work(store: Store, folder: Path, transactions: int) -> int:
    """Returns how many messages were sent: however slow a broker is, it gets its part.

    The backlog is bounded: however slow both are, they end.
    """

    def both_worked() -> bool:
        return all(folder.joinpath(f"{name}.worked").exists() for name in NAMES)

    def is_published() -> bool:
        topics = [TopicOffsets(store, topic) for topic in TOPICS]
        ends = (topic.end(range(topic.queue_count())) for topic in topics)
        return sum(sum(by_queue.values()) for by_queue in ends) >= sent

    sent = 0
    while not (sent and both_worked()):
        send_all(store, transactions)
        sent += transactions * MESSAGES
        wait_until(lambda: both_worked() or is_published(), 300, "a broker publishes")
    return sent


def two_brokers(tmp_path: Path, transactions: int, mode: str) -> Outcome:
    store = Store.create(tmp_path / "store", Config(publish_batch_rows=MESSAGES))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [
        sys.executable,
        "-m",
        "tests.process.publish.follower",
        store.location,
        str(tmp_path),
    ]
    brokers = [subprocess.Popen([*command, name, mode], env=environment) for name in NAMES]
    try:
        wait_until(lambda: all(tmp_path.joinpath(f"{name}.ready").exists() for name in NAMES))
        sent = send_until_both_work(store, tmp_path, transactions)
        were_alive = all(broker.poll() is None for broker in brokers)
        tmp_path.joinpath("stop").touch()
        codes = [broker.wait(120) for broker in brokers]
    finally:
        for broker in brokers:
            broker.kill()
            broker.wait()
    run_once(Publisher(store))
    results = [
        PublishResult(**json.loads(tmp_path.joinpath(f"{name}.json").read_text())) for name in NAMES
    ]
    rows = [row for topic in TOPICS for row in topic_rows(store, topic)]
    is_alive = were_alive and codes == [0, 0]
    return Outcome(results, is_alive, sent, len(rows), verify(store.location))


def test_two_brokers_share_the_work_and_double_nothing(tmp_path: Path) -> None:
    outcome = two_brokers(tmp_path, 100, "with-compare-and-swap")

    assert outcome.were_alive
    assert all(result.settled_commits for result in outcome.results)
    assert outcome.report.is_clean
    assert outcome.rows == outcome.published == outcome.sent
    store = Store.open(tmp_path / "store")
    assert all(are_gap_free(topic_rows(store, topic)) for topic in TOPICS)


def test_without_compare_and_swap_the_same_is_red(tmp_path: Path) -> None:
    outcome = two_brokers(tmp_path, 50, "without-compare-and-swap")

    assert not outcome.report.is_clean
    # Doubled messages, or doubled facts that a publisher refused to publish.
    assert {"I3", "I10"} & set(outcome.report.broken)
