"""What a reader of several logs sees, whatever others commit between two of its looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.kit.builders import GROUP, halves, op_row, transaction_id
from txmq.check.open_transactions import open_transactions
from txmq.check.standing import StandingReader
from txmq.delta.actions import commit_path
from txmq.delta.log_files import clean_log
from txmq.delta.pinned import PinnedTable
from txmq.delta.reading import TableChanges
from txmq.errors import AlreadyResolvedError, StorageError
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState
from txmq.ops.admin.life import LifeStage
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.producer.recall import RecallCheck
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.logs import EndReader
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock

LOOKS = range(10)
OWN_ID = transaction_id(1)


@contextmanager
def before_look(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Run `action` once, right before one of the looks at the newest version of any log."""
    looks = 0

    def counted(look: Callable[[PinnedTable], Any]) -> Callable[[PinnedTable], Any]:
        def looked(table: PinnedTable) -> Any:
            nonlocal looks
            looks += table.name in ("half", "op", "settled")
            if looks > number >= 0:
                # Others look as well.
                looks = -1_000_000
                action()
            return look(table)

        return looked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PinnedTable, "refresh", counted(PinnedTable.refresh))
        patch.setattr(PinnedTable, "_opened", counted(PinnedTable._opened))
        yield


def claim(store: Store, kind: ClaimKind, source: ClaimSource, **fields: Any) -> None:
    ClaimWriter(store.tables.op_log(), "test", 4).append([op_row(1, kind, source=source, **fields)])


def discarded(store: Store) -> None:
    """A transaction that was checked twice and given up, settled."""
    store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)
    for times in (1, 2):
        claim(store, ClaimKind.UNKNOWN, ClaimSource.CHECK, life=0, check_times=times)
    claim(store, ClaimKind.DISCARD, ClaimSource.CHECK, life=0)
    Publisher(store).run_once()


def resumed_and_checked(store: Store) -> None:
    """Its next life, with a check of it, settled as well."""
    claim(store, ClaimKind.RESUME, ClaimSource.OPERATOR, life=1)
    claim(
        store, ClaimKind.UNKNOWN, ClaimSource.CHECK, life=1, check_times=1,
        next_check_timestamp_ms=START_MS + 1_000,
    )  # fmt: skip
    Publisher(store).run_once()


@pytest.mark.parametrize("look", LOOKS)
def test_resumed_transaction_shows_the_checks_of_its_new_life(store: Store, look: int) -> None:
    discarded(store)
    owners = pa.table({"transaction_id": [OWN_ID], "producer_group": [GROUP]})

    with before_look(look, lambda: resumed_and_checked(store)):
        (row,) = StandingReader(store.tables.logs(), store.config).of(owners, START_MS).to_pylist()

    assert (row["state"], row["life"], row["check_times"]) in [
        ("DISCARDED", 0, 2), ("PENDING", 1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_each_fact_of_a_life_is_shown_with_its_claim(
    store: Store, clock: ManualClock, look: int
) -> None:
    discarded(store)

    with before_look(look, lambda: resumed_and_checked(store)):
        life = Admin(store, clock=clock).transaction(OWN_ID)

    claims = {e.details["op_version"] for e in life.events if e.stage is LifeStage.CLAIM}
    facts = {e.details["op_version"] for e in life.events if e.stage is LifeStage.FACT}
    assert facts <= claims
    assert (life.state, life.life, life.check_times) in [("DISCARDED", 0, 2), ("PENDING", 1, 1)]


def committed(store: Store) -> None:
    claim(store, ClaimKind.COMMIT, ClaimSource.PRODUCER)
    Publisher(store).run_once()


@pytest.mark.parametrize("look", LOOKS)
def test_end_is_the_one_before_or_the_one_after_a_settle_in_between(
    store: Store, look: int
) -> None:
    store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)
    reader = EndReader(store.tables.logs())
    assert reader.end_of(OWN_ID).state == "PENDING"

    with before_look(look, lambda: committed(store)):
        found = reader.end_of(OWN_ID)

    assert (found.state, found.source) in [("PENDING", "producer"), ("COMMITTED", "producer")]


@pytest.mark.parametrize("look", LOOKS)
def test_own_end_is_told_as_refused_where_another_is_settled_in_between(
    store: Store, clock: ManualClock, look: int
) -> None:
    """The operator looks, claims and looks again; a rollback comes at any time in between."""
    store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)

    def rolled_back() -> None:
        claim(store, ClaimKind.ROLLBACK, ClaimSource.CHECK)
        Publisher(store).run_once()

    refused = None
    with before_look(look, rolled_back):
        try:
            Operator(store, clock=clock).resolve(
                OWN_ID, LocalTransactionState.COMMIT, reason="asked the shop", apply=True
            )
        except AlreadyResolvedError as error:
            refused = error.resolution
    Publisher(store).run_once()

    end = EndReader(store.tables.logs()).end_of(OWN_ID).state
    assert end == (refused or "COMMITTED")


def count_of_list(store: Store, clock: ManualClock) -> int:
    return int(open_transactions(store, clock=clock).num_rows)


def count_of_status(store: Store, clock: ManualClock) -> int:
    return Admin(store, clock=clock).status().open


@pytest.mark.parametrize("listed", [count_of_list, count_of_status])
@pytest.mark.parametrize("look", LOOKS)
def test_what_is_sent_and_ended_while_the_open_ones_are_listed_is_not_among_them(
    store: Store, clock: ManualClock, listed: Callable[[Store, ManualClock], int], look: int
) -> None:
    def sent_and_ended() -> None:
        store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)
        committed(store)

    with before_look(look, sent_and_ended):
        assert listed(store, clock) == 0


@pytest.mark.parametrize("look", LOOKS)
def test_publisher_does_not_take_a_rival_for_a_restored_op_log(store: Store, look: int) -> None:
    discarded(store)
    publisher = Publisher(store)
    publisher.run_once()

    with before_look(look, lambda: resumed_and_checked(store)):
        publisher.run_once()


@contextmanager
def asleep_before_reading_claims(action: Callable[[], None]) -> Iterator[None]:
    """Run `action` once, when a reader has its versions and is about to read claims."""
    changes, slept = TableChanges.read, False

    def after_sleep(table: TableChanges, *arguments: Any) -> pa.Table:
        nonlocal slept
        if table._folder.name == "op" and not slept:
            slept = True
            action()
        return changes(table, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableChanges, "read", after_sleep)
        yield
    assert slept


def settled_and_cleaned(store: Store) -> None:
    """All claims are settled, and clean-up takes the commits of their log."""
    Publisher(store).run_once()
    op = store.tables.op_log().table
    DeltaTable(op.location).create_checkpoint()
    assert clean_log(op, op.refresh().version).commits


def end_of_reader(store: Store, _: ManualClock) -> str:
    return EndReader(store.tables.logs()).end_of(OWN_ID).state


def end_of_checker(store: Store, _: ManualClock) -> str:
    owners = pa.table({"transaction_id": [OWN_ID], "producer_group": [GROUP]})
    (row,) = StandingReader(store.tables.logs(), store.config).of(owners, START_MS).to_pylist()
    return str(row["state"])


def end_of_list(store: Store, clock: ManualClock) -> str:
    return "PENDING" if open_transactions(store, clock=clock).num_rows else "COMMITTED"


def end_of_recall(store: Store, _: ManualClock) -> str:
    return RecallCheck(store).standing(OWN_ID, 0, GROUP).state


def end_of_status(store: Store, clock: ManualClock) -> str:
    return "COMMITTED" if Admin(store, clock=clock).status().committed else "PENDING"


@pytest.mark.parametrize(
    "end", [end_of_reader, end_of_checker, end_of_list, end_of_recall, end_of_status]
)
def test_reader_that_sleeps_until_clean_up_took_the_claims_reads_their_facts(
    store: Store, clock: ManualClock, end: Callable[[Store, ManualClock], str]
) -> None:
    store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)
    claim(store, ClaimKind.COMMIT, ClaimSource.PRODUCER)
    claim(store, ClaimKind.ROLLBACK, ClaimSource.PRODUCER)

    with asleep_before_reading_claims(lambda: settled_and_cleaned(store)):
        assert end(store, clock) == "COMMITTED"


def test_commit_that_is_gone_before_it_is_settled_stays_an_error(store: Store) -> None:
    store.tables.half_log().table.writer.append(halves(1), app_id="test", number=1)
    claim(store, ClaimKind.COMMIT, ClaimSource.PRODUCER)
    claim(store, ClaimKind.ROLLBACK, ClaimSource.PRODUCER)
    reader = EndReader(store.tables.logs())

    def gone() -> None:
        (Path(store.location) / "op" / commit_path(1)).unlink()

    with asleep_before_reading_claims(gone), pytest.raises(StorageError, match="no commit 1"):
        reader.end_of(OWN_ID)
