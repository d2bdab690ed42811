"""Retention takes rows of one log after the other; what operators are told stays true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.delay_world import GROUP, TOPIC, DelayWorld
from txmq.delta.log_files import clean_log
from txmq.errors import (
    AlreadyResolvedError,
    MessageNotFoundError,
    NotRecalledError,
    TransactionNotFoundError,
)
from txmq.maintenance.retention import Retention, TopicRetention
from txmq.message.lifecycle import ClaimKind, ClaimSource, DeliveryState, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.life import LifeStage
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.store.op import OpRow

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
STATE = TransactionState
KEPT_LOGS = ("half", "op", "settled")
DAY_S = 86_400


class World(DelayWorld):
    """A store whose retention runs only when a test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, transaction_check_max=1, transaction_timeout_s=0.001)
        self.retention = Retention(self.store, self.clock)
        self.admin = Admin(self.store, clock=self.clock)
        self.operator = Operator(self.store, clock=self.clock)
        self.query = MessageQuery(self.store)

    def prepare(self, body: str = "paid", **delay: int) -> str:
        transaction = self.producer.begin_transaction()
        transaction.send(Message(TOPIC, body.encode(), **delay))  # type: ignore[arg-type]
        transaction.prepare()
        return transaction.id

    def end(self, transaction_id: str, end: LocalTransactionState) -> None:
        self.producer.end_transaction(transaction_id, end)

    def claimed(self, transaction_id: str, kind: ClaimKind, life: int = 0) -> None:
        """A claim of the check; one question is enough for a DISCARD."""
        row = OpRow(
            transaction_id, kind, GROUP, ClaimSource.CHECK, self.clock.now_ms(),
            life=life, check_times=1 if kind is ClaimKind.UNKNOWN else None,
        )  # fmt: skip
        name = f"test-{kind}-{life}-{transaction_id}"
        self.store.tables.op_log().append([row], 0, app_id=name, number=1)
        self.publisher.run_once()

    def days(self, days: float) -> None:
        self.clock.advance(days * DAY_S)

    def retire(self) -> None:
        """One round of retention; the publisher runs before it, as it does in every broker."""
        self.publisher.run_once()
        self.retention.run()

    def days_later(self, days: float) -> None:
        self.days(days)
        self.retire()

    def clean_op_log(self) -> None:
        """Take the commits that still show claims whose rows are gone."""
        op = self.store.tables.table_at("op")
        op.writer.checkpoint()
        clean_log(op, op.version)

    def kept(self) -> tuple[str, ...]:
        """The logs that still hold rows."""
        tables = {name: self.store.tables.table_at(name) for name in KEPT_LOGS}
        return tuple(name for name, table in tables.items() if table.files.all())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def half_is_gone(world: World, end: LocalTransactionState) -> str:
    """The end came two days after the halves."""
    transaction_id = world.prepare()
    world.days(2)
    world.end(transaction_id, end)
    world.publisher.run_once()
    world.days_later(2.5)
    assert world.kept() == ("op", "settled")
    return transaction_id


def half_and_op_are_gone(world: World, end: LocalTransactionState) -> str:
    """The end was settled two days after it was claimed."""
    transaction_id = world.prepare()
    world.end(transaction_id, end)
    world.days(2)
    world.publisher.run_once()
    world.days_later(2.5)
    assert world.kept() == ("settled",)
    return transaction_id


def logs_are_gone(world: World, end: LocalTransactionState) -> str:
    transaction_id = half_and_op_are_gone(world, end)
    world.days_later(10)
    world.clean_op_log()
    assert world.kept() == ()
    return transaction_id


def expired(world: World) -> str:
    """It was open for too long; its fact and its dead letter are left."""
    transaction_id = world.prepare()
    world.days_later(5)
    world.retire()
    assert world.kept() == ("op", "settled")
    return transaction_id


STAGES = pytest.mark.parametrize("stage", [half_is_gone, half_and_op_are_gone])
ENDS = pytest.mark.parametrize(
    ("end", "state"), [(COMMIT, STATE.COMMITTED), (ROLLBACK, STATE.ROLLED_BACK)]
)
Stage = Callable[[World, LocalTransactionState], str]


# --- show -----------------------------------------------------------------------------------------


@STAGES
@ENDS
def test_the_end_is_told_without_its_halves(
    world: World, stage: Stage, end: LocalTransactionState, state: TransactionState
) -> None:
    life = world.admin.transaction(stage(world, end))

    assert (life.state, life.producer_group) == (state, GROUP)
    assert (life.message_count, life.messages_found) == (None, 0)
    assert [event.title for event in life.events if event.stage is LifeStage.FACT] == [state.value]
    shown = [event.title for event in life.events if event.stage is LifeStage.MESSAGE]
    assert shown == ([f"in {TOPIC}"] if end is COMMIT else [])


def test_a_visible_message_of_which_no_log_knows_proves_its_commit(world: World) -> None:
    life = world.admin.transaction(logs_are_gone(world, COMMIT))

    assert (life.state, life.producer_group) == (STATE.COMMITTED, GROUP)
    assert [event.stage for event in life.events] == [LifeStage.MESSAGE]


def test_a_transaction_of_which_nothing_is_left_may_have_been_taken(world: World) -> None:
    with pytest.raises(TransactionNotFoundError, match="retention took it"):
        world.admin.transaction(logs_are_gone(world, ROLLBACK))


def test_an_expired_transaction_stays_expired(world: World) -> None:
    life = world.admin.transaction(expired(world))

    assert life.state is STATE.EXPIRED
    assert LifeStage.DEAD_LETTER in {event.stage for event in life.events}


def test_a_dead_letter_alone_says_no_end(world: World) -> None:
    transaction_id = expired(world)
    world.days_later(10)
    world.clean_op_log()
    assert world.kept() == ()

    life = world.admin.transaction(transaction_id)

    assert (life.state, life.producer_group) == (None, GROUP)
    assert world.query.by_id(f"{transaction_id}:0").where == "dead letter"


def test_a_claim_that_comes_after_the_halves_are_gone_changes_nothing(world: World) -> None:
    transaction_id = half_and_op_are_gone(world, ROLLBACK)
    row = OpRow(transaction_id, ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, world.clock.now_ms())
    world.store.tables.op_log().append([row], 0, app_id="late", number=1)

    assert world.admin.transaction(transaction_id).state is STATE.ROLLED_BACK
    world.publisher.run_once()
    assert world.admin.transaction(transaction_id).state is STATE.ROLLED_BACK


@pytest.mark.parametrize("days", [3, 10, 39])
def test_a_delayed_message_that_waits_belongs_to_a_committed_transaction(
    world: World, days: int
) -> None:
    (message_id,) = world.send("later", delay_s=40 * DAY_S)
    world.days_later(days)

    life = world.admin.transaction(message_id.partition(":")[0])
    message = world.query.by_id(message_id)

    assert life.state is STATE.COMMITTED
    assert LifeStage.SCHEDULED in {event.stage for event in life.events}
    assert (message.state, message.where) == (STATE.COMMITTED, "scheduled")


@pytest.mark.parametrize("days", [3, 40])
def test_a_delayed_message_that_came_is_told_to_its_end(world: World, days: int) -> None:
    (message_id,) = world.send("later", delay_s=days * DAY_S)
    own_id = message_id.partition(":")[0]
    assert world.after(days * DAY_S + 1) == ["later"]
    told = set()
    for _ in range(4):
        world.retire()
        told.add((world.admin.transaction(own_id).state, world.query.by_id(message_id).where))
        world.days(3)

    assert world.kept() == ()
    assert told == {(STATE.COMMITTED, "visible")}


# --- the facts of one transaction go together -----------------------------------------------------


def test_a_fact_does_not_outlive_the_later_ones_of_its_transaction(world: World) -> None:
    resumed, (waiting,) = world.prepare(), world.send("later", delay_s=20 * DAY_S)
    world.claimed(resumed, ClaimKind.UNKNOWN)
    world.claimed(resumed, ClaimKind.DISCARD)
    world.days(2)
    world.operator.resume(resumed, reason="repaired", apply=True)
    world.end(resumed, ROLLBACK)
    world.publisher.run_once()
    world.days_later(8)

    assert world.admin.transaction(resumed).state is STATE.ROLLED_BACK
    status = world.admin.status()
    assert (status.rolled_back, status.discarded) == (1, 0)
    assert world.query.by_id(waiting).where == "scheduled"


# --- status ---------------------------------------------------------------------------------------


def test_counts_of_ended_transactions_do_not_fall_at_retention(world: World) -> None:
    for end in (COMMIT, COMMIT, ROLLBACK):
        world.end(world.prepare(), end)
    world.prepare()
    world.publisher.run_once()
    told = []
    for _ in range(6):
        world.days_later(3)
        world.publisher.run_once()
        status = world.admin.status()
        told.append((status.committed, status.rolled_back, status.expired + status.open))

    assert world.kept() == ()
    assert told == [(2, 1, 1)] * 6


def test_a_removal_that_is_made_again_counts_once(world: World) -> None:
    half_and_op_are_gone(world, COMMIT)
    settled = world.store.tables.logs().settled
    settled.forget(settled.table.files.all())
    settled.forget(settled.table.files.all())

    assert world.admin.status().committed == 1


# --- claims by hand -------------------------------------------------------------------------------


@STAGES
@ENDS
def test_an_operator_is_told_the_end_without_its_halves(
    world: World, stage: Stage, end: LocalTransactionState, state: TransactionState
) -> None:
    transaction_id = stage(world, end)
    other = ROLLBACK if end is COMMIT else COMMIT

    same = world.operator.resolve(transaction_id, end, reason="look", apply=True)

    assert (same.state_after, same.is_needed, same.is_written) == (state, False, False)
    assert (same.producer_group, same.problem) == (GROUP, None)
    with pytest.raises(AlreadyResolvedError, match=state.value):
        world.operator.resolve(transaction_id, other, reason="look", apply=True)
    with pytest.raises(AlreadyResolvedError, match=state.value):
        world.operator.resume(transaction_id, reason="look", apply=True)


def test_an_expired_transaction_cannot_be_resumed(world: World) -> None:
    transaction_id = expired(world)

    with pytest.raises(AlreadyResolvedError, match="EXPIRED"):
        world.operator.resume(transaction_id, reason="look")


def test_an_operator_hears_of_retention_where_nothing_is_left(world: World) -> None:
    transaction_id = logs_are_gone(world, COMMIT)

    with pytest.raises(TransactionNotFoundError, match="retention took it"):
        world.operator.resolve(transaction_id, COMMIT, reason="look")


# --- messages -------------------------------------------------------------------------------------


@STAGES
def test_a_message_that_is_gone_is_told_with_the_end_of_its_transaction(
    world: World, stage: Stage
) -> None:
    transaction_id = stage(world, ROLLBACK)

    with pytest.raises(MessageNotFoundError, match="ROLLED_BACK"):
        world.query.by_id(f"{transaction_id}:0")
    with pytest.raises(TransactionNotFoundError, match="ROLLED_BACK"):
        world.query.by_transaction(transaction_id)


@pytest.mark.parametrize("stage", [half_is_gone, half_and_op_are_gone, logs_are_gone])
def test_a_visible_message_is_committed_at_every_stage(world: World, stage: Stage) -> None:
    transaction_id = stage(world, COMMIT)

    (message,) = world.query.by_transaction(transaction_id)

    assert (message.where, message.state, message.is_half) == ("visible", STATE.COMMITTED, False)


def test_a_message_that_its_topic_s_retention_took_was_published(world: World) -> None:
    Topics(world.store, clock=world.clock).create(TOPIC, queue_nums=1, reserved_time_h=1)
    transaction_id, later_id = world.prepare(), world.prepare()
    for prepared in (transaction_id, later_id):
        world.end(prepared, COMMIT)
        world.publisher.run_once()
    assert world.query.by_id(f"{transaction_id}:0").where == "visible"
    world.days(0.1)
    assert TopicRetention(world.store, world.clock).run() == 1

    message = world.query.by_id(f"{transaction_id}:0")

    assert (message.where, message.state) == ("removed from its topic", STATE.COMMITTED)


# --- recall ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [0, 4, 8, 20])
def test_a_recalled_message_stays_recalled(world: World, days: int) -> None:
    recalled, _ = world.send("recalled", "waits", delay_s=30 * DAY_S)
    world.producer.recall(recalled)
    world.publisher.run_once()
    world.days_later(days)

    world.producer.recall(recalled)

    assert world.query.by_id(recalled).delivery is DeliveryState.RECALLED


def test_a_message_that_came_cannot_be_recalled_after_its_rows_are_gone(world: World) -> None:
    (message_id,) = world.send("later", delay_s=DAY_S)
    world.after(3 * DAY_S)
    world.days_later(2.2)
    assert (world.kept(), world.scheduled()) == (("op", "settled"), [])

    with pytest.raises(NotRecalledError, match="it was due and is delivered"):
        world.producer.recall(message_id)
    world.days_later(9)
    assert world.kept() == ()
    with pytest.raises(TransactionNotFoundError, match="retention took it"):
        world.producer.recall(message_id)


def test_a_message_without_delay_is_told_so_without_its_half(world: World) -> None:
    transaction_id = half_and_op_are_gone(world, COMMIT)

    with pytest.raises(NotRecalledError, match="not a delayed message"):
        world.producer.recall(f"{transaction_id}:0")
