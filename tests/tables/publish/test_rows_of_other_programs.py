"""Rows that other programs append: what no topic can take is set aside, and all others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.kit.builders import GROUP, halves, messages, op_row
from tests.kit.delay_world import DelayWorld
from tests.kit.planted import DEAD, Vandal
from tests.kit.reading import bodies, topic_rows
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.schemas import HALF, TOPIC
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

NO_QUEUES = (None, -1, 4096, 2**31 - 1)
PAID = "order-paid"


def sell(store: Store, *sold: bytes) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for body in sold:
            producer.send(Message(PAID, body), queue_id=0)


def claimed(
    store: Store, number: int, rows: pa.Table, kind: ClaimKind = ClaimKind.COMMIT, **changes: Any
) -> str:
    """A committed transaction whose halves another program wrote, changed so."""
    told = [{**row, **changes} for row in rows.to_pylist()]
    vandal = Vandal(store.location)
    vandal.append("half", HALF, told)
    row = op_row(number, kind, life=0 if kind is ClaimKind.EXPIRE else None)
    vandal.store.tables.op_log().append([row], 0, app_id=f"other/{number}", number=1)
    return row.transaction_id


@pytest.mark.parametrize("queue", NO_QUEUES)
def test_a_message_for_a_queue_that_no_topic_has_is_set_aside_and_all_others_go_on(
    store: Store, queue: int | None
) -> None:
    publisher = Publisher(store)
    sell(store, b"1", b"2")
    publisher.run_once()
    own_id = claimed(store, 1, halves(1), real_queue_id=queue)
    sell(store, b"3")

    result = publisher.run_once()
    sell(store, b"4")
    publisher.run_once()

    assert (result.parked, result.set_aside) == (0, 1)
    assert bodies(store) == [b"1", b"2", b"3", b"4"]
    entry = read_set_aside(store.tables).transactions[own_id]
    assert f"queue {'null' if queue is None else queue}," in entry.problem
    assert "0 to 4095" in entry.problem


def test_a_dead_letter_for_no_queue_is_set_aside(store: Store) -> None:
    own_id = claimed(store, 1, halves(1), ClaimKind.EXPIRE, real_queue_id=None)
    claimed(store, 2, halves(2), ClaimKind.EXPIRE)

    Publisher(store).run_once()

    assert list(read_set_aside(store.tables).transactions) == [own_id]
    assert [row["body"] for row in topic_rows(store, DEAD)] == [b"body-0"]


def test_a_delayed_message_for_no_queue_is_set_aside_before_the_schedule(store: Store) -> None:
    own_id = claimed(store, 1, halves(1), real_queue_id=None, delay_s=1)

    Publisher(store).run_once()

    assert SCHEDULE_TOPIC not in store.topics()
    assert own_id in read_set_aside(store.tables).transactions


def test_a_schedule_without_a_queue_delivers_what_half_holds(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path)
    world.send("due", delay_s=60)
    DeltaTable(f"{world.store.location}/topics/{SCHEDULE_TOPIC}").update(
        {"queue_id": "CAST(NULL AS INT)"}
    )

    assert world.after(61) == ["due"]
    assert not read_set_aside(world.store.tables).transactions
    world.producer.close()


def test_the_messages_beside_it_are_shown_once_it_is_given_up(store: Store) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    rows = halves(1, messages(2))
    told = [{**row, "real_queue_id": row["sequence"] or None} for row in rows.to_pylist()]
    own_id = claimed(store, 1, pa.Table.from_pylist(told, HALF.columns))
    publisher.run_once()
    assert bodies(store) == []

    Operator(store).give_up(own_id, reason="no queue", apply=True)
    publisher.run_once()
    clock.advance(3600)
    publisher.run_once()

    assert bodies(store) == [b"body-1"]
    assert not read_set_aside(store.tables).transactions


def test_a_topic_that_an_earlier_txmq_parked_by_such_a_message_is_rebuilt_and_goes_on(
    store: Store,
) -> None:
    """It wrote the row without a queue, with the first offset of queue 0, and put its mark back."""
    sell(store, b"1", b"2")
    publisher = Publisher(store)
    publisher.run_once()
    own_id = claimed(store, 1, halves(1), real_queue_id=None)
    publisher.run_once()
    vandal = Vandal(store.location)
    row = {**vandal.rows(f"topics/{PAID}")[0], "transaction_id": own_id, "queue_id": None}
    vandal.append(f"topics/{PAID}", TOPIC, [{**row, "op_version": 3}], {"txmq-offset/0": 1})
    sell(store, b"3")
    assert Publisher(store).run_once().parked == 1

    Topics(store).rebuild(PAID, apply=True)
    sell(store, b"4")
    Publisher(store).run_once()

    assert bodies(store) == [b"1", b"2", b"3", b"4"]
    assert [row["queue_offset"] for row in topic_rows(store, PAID)] == [0, 1, 2, 3]
    # It is set aside, so its queue does not add up; the log still shows the mark that went back.
    broken = {result.invariant for result in verify(store.location).results if result.violations}
    assert broken == {"I1", "I21", "I23"}
