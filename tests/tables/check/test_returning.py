"""Producers that come back are asked soon, and nobody who is away costs a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.check_world import COMMIT, GROUP, CheckWorld
from txmq.check.open_transactions import open_transactions
from txmq.check.recheck import Recheck, RecheckJob, RecheckResult, ReturningGroups
from txmq.check.round import CheckRound
from txmq.listeners.protocol import Reason
from txmq.listeners.remote import RemoteAnswer, RemoteQuestion, Requests, _outcomes, requests_in
from txmq.message.lifecycle import ClaimKind

ROUNDS = 6


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


def look(world: CheckWorld, **listeners: object) -> RecheckResult:
    return RecheckJob(world.store, listeners=listeners, clock=world.clock).run_once()  # type: ignore[arg-type]


def pauses(world: CheckWorld) -> None:
    """Nobody is there for so long that the next try is minutes away."""
    world.clock.advance(60)
    for _ in range(ROUNDS):
        look(world)
        world.clock.advance(601)
    look(world)


def test_service_that_starts_with_listeners_asks_at_once(world: CheckWorld) -> None:
    ids = world.prepare(3)
    pauses(world)

    result = look(world, orders=world.listener(COMMIT))

    assert result.checks.committed == 3
    assert {row["transaction_id"] for row in world.claims(ClaimKind.COMMIT)} == set(ids)


def test_group_that_nobody_answers_for_keeps_its_pause_and_its_checks(world: CheckWorld) -> None:
    world.prepare(1)
    pauses(world)
    claims = len(world.claims())

    look(world, other=world.listener(COMMIT))

    assert len(world.claims()) == claims
    assert {row["check_times"] for row in world.claims()} == {0}
    assert {row["reason"] for row in world.claims()} == {"NO_LISTENER"}


def test_pause_after_an_answer_is_kept_by_a_service_that_starts(world: CheckWorld) -> None:
    world.prepare(1)
    world.clock.advance(60)
    look(world, orders=world.listener())

    again = world.listener(COMMIT)
    assert look(world, orders=again).checks.asked == 0
    assert again.asked() == []


def joins(world: CheckWorld, client: str, ms: int) -> None:
    requests = requests_in(world.store, GROUP, create=True)
    requests.change(lambda now: now.joined(client, ms), ms)


def test_each_member_that_joins_or_wakes_makes_its_group_due_once(world: CheckWorld) -> None:
    world.prepare(1)
    pauses(world)
    returning = ReturningGroups(world.store, [])
    returning.await_(open_transactions(world.store, clock=world.clock))
    assert not returning.look()

    for client, ms in (("a", 1), ("b", 1), ("a", 2)):
        joins(world, client, ms)
        assert returning.look()
        assert returning.due() == {GROUP}
        returning.done([GROUP])
        assert not returning.look()


def test_member_that_leaves_makes_nothing_due(world: CheckWorld) -> None:
    world.prepare(1)
    pauses(world)
    joins(world, "a", 1)
    returning = ReturningGroups(world.store, [])
    returning.await_(open_transactions(world.store, clock=world.clock))
    returning.done([GROUP])

    requests_in(world.store, GROUP).change(lambda now: now.left("a"), 2)

    assert not returning.look()


def test_running_service_asks_a_member_that_joins_without_waiting_for_the_pause(
    world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No member runs here, so its questions bring no answer; that they were put is what counts.
    monkeypatch.setattr("txmq.listeners.remote.FIRST_TAKE_S", 0.0)
    world.prepare(1)
    pauses(world)
    checks = CheckRound(world.store, listeners={}, clock=world.clock)
    recheck = Recheck(world.store, checks, world.clock)
    recheck.run_once()
    claims = len(world.claims())

    assert not recheck.has_returned()
    joins(world, "a", world.clock.now_ms())
    assert recheck.has_returned()
    recheck.run_once()

    assert len(world.claims()) == claims + 1
    assert {row["check_times"] for row in world.claims()} == {0}
    assert not recheck.has_returned()
    checks.close()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (RemoteAnswer("COMMIT", "x\x1b[2J" + "y" * 500), ("COMMIT", "x [2J" + "y" * 195)),
        (RemoteAnswer("NO STATE", "x"), ("UNKNOWN", "NO_STATE")),
        (RemoteAnswer(None, "BUSY"), (None, "BUSY")),
        (RemoteAnswer(None, "no reason of txmq"), (None, "NO_LISTENER")),
        (RemoteAnswer(None, None), (None, "NO_LISTENER")),
    ],
)
def test_answer_in_the_state_of_a_group_is_believed_as_far_as_it_is_one(
    answer: RemoteAnswer, outcome: tuple[str | None, str | None]
) -> None:
    requests = Requests(answers={"t": answer}, taken={"t": ("a", 1)})

    (row,) = _outcomes({"t": RemoteQuestion(0, None)}, requests).to_pylist()

    assert (row["state"], row["reason"]) == outcome
    assert Reason.NO_LISTENER == "NO_LISTENER"
