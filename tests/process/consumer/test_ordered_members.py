"""Members that join, leave, are killed and sleep: the messages of each key are handled in order.

ORDERED_MESSAGES=100000 tells it whole, in about five minutes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path

import pytest

from tests.process.consumer.ordered_process import GROUP, TOPIC
from txmq.consumer.lag import lag_of_group
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store

MESSAGES = int(os.environ.get("ORDERED_MESSAGES", "4000"))
MEMBERS, KEYS, QUEUES, BATCH = (8 if MESSAGES > 50_000 else 4), 64, 16, 4_000
LEASE_S, PAUSE_S, SLEEP_S, WAIT_S = 2.0, 2.0, 3.5, 1_500.0
PROGRAM = "tests.process.consumer.ordered_process"


class Members:
    """So many of them; each accident befalls a random one, and another takes its place."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder, self._names = store, folder, count()
        self._random = random.Random(7)
        self.running = [self._started() for _ in range(MEMBERS)]
        self.accidents: set[str] = set()

    def _started(self) -> tuple[str, subprocess.Popen[bytes]]:
        name = str(next(self._names))
        arguments = [self._store.location, str(self._folder), name]
        return name, subprocess.Popen([sys.executable, "-m", PROGRAM, *arguments])

    def have_an_accident(self) -> None:
        place = self._random.randrange(MEMBERS)
        name, process = self.running[place]
        accident = self._random.choice(["kill", "leave", "sleep"])
        self.accidents.add(accident)
        if accident == "sleep":
            process.send_signal(signal.SIGSTOP)
            time.sleep(SLEEP_S)
            process.send_signal(signal.SIGCONT)
            return
        if accident == "kill":
            process.kill()
        else:
            self._folder.joinpath(f"{name}.stop").touch()
        process.wait()
        self.running[place] = self._started()

    def stop(self) -> None:
        for name, process in self.running:
            self._folder.joinpath(f"{name}.stop").touch()
            process.wait()


@contextmanager
def started(store: Store, folder: Path) -> Iterator[Members]:
    members = Members(store, folder)
    try:
        yield members
    finally:
        for _, process in members.running:
            process.kill()
            process.wait()


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
    with started(store, tmp_path) as members:
        deadline_s = time.monotonic() + WAIT_S
        while has_messages(store) or not members.accidents:
            assert time.monotonic() < deadline_s
            members.have_an_accident()
            time.sleep(PAUSE_S)
        members.stop()
        assert [process.returncode for _, process in members.running] == [0] * MEMBERS

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
