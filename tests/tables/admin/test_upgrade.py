"""A store of txmq 0.1: today's txmq reads all of it, and takes its tables to today's version."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.kit.old_stores import unpacked
from tests.kit.reading import topic_rows
from txmq.consumer.pull import PullConsumer
from txmq.delta import table_log
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.delta.table_log import TableLog
from txmq.delta.table_writer import TableWriter
from txmq.errors import CommitRefusedError
from txmq.ground.clock import SystemClock
from txmq.listeners.protocol import HalfMessage
from txmq.message.lifecycle import TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.status import Admin
from txmq.ops.admin.upgrade import NO_CHANGE, STEPS, Change, Step, TableShape, upgrade, upgrade_by
from txmq.ops.broker import Broker
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

# When the store was made.
MADE = datetime(2026, 11, 24, 11, 30, tzinfo=UTC)
RETRIED_AT = datetime(2026, 11, 22, 7, tzinfo=UTC)
DEAD = "TRANS_CHECK_MAX_TIME_TOPIC"


class Sure:
    """Says that each local transaction took place."""

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        del message
        return LocalTransactionState.COMMIT


@pytest.fixture
def old(tmp_path: Path) -> tuple[Store, dict[str, Any]]:
    location, truth = unpacked("0.1", tmp_path)
    return Store.open(location), truth


@pytest.fixture
def clock() -> ManualClock:
    """Not before now: who asks about a transaction looks at the times of files, too."""
    return ManualClock(SystemClock().now_ms() + 60_000)


def versions(store: Store) -> dict[str, tuple[int, str]]:
    """Of each table its version and its schema version."""
    tables = {path: store.tables.table_at(path) for path in store.tables.table_paths()}
    return {
        path: (table.version, table.log.properties()[SCHEMA_VERSION_PROPERTY])
        for path, table in tables.items()
    }


def schema_versions(store: Store) -> set[str]:
    return {version for _, version in versions(store).values()}


def check_truth(store: Store, truth: dict[str, Any], clock: ManualClock) -> None:
    """All that 0.1 said is so, and what it left undone is done."""
    Broker(store, clock=clock, listeners={"orders": Sure()}).run_once()
    # It was delayed by 30 days, and the store may be older by now.
    (late,) = truth["delayed"]
    shown = [row["message_id"] for row in topic_rows(store, "paid")]
    ended = [*truth["committed"], truth["keyed"], truth["unsettled"], truth["open"]]
    expected = [*(f"{name}:0" for name in ended), *truth["ordinary"], *truth["delivered"]]
    assert sorted({*shown} - {late}) == sorted(expected)
    assert [row["message_id"] for row in topic_rows(store, "typed")] == truth["typed"]
    assert [row["order"] for row in topic_rows(store, "typed")] == [7]
    assert [row["body"] for row in topic_rows(store, "later")] == [b"not settled either"]
    assert [row["transaction_id"] for row in topic_rows(store, DEAD)] == [truth["dead"]]
    life = Admin(store).transaction(truth["rolled_back"][0])
    assert life.state is TransactionState.ROLLED_BACK
    with PullConsumer(store, consumer_group="billing", topics="paid", clock=clock) as consumer:
        seen = [message.message_id for message in consumer.poll(100, timeout_s=0.0)]
        consumer.commit()
    assert sorted({*truth["seen"], *seen} - {late}) == sorted(expected)
    # A key is taken for as long as its transaction is kept.
    then = ManualClock(int(MADE.timestamp() * 1000))
    retried = TransactionProducer(store, producer_group="orders", clock=then)
    again = retried.begin_transaction(idempotency_key="orders of 7", key_timestamp=RETRIED_AT)
    again.send(Message("paid", b"keyed"))
    again.prepare()
    again.commit()
    retried.close()
    clock.advance(31 * 86_400.0)
    Broker(store, clock=clock).run_once()
    Publisher(store, clock=clock).run_once()
    shown = [row["message_id"] for row in topic_rows(store, "paid")]
    assert sorted(shown) == sorted([*expected, late])
    report = verify(store.location)
    assert report.is_clean, report.results


def test_a_store_of_0_1_is_read_as_it_is(
    old: tuple[Store, dict[str, Any]], clock: ManualClock
) -> None:
    check_truth(*old, clock)


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
    old: tuple[Store, dict[str, Any]],
) -> None:
    store, _ = old
    before = versions(store)

    result = upgrade(store)

    assert versions(store) == before
    assert (result.is_needed, result.is_written) == (True, False)
    changes = {table.path: table.changes for table in result.tables}
    assert changes["op"] == ("column signature (binary), txmq.schema_version = 2",)
    assert changes["half"] == ("txmq.schema_version = 2",)
    assert changes.keys() == before.keys()


def test_an_upgraded_store_is_as_it_was_and_may_sign_claims(
    old: tuple[Store, dict[str, Any]], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, truth = old

    upgrade(store, apply=True)

    assert schema_versions(store) == {str(SCHEMA_VERSION)}
    again = versions(store)
    assert not upgrade(store, apply=True).is_needed
    assert versions(store) == again
    monkeypatch.setenv("CLAIM_KEY", "0123456789abcdef" * 4)
    keys: Any = {"signed": "CLAIM_KEY"}
    signing = store.with_settings(store.config.replace(claim_keys=keys))
    with TransactionProducer(signing, producer_group="signed", clock=clock) as producer:
        producer.send(Message("signed", b"1"))
    check_truth(store, truth, clock)


@pytest.mark.parametrize("number", [0, 1, 2, 9])
def test_one_that_is_killed_is_finished_by_the_next(
    old: tuple[Store, dict[str, Any]],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    store, truth = old
    with monkeypatch.context() as patched:
        fail_at(patched, number, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            upgrade(store, apply=True)
    assert schema_versions(store) >= {"1"}

    assert upgrade(store, apply=True).is_needed

    assert schema_versions(store) == {str(SCHEMA_VERSION)}
    check_truth(store, truth, clock)


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let the setting of properties with this number fail, once."""
    set_properties, count = TableWriter.set_properties, iter(range(1_000))

    def failing(table: TableWriter, values: dict[str, str]) -> None:
        if next(count) == number:
            raise error
        set_properties(table, values)

    monkeypatch.setattr(TableWriter, "set_properties", failing)


def test_one_that_another_writer_refuses_tries_again(
    old: tuple[Store, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, 1, CommitRefusedError("op", "another writer was faster"))

    upgrade(old[0], apply=True)

    assert schema_versions(old[0]) == {str(SCHEMA_VERSION)}


def test_version_that_another_upgrade_raised_meanwhile_is_not_lowered(
    old: tuple[Store, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = old
    refresh, op, rivals = TableLog.refresh, store.tables.table_at("op"), iter(["3"])
    monkeypatch.setattr(table_log, "SCHEMA_VERSION", 3)

    def overtaken(log: TableLog) -> TableLog:
        """Raise the version between the commit of the column and the next look at the table."""
        op.reopen()
        if "signature" in op.log.column_names:
            for version in rivals:
                op.writer.set_properties({SCHEMA_VERSION_PROPERTY: version})
        return refresh(log)

    monkeypatch.setattr(TableLog, "refresh", overtaken)

    upgrade(store, apply=True)

    assert next(rivals, None) is None
    found = versions(store)
    assert found.pop("op")[1] == "3"
    assert {version for _, version in found.values()} == {str(SCHEMA_VERSION)}


def test_processes_of_this_txmq_go_on_meanwhile(
    old: tuple[Store, dict[str, Any]], clock: ManualClock
) -> None:
    store, _ = old
    publisher = Publisher(store, clock=clock)
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", b"before"))
        transaction.prepare()
        publisher.run_once()

        upgrade(store, apply=True)

        transaction.commit()
        producer.send(Message("paid", b"after"))
    publisher.run_once()
    assert {b"before", b"after"} <= {row["body"] for row in topic_rows(store, "paid")}
    assert verify(store.location).is_clean


# --- a version that is to come --------------------------------------------------------------------


def weight(table: TableShape) -> Change:
    """A made-up step: each topic gets a column."""
    if table.kind != "topic" or "weight" in table.columns:
        return NO_CHANGE
    return Change((pa.field("weight", pa.float64()),), {"txmq.weighed": "yes"})


def test_a_step_to_come_is_one_more_rule(
    old: tuple[Store, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = old
    steps = [*STEPS, Step(3, "weights", weight)]
    monkeypatch.setattr(table_log, "SCHEMA_VERSION", 3)

    result = upgrade_by(steps, store, apply=True)

    changes = {table.path: table.changes for table in result.tables}
    assert changes["topics/paid"] == (
        "txmq.schema_version = 2",
        "column weight (double), txmq.weighed = yes, txmq.schema_version = 3",
    )
    assert schema_versions(store) == {"3"}
    paid = store.tables.table_at("topics/paid")
    assert paid.log.properties()["txmq.weighed"] == "yes"
    assert "weight" in paid.log.column_names
    assert not upgrade_by(steps, store, apply=True).is_needed


# --- what people see ------------------------------------------------------------------------------


def test_the_doctor_and_the_command_tell_it(old: tuple[Store, dict[str, Any]]) -> None:
    store, _ = old
    Publisher(store).run_once()

    def told() -> list[str]:
        findings = Doctor(store).examine().findings
        return [one.where for one in findings if "txmq upgrade" in one.next_step]

    def run(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["upgrade", store.location, *options])
        return result.exit_code, result.output

    assert "half" in told()
    code, text = run()
    assert (code, "dry run" in text, "column signature" in text) == (0, True, True)
    code, text = run("--apply")
    assert (code, "have schema version 2 now" in text, "0 violations" in text) == (0, True, True)
    code, text = run("--apply", "--no-verify")
    assert (code, "nothing is to do" in text, "violation" in text) == (0, True, False)
    assert told() == []
