"""A user takes the table back by RESTORE: it keeps the marks of changes that are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as Mark

from tests.kit import handed_out
from tests.kit.asked import answers, prepared
from tests.kit.reading import log_rows, rows_of
from txmq.delta.actions import commit_path
from txmq.delta.folder import TableFolder
from txmq.delta.pinned import PinnedTable
from txmq.errors import InboxError, LocalTransactionDoneError, LocalTransactionError
from txmq.listeners.delta import DeltaListener
from txmq.message.names import EFFECT_TABLES, ORIGIN_QUEUE_ID, ORIGIN_QUEUE_OFFSET, ORIGIN_TOPIC
from txmq.message.received import ReceivedMessage, effects_of
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.store import Store
from txmq.testing import before_commit
from txmq.user_data.delta_inbox import FEW_COMMITS, DeltaInbox

GROUP = "orders"
ROWS = pa.table({"id": ["1"]})


@pytest.fixture
def table(tmp_path: Path) -> str:
    location = str(tmp_path / "orders")
    write_deltalake(location, ROWS.slice(0, 0))
    return location


@pytest.fixture
def producer(store: Store, table: str) -> Iterator[TransactionProducer]:
    listener = DeltaListener(table)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        yield producer


def done(producer: TransactionProducer) -> Transaction:
    """A transaction whose change is made."""
    transaction = prepared(producer)
    with transaction.delta_rs() as (handle, properties):
        write_deltalake(handle, ROWS, mode="append", commit_properties=properties)
    return transaction


def restore(table: str, to: int | datetime) -> None:
    DeltaTable(table).restore(to)


def answer(table: str, transaction: Transaction) -> tuple[str, str]:
    return answers(DeltaListener(table), [transaction.id])[transaction.id]


# --- markers --------------------------------------------------------------------------------------


def test_change_that_a_restore_undid_is_not_told_as_done(
    producer: TransactionProducer, table: str
) -> None:
    transaction = done(producer)
    restore(table, 0)

    state, reason = answer(table, transaction)

    assert state == "UNKNOWN"
    assert "commit 2 is a RESTORE to version 0" in reason


def test_commit_of_a_change_that_a_restore_undid_is_refused(
    store: Store, producer: TransactionProducer, table: str
) -> None:
    marked_here, by_the_listener = done(producer), done(producer)
    by_the_listener._local._marked.clear()
    restore(table, 0)

    for transaction in (marked_here, by_the_listener):
        with pytest.raises(LocalTransactionError, match="RESTORE to version 0"):
            transaction.commit()
    assert log_rows(store, "op") == []


def test_try_after_a_restore_does_not_hear_that_its_change_is_done(
    producer: TransactionProducer, table: str
) -> None:
    transaction = done(producer)
    restore(table, 0)

    with pytest.raises(LocalTransactionError, match="RESTORE"):
        transaction.is_local_transaction_done()
    with pytest.raises(LocalTransactionError, match="RESTORE") as caught, transaction.delta_rs():
        pass
    assert not isinstance(caught.value, LocalTransactionDoneError)


def test_change_that_a_restore_left_is_done(producer: TransactionProducer, table: str) -> None:
    transaction = done(producer)
    write_deltalake(table, ROWS, mode="append")
    restore(table, 1)

    assert answer(table, transaction)[0] == "COMMIT"
    transaction.commit()


def test_change_whose_restore_was_taken_back_is_done(
    producer: TransactionProducer, table: str
) -> None:
    first, second = done(producer), done(producer)
    restore(table, 0)
    restore(table, 1)

    assert answer(table, first)[0] == "COMMIT"
    assert answer(table, second)[0] == "UNKNOWN"


def test_change_after_a_restore_is_done(producer: TransactionProducer, table: str) -> None:
    done(producer)
    restore(table, 0)

    done(producer).commit()


def test_restore_to_a_time_leaves_nobody_certain(producer: TransactionProducer, table: str) -> None:
    transaction = done(producer)
    written_s = Path(table, commit_path(1)).stat().st_mtime
    write_deltalake(table, ROWS, mode="append")
    restore(table, datetime.fromtimestamp(written_s, UTC) + timedelta(microseconds=1))

    state, reason = answer(table, transaction)

    assert state == "UNKNOWN"
    assert "restore the table once more, by version" in reason


def test_rows_that_the_user_deletes_are_the_users_own_matter(
    producer: TransactionProducer, table: str
) -> None:
    transaction = done(producer)
    DeltaTable(table).delete()

    assert answer(table, transaction)[0] == "COMMIT"


def test_change_older_than_the_log_is_done_if_no_restore_leads_behind_it(
    producer: TransactionProducer, table: str
) -> None:
    older, newer = done(producer), done(producer)
    DeltaTable(table).create_checkpoint()
    Path(table, commit_path(0)).unlink()
    Path(table, commit_path(1)).unlink()
    assert answer(table, older)[0] == answer(table, newer)[0] == "COMMIT"

    write_deltalake(table, ROWS, mode="append")
    restore(table, 2)
    assert answer(table, older)[0] == answer(table, newer)[0] == "COMMIT"

    DeltaTable(table).create_checkpoint()
    Path(table, commit_path(2)).unlink()
    assert answer(table, newer)[0] == "COMMIT"


def test_change_that_a_restore_may_have_undone_before_the_log_begins_is_in_doubt(
    producer: TransactionProducer, table: str
) -> None:
    transaction = done(producer)
    for _ in range(2):
        write_deltalake(table, ROWS, mode="append")
    restore(table, 1)
    DeltaTable(table).create_checkpoint()
    for version in range(3):
        Path(table, commit_path(version)).unlink()

    assert answer(table, transaction)[0] == "UNKNOWN"


def test_fence_stands_after_a_restore(producer: TransactionProducer, table: str) -> None:
    transaction = prepared(producer)
    assert answer(table, transaction)[0] == "ROLLBACK"
    restore(table, 0)

    assert answer(table, transaction)[0] == "ROLLBACK"


# --- inboxes --------------------------------------------------------------------------------------


def several(*offsets: int) -> list[ReceivedMessage]:
    return [handed_out.message(f"m{offset}", queue_offset=offset) for offset in offsets]


def rows_for(messages: Sequence[ReceivedMessage]) -> pa.Table:
    return pa.table({"id": pa.array([message.message_id for message in messages], pa.string())})


def apply(table: str, *offsets: int, group: str = "billing") -> int:
    return DeltaInbox(group, table).apply(several(*offsets), rows_for)


def booked(table: str) -> list[str]:
    return sorted(row["id"] for row in rows_of(table))


def test_inbox_does_not_skip_effects_that_a_restore_undid(table: str) -> None:
    apply(table, 0)
    apply(table, 1)
    restore(table, 1)

    with pytest.raises(InboxError, match="commit 3 is a RESTORE to version 1"):
        apply(table, 1, 2)
    with pytest.raises(InboxError, match="RESTORE"):
        DeltaInbox("billing", table).next_offset("order-paid", 0)
    assert booked(table) == ["m0"]


def test_restore_that_undid_no_effect_of_the_group_does_not_disturb_it(table: str) -> None:
    apply(table, 0)
    apply(table, 0, group="shipping")
    restore(table, 1)

    assert apply(table, 0, 1) == 1
    with pytest.raises(InboxError, match="RESTORE"):
        apply(table, 1, group="shipping")


def test_effects_that_a_restore_undid_are_made_again_when_somebody_says_so(table: str) -> None:
    apply(table, 0)
    apply(table, 1, 2)
    restore(table, 1)

    marks = DeltaInbox("billing", table).follow_restore()

    assert marks == {"txmq-inbox/billing/order-paid/0": 1}
    assert apply(table, *range(4)) == 3
    assert booked(table) == ["m0", "m1", "m2", "m3"]
    assert DeltaInbox("billing", table).follow_restore() == {}


def test_restore_behind_a_restore_that_was_followed_is_followed_too(table: str) -> None:
    apply(table, 0)
    apply(table, 1)
    restore(table, 1)
    DeltaInbox("billing", table).follow_restore()
    apply(table, 1, 2)

    restore(table, 0)
    with pytest.raises(InboxError, match="commit 6 is a RESTORE to version 0"):
        apply(table, 3)

    assert set(DeltaInbox("billing", table).follow_restore().values()) == {-1}
    assert apply(table, 0, 1, 2) == 3


def test_effects_stay_undone_where_a_restore_leads_to_an_earlier_restore(table: str) -> None:
    """The first one was followed, so the marks of its version are those from before it."""
    apply(table, 0)
    apply(table, 1)
    restore(table, 1)
    DeltaInbox("billing", table).follow_restore()
    apply(table, 1, 2)

    restore(table, 3)
    DeltaInbox("billing", table).follow_restore()

    assert apply(table, 0, 1, 2) == 2
    assert booked(table) == ["m0", "m1", "m2"]


def test_all_effects_that_a_restore_undid_are_made_again(table: str) -> None:
    """Also those of the first message, and of one ahead of its queue."""
    DeltaInbox("billing", table).apply([retry_of(2)], rows_for)
    apply(table, 0)
    restore(table, 0)

    DeltaInbox("billing", table).follow_restore()

    assert apply(table, *range(3)) == 3


def test_restore_between_the_look_and_the_commit_is_told_to_the_next(table: str) -> None:
    apply(table, 0)
    info = {"operation": "RESTORE", "operationParameters": {"version": 0, "timestamp": None}}

    def restored_by_spark() -> None:
        Path(table, commit_path(2)).write_text(json.dumps({"commitInfo": info}))

    with before_commit(restored_by_spark, table=Path(table).name):
        assert apply(table, 1) == 1

    with pytest.raises(InboxError, match="commit 2 is a RESTORE to version 0"):
        apply(table, 2)


def test_retry_of_a_message_whose_effect_a_restore_undid_makes_it(table: str) -> None:
    """Its handler failed after the effect, and one of another message whose effect stands."""
    apply(table, 0)
    first, second = several(1, 2)
    for message in (first, second):
        DeltaInbox("billing", table).apply([message], rows_for)
    restore(table, 2)
    DeltaInbox("billing", table).follow_restore()

    new = DeltaInbox("billing", table).fresh([retry_of(1, first), retry_of(2, second)])

    assert [message.queue_offset for message in new] == [2]


def test_retry_by_name_of_a_message_whose_effect_a_restore_undid_makes_it(table: str) -> None:
    """Its handler hung, so that its effect is known by its commit alone."""
    apply(table, 1, 5)
    DeltaInbox("billing", table).apply([retry_of(2)], rows_for)
    DeltaInbox("billing", table).apply([retry_of(3)], rows_for)
    restore(table, 2)
    DeltaInbox("billing", table).follow_restore()

    new = DeltaInbox("billing", table).fresh([retry_of(2), retry_of(3)])

    assert [message.queue_offset for message in new] == [3]


def retry_of(offset: int, failed: ReceivedMessage | None = None) -> ReceivedMessage:
    properties = {
        ORIGIN_TOPIC: "order-paid", ORIGIN_QUEUE_ID: "0", ORIGIN_QUEUE_OFFSET: str(offset),
        EFFECT_TABLES: " ".join(effects_of(failed)) if failed else "",
    }  # fmt: skip
    return handed_out.message(
        f"m{offset}", topic="RETRY_billing", queue_offset=offset, properties=properties
    )


def test_micro_batch_that_a_restore_undid_is_not_told_as_done(table: str) -> None:
    inbox = DeltaInbox("billing", table)
    for batch_id in range(2):
        mark = {f"txmq-inbox-batch/billing/{each}": batch_id for each in ("june", "july")}
        PinnedTable("test", table).append_rows(ROWS, mark)
    restore(table, 1)

    for step in (inbox.is_done, inbox.batch_options):
        with pytest.raises(InboxError, match="RESTORE"):
            step(1, checkpoint="june")

    assert set(inbox.follow_restore().values()) == {0}
    assert not inbox.is_done(1, checkpoint="june")
    assert inbox.is_done(0, checkpoint="june")

    restore(table, 0)
    inbox.follow_restore()
    assert not inbox.is_done(0, checkpoint="june")


def write_as_spark(table: str, options: Mapping[str, str], *, says: bool = True) -> None:
    """The commit of a batch as Spark makes it, with its userMetadata or another program's text."""
    said = options["userMetadata"] if says else "nightly"
    properties = CommitProperties(
        custom_metadata={"userMetadata": said},
        app_transactions=[Mark(options["txnAppId"], int(options["txnVersion"]))],
    )
    write_deltalake(table, ROWS, mode="append", commit_properties=properties)


@pytest.mark.parametrize("says", [True, False])
def test_restore_between_the_options_of_a_batch_and_its_write_is_told(
    table: str, *, says: bool
) -> None:
    inbox = DeltaInbox("billing", table)
    for batch_id in range(2):
        write_as_spark(table, inbox.batch_options(batch_id, checkpoint="june"), says=says)
    options = inbox.batch_options(2, checkpoint="june")
    restore(table, 1)
    write_as_spark(table, options, says=says)

    with pytest.raises(InboxError, match="commit 3 is a RESTORE to version 1"):
        inbox.batch_options(3, checkpoint="june")


def test_batch_reads_no_more_of_the_log_than_the_one_before_it_left(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = DeltaInbox("billing", table)
    for batch_id in range(5):
        write_as_spark(table, inbox.batch_options(batch_id, checkpoint="june"))
    read, commit_bytes = [], TableFolder.commit_bytes

    def noted(folder: TableFolder, version: int) -> bytes | None:
        read.append(version)
        return commit_bytes(folder, version)

    monkeypatch.setattr(TableFolder, "commit_bytes", noted)
    inbox.batch_options(5, checkpoint="june")

    assert min(read) == 4


def test_restore_to_a_time_is_followed_when_it_was_done_by_version(table: str) -> None:
    apply(table, 0)
    written_s = Path(table, commit_path(1)).stat().st_mtime
    apply(table, 1)
    restore(table, datetime.fromtimestamp(written_s, UTC) + timedelta(microseconds=1))
    inbox = DeltaInbox("billing", table)

    with pytest.raises(InboxError, match="restore the table once more, by version"):
        inbox.follow_restore()
    restore(table, 1)
    inbox.follow_restore()

    assert apply(table, 0, 1) == 1


def test_new_group_reads_little_of_a_long_log(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3 * FEW_COMMITS):
        write_deltalake(table, ROWS, mode="append")
    DeltaTable(table).create_checkpoint()
    read, commit_bytes = [], TableFolder.commit_bytes

    def noted(folder: TableFolder, version: int) -> bytes | None:
        read.append(version)
        return commit_bytes(folder, version)

    monkeypatch.setattr(TableFolder, "commit_bytes", noted)
    for offset in range(3):
        apply(table, offset)

    assert min(read) == 2 * FEW_COMMITS
    assert len(read) < 2 * FEW_COMMITS


def test_old_effects_that_a_restore_undid_are_known_behind_commits_of_others(table: str) -> None:
    apply(table, 0)
    apply(table, 1)
    restore(table, 1)
    for _ in range(2 * FEW_COMMITS):
        write_deltalake(table, ROWS, mode="append")
    DeltaTable(table).create_checkpoint()

    with pytest.raises(InboxError, match="commit 3 is a RESTORE to version 1"):
        apply(table, 2)
