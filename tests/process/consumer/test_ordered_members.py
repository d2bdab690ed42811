"""Members that join, leave, are killed and sleep: the messages of each key are handled in order.

ORDERED_MESSAGES=100000 tells it whole, in about five minutes.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.members import restless
from tests.process.consumer.ordered_process import GROUP, TOPIC
from txmq.consumer.lag import lag_of_group
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store

MESSAGES = int(os.environ.get("ORDERED_MESSAGES", "4000"))
MEMBERS, KEYS, QUEUES, BATCH = (8 if MESSAGES > 50_000 else 4), 64, 16, 4_000
LEASE_S, PAUSE_S, WAIT_S = 2.0, 2.0, 1_500.0
PROGRAM = "tests.process.consumer.ordered_process"


def sent(folder: Path) -> Store:
    own = {"consume_message_orderly": True, "suspend_current_queue_time_s": 0.02}
    config = Config(
        consumer_lease_s=LEASE_S, default_topic_queue_nums=QUEUES, consumer_groups={GROUP: own}
    )
    store = Store.create(folder / "store", config)
    with TransactionProducer(store, producer_group="orders") as producer:
        for start in range(0, MESSAGES, BATCH):
            numbers = range(start, min(start + BATCH, MESSAGES))
            producer.send(
                [Message(TOPIC, b"%d" % n, sharding_key=f"key-{n % KEYS}") for n in numbers]
            )
    publisher = Publisher(store)
    while publisher.run_once().published:
        pass
    return store


def has_messages(store: Store) -> bool:
    """Whether any wait, also where no member has joined yet, so that nobody knows of queues."""
    queues = lag_of_group(store, GROUP)
    return not queues or any(queue.lag for queue in queues)


@pytest.mark.timeout(1_800)
def test_messages_of_each_key_are_handled_in_order_whoever_dies(tmp_path: Path) -> None:
    store = sent(tmp_path)
    with restless(PROGRAM, store.location, tmp_path, MEMBERS) as members:
        deadline_s = time.monotonic() + WAIT_S
        while has_messages(store) or not members.accidents:
            assert time.monotonic() < deadline_s
            members.have_an_accident()
            time.sleep(PAUSE_S)
        assert members.stop() == [0] * MEMBERS

    first_given, first_done = defaultdict[str, dict[int, int]](dict), dict[int, int]()
    for place, line in enumerate((tmp_path / "journal").read_text().splitlines()):
        key, number, outcome = line.split()
        first_given[key].setdefault(int(number), place)
        if outcome == "done":
            first_done.setdefault(int(number), place)
    assert first_done.keys() == set(range(MESSAGES))
    for of_key in first_given.values():
        for before, after in pairwise(sorted(of_key)):
            assert first_done[before] < of_key[after]
