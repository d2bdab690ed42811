"""What operators are told, against stores whose every row a test wrote."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.kit.delay_world import DelayWorld
from tests.kit.stores import (
    DEAD,
    GROUP,
    START,
    Half,
    HandMadeStore,
    Op,
    Settled,
    halves,
    transaction_id,
)
from txmq.errors import TransactionNotFoundError
from txmq.ground.clock import milliseconds
from txmq.message.lifecycle import TransactionState
from txmq.ops.admin.life import LifeStage
from txmq.ops.admin.status import Admin
from txmq.store.store import Store
from txmq.testing import ManualClock


@pytest.fixture
def made(clean: HandMadeStore) -> HandMadeStore:
    return clean


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(milliseconds(START + timedelta(seconds=60)))


def admin(made: HandMadeStore, clock: ManualClock) -> Admin:
    return Admin(Store.open(made.location), clock=clock)


# --- status ---------------------------------------------------------------------------------------


def test_every_transaction_is_counted_where_it_stands(
    made: HandMadeStore, clock: ManualClock
) -> None:
    status = admin(made, clock).status()

    assert (status.open, status.committed, status.rolled_back) == (2, 4, 3)
    assert (status.discarded, status.incomplete, status.expired) == (1, 1, 0)
    assert status.messages == {"orders": 4, "stock": 1}
    assert status.dead_letters == 2
    assert status.op_version == 3
    assert status.settled.op_versions == status.published.op_versions == 0
    assert status.parked == ()


def test_the_oldest_open_half_is_told_by_its_id(made: HandMadeStore, clock: ManualClock) -> None:
    assert admin(made, clock).status().oldest_open_half_age_s == pytest.approx(60 - 0.003)


def test_a_new_store_is_empty(empty: HandMadeStore, clock: ManualClock) -> None:
    status = admin(empty, clock).status()

    assert status.open == status.committed == 0
    assert status.oldest_open_half_age_s is None
    assert status.settled.op_versions == 0
    assert status.messages == {}


def test_a_half_without_an_id_hides_no_figures(empty: HandMadeStore, clock: ManualClock) -> None:
    empty.prepare(*halves(1, "orders"), Half(2, 0, changes={"transaction_id": None}))
    status = Admin(empty.store, clock=clock).status()
    assert (status.open, status.half_messages) == (1, {"orders": 1})


def test_what_could_not_be_asked_is_counted_by_its_reason(
    empty: HandMadeStore, clock: ManualClock
) -> None:
    for number in range(1, 6):
        empty.prepare(*halves(number, "orders"))
    said = {1: ["NO_LISTENER"], 2: ["TIMEOUT", "NO_LISTENER"], 3: ["BUSY", "TIMEOUT"], 4: ["BUSY"]}
    for number, reasons in said.items():
        for times, reason in enumerate(reasons):
            at = {"reason": reason, "op_timestamp": START + timedelta(seconds=times)}
            empty.claim(Op(number, "UNKNOWN", life=0, check_times=0, changes=at))

    status = admin(empty, clock).status()

    assert (status.open, status.unasked) == (5, {"NO_LISTENER": 2, "BUSY": 1})


def test_an_end_counts_before_it_is_settled(empty: HandMadeStore, clock: ManualClock) -> None:
    empty.prepare(*halves(1, "orders"), *halves(2, "orders"))
    empty.claim(Op(1, "COMMIT"))
    empty.claim(Op(2, "COMMIT", group="strangers"))

    status = admin(empty, clock).status()

    assert (status.committed, status.open) == (1, 1)
    assert (status.settled.op_version, status.settled.op_versions) == (-1, 3)
    assert status.settled.seconds == pytest.approx(60)
    assert status.published.seconds == pytest.approx(60)


def test_settled_but_not_published_is_told_apart(empty: HandMadeStore, clock: ManualClock) -> None:
    empty.prepare(*halves(1, "orders"))
    version = empty.claim(Op(1, "COMMIT"))
    empty.settle(Settled(1, "COMMITTED", version), mark=version)
    empty.publisher_state(version - 1, {"orders": version})

    status = admin(empty, clock).status()

    assert status.settled.op_versions == 0
    assert status.published.op_versions == 1
    (parked,) = status.parked
    assert (parked.topic, parked.from_version, parked.reason) == ("orders", version, "test")


def test_status_is_json(made: HandMadeStore, clock: ManualClock) -> None:
    values = json.loads(json.dumps(admin(made, clock).status().to_dict()))

    assert values["committed"] == 4
    assert values["settled"] == {"op_version": 3, "op_versions": 0, "seconds": 0.0}


def test_nothing_is_written(made: HandMadeStore, clock: ManualClock) -> None:
    before = {path for path in Path(made.location).rglob("*") if path.is_file()}

    admin(made, clock).status()
    admin(made, clock).transaction(transaction_id(7))

    assert {path for path in Path(made.location).rglob("*") if path.is_file()} == before


# --- one transaction ------------------------------------------------------------------------------


def test_a_resumed_life_is_told_from_its_half_to_its_message(
    made: HandMadeStore, clock: ManualClock
) -> None:
    life = admin(made, clock).transaction(transaction_id(7))

    assert (life.state, life.life, life.producer_group) == (TransactionState.COMMITTED, 1, GROUP)
    assert (life.message_count, life.messages_found) == (1, 1)
    assert sorted((event.stage, event.title) for event in life.events) == sorted(
        [
            (LifeStage.HALF, "to orders"),
            (LifeStage.CLAIM, "UNKNOWN"),
            (LifeStage.CLAIM, "DISCARD"),
            (LifeStage.CLAIM, "RESUME"),
            (LifeStage.CLAIM, "COMMIT"),
            (LifeStage.FACT, "DISCARDED"),
            (LifeStage.FACT, "PENDING"),
            (LifeStage.FACT, "COMMITTED"),
            (LifeStage.MESSAGE, "in orders"),
            (LifeStage.DEAD_LETTER, f"in {DEAD}"),
        ]
    )


def test_claims_of_one_moment_stand_in_the_order_of_their_commits(
    made: HandMadeStore, clock: ManualClock
) -> None:
    life = admin(made, clock).transaction(transaction_id(4))

    claims = [event for event in life.events if event.stage is LifeStage.CLAIM]
    assert [event.title for event in claims] == ["ROLLBACK", "COMMIT", "ROLLBACK", "COMMIT"]
    assert claims[0].details["producer_group"] == "strangers"
    assert [event.details["op_version"] for event in claims] == [2, 2, 2, 2]


def test_events_are_in_order_of_time(made: HandMadeStore, clock: ManualClock) -> None:
    moments = [event.at for event in admin(made, clock).transaction(transaction_id(7)).events]

    assert moments == sorted(moments)


def test_counted_checks_are_those_of_this_life(empty: HandMadeStore, clock: ManualClock) -> None:
    empty.prepare(*halves(1, "orders"))
    empty.claim(
        Op(1, "UNKNOWN", life=0, check_times=5, source="check"),
        Op(1, "DISCARD", life=0, source="check"),
        Op(1, "RESUME", life=1, source="operator"),
        Op(1, "UNKNOWN", life=1, check_times=2, source="check"),
    )

    life = admin(empty, clock).transaction(transaction_id(1))

    assert (life.state, life.life, life.check_times) == (TransactionState.PENDING, 1, 2)


def test_every_row_of_a_retried_half_is_shown(made: HandMadeStore, clock: ManualClock) -> None:
    life = admin(made, clock).transaction(transaction_id(10))

    assert sum(event.stage is LifeStage.HALF for event in life.events) == 2
    assert life.messages_found == 1


def test_a_claim_without_half_is_shown(made: HandMadeStore, clock: ManualClock) -> None:
    life = admin(made, clock).transaction(transaction_id(99))

    assert life.producer_group is None
    assert [event.title for event in life.events] == ["COMMIT"]


def test_bodies_are_never_shown(made: HandMadeStore, clock: ManualClock) -> None:
    text = json.dumps(admin(made, clock).transaction(transaction_id(7)).to_dict())

    assert "body-7" not in text
    assert '"body_size_bytes": 8' in text


def test_a_head_without_payload_is_shown(empty: HandMadeStore, clock: ManualClock) -> None:
    empty.prepare(Half(1, 0, None, message_count=1), Half(1, 1 << 56, "orders"))

    life = admin(empty, clock).transaction(transaction_id(1))

    assert {event.title for event in life.events} == {"head without payload", "to orders"}


@pytest.mark.parametrize("unknown", [transaction_id(123), "no id at all", "' OR '1'='1"])
def test_an_unknown_id_is_refused(made: HandMadeStore, clock: ManualClock, unknown: str) -> None:
    with pytest.raises(TransactionNotFoundError):
        admin(made, clock).transaction(unknown)


def test_delayed_messages_are_shown_where_they_are(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path)
    first, *_ = world.send("recalled", "waits", "comes", delay_s=10)
    world.send("later", delay_s=60)
    world.producer.recall(first)
    own_id = first.partition(":")[0]
    status = Admin(world.store, clock=world.clock).status()
    assert (status.scheduled, dict(status.messages)) == (4, {})

    world.publisher.run_once()
    world.after(10)
    admin = Admin(world.store, clock=world.clock)
    status = admin.status()
    assert (status.scheduled, dict(status.messages), status.open) == (1, {"order-paid": 2}, 0)
    life = admin.transaction(own_id)
    assert life.state is TransactionState.COMMITTED
    stages = [event.stage.value for event in life.events]
    assert stages.count("scheduled") == 3
    assert stages.count("message") == 2
    titles = [event.title for event in life.events if event.stage.value == "fact"]
    assert titles == ["COMMITTED", "RECALLED", "DELIVERED"]
    world.producer.close()
