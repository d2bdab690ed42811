"""Twelve listeners that no one should write: each is UNKNOWN, and holds up nobody (C4)."""

from __future__ import annotations

import enum
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.check_world import COMMIT, CheckWorld, JournalListener, wait_until
from tests.kit.reading import topic_rows
from txmq.check.recheck import RecheckJob
from txmq.message.lifecycle import ClaimKind
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.publish.publisher import Publisher
from txmq.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from txmq.listeners.protocol import HalfMessage

TIMES = 2
THREADS = 2
released = threading.Event()
kept: list[bytes] = []


class Lookalike(enum.Enum):
    """As in another program."""

    COMMIT = "COMMIT"


def raising(error: BaseException) -> Callable[[HalfMessage], Any]:
    def answer(_: HalfMessage) -> Any:
        raise error

    return answer


def leaking(_: HalfMessage) -> None:
    kept.append(os.urandom(1_000_000))


def endless(half: HalfMessage) -> Any:
    return endless(half)


ZOO: dict[str, Callable[[HalfMessage], Any]] = {
    "raises": raising(ValueError("no books")),
    "exits": raising(SystemExit(3)),
    "interrupts": raising(KeyboardInterrupt()),
    "has-no-memory": raising(MemoryError()),
    "recurses": endless,
    "none": lambda _: None,
    "number": lambda _: 42,
    "text": lambda _: "commit",
    "true": lambda _: True,
    "lookalike": lambda _: Lookalike.COMMIT,
    "leaks": leaking,
    "hangs": lambda _: released.wait(60.0),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CheckWorld]:
    released.clear()
    yield CheckWorld(
        tmp_path, transaction_check_max=TIMES, check_threads=THREADS, check_lease_s=60.0,
        listener_timeout_s=2.0,
    )  # fmt: skip
    released.set()
    kept.clear()


def test_no_member_of_the_zoo_holds_up_another_and_all_end_as_dead_letters(
    world: CheckWorld,
) -> None:
    animals = {group: world.listener(answer) for group, answer in ZOO.items()}
    sent = {group: world.prepare(THREADS, group=group) for group in ZOO}
    fine, listener = world.prepare(20), world.listener(COMMIT)
    for _ in range(TIMES + 1):
        world.clock.advance(60)
        check(world, {**animals, "orders": listener})
    Publisher(world.store).run_once()

    assert len(ZOO) == 12
    assert sorted(listener.asked()) == sorted(fine)
    assert len(world.claims(ClaimKind.DISCARD)) == THREADS * len(ZOO)
    dead = topic_rows(world.store, TRANS_CHECK_MAX_TIME_TOPIC)
    assert sorted(row["transaction_id"] for row in dead) == sorted(itertools.chain(*sent.values()))
    assert len(topic_rows(world.store, "paid")) == len(fine)
    assert all(row["reason"] for row in world.claims(ClaimKind.UNKNOWN))
    assert verify(world.store.location).is_clean


def check(world: CheckWorld, listeners: dict[str, JournalListener]) -> None:
    RecheckJob(world.store, listeners=listeners, clock=world.clock).run_once()


def test_threads_of_the_zoo_end_but_for_those_that_hang(world: CheckWorld) -> None:
    before = threading.active_count()
    for group in ZOO:
        world.prepare(THREADS, group=group)
    world.clock.advance(60)
    check(world, {group: world.listener(answer) for group, answer in ZOO.items()})

    wait_until(lambda: threading.active_count() <= before + THREADS, "the end of the threads")
    released.set()
    wait_until(lambda: threading.active_count() <= before, "the end of those that hung")
