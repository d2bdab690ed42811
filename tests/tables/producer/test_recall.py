"""Taking back a delayed message: before it is due, by its group, and never halfway."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.delay_world import TOPIC, DelayWorld
from txmq.errors import (
    ClosedError,
    NotRecalledError,
    ProducerGroupMismatchError,
    TransactionNotFoundError,
)
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path)
    yield made
    made.producer.close()


def test_recalled_message_never_comes(world: DelayWorld) -> None:
    first, _ = world.send("recalled", "kept", delay_s=10)
    world.producer.recall(first)

    assert world.after(10) == ["kept"]


def test_message_is_recalled_before_anything_is_settled(world: DelayWorld) -> None:
    sent = world.producer.send(Message(TOPIC, b"recalled", delay_s=10))
    world.producer.recall(sent.message_id)
    world.publisher.run_once()

    assert world.after(10) == []


def test_recalling_again_is_fine_and_writes_nothing(world: DelayWorld) -> None:
    (own_id,) = world.send("recalled", delay_s=10)
    world.producer.recall(own_id)
    version = world.store.tables.op_log().table.version
    world.producer.recall(own_id)
    world.publisher.run_once()
    world.producer.recall(own_id)

    assert world.store.tables.op_log().table.version == version


def test_another_producer_of_the_group_recalls_too(world: DelayWorld) -> None:
    (own_id,) = world.send("recalled", delay_s=10)
    group = world.producer.producer_group
    with TransactionProducer(world.store, producer_group=group, clock=world.clock) as other:
        other.recall(own_id)

    assert world.after(10) == []


@pytest.mark.parametrize("published", ["published", "not published"])
def test_message_that_was_due_first_is_not_recalled(world: DelayWorld, published: str) -> None:
    (own_id,) = world.send("came", delay_s=10)
    world.clock.advance(10)
    world.service.run_once()
    if published == "published":
        world.publisher.run_once()

    with pytest.raises(NotRecalledError) as refused:
        world.producer.recall(own_id)
    assert (refused.value.message_id, refused.value.state) == (own_id, "DELIVERED")
    assert world.after(0) == ["came"]


def test_message_that_is_due_but_not_claimed_yet_is_recalled(world: DelayWorld) -> None:
    (own_id,) = world.send("recalled", delay_s=10)
    world.clock.advance(60)
    world.producer.recall(own_id)

    assert world.after(0) == []


def test_message_that_is_not_delayed_is_not_recalled(world: DelayWorld) -> None:
    (own_id,) = world.send("came")

    with pytest.raises(NotRecalledError, match="not a delayed message"):
        world.producer.recall(own_id)


def test_place_that_the_transaction_does_not_have_is_not_recalled(world: DelayWorld) -> None:
    (own_id,) = world.send("later", delay_s=10)

    with pytest.raises(NotRecalledError):
        world.producer.recall(own_id.replace(":0", ":7"))
    assert world.after(10) == ["later"]


def test_open_transaction_is_rolled_back_and_not_recalled(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    own_id = transaction.send(Message(TOPIC, b"later", delay_s=10))
    transaction.prepare()
    version = world.store.tables.op_log().table.version

    with pytest.raises(NotRecalledError, match="roll an open transaction back") as refused:
        world.producer.recall(own_id)
    assert refused.value.state == "PENDING"
    assert world.store.tables.op_log().table.version == version
    transaction.commit()
    world.publisher.run_once()
    assert world.after(10) == ["later"]


def test_recall_that_was_claimed_before_the_commit_has_no_effect(world: DelayWorld) -> None:
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"later", delay_s=10))
    transaction.prepare()
    world.claim(ClaimKind.RECALL, transaction.id, 0)
    transaction.commit()
    world.publisher.run_once()

    assert world.after(10) == ["later"]


def test_other_groups_may_not_recall(world: DelayWorld) -> None:
    (own_id,) = world.send("later", delay_s=10)
    with (
        TransactionProducer(world.store, producer_group="others", clock=world.clock) as other,
        pytest.raises(ProducerGroupMismatchError),
    ):
        other.recall(own_id)


@pytest.mark.parametrize(
    "message_id",
    [None, 7, "", "x", ":0", "01890000-0000-7000-8000-000000000000", b"x",
     "01890000-0000-7000-8000-000000000000:-1", "01890000-0000-7000-8000-000000000000:01",
     "01890000-0000-7000-8000-000000000000:0 OR 1=1", "00000000-0000-739f-a59a-0cb08c77815f:0"],
    ids=repr,
)  # fmt: skip
def test_what_is_no_message_is_not_found(world: DelayWorld, message_id: object) -> None:
    with pytest.raises(TransactionNotFoundError):
        world.producer.recall(message_id)  # type: ignore[arg-type]


def test_closed_producer_recalls_nothing(world: DelayWorld) -> None:
    (own_id,) = world.send("later", delay_s=10)
    world.producer.close()

    with pytest.raises(ClosedError):
        world.producer.recall(own_id)


def test_of_recall_and_delivery_at_once_one_wins_and_its_caller_knows(world: DelayWorld) -> None:
    ids = world.send(*[str(number) for number in range(20)], delay_s=10)
    world.deliver()
    world.clock.advance(10)

    def recall(own_id: str) -> bool:
        try:
            world.producer.recall(own_id)
        except NotRecalledError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(recall, own_id) for own_id in ids]
        world.service.run_once()
        recalled = [future.result() for future in answers]
    world.publisher.run_once()
    world.deliver()

    shown = {int(body) for body in world.visible()}
    assert shown == {number for number, is_recalled in enumerate(recalled) if not is_recalled}
