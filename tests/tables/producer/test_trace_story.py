"""Tracing with a real producer and a real check: records are messages like any other (R90)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kit.check_world import CheckWorld
from tests.kit.reading import publish, topic_rows
from txmq.check.recheck import RecheckJob
from txmq.message.lifecycle import TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRACE_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace import TraceHook, TraceRecord, TraceType, decoded
from txmq.store.store import Store
from txmq.testing import failing_commits
from txmq.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


def records(store: Store) -> list[TraceRecord]:
    publish(store)
    rows = topic_rows(store, TRACE_TOPIC) if TRACE_TOPIC in store.topics() else []
    return sorted((decoded(row["body"]) for row in rows), key=lambda one: one.time_ms)


def test_a_transaction_leaves_two_records_and_they_tell_the_truth(store: Store) -> None:
    with (
        TraceHook(store) as trace,
        TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer,
    ):
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", b"body", tags="new", keys="order-1"))
        transaction.prepare()
        transaction.rollback()

    pub, end = records(store)
    assert (pub.trace_type, end.trace_type) == (TraceType.PUB, TraceType.END_TRANSACTION)
    assert {pub.transaction_id, end.transaction_id} == {transaction.id}
    assert pub.messages[0].body_size_bytes == 4
    assert (end.asked, end.state, end.from_check) == (ROLLBACK, TransactionState.ROLLED_BACK, False)
    assert verify(store.location).is_txmq_clean


def test_records_are_written_when_the_producer_is_closed(store: Store) -> None:
    trace = TraceHook(store, flush_interval_s=3600)
    with TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer:
        producer.send(Message("paid", b"1"))

    assert len(records(store)) == 1
    trace.close()


def test_records_leave_no_records(store: Store) -> None:
    with (
        TraceHook(store) as trace,
        TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer,
    ):
        producer.send(Message("paid", b"1"))

    (record,) = records(store)
    assert record.messages[0].topic == "paid"


def test_the_trace_of_several_tenants_is_one_topic(store: Store) -> None:
    with TraceHook(store) as trace:
        for namespace in ("red", "blue"):
            with TransactionProducer(
                store, producer_group="orders", namespace=namespace, hooks=[trace]
            ) as producer:
                producer.send(Message("paid", b"1"))

    assert {(one.namespace, one.group) for one in records(store)} == {
        ("red", "orders"),
        ("blue", "orders"),
    }


def test_ends_by_the_check_are_recorded_as_such(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path)
    (own_id,) = world.prepare()
    world.clock.advance(60)
    with TraceHook(world.store) as trace:
        listeners: Any = {"orders": world.listener(COMMIT)}
        RecheckJob(world.store, listeners=listeners, clock=world.clock, hooks=[trace]).run_once()

    (record,) = records(world.store)
    assert record.transaction_id == own_id
    assert (record.from_check, record.source) == (True, "recheck")
    assert record.state is TransactionState.COMMITTED


def test_a_send_goes_on_where_its_record_cannot_be_written(store: Store) -> None:
    full = OSError(28, "No space left on device")
    trace = TraceHook(store, flush_interval_s=3600)
    with TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer:
        assert producer.send(Message("paid", b"1")).message_ids
        with failing_commits(1, error=full, table="half"):
            trace.flush()
        assert trace.dropped == 1
        assert producer.send(Message("paid", b"2")).message_ids
    trace.close()

    assert len(records(store)) == 1
