"""Three members of a consumer group: one is killed, one is stopped for a while, all is handled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.consumer_world import ConsumerWorld
from tests.kit.reading import wait_until
from tests.kit.steps import REPOSITORY
from txmq.consumer.lag import lag_of_group

MESSAGES, QUEUES = 1_200, 6
NAMES = ("first", "second", "third")
PAUSE_S, LEASE_S = 0.005, 1.5


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
    found: list[Service] = []
    for moment, kind, queue, offset, body in (line.split() for line in lines):
        place = int(queue), int(offset)
        if kind == "begin":
            begun[place] = Service(name, *place, body, float(moment), None)
        else:
            one = begun.pop(place)
            found.append(Service(name, *place, body, one.begin_s, float(moment)))
    return [*found, *begun.values()]


@contextmanager
def members(location: str, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [
        sys.executable,
        "-m",
        "tests.process.consumer.consumer_process",
        location,
        str(folder),
    ]
    running = {
        name: subprocess.Popen([*command, name, str(PAUSE_S), str(LEASE_S)], env=environment)
        for name in NAMES
    }
    try:
        yield running
    finally:
        folder.joinpath("stop").touch()
        for process in running.values():
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def count(folder: Path, name: str) -> int:
    return len(services(folder, name))


@pytest.mark.timeout(300)
def test_every_message_is_handled_though_one_member_dies_and_one_sleeps(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, queues=QUEUES)
    for queue in range(QUEUES):
        world.send_to(queue, *(f"{queue}-{n}" for n in range(MESSAGES // QUEUES // 2)))
    with members(world.store.location, tmp_path) as running:
        wait_until(lambda: all(count(tmp_path, name) > 10 for name in NAMES), 60)
        running["first"].send_signal(signal.SIGKILL)
        running["second"].send_signal(signal.SIGSTOP)
        for queue in range(QUEUES):
            half = MESSAGES // QUEUES // 2
            world.send_to(queue, *(f"{queue}-{n}" for n in range(half, 2 * half)))
        before = count(tmp_path, "third")
        wait_until(lambda: count(tmp_path, "third") > before + MESSAGES // 3, 60)
        running["second"].send_signal(signal.SIGCONT)
        wait_until(lambda: lag(world) == 0, 120)
    assert running["second"].returncode == running["third"].returncode == 0
    world.close()

    served = [service for name in NAMES for service in services(tmp_path, name)]
    handled = {service.body for service in served if service.end_s is not None}
    assert handled == {f"{q}-{n}" for q in range(QUEUES) for n in range(MESSAGES // QUEUES)}
    assert_nothing_is_served_twice_at_the_same_moment(served)
    assert_each_queue_is_served_in_order(served)


def lag(world: ConsumerWorld) -> int:
    return sum(each.lag for each in lag_of_group(world.store, "billing"))


def assert_nothing_is_served_twice_at_the_same_moment(served: list[Service]) -> None:
    """But for the one message that a stopped process had in its hands when it was stopped."""
    by_queue: dict[int, list[Service]] = {}
    for service in served:
        by_queue.setdefault(service.queue_id, []).append(service)
    for own in by_queue.values():
        own.sort(key=lambda service: service.begin_s)
        for one, other in pairwise(own):
            was_stopped = one.end_s is None or one.end_s - one.begin_s > LEASE_S / 2
            assert was_stopped or (one.end_s or 0.0) <= other.begin_s, (one, other)


def assert_each_queue_is_served_in_order(served: list[Service]) -> None:
    """Only who took a queue over, or whose lease ended, goes back in it, to the last commit."""
    by_queue: dict[int, list[Service]] = {}
    for service in sorted(served, key=lambda service: service.begin_s):
        by_queue.setdefault(service.queue_id, []).append(service)
    for own in by_queue.values():
        for before, after in pairwise(own):
            is_next = after.offset == before.offset + 1
            took_over = after.member != before.member or after.begin_s - before.begin_s > LEASE_S
            assert is_next or took_over, (before, after)
