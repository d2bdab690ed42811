"""Any live producer of the group answers: three processes, one killed, one stopped for a while."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.check_world import CheckWorld
from tests.kit.members import members
from tests.kit.reading import bodies, publish, wait_until
from txmq.check.recheck import RecheckJob
from txmq.listeners.remote import requests_in
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.verify import verify

# In the first round, and in each round more until all members have been asked enough.
HALVES, MORE = 1_000, 200
# Members are believed to be silent when the clock is an hour ahead.
OPEN_ROUNDS_MAX = 25
NAMES = ("first", "second", "third")
WAIT_S, PAUSE_S = 120.0, 0.01
MEMBER = "tests.process.listeners.remote_member_process"


def asked(folder: Path, name: str) -> list[str]:
    journal = folder / f"{name}.journal"
    return journal.read_text(encoding="utf-8").split() if journal.exists() else []


@pytest.mark.timeout(600)
def test_thousand_questions_have_one_answer_each_whoever_dies(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=10.0, check_lease_s=30.0, check_threads=5)
    ids = many_halves(world, range(HALVES))
    world.clock.advance(60)
    recheck = RecheckJob(world.store, clock=world.clock)
    given = [world.store.location, str(tmp_path)]
    arguments = {name: [*given, name, "0", str(PAUSE_S)] for name in NAMES}
    with members(MEMBER, tmp_path, arguments) as running:
        killing = Killing(tmp_path, running)
        killing.begin()
        open_rounds = 0
        while killing.goes_on or open_ids(world, ids):
            if not open_ids(world, ids):
                # A faster member took all questions: the others get new ones.
                ids += many_halves(world, range(len(ids), len(ids) + MORE))
            recheck.run_once()
            if open_ids(world, ids):
                open_rounds += 1
                assert open_rounds < OPEN_ROUNDS_MAX
                world.clock.advance(120)
        killing.end()
    publish(world.store)

    ends = Counter(
        claim["transaction_id"]
        for claim in world.claims()
        if claim["kind"] in (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
    )
    assert ends == dict.fromkeys(ids, 1)
    assert all(asked(tmp_path, name) for name in NAMES), "all three have worked"
    assert killing.was_killed
    assert killing.was_stopped
    assert sorted(bodies(world.store)) == sorted(str(n).encode() for n in range(0, len(ids), 2))
    assert verify(world.store.location).is_clean


def many_halves(world: CheckWorld, numbers: range) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    with TransactionProducer(world.store, producer_group="orders") as producer:

        def prepare_one(number: int) -> str:
            transaction = producer.begin_transaction()
            transaction.send(Message("order-paid", str(number).encode()))
            transaction.prepare()
            return transaction.id

        with ThreadPoolExecutor(64) as pool:
            return list(pool.map(prepare_one, numbers))


def open_ids(world: CheckWorld, ids: list[str]) -> set[str]:
    ended = {
        claim["transaction_id"]
        for claim in world.claims()
        if claim["kind"] in (ClaimKind.COMMIT, ClaimKind.ROLLBACK, ClaimKind.DISCARD)
    }
    return set(ids) - ended


class Killing:
    """Kill one member and stop another, once each has been asked something.

    It goes on beside the rounds, which must bring new questions until it has ended.
    """

    def __init__(self, folder: Path, running: dict[str, subprocess.Popen[bytes]]) -> None:
        self._folder, self._running = folder, running
        self.was_killed = self.was_stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(60)

    def _run(self) -> None:
        wait_until(lambda: len(asked(self._folder, "first")) > 5, WAIT_S)
        self._running["first"].kill()
        self.was_killed = True
        wait_until(lambda: len(asked(self._folder, "second")) > 5, WAIT_S)
        self._running["second"].send_signal(signal.SIGSTOP)
        before = len(asked(self._folder, "third"))
        wait_until(lambda: len(asked(self._folder, "third")) > before + 50, WAIT_S)
        self._running["second"].send_signal(signal.SIGCONT)
        self.was_stopped = True


def test_group_with_nobody_online_loses_no_count(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path)
    world.prepare(3)
    world.clock.advance(60)

    RecheckJob(world.store, clock=world.clock).run_once()

    assert [claim["check_times"] for claim in world.claims(ClaimKind.UNKNOWN)] == [0, 0, 0]
    assert {claim["reason"] for claim in world.claims()} == {"NO_LISTENER"}


def test_members_that_all_died_lose_no_count(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path)
    requests_in(world.store, "orders", create=True).change(
        lambda now: now.joined("dead", world.clock.now_ms()), world.clock.now_ms()
    )
    world.prepare(3)
    world.clock.advance(60)

    RecheckJob(world.store, clock=world.clock).run_once()

    assert [claim["check_times"] for claim in world.claims(ClaimKind.UNKNOWN)] == [0, 0, 0]
