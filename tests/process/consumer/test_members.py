"""Three members of a consumer group: one is killed, one is stopped for a while, all is handled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import TOPIC
from tests.kit.members import members
from tests.kit.reading import wait_until
from txmq.consumer.lag import lag_of_group
from txmq.message.message import Message

QUEUES = 6
# To each queue: a few at a time while all members live, many while one alone does.
FEW, MANY = 20, 100
NAMES = ("first", "second", "third")
PAUSE_S, LEASE_S, WAIT_S = 0.005, 3.0, 120.0
MEMBER = "tests.process.consumer.consumer_process"


@dataclass(frozen=True)
class Service:
    """One message in the hands of one member; without an end where it was killed meanwhile."""

    member: str
    queue_id: int
    offset: int
    body: str
    begin_s: float
    end_s: float | None


def services(folder: Path, name: str) -> list[Service]:
    path = folder / f"{name}.journal"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    begun: dict[tuple[int, int], Service] = {}
    ended: list[Service] = []
    for moment, kind, queue, offset, body in (line.split() for line in lines):
        place = int(queue), int(offset)
        if kind == "begin":
            begun[place] = Service(name, *place, body, float(moment), None)
        else:
            begin_s = begun.pop(place).begin_s
            ended.append(Service(name, *place, body, begin_s, float(moment)))
    return [*ended, *begun.values()]


@dataclass
class Orders:
    """Sends to all queues, as long as it takes until members have been given enough."""

    world: ConsumerWorld
    sent: int = 0

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        for queue in range(QUEUES):
            batch = [Message(TOPIC, f"{queue}-{n}".encode()) for n in numbers]
            self.world.producer.send(batch, queue_id=queue)
        self.world.publisher.run_once()
        self.sent += count

    def send_until(self, is_enough: Callable[[], bool]) -> None:
        """Nobody waits for messages that a faster member has taken: more are sent."""
        deadline_s = time.monotonic() + WAIT_S
        while not is_enough():
            assert time.monotonic() < deadline_s
            self.send(FEW)
            wait_until(lambda: is_enough() or lag(self.world) == 0, WAIT_S)


def count(folder: Path, name: str) -> int:
    return len(services(folder, name))


def queues_served(folder: Path, name: str, since_s: float) -> set[int]:
    return {service.queue_id for service in services(folder, name) if service.begin_s > since_s}


@pytest.mark.timeout(600)
def test_every_message_is_handled_though_one_member_dies_and_one_sleeps(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, queues=QUEUES)
    orders = Orders(world)
    given = [world.store.location, str(tmp_path)]
    arguments = {name: [*given, name, str(PAUSE_S), str(LEASE_S)] for name in NAMES}
    with members(MEMBER, tmp_path, arguments) as running:
        orders.send_until(lambda: all(count(tmp_path, name) > 10 for name in NAMES))
        running["first"].send_signal(signal.SIGKILL)
        running["second"].send_signal(signal.SIGSTOP)
        alone_s = time.time()
        orders.send(MANY)
        everything = set(range(QUEUES))
        orders.send_until(lambda: queues_served(tmp_path, "third", alone_s) == everything)
        running["second"].send_signal(signal.SIGCONT)
        wait_until(lambda: lag(world) == 0, WAIT_S)
    assert running["second"].returncode == running["third"].returncode == 0
    world.close()

    served = [service for name in NAMES for service in services(tmp_path, name)]
    handled = {service.body for service in served if service.end_s is not None}
    assert handled == {f"{q}-{n}" for q in range(QUEUES) for n in range(orders.sent)}
    assert_nothing_is_served_twice_at_the_same_moment(served)
    assert_each_queue_is_served_in_order(served)


def lag(world: ConsumerWorld) -> int:
    return sum(queue.lag for queue in lag_of_group(world.store, "billing"))


def assert_nothing_is_served_twice_at_the_same_moment(served: list[Service]) -> None:
    """But for the one message that a stopped process had in its hands when it was stopped."""
    by_queue: dict[int, list[Service]] = {}
    for service in served:
        by_queue.setdefault(service.queue_id, []).append(service)
    for of_queue in by_queue.values():
        of_queue.sort(key=lambda service: service.begin_s)
        for before, after in pairwise(of_queue):
            was_stopped = before.end_s is None or before.end_s - before.begin_s > LEASE_S / 2
            assert was_stopped or (before.end_s or 0.0) <= after.begin_s, (before, after)


def assert_each_queue_is_served_in_order(served: list[Service]) -> None:
    """Only who took a queue over, or whose lease ended, goes back in it, to the last commit."""
    by_queue: dict[int, list[Service]] = {}
    for service in sorted(served, key=lambda service: service.begin_s):
        by_queue.setdefault(service.queue_id, []).append(service)
    for of_queue in by_queue.values():
        for before, after in pairwise(of_queue):
            is_next = after.offset == before.offset + 1
            took_over = after.member != before.member or after.begin_s - before.begin_s > LEASE_S
            assert is_next or took_over, (before, after)
