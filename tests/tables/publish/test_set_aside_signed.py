"""Claims that wait because a file cannot be read: of a group with a key only signed ones count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import bodies
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.message.reasons import GIVE_UP
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.store.set_aside import read_set_aside, set_aside_register
from txmq.store.store import Store
from txmq.testing import ManualClock

GROUP, VARIABLE = "orders", "ORDERS_CLAIM_KEY"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as it is opened by who has no key."""
    monkeypatch.setenv(VARIABLE, "0123456789abcdef" * 4)
    return Store.create(tmp_path / "store", Config(half_queues=1))


@pytest.fixture
def store(stranger: Store) -> Store:
    return stranger.with_settings(stranger.config.replace(claim_keys={GROUP: VARIABLE}))


def prepared(store: Store) -> Transaction:
    transaction = TransactionProducer(store, producer_group=GROUP).begin_transaction()
    transaction.send(Message("order-paid", b"1"))
    transaction.prepare()
    return transaction


def claim(store: Store, transaction: Transaction, kind: ClaimKind, **values: Any) -> None:
    source = values.pop("source", ClaimSource.PRODUCER)
    row = OpRow(transaction.id, kind, GROUP, source, 1_767_225_600_000, **values)
    ClaimWriter(store.tables.op_log(), "test", store.config.half_queues).append([row])


def set_aside(store: Store, transaction: Transaction, version: int) -> None:
    """The claims of a commit, as if they waited."""
    claims = store.tables.op_log().judged_between(version - 1, version, [transaction.id])
    register = set_aside_register(store.tables, create=True)
    register.change(lambda value: value.with_claims(claims, {transaction.id: "forged"}, 0, 0), 0)


def without_its_halves(store: Store, publisher: Store, end: Transaction) -> tuple[Path, bytes]:
    """A committed transaction that this publisher sets aside: its half file, and the content."""
    (file,) = Path(store.location, "half").rglob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(b"")
    end.commit()
    assert Publisher(publisher, clock=ManualClock()).run_once().set_aside == 1
    return file, content


@pytest.mark.parametrize("has_key", [True, False])
def test_signed_claim_that_waited_counts_whoever_set_it_aside(
    store: Store, stranger: Store, *, has_key: bool
) -> None:
    transaction = prepared(store)
    file, content = without_its_halves(store, store if has_key else stranger, transaction)
    file.write_bytes(content)

    Publisher(store).run_once()

    assert bodies(store) == [b"1"]


def test_claim_that_a_stranger_writes_among_those_that_wait_does_not_count(
    store: Store, stranger: Store
) -> None:
    transaction = prepared(store)
    claim(stranger, transaction, ClaimKind.COMMIT)
    set_aside(stranger, transaction, 1)

    Publisher(store).run_once()
    assert bodies(store) == []

    transaction.rollback()
    Publisher(store).run_once()
    assert bodies(store) == []


def test_stranger_cannot_give_up_what_waits(store: Store, stranger: Store) -> None:
    transaction = prepared(store)
    file, content = without_its_halves(store, store, transaction)
    claim(stranger, transaction, ClaimKind.ROLLBACK, source=ClaimSource.OPERATOR, reason=GIVE_UP)
    set_aside(stranger, transaction, 2)
    assert read_set_aside(stranger.tables).transactions[transaction.id].giver_up == GROUP
    assert read_set_aside(store.tables).transactions[transaction.id].giver_up is None

    Publisher(store).run_once()
    file.write_bytes(content)
    Publisher(store).run_once()

    assert bodies(store) == [b"1"]
