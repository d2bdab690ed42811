"""Rows that no part of txmq writes: without effect and counted; nobody is held up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.builders import GROUP, halves, op_row
from tests.kit.check_world import COMMIT as SAYS_COMMIT
from tests.kit.check_world import CheckWorld
from tests.kit.delay_world import DelayWorld
from tests.kit.foreign_input import column_of
from tests.kit.reading import bodies, log_rows, publish, rows_of
from txmq.check.recheck import RecheckJob
from txmq.errors import InvalidMessageError
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.life import LifeStage
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin, Schedule, scheduled
from txmq.producer.producer import TransactionProducer
from txmq.store.schemas import HALF, OP, SCHEDULE
from txmq.store.set_aside import read_set_aside
from txmq.testing import published_messages
from txmq.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from txmq.store.store import Store

KEY = op_row(1).transaction_id
NO_TIMES_US = (-(2**63), 2**63 - 1)
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def append(store: Store, log: str, rows: pa.Table) -> None:
    write_deltalake(f"{store.location}/{log}", rows, mode="append")


def claim(store: Store, *rows: Any) -> None:
    log = store.tables.op_log()
    log.append(rows, 0, app_id="test", number=log.table.version + 1)


def sell(store: Store, body: bytes) -> None:
    """What an honest producer does meanwhile."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", body))
        transaction.prepare()
        transaction.commit()


# --- claims ---------------------------------------------------------------------------------

STRANGE_CLAIMS: dict[str, dict[str, Any]] = {
    "of a wrong group": {"producer_group": "thieves"},
    "of an unknown kind": {"kind": "EXPLODE"},
    "without a kind": {"kind": None},
    "without an id": {"transaction_id": None},
    "without a group": {"producer_group": None},
    "of an unknown transaction": {"transaction_id": "nobody's"},
}


@pytest.mark.parametrize("strange", STRANGE_CLAIMS.values(), ids=STRANGE_CLAIMS)
def test_claim_by_hand_has_no_effect_and_the_honest_end_counts(
    store: Store, strange: dict[str, Any]
) -> None:
    append(store, "half", halves(1))
    claim(store, op_row(1, ClaimKind.UNKNOWN, life=0))
    honest = rows_of(f"{store.location}/op")[0]
    row = {**honest, "kind": "ROLLBACK", "ordinal": 7, **strange}
    append(store, "op", pa.Table.from_pylist([row], OP.columns))
    publish(store)
    assert log_rows(store, "settled") == []

    claim(store, op_row(1))
    sell(store, b"another")
    publish(store)
    assert bodies(store) == [b"another", b"body-0"]
    report = verify(store.location)
    assert report.is_clean, report
    assert report.counts["claims"] == len(log_rows(store, "op"))


def test_two_claims_with_one_ordinal_end_it_once_and_alike_for_all(store: Store) -> None:
    append(store, "half", halves(1))
    claim(store, op_row(1))
    row = rows_of(f"{store.location}/op")[0]
    append(store, "half", halves(2))
    twins = [{**row, "transaction_id": op_row(2).transaction_id, "kind": kind}
             for kind in ("ROLLBACK", "COMMIT")]  # fmt: skip
    append(store, "op", pa.Table.from_pylist(twins, OP.columns))
    sell(store, b"another")
    publish(store)

    facts = [fact["transaction_id"] for fact in log_rows(store, "settled")]
    assert len(facts) == len(set(facts)) == 3
    assert {b"another", b"body-0"} <= set(bodies(store))
    assert verify(store.location).is_clean


def test_claim_before_its_half_has_no_effect_and_the_next_one_counts(store: Store) -> None:
    claim(store, op_row(1))
    publish(store)
    append(store, "half", halves(1))
    publish(store)
    assert log_rows(store, "settled") == []

    claim(store, op_row(1))
    publish(store)
    assert bodies(store) == [b"body-0"]


def with_time(rows: pa.Table, column: str, time_us: int) -> pa.Table:
    times = pa.array([time_us] * rows.num_rows, pa.int64())
    field = rows.schema.field(column)
    return rows.set_column(rows.schema.get_field_index(column), field, times.cast(field.type))


# --- halves ---------------------------------------------------------------------------------


def changed(rows: pa.Table, **values: Any) -> pa.Table:
    return pa.Table.from_pylist([{**row, **values} for row in rows.to_pylist()], HALF.columns)


def test_half_doubled_with_another_content_is_not_shown_and_holds_up_nobody(store: Store) -> None:
    append(store, "half", halves(1))
    append(store, "half", changed(halves(1), body=b"forged"))
    claim(store, op_row(1))
    sell(store, b"another")
    publish(store)

    assert bodies(store) == [b"another"]
    (fact,) = [fact for fact in log_rows(store, "settled") if fact["state"] == "INCOMPLETE"]
    assert fact["reason"] == "CONFLICT"
    # Its producer was told that it is committed, so verify names it.
    assert verify(store.location).broken == ("I28",)


@pytest.mark.parametrize("immunity_s", [-1.0, 0.0, 100.5, float("nan"), float("inf"), None])
def test_half_with_a_strange_immunity_is_asked_about_like_any_other(
    tmp_path: Path, immunity_s: float | None
) -> None:
    world = CheckWorld(tmp_path)
    append(world.store, "half", changed(
        halves(1, producer_group="orders"), check_immunity_time_s=immunity_s))  # fmt: skip
    fine, listener = world.prepare(), world.listener(SAYS_COMMIT)
    world.clock.advance(3600)
    RecheckJob(world.store, listeners={"orders": listener}, clock=world.clock).run_once()
    publish(world.store)

    assert sorted(listener.asked()) == sorted([op_row(1).transaction_id, *fine])
    assert bodies(world.store) == [b"body-0"]
    assert verify(world.store.location).is_clean


@pytest.mark.parametrize("time_us", NO_TIMES_US)
def test_half_with_a_time_that_python_has_not_is_asked_about_like_any_other(
    tmp_path: Path, time_us: int
) -> None:
    world = CheckWorld(tmp_path)
    odd = with_time(changed(halves(1, producer_group="orders")), "born_timestamp", time_us)
    append(world.store, "half", odd)
    fine, listener = world.prepare(), world.listener(SAYS_COMMIT)
    world.clock.advance(3600)

    RecheckJob(world.store, listeners={"orders": listener}, clock=world.clock).run_once()
    publish(world.store)

    assert sorted(listener.asked()) == sorted([op_row(1).transaction_id, *fine])
    (message,) = published_messages(world.store, "order-paid")
    assert message.body == b"body-0"
    assert verify(world.store.location).is_clean


@pytest.mark.parametrize("time_us", NO_TIMES_US)
@pytest.mark.parametrize("column", ["op_timestamp", "next_check_timestamp"])
def test_claim_with_a_time_that_python_has_not_has_no_effect_and_stops_no_verify(
    store: Store, column: str, time_us: int
) -> None:
    append(store, "half", halves(1))
    claim(store, op_row(1, ClaimKind.UNKNOWN, life=0))
    rows = pa.Table.from_pylist(
        [{**row, "kind": "ROLLBACK"} for row in rows_of(f"{store.location}/op")], OP.columns
    )
    append(store, "op", with_time(rows, column, time_us))
    claim(store, op_row(1))
    sell(store, b"another")
    publish(store)

    assert bodies(store) == [b"another", b"body-0"]
    assert verify(store.location).is_clean


@pytest.mark.parametrize("immunity", ["-1", "abc", "100.5"])
def test_message_with_a_strange_immunity_is_refused(immunity: str) -> None:
    with pytest.raises(InvalidMessageError, match=IMMUNITY):
        Message("order-paid", b"42", properties={IMMUNITY: immunity})


def test_half_without_an_id_holds_up_no_question(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path)
    ids = world.prepare(immunity_s=0.1)
    row = dict.fromkeys(HALF.columns.names) | {"queue_id": 0, "topic": "order-paid"}
    row["store_date"] = rows_of(f"{world.store.location}/half")[0]["store_date"]
    append(world.store, "half", pa.Table.from_pylist([row], HALF.columns))
    listener = world.listener(SAYS_COMMIT)
    world.clock.advance(60)

    RecheckJob(world.store, listeners={"orders": listener}, clock=world.clock).run_once()

    assert listener.asked() == ids


def test_half_for_the_schedule_itself_is_set_aside_and_stops_no_delivery(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path)
    append(world.store, "half", changed(halves(1), real_topic=SCHEDULE_TOPIC))
    claim(world.store, op_row(1))
    world.send("late", delay_s=5)

    assert list(read_set_aside(world.store.tables).transactions) == [op_row(1).transaction_id]
    assert world.after(10) == ["late"]
    # It is tried again, and holds up nobody then either.
    world.send("later", delay_s=5)
    assert world.after(100_000) == ["late", "later"]


# --- other tables and tools -----------------------------------------------------------------


@pytest.mark.parametrize("column", ["transaction_id", "sequence", "op_version"])
def test_row_of_the_schedule_without_a_place_stops_no_delivery(tmp_path: Path, column: str) -> None:
    world = DelayWorld(tmp_path)
    world.send("late", delay_s=5)
    (row,) = rows_of(f"{world.store.location}/topics/{SCHEDULE_TOPIC}")
    rows = pa.Table.from_pylist([{**row, column: None}], SCHEDULE.columns)
    append(world.store, f"topics/{SCHEDULE_TOPIC}", rows)
    world.restart()

    assert world.after(10) == ["late"]
    assert scheduled(world.store.tables.schedule_log(), world.store.tables.logs().settled, 0) == (
        Schedule(0, 0.0)
    )


@pytest.mark.parametrize("column", ["real_topic", "message_id", "producer_group", "keys"])
@pytest.mark.parametrize("value", [None, b"\xff\xfe", b"../../evil"])
def test_tools_show_a_transaction_of_which_a_row_is_odd(
    store: Store, column: str, value: bytes | None
) -> None:
    odd = halves(1).set_column(
        HALF.columns.get_field_index(column),
        HALF.columns.field(column),
        column_of(value, pa.string()),
    )
    append(store, "half", with_time(odd, "born_timestamp", 2**63 - 1))
    append(
        store,
        "half",
        changed(
            halves(1), born_timestamp=None, sequence=1, message_count=None, message_id=f"{KEY}:1"
        ),
    )

    life = Admin(store).transaction(KEY)
    messages = MessageQuery(store).by_transaction(KEY)

    assert [event.stage for event in life.events] == [LifeStage.HALF, LifeStage.HALF]
    assert f"{KEY}:1" in [message.message_id for message in messages]
    assert [row.transaction_id for row in Operator(store).open_transactions()] == [KEY]
