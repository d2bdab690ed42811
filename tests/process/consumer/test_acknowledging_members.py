"""Members that join, leave, are killed and sleep: each message is acknowledged once, or is dead.

ACKNOWLEDGED_MESSAGES=100000 tells it whole, in some minutes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.kit.members import restless
from tests.process.consumer.acknowledging_process import AT_ONCE, GROUP, NEVER, TOPIC
from txmq.consumer.group import group_in
from txmq.consumer.lag import lag_of_group
from txmq.message.message import Message
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

logger = logging.getLogger(__name__)
MESSAGES = int(os.environ.get("ACKNOWLEDGED_MESSAGES", "4000"))
MEMBERS, QUEUES, BATCH = 4, 8, 4_000
LEASE_S, PAUSE_S, WAIT_S = 2.0, 2.0, 1_500.0
RECONSUME_MAX = 6
PROGRAM = "tests.process.consumer.acknowledging_process"


def sent(folder: Path) -> Store:
    config = Config(
        consumer_lease_s=LEASE_S, default_topic_queue_nums=QUEUES,
        max_reconsume_times=RECONSUME_MAX, message_delay_level="1s 1s 1s 1s",
    )  # fmt: skip
    store = Store.create(folder / "store", config)
    with TransactionProducer(store, producer_group="orders") as producer:
        for start in range(0, MESSAGES, BATCH):
            numbers = range(start, min(start + BATCH, MESSAGES))
            producer.send([Message(TOPIC, b"%d" % n, keys=f"{n}") for n in numbers])
    return store


class Broker:
    """Publishes, and delivers what waits for its time."""

    def __init__(self, store: Store) -> None:
        self._store, self._publisher, self._delay = store, Publisher(store), DelayService(store)

    def run_once(self) -> None:
        self._publisher.run_once()
        self._delay.run_once()
        self._publisher.run_once()

    def has_messages(self) -> bool:
        """Whether any message is not over: not acknowledged, or a retry that waits."""
        queues = lag_of_group(self._store, GROUP)
        letters = DeadLetters(self._store, GROUP).all()
        are_all_dead = len(letters) == MESSAGES // NEVER
        return not queues or any(queue.lag for queue in queues) or not are_all_dead


@pytest.mark.timeout(1_800)
def test_each_message_is_acknowledged_once_or_dead_whoever_dies(tmp_path: Path) -> None:
    store = sent(tmp_path)
    broker = Broker(store)
    broker.run_once()
    kills = 0
    with restless(PROGRAM, store.location, tmp_path, MEMBERS) as members:
        deadline_s = time.monotonic() + WAIT_S
        while broker.has_messages() or not members.accidents:
            assert time.monotonic() < deadline_s
            members.have_an_accident()
            kills += 1
            pause_end_s = time.monotonic() + PAUSE_S
            while time.monotonic() < pause_end_s:
                broker.run_once()
        assert members.stop() == [0] * MEMBERS

    given, acknowledged = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    refused = 0
    for line in (tmp_path / "journal").read_text().splitlines():
        word, number, times = line.split()
        refused += word == "refused"
        if word != "refused":
            of_word = given if word == "given" else acknowledged
            of_word[int(number)].append(int(times))
    dead = {int(letter.keys or -1) for letter in DeadLetters(store, GROUP).all()}
    assert given.keys() == set(range(MESSAGES))
    assert dead == set(range(0, MESSAGES, NEVER))
    assert not dead & acknowledged.keys()
    assert set(Counter(map(len, acknowledged.values()))) == {1}
    # No message comes again once it is acknowledged.
    assert all(max(given[number]) <= times for number, (times,) in acknowledged.items())
    # A member that is killed may have committed what it had no time to write down.
    assert MESSAGES - len(dead) - len(acknowledged) <= kills * AT_ONCE
    assert group_in(store, GROUP).read().attempts == {}
    assert verify(store.location).is_clean
    again = sum(map(len, given.values())) - MESSAGES
    logger.info("%.3f came again, %d refused, %d accidents", again / MESSAGES, refused, kills)
