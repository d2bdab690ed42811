"""Another program removed rows of the half log: a COMMIT about them waits until they are back."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.reading import bodies
from tests.kit.sending import GROUP, send_each
from txmq.maintenance.retention import Retention
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.op import OpRow
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify


def half_of(store: Store) -> DeltaTable:
    return DeltaTable(str(Path(store.location, "half")))


def sent(store: Store, clock: ManualClock, body: bytes) -> str:
    """A transaction that is committed and not published yet."""
    with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("orders", body))
        transaction.prepare()
        transaction.commit()
    return transaction.id


def claim_commit(store: Store, clock: ManualClock, transaction_id: str) -> None:
    row = OpRow(transaction_id, ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, clock.now_ms())
    ClaimWriter(store.tables.op_log(), "producer", store.config.half_queues).append([row])


def write_again(store: Store, transaction_id: str, version: int) -> None:
    """As docs/faults.md tells: the rows of the version before the removal, appended."""
    location = str(Path(store.location, "half"))
    rows = DeltaTable(location, version=version).to_pyarrow_table()
    rows = rows.filter(pc.equal(rows["transaction_id"], transaction_id))
    write_deltalake(location, rows, mode="append")


def later(store: Store, clock: ManualClock, publisher: Publisher) -> None:
    clock.advance(store.config.park_retry_interval_s * 40)
    publisher.run_once()


def set_aside(store: Store) -> list[str]:
    return [*read_set_aside(store.tables).transactions]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_commit_waits_for_halves_that_another_program_deleted(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(store, clock=clock)
    publisher.run_once()
    lost = sent(store, clock, b"lost")
    whole = half_of(store).version()
    half_of(store).delete(f"transaction_id = '{lost}'")
    sent(store, clock, b"next")

    with caplog.at_level(logging.ERROR):
        publisher.run_once()

    assert bodies(store, "orders") == [b"next"]
    assert set_aside(store) == [lost]
    (waiting,) = Admin(store, clock=clock).status().set_aside
    assert "another program removed rows of half in commit" in waiting.problem
    assert "another program removed rows of half" in caplog.text
    findings = {each.where: each.problem for each in Doctor(store, clock=clock).examine().findings}
    assert "another program removed in commit" in findings["half"]
    assert "its halves are gone" in findings["state/set_aside"]

    write_again(store, lost, whole)
    later(store, clock, publisher)

    assert sorted(bodies(store, "orders")) == [b"lost", b"next"]
    assert set_aside(store) == []
    # The removal stays one; nothing else is wrong.
    (result,) = (each for each in verify(store.location).results if each.violation_count)
    assert [each.row_id for each in result.violations] == [f"half version {whole + 1}"]


def test_commit_waits_for_halves_that_a_restore_took(store: Store, clock: ManualClock) -> None:
    send_each(store, b"1")
    Publisher(store, clock=clock).run_once()
    lost = sent(store, clock, b"lost")
    half_of(store).restore(half_of(store).version() - 1)

    Publisher(store, clock=clock).run_once()

    assert set_aside(store) == [lost]


@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_removal_that_was_seen_before_the_commit_is_remembered(
    store: Store, clock: ManualClock, *, is_new_publisher: bool
) -> None:
    publisher = Publisher(store, clock=clock)
    with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("orders", b"open"))
        transaction.prepare()
        half_of(store).delete()
        sent(store, clock, b"next")
        publisher.run_once()
        # What a process that opens the log now finds below its checkpoint.
        half_of(store).create_checkpoint()
    claim_commit(store, clock, transaction.id)
    if is_new_publisher:
        publisher = Publisher(store, clock=clock)

    publisher.run_once()

    assert set_aside(store) == [transaction.id]
    assert bodies(store, "orders") == [b"next"]


def test_removal_below_a_checkpoint_is_seen_by_a_publisher_that_was_away(
    store: Store, clock: ManualClock
) -> None:
    Publisher(store, clock=clock).run_once()
    lost = sent(store, clock, b"lost")
    half_of(store).delete()
    sent(store, clock, b"next")
    half_of(store).create_checkpoint()

    Publisher(store, clock=clock).run_once()

    assert set_aside(store) == [lost]
    assert bodies(store, "orders") == [b"next"]


def test_id_that_somebody_made_up_waits_for_nothing(store: Store, clock: ManualClock) -> None:
    send_each(store, b"1")
    claim_commit(store, clock, new_transaction_id(clock.now_ms()))

    Publisher(store, clock=clock).run_once()

    assert set_aside(store) == []
    assert bodies(store) == [b"1"]


def test_halves_that_retention_took_are_not_waited_for(store: Store, clock: ManualClock) -> None:
    old = sent(store, clock, b"old")
    publisher = Publisher(store, clock=clock)
    publisher.run_once()
    clock.advance(86_400 * 30)
    sent(store, clock, b"removed")
    publisher.run_once()
    Retention(store, clock).run()
    half_of(store).delete()
    claim_commit(store, clock, old)

    publisher.run_once()

    assert set_aside(store) == []


def test_what_is_not_written_again_can_be_given_up(store: Store, clock: ManualClock) -> None:
    publisher = Publisher(store, clock=clock)
    lost = sent(store, clock, b"lost")
    half_of(store).delete()
    publisher.run_once()

    Operator(store, clock=clock).give_up(lost, reason="gone for good", apply=True)
    later(store, clock, publisher)

    assert set_aside(store) == []
    assert "gone for good" in str(Admin(store, clock=clock).transaction(lost))
