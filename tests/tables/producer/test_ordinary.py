"""Messages without a local transaction: acknowledged and shown, or never; and batches (R96)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.delay_world import GROUP, TOPIC, DelayWorld
from txmq.check.recheck import RecheckJob
from txmq.errors import (
    AlreadyResolvedError,
    ClosedError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    StorageError,
    TopicConflictError,
)
from txmq.message.message import Message
from txmq.producer.ends import AskedEnds
from txmq.producer.group_commit import Answered
from txmq.producer.producer import TransactionProducer
from txmq.store.logs import Resolution
from txmq.testing import failing_commits


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path, max_message_size_bytes=100, max_transaction_size_bytes=250)
    yield made
    made.producer.close()


def versions(world: DelayWorld) -> tuple[int, int]:
    return world.store.tables.half_log().table.version, world.store.tables.op_log().table.version


# --- one ------------------------------------------------------------------------------------------


def test_acknowledged_message_is_shown_once(world: DelayWorld) -> None:
    sent = world.producer.send(Message(TOPIC, b"paid"))
    world.publisher.run_once()

    (row,) = world.rows()
    assert (row["message_id"], row["body"]) == (sent.message_id, b"paid")
    assert sent.transaction_ids == (row["transaction_id"],)


def test_it_costs_one_commit_of_each_log(world: DelayWorld) -> None:
    half, op = versions(world)
    world.producer.send(Message(TOPIC, b"paid"))

    assert versions(world) == (half + 1, op + 1)


def test_sending_asynchronously_gives_the_same(world: DelayWorld) -> None:
    futures = [
        world.producer.send_async(Message(TOPIC, b"%d" % number), queue_id=0)
        for number in range(50)
    ]
    ids = [future.result(30).message_id for future in futures]
    world.publisher.run_once()

    assert [row["message_id"] for row in world.rows()] == ids
    assert [row["body"] for row in world.rows()] == [b"%d" % number for number in range(50)]


def test_message_whose_half_was_refused_is_not_shown(world: DelayWorld) -> None:
    with failing_commits(1, error=OSError("disk"), table="half"), pytest.raises(StorageError):
        world.producer.send(Message(TOPIC, b"lost"))
    world.publisher.run_once()

    assert world.rows() == []


def test_message_that_was_not_acknowledged_is_rolled_back_unasked(world: DelayWorld) -> None:
    with failing_commits(1, error=OSError("disk"), table="op"), pytest.raises(StorageError):
        world.producer.send(Message(TOPIC, b"lost"))
    world.clock.advance(60)
    result = RecheckJob(world.store, clock=world.clock).run_once()
    world.publisher.run_once()

    assert result.checks.never_acknowledged == 1
    assert result.checks.asked == 0
    assert world.rows() == []


def test_send_that_took_too_long_is_told_that_the_check_was_first(world: DelayWorld) -> None:
    logs = world.producer._commits._logs
    quick = logs.claim

    def slow(asked: AskedEnds, answered: Answered[list[Resolution]]) -> None:
        """The check runs between the half and its end."""
        world.clock.advance(60)
        RecheckJob(world.store, clock=world.clock).run_once()
        quick(asked, answered)

    logs.claim = slow  # type: ignore[method-assign]
    with pytest.raises(AlreadyResolvedError):
        world.producer.send(Message(TOPIC, b"too late"))
    world.publisher.run_once()

    assert world.rows() == []


def test_close_waits_for_what_is_on_its_way(world: DelayWorld) -> None:
    futures = [world.producer.send_async(Message(TOPIC, b"%d" % n)) for n in range(200)]
    world.producer.close()

    assert all(future.done() and future.result() for future in futures)
    with pytest.raises(ClosedError):
        world.producer.send(Message(TOPIC, b""))


# --- RocketMQ's MessageBatchTest, case by case ----------------------------------------------------


def test_batch_to_one_topic_is_accepted(world: DelayWorld) -> None:
    """testGenerate_OK"""
    half, op = versions(world)
    sent = world.producer.send([Message(TOPIC, b"%d" % number) for number in range(3)])
    world.publisher.run_once()

    assert len(sent.message_ids) == 3
    assert len(sent.transaction_ids) == 1
    assert versions(world) == (half + 1, op + 1)
    assert [row["message_id"] for row in sorted(world.rows(), key=lambda row: row["sequence"])] == [
        *sent.message_ids
    ]


def test_batch_to_two_topics_is_refused(world: DelayWorld) -> None:
    """testGenerate_DiffTopic"""
    before = versions(world)
    with pytest.raises(InvalidMessageError, match="one topic"):
        world.producer.send([Message(TOPIC, b""), Message("stock-reserved", b"")])

    assert versions(world) == before


def test_every_batch_waits_for_its_acknowledgement() -> None:
    """testGenerate_DiffWaitOK: waitStoreMsgOK does not exist, nothing is sent unacknowledged."""
    assert not hasattr(Message(TOPIC, b""), "wait_store_msg_ok")


def test_batch_may_be_delayed_each_message_by_its_own_time(world: DelayWorld) -> None:
    """testGenerate_Delay: refused there, for no reason that holds here."""
    world.producer.send([Message(TOPIC, b"late", delay_s=20), Message(TOPIC, b"soon", delay_s=10),
                         Message(TOPIC, b"now")])  # fmt: skip
    world.publisher.run_once()

    assert world.visible() == ["now"]
    assert world.after(10) == ["now", "soon"]
    assert world.after(10) == ["now", "soon", "late"]


def test_batch_to_a_retry_topic_is_refused(world: DelayWorld) -> None:
    """testGenerate_Retry"""
    for topic in ("RETRY_billing", "DLQ_billing"):
        with pytest.raises(InvalidNameError, match="reserved"):
            world.producer.send([Message(topic, b"")])


def test_batch_may_be_transactional(world: DelayWorld) -> None:
    with world.producer.begin_transaction() as transaction:
        for number in range(3):
            transaction.send(Message(TOPIC, b"%d" % number))
        transaction.prepare()
        world.publisher.run_once()
        assert world.rows() == []
        transaction.commit()
    world.publisher.run_once()

    assert world.visible() == ["0", "1", "2"]


# --- batches --------------------------------------------------------------------------------------


def test_batch_that_is_too_large_is_split_and_acknowledged_as_a_whole(world: DelayWorld) -> None:
    _, op = versions(world)
    batch = [Message(TOPIC, b"%02d" % number * 50) for number in range(7)]
    sent = world.producer.send(batch, queue_id=0)
    world.publisher.run_once()

    assert len(sent.transaction_ids) == 4
    assert versions(world)[1] == op + 1
    assert [row["message_id"] for row in world.rows()] == [*sent.message_ids]
    assert [row["body"] for row in world.rows()] == [message.body for message in batch]


def test_of_a_split_batch_nothing_is_shown_where_a_piece_was_refused(world: DelayWorld) -> None:
    world.store.config = world.store.config.replace(group_commit_max_rows=1)
    producer = TransactionProducer(world.store, producer_group=GROUP, clock=world.clock)
    batch = [Message(TOPIC, b"x" * 100) for _ in range(6)]
    with failing_commits(1, error=OSError("disk"), table="half"), pytest.raises(StorageError):
        producer.send(batch)
    producer.close()
    world.clock.advance(60)
    RecheckJob(world.store, clock=world.clock).run_once()
    world.publisher.run_once()

    assert world.rows() == []


@pytest.mark.parametrize(
    "messages",
    [None, 7, "text", b"bytes", [], (), [None], [Message(TOPIC, b""), "text"], 3.5],
    ids=repr,
)
def test_what_is_no_batch_is_refused(world: DelayWorld, messages: object) -> None:
    before = versions(world)
    for send in (world.producer.send, world.producer.send_async):
        with pytest.raises(InvalidMessageError):
            send(messages)  # type: ignore[arg-type]
    assert versions(world) == before


def test_one_bad_message_refuses_the_batch(world: DelayWorld) -> None:
    before = versions(world)
    with pytest.raises(MessageTooLargeError):
        world.producer.send([Message(TOPIC, b""), Message(TOPIC, b"x" * 101)])
    world.send("here")
    with pytest.raises(TopicConflictError):
        world.producer.send([Message(TOPIC.upper(), b"")])

    assert versions(world) == (before[0] + 1, before[1] + 1)


def test_batch_may_be_an_iterator(world: DelayWorld) -> None:
    sent = world.producer.send(Message(TOPIC, b"%d" % number) for number in range(3))

    assert len(sent.message_ids) == 3


# --- queues ---------------------------------------------------------------------------------------


def test_queue_is_chosen_by_number(world: DelayWorld) -> None:
    world.producer.send([Message(TOPIC, b"a"), Message(TOPIC, b"b")], queue_id=3)
    world.publisher.run_once()

    assert [row["queue_id"] for row in world.rows()] == [3, 3]


def test_queue_is_chosen_by_a_selector(world: DelayWorld) -> None:
    asked: list[tuple[bytes, int]] = []

    def select(message: Message, queue_count: int) -> int:
        asked.append((message.body, queue_count))
        return int(message.body) % queue_count

    world.producer.send([Message(TOPIC, b"%d" % n) for n in range(3)], queue_selector=select)
    world.publisher.run_once()

    assert asked == [(b"0", 8), (b"1", 8), (b"2", 8)]
    assert {(row["body"], row["queue_id"]) for row in world.rows()} == {
        (b"0", 0), (b"1", 1), (b"2", 2)
    }  # fmt: skip


def test_transaction_chooses_a_queue_for_each_message(world: DelayWorld) -> None:
    with world.producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"a"), queue_id=5)
        transaction.send(Message(TOPIC, b"b"), queue_selector=lambda _, count: count - 1)
        transaction.prepare()
        transaction.commit()
    world.publisher.run_once()

    assert [(row["body"], row["queue_id"]) for row in world.rows()] == [(b"a", 5), (b"b", 7)]


def test_without_a_choice_queues_are_taken_in_turn(world: DelayWorld) -> None:
    world.producer.send([Message(TOPIC, b"%d" % number) for number in range(16)])
    world.publisher.run_once()

    queues = [row["queue_id"] for row in world.rows()]
    assert queues == sorted([*range(8), *range(8)])


def test_same_key_goes_to_the_same_queue_in_the_order_of_commits(world: DelayWorld) -> None:
    for number in range(12):
        world.producer.send(Message(TOPIC, b"%d" % number, sharding_key=f"key-{number % 3}"))
    world.publisher.run_once()

    by_key: dict[str, list[tuple[int, int, int]]] = {}
    for row in world.rows():
        found = (row["queue_id"], row["queue_offset"], int(row["body"]))
        by_key.setdefault(row["sharding_key"], []).append(found)
    for found in by_key.values():
        assert len({queue for queue, _, _ in found}) == 1
        assert [body for _, _, body in sorted(found)] == sorted(body for _, _, body in found)


@pytest.mark.parametrize("queue_id", [-1, 8, 1.5, True, "3", 10**9, float("nan")], ids=repr)
def test_queue_that_the_topic_does_not_have_is_refused(world: DelayWorld, queue_id: object) -> None:
    before = versions(world)
    for send in (world.producer.send, world.producer.begin_transaction().send):
        with pytest.raises(InvalidMessageError, match="queue_id"):
            send(Message(TOPIC, b""), queue_id=queue_id)  # type: ignore[operator]
        with pytest.raises(InvalidMessageError, match="queue_id"):
            send(Message(TOPIC, b""), queue_selector=lambda *_: queue_id)  # type: ignore[operator]
    assert versions(world) == before


def test_selector_is_not_asked_where_a_message_of_the_batch_is_refused(world: DelayWorld) -> None:
    asked: list[Message] = []

    def select(message: Message, _: int) -> int:
        asked.append(message)
        return 0

    with pytest.raises(InvalidMessageError, match="must be a Message, not bytes"):
        world.producer.send([Message(TOPIC, b""), b"no message"], queue_selector=select)  # type: ignore[list-item]

    assert asked == []


def test_queue_and_key_or_selector_cannot_both_be_given(world: DelayWorld) -> None:
    with pytest.raises(InvalidMessageError, match="sharding_key"):
        world.producer.send(Message(TOPIC, b"", sharding_key="k"), queue_id=1)
    with pytest.raises(InvalidMessageError, match="pass one"):
        world.producer.send(Message(TOPIC, b""), queue_id=1, queue_selector=lambda *_: 1)
    with pytest.raises(InvalidMessageError, match="callable"):
        world.producer.send(Message(TOPIC, b""), queue_selector=1)  # type: ignore[arg-type]
