"""What a producer knows of the claims of others without a look at the whole op log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.builders import op_row, transaction_id
from tests.kit.commits import after_commit
from txmq.delta import commit_writer
from txmq.delta.folder import TableFolder
from txmq.delta.table_writer import TableWriter
from txmq.errors import AlreadyResolvedError, StorageError
from txmq.maintenance.compaction import compact
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store import claim_writer
from txmq.store.claim_writer import OWN_ENDS, ClaimWriter, PassingClaims
from txmq.store.logs import EndReader
from txmq.store.op import OpLog
from txmq.store.store import Store
from txmq.testing import failing_commits


class Writer:
    """A writer of claims that follows the log."""

    def __init__(self, store: Store) -> None:
        self.op = store.tables.op_log()
        self.passing = PassingClaims(self.op.table)
        self.number = 0

    def append(self, *numbers: int, note: str = "", kind: ClaimKind = ClaimKind.COMMIT) -> None:
        self.number += 1
        rows = [op_row(number, kind) for number in numbers]
        self.op.append_table(
            _table(rows), 0, app_id=f"writer-{id(self)}", number=self.number, note=note
        )


def _table(rows: list[Any]) -> Any:
    from txmq.store.op import op_table

    return op_table(rows, 0)


@pytest.fixture
def writer(store: Store) -> Writer:
    return Writer(store)


@pytest.fixture
def rival(store: Store) -> Writer:
    return Writer(store)


def claimed(writer: Writer, *numbers: int, since: int | None) -> list[bool]:
    ends = [(transaction_id(n), ClaimKind.COMMIT) for n in numbers]
    found = writer.passing.claimed(ends, since)
    return [name in found for name, _ in ends]


def test_nothing_is_known_before_the_first_commit(writer: Writer) -> None:
    assert writer.passing.followed is None
    assert claimed(writer, 1, since=None) == [True]


def test_claims_of_others_are_known_from_the_commits_that_pass_by(
    writer: Writer, rival: Writer
) -> None:
    writer.append(1, note=OWN_ENDS)
    begun_at = writer.passing.followed
    rival.append(2, 3)
    writer.append(4, note=OWN_ENDS)

    assert begun_at == 1
    assert writer.passing.followed == 3
    assert claimed(writer, 2, 3, 4, 5, since=begun_at) == [True, True, False, False]


def test_unknown_is_no_end(writer: Writer, rival: Writer) -> None:
    writer.append(1)
    rival.append(2, kind=ClaimKind.UNKNOWN)
    writer.append(3)

    assert claimed(writer, 2, since=1) == [False]


def test_own_ends_of_others_are_passed_over_without_a_read(
    writer: Writer, rival: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(1, note=OWN_ENDS)
    rival.append(2, note=OWN_ENDS)
    monkeypatch.setattr(writer.op.table.rows, "added_rows", None)

    writer.append(3, note=OWN_ENDS)

    assert claimed(writer, 2, since=1) == [False]


def test_transaction_that_began_before_the_log_was_followed_may_be_claimed(
    writer: Writer,
) -> None:
    writer.append(1)

    assert claimed(writer, 2, since=0) == [False]
    assert claimed(writer, 2, since=-1) == [True]


def unreadable(*_: object) -> None:
    raise StorageError("op", "cannot be read")


def test_commit_that_cannot_be_read_may_be_about_anything(
    writer: Writer, rival: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(1)
    rival.append(2)
    monkeypatch.setattr(writer.op.table.rows, "added_rows", unreadable)
    writer.append(3)

    assert claimed(writer, 9, since=1) == [True]
    assert claimed(writer, 9, since=3) == [False]


def test_commits_that_were_not_seen_may_be_about_anything(writer: Writer, rival: Writer) -> None:
    writer.append(1)
    rival.append(2)
    writer.op.refresh()
    writer.append(3)

    assert claimed(writer, 9, since=1) == [True]
    assert claimed(writer, 9, since=2) == [False]


def test_more_commits_than_are_kept_may_be_about_anything(
    writer: Writer, rival: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_writer, "KEPT_MAX", 2)
    writer.append(1)
    for number in (2, 3, 4):
        rival.append(number)
    writer.append(5)

    assert claimed(writer, 2, 9, since=1) == [True, True]
    assert claimed(writer, 9, since=5) == [False]


def test_what_is_remembered_is_bounded(
    writer: Writer, rival: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_writer, "CLAIMED_MAX", 3)
    writer.append(1)
    for number in range(10, 20):
        rival.append(number)
        writer.append(100 + number)
        assert claimed(writer, number, since=1) == [True]

    assert len(writer.passing._claimed) <= 5


@pytest.mark.parametrize("others", range(6))
def test_claim_in_a_log_that_was_restored_to_an_older_copy_is_not_missed(
    writer: Writer, rival: Writer, tmp_path: Path, others: int
) -> None:
    location, copy = writer.op.table.location, str(tmp_path / "copy")
    writer.append(1, note=OWN_ENDS)
    shutil.copytree(location, copy)
    for number in (2, 3, 4):
        writer.append(number, note=OWN_ENDS)
    begun_at = writer.passing.followed
    shutil.rmtree(location)
    shutil.copytree(copy, location)
    for number in range(others):
        rival.append(20 + number)
    rival.append(9, kind=ClaimKind.ROLLBACK)

    writer.append(9, note=OWN_ENDS)

    assert claimed(writer, 9, since=begun_at) == [True]


def test_compaction_that_passes_by_is_not_read(writer: Writer, rival: Writer) -> None:
    for number in range(8):
        writer.append(number, note=OWN_ENDS)
    begun_at = writer.passing.followed
    compact(rival.op.table, 1_000_000)
    rival.append(20)
    writer.append(30, note=OWN_ENDS)

    assert claimed(writer, 0, 20, since=begun_at) == [False, True]


def test_commit_of_a_strange_shape_does_not_hide_the_own_one(
    writer: Writer, rival: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(*_: object) -> None:
        raise pa.ArrowNotImplementedError("no cast")

    writer.append(1)
    rival.append(2)
    monkeypatch.setattr(writer.op.table.rows, "added_rows", strange)
    writer.append(3)

    assert claimed(writer, 9, since=1) == [True]


# --- what producers make of it ------------------------------------------------------------------


@pytest.fixture
def producer(store: Store) -> TransactionProducer:
    made = TransactionProducer(store, producer_group="orders")
    _sent(made).commit()
    return made


def _sent(producer: TransactionProducer) -> Any:
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", b"paid"))
    transaction.prepare()
    return transaction


def by_check(store: Store, ended: str) -> None:
    row = op_row(1, ClaimKind.ROLLBACK, source=ClaimSource.CHECK, producer_group="orders")
    ClaimWriter(store.tables.op_log(), "check", 8).append([replace(row, transaction_id=ended)])


def by_another_producer(store: Store, ended: str) -> None:
    with TransactionProducer(store, producer_group="orders") as another:
        another.end_transaction(ended, LocalTransactionState.ROLLBACK)


@pytest.mark.parametrize("rollback", [by_check, by_another_producer])
def test_commit_after_another_end_is_refused(
    store: Store, producer: TransactionProducer, rollback: Callable[[Store, str], None]
) -> None:
    transaction = _sent(producer)
    rollback(store, transaction.id)
    _sent(producer).commit()

    with pytest.raises(AlreadyResolvedError):
        transaction.commit()


def test_commit_after_the_own_end_by_its_id_is_refused(producer: TransactionProducer) -> None:
    transaction = _sent(producer)
    producer.end_transaction(transaction.id, LocalTransactionState.ROLLBACK)

    with pytest.raises(AlreadyResolvedError):
        transaction.commit()


def test_other_end_after_an_answer_that_was_lost_is_refused(
    producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is there, and nobody was told so."""
    transaction = _sent(producer)
    with (
        failing_commits(1, error=OSError("lost"), after_commit=True, table="op"),
        monkeypatch.context() as patch,
        pytest.raises(StorageError),
    ):
        patch.setattr(TableFolder, "commit_bytes", unreadable)
        patch.setattr(TableWriter, "_has_landed", unreadable)
        transaction.commit()

    with pytest.raises(AlreadyResolvedError):
        transaction.rollback()


def test_ends_of_own_transactions_read_no_log(
    producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = [_sent(producer) for _ in range(3)]
    monkeypatch.setattr(EndReader, "ends_of", _unless_empty)
    monkeypatch.setattr(OpLog, "rows_about", None)

    for transaction in transactions:
        transaction.commit()


def test_full_look_for_one_transaction_costs_no_other_one_a_look(
    store: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _sent(producer), _sent(producer)
    # The other one commits after our end, and before the look that this end needs.
    with (
        TransactionProducer(store, producer_group="orders") as another,
        after_commit(lambda: _sent(another).commit()),
    ):
        producer.end_transaction(first.id, LocalTransactionState.COMMIT)

    monkeypatch.setattr(OpLog, "rows_about", None)
    second.commit()


def _unless_empty(_: EndReader, transaction_ids: list[str]) -> dict[str, Any]:
    assert transaction_ids == []
    return {}


def test_end_behind_the_commits_of_others_is_confirmed_by_them(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = _sent(producer)

    with after_commit(lambda: by_check(store, transaction.id)):
        transaction.commit()

    producer.close()
