"""Delayed, recalled, ordinary and keyed messages: green on what is right, red on each bug."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from tests.kit.delayed import (
    BUGS,
    DUE,
    LATE,
    SHOWN_LATE,
    DelayBug,
    committed,
    delayed,
    deliver,
    ended,
    recall,
    retained,
    shown,
    tomorrow,
    waiting,
)
from tests.kit.planted import assert_named
from tests.kit.stores import GROUP, START, Half, HandMadeStore, Op, Settled, halves, transaction_id
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.cli.app import app
from txmq.verify import Lateness, VerifyReport, verify

DAY_AFTER = (START + timedelta(days=1)).date().isoformat()


@pytest.fixture
def made(with_delays: HandMadeStore) -> HandMadeStore:
    return with_delays


def broken(report: VerifyReport) -> set[str]:
    return set(report.broken)


def assert_clean(made: HandMadeStore, *, drained: bool = True) -> VerifyReport:
    report = verify(made.location, drained=drained)
    assert report.is_clean, report.to_dict()
    return report


# --- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize("drained", [True, False])
def test_every_life_of_a_delayed_message_is_clean(made: HandMadeStore, *, drained: bool) -> None:
    counts = assert_clean(made, drained=drained).counts

    assert (counts["scheduled"], counts["delivered"], counts["recalled"]) == (1, 6, 1)
    assert counts["visible_messages"] == 10
    assert counts["dead_letters"] == 1
    assert counts["claims_without_effect"] == 5
    assert counts["known_by_schedule_alone"] == 0


def test_a_store_without_delayed_messages_reports_no_lateness(empty: HandMadeStore) -> None:
    assert assert_clean(empty).lateness == Lateness()


def test_lateness_is_a_number_and_counts_from_the_commit(made: HandMadeStore) -> None:
    report = assert_clean(made)

    # Number 4 was due a day before its COMMIT, the others waited for PAUSE_S after it.
    assert report.lateness == Lateness(delivered=6, p99_s=65.0, max_s=65.0)
    assert report.to_dict()["lateness"] == {
        "delivered": 6, "p99_s": 65.0, "max_s": 65.0, "overdue_limit_s": 1_800.0,
    }  # fmt: skip


def test_nobody_else_s_topics_of_that_name_are_read(made: HandMadeStore) -> None:
    made.publish(f"{SCHEDULE_TOPIC}_2", *halves(1, "orders"), op_version=1)

    assert assert_clean(made).unread == (f"{SCHEDULE_TOPIC}_2",)


def test_topics_of_consumer_groups_are_judged_as_all_others(empty: HandMadeStore) -> None:
    empty.publish("RETRY_group", *halves(1, "RETRY_group"), op_version=1)

    assert not verify(empty.location).is_clean


def test_the_first_of_deliver_and_recall_wins_for_each_message(empty: HandMadeStore) -> None:
    both = delayed(1, "orders", "orders")
    committed(empty, *both)
    version = empty.claim(recall(1, 1), deliver(1))
    facts = [Settled(1, "RECALLED", version, 0, sequences=[1]),
             Settled(1, "DELIVERED", version, 1, sequences=[0])]  # fmt: skip
    empty.settle(*facts, mark=version)
    shown(empty, both[0], version)

    counts = assert_clean(empty).counts

    assert (counts["delivered"], counts["recalled"]) == (1, 1)


def test_a_delayed_message_of_a_resumed_life_is_delivered(empty: HandMadeStore) -> None:
    half = delayed(1, "orders")
    empty.prepare(*half)
    first = empty.claim(
        Op(1, "UNKNOWN", life=0, check_times=1), Op(1, "DISCARD", life=0),
        Op(1, "RESUME", life=1), Op(1, "COMMIT"),
    )  # fmt: skip
    empty.settle(
        Settled(1, "DISCARDED", first, 1), Settled(1, "PENDING", first, 2, life=1),
        Settled(1, "COMMITTED", first, 3, life=1), mark=first,
    )  # fmt: skip
    empty.bury(*half, op_version=first)
    empty.schedule(*half, op_version=first, due=DUE, life=1)
    last = empty.claim(deliver(1, 0))
    empty.settle(Settled(1, "DELIVERED", last, life=1, sequences=[0]), mark=last)
    empty.publish("orders", *half, op_version=last, life=1, changes=SHOWN_LATE)

    assert_clean(empty)


def test_a_pause_of_nothing_is_a_delay_too(empty: HandMadeStore) -> None:
    half = Half(1, 0, "orders", 1, changes={"delay_s": 0})
    version = committed(empty, half, waiting=())
    empty.schedule(half, op_version=version, due=START)

    assert assert_clean(empty).counts["scheduled"] == 1


def test_sequences_of_a_claim_may_be_nonsense(empty: HandMadeStore) -> None:
    waiting(empty, 1)
    nothing = {"op_timestamp": LATE, "sequences": [None, -1, 7, 7]}
    empty.claim(Op(1, "DELIVER", source="delay", changes=nothing),
                Op(1, "RECALL", changes={"sequences": []}))  # fmt: skip

    assert assert_clean(empty).counts["scheduled"] == 1


# --- a running store ------------------------------------------------------------------------------


def test_what_the_schedule_has_not_reached_is_open_while_running(empty: HandMadeStore) -> None:
    version = committed(empty, *delayed(1, "orders", "stock"), waiting=())
    empty.publisher_state(version - 1, {})

    assert assert_clean(empty, drained=False).counts["not_published_yet"] == 2
    assert broken(verify(empty.location)) == {"I1"}


def test_a_delivery_on_its_way_is_open_while_running(empty: HandMadeStore) -> None:
    waiting(empty, 1)
    version = ended(empty, deliver(1, 0))
    empty.publisher_state(version - 1, {})

    assert assert_clean(empty, drained=False).counts["not_published_yet"] == 1
    assert broken(verify(empty.location)) == {"I1", "I23"}


def test_a_claim_that_is_not_settled_yet_is_no_fault_while_running(empty: HandMadeStore) -> None:
    waiting(empty, 1)
    empty.claim(deliver(1, 0))
    empty.publisher_state(1, {})

    assert_clean(empty, drained=False)


def test_command_compares_local_transactions_while_a_store_with_delays_runs(
    made: HandMadeStore, tmp_path: Path
) -> None:
    orders = str(tmp_path / "orders")
    write_deltalake(orders, pa.table({"id": [1]}))
    business = f"{GROUP}=delta:{orders}"

    result = CliRunner().invoke(
        app, ["verify", made.location, "--running", "--json", "--business", business]
    )

    values = json.loads(result.stdout)
    assert result.exit_code == 3, values
    assert (values["is_txmq_clean"], values["is_business_clean"]) == (True, False)
    assert values["business"]["faults"] == {"producer": 8}
    assert (values["lateness"]["max_s"], values["counts"]["delivered"]) == (65.0, 6)


# --- planted bugs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_alone_breaks_just_what_it_should(made: HandMadeStore, bug: DelayBug) -> None:
    bug.do(made)

    report = verify(made.location)

    assert broken(report) == {*bug.breaks, *bug.also}, report.to_dict()["invariants"]
    assert_named(bug.subject, bug.breaks, report)


# --- retention ------------------------------------------------------------------------------------


def test_the_schedule_stands_for_halves_that_are_gone(made: HandMadeStore) -> None:
    retained(made, "half", **tomorrow())

    counts = assert_clean(made).counts

    assert counts["known_by_schedule_alone"] == 8
    assert (counts["scheduled"], counts["delivered"], counts["recalled"]) == (1, 6, 1)


def test_a_message_is_delivered_long_after_its_half_is_gone(made: HandMadeStore) -> None:
    retained(made, "half", "op", **tomorrow())
    version = ended(made, deliver(3, 1))
    shown(made, delayed(3, "orders", "orders")[1], version)

    counts = assert_clean(made).counts

    assert counts["delivered"] == 7


def test_another_body_is_found_by_the_schedule_alone(made: HandMadeStore) -> None:
    retained(made, "half", "op", **tomorrow())
    version = ended(made, deliver(3, 1))
    shown(made, delayed(3, "orders", "orders")[1], version, body=b"another")

    assert broken(verify(made.location)) == {"I16"}


def test_early_is_early_when_the_half_is_gone(made: HandMadeStore) -> None:
    retained(made, "half", "op", **tomorrow())
    version = ended(made, deliver(3, 1, at=START))
    shown(made, delayed(3, "orders", "orders")[1], version, store_timestamp=START)

    assert broken(verify(made.location)) == {"I15"}


def test_a_half_that_nobody_forgot_is_missed_by_the_schedule(made: HandMadeStore) -> None:
    retained(made, "half", forgotten_before_date="2020-01-01")

    assert "I4" in broken(verify(made.location))


def test_days_that_the_schedule_forgot_are_no_loss(empty: HandMadeStore) -> None:
    (half,) = delayed(1, "orders")
    committed(empty, half)
    shown(empty, half, ended(empty, deliver(1, 0)))
    retained(empty, f"topics/{SCHEDULE_TOPIC}", schedule_forgotten_before_date=DAY_AFTER)

    assert_clean(empty)


def test_a_message_that_still_waits_must_not_be_forgotten(empty: HandMadeStore) -> None:
    waiting(empty, 1)
    retained(empty, f"topics/{SCHEDULE_TOPIC}", schedule_forgotten_before_date=DAY_AFTER)

    assert broken(verify(empty.location)) == {"I1"}


def test_rows_before_the_begin_of_a_topic_are_no_loss(empty: HandMadeStore) -> None:
    first = committed(empty, *halves(1, "orders"), waiting=())
    empty.publish("orders", *halves(1, "orders"), op_version=first)
    last = committed(empty, *halves(2, "orders"), waiting=())
    empty.publish("orders", *halves(2, "orders"), op_version=last)
    retained(empty, topic_begin={"orders": first})
    empty.remove("topics/orders", f"op_version <= {first}")

    assert_clean(empty)


def test_rows_behind_the_begin_of_a_topic_are_lost(empty: HandMadeStore) -> None:
    first = committed(empty, *halves(1, "orders"), waiting=())
    empty.publish("orders", *halves(1, "orders"), op_version=first)
    retained(empty, "topics/orders", topic_begin={"orders": first - 1})

    assert broken(verify(empty.location)) == {"I1", "I23"}


def test_a_whole_topic_may_be_gone(made: HandMadeStore) -> None:
    retained(made, "topics/orders", "topics/stock", topic_begin={"orders": 99, "stock": 99})

    assert_clean(made)


def test_dead_letters_before_the_begin_are_no_loss(made: HandMadeStore) -> None:
    topic = "TRANS_CHECK_MAX_TIME_TOPIC"
    retained(made, f"topics/{topic}", topic_begin={topic: 99})

    assert_clean(made)


def test_a_violation_names_the_row_of_the_schedule(made: HandMadeStore) -> None:
    waiting(made, 50, body=b"another")

    (result,) = [one for one in verify(made.location).results if one.violation_count]

    assert result.invariant == "I16"
    assert result.violations[0].row_id.startswith(f"{SCHEDULE_TOPIC}/0/")
    assert result.violations[0].row_id.endswith(f" {transaction_id(50)}:0")


def test_rows_of_days_that_the_schedule_forgot_stand_for_nothing(made: HandMadeStore) -> None:
    retained(made, "half", "op", "settled", schedule_forgotten_before_date=DAY_AFTER, **tomorrow())

    assert assert_clean(made).counts["known_by_schedule_alone"] == 0


def test_a_recalled_message_is_recalled_when_the_half_is_gone(made: HandMadeStore) -> None:
    retained(made, "half", "op", **tomorrow())
    version = made.claim(Op(99, "UNKNOWN"))
    made.settle(mark=version)
    shown(made, delayed(3, "orders", "orders")[0], version)

    assert broken(verify(made.location)) == {"I11", "I23"}


def test_what_waits_though_later_ones_came_is_counted(made: HandMadeStore) -> None:
    waiting(made, 60)

    # Number 3 has one too that waits since DUE.
    assert assert_clean(made).counts["overdue"] == 2


def test_the_command_tells_of_delayed_messages(made: HandMadeStore) -> None:
    result = CliRunner().invoke(app, ["verify", made.location])

    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "delayed: 1 scheduled, 6 delivered, 1 recalled, 1 overdue; late by 65.000 s" in told


def test_a_key_that_moved_may_be_delivered_to_its_first_queue(empty: HandMadeStore) -> None:
    key = {"sharding_key": "key"}
    first = Half(1, 0, "orders", 1, queue=0, changes={**key, "delay_s": 60})
    later = [Half(number, 0, "orders", 1, queue=1, changes=key) for number in (2, 3)]
    committed(empty, first)
    empty.publish("orders", later[0], op_version=committed(empty, later[0], waiting=()))
    shown(empty, first, ended(empty, deliver(1, 0)))
    empty.publish("orders", later[1], op_version=committed(empty, later[1], waiting=()))

    assert_clean(empty)
