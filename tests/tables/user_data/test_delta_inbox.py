"""The inbox in a Delta table: what comes again, races and deaths have one effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.kit import handed_out
from tests.kit.reading import rows_of
from txmq.errors import (
    CommitConflictError,
    InboxError,
    InvalidNameError,
    StorageError,
    StoreNotFoundError,
)
from txmq.message.received import ReceivedMessage
from txmq.testing import before_commit, failing_commits
from txmq.user_data.delta_inbox import DeltaInbox

BOOKINGS = pa.schema([pa.field("id", pa.string()), pa.field("amount", pa.int64())])
TOPIC = "order-paid"


@pytest.fixture
def location(tmp_path: Path) -> str:
    place = str(tmp_path / "bookings")
    DeltaTable.create(place, BOOKINGS)
    return place


def message(offset: int, queue: int = 0, topic: str = TOPIC) -> ReceivedMessage:
    own_id = f"{topic}-{queue}-{offset}"
    return handed_out.message(own_id, topic=topic, queue_id=queue, queue_offset=offset)


def several(*offsets: int, queue: int = 0) -> list[ReceivedMessage]:
    return [message(offset, queue) for offset in offsets]


def bookings_of(messages: Sequence[ReceivedMessage]) -> pa.Table:
    ids = [message.message_id for message in messages]
    return pa.table({"id": ids, "amount": [1] * len(ids)}, schema=BOOKINGS)


def booked(location: str) -> list[str]:
    return sorted(row["id"] for row in rows_of(location))


def ids(*messages: ReceivedMessage) -> list[str]:
    return sorted(message.message_id for message in messages)


# --- members --------------------------------------------------------------------------------------


def test_batch_that_comes_again_has_one_effect(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    assert [inbox.apply(several(0, 1, 2), bookings_of) for _ in range(2)] == [3, 0]
    assert booked(location) == ids(*several(0, 1, 2))
    assert inbox.next_offset(TOPIC, 0) == 3


def test_next_owner_may_cut_its_batches_anywhere(location: str) -> None:
    DeltaInbox("billing", location).apply(several(0, 1, 2), bookings_of)

    new = DeltaInbox("billing", location).apply(several(1, 2, 3, 7), bookings_of)

    assert new == 2
    assert booked(location) == ids(*several(0, 1, 2, 3, 7))


def test_queues_topics_and_groups_are_told_apart(location: str) -> None:
    batch = [message(0), message(0, queue=1), message(0, topic="RETRY_billing"), message(1)]
    DeltaInbox("billing", location).apply(batch, bookings_of)

    assert DeltaInbox("billing", location).apply(batch, bookings_of) == 0
    assert DeltaInbox("acme%billing", location).apply(batch, bookings_of) == 4
    assert DeltaInbox("acme.billing", location).fresh(batch) == []


def test_messages_without_rows_are_done_too(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    assert inbox.apply(several(0, 1), lambda _: BOOKINGS.empty_table()) == 2
    assert inbox.apply(several(0, 1), bookings_of) == 0
    assert inbox.apply([], bookings_of) == 0


def test_effect_that_raises_is_made_the_next_time(location: str) -> None:
    def broken(_: Sequence[ReceivedMessage]) -> pa.Table:
        raise ZeroDivisionError

    inbox = DeltaInbox("billing", location)
    with pytest.raises(ZeroDivisionError):
        inbox.apply(several(0), broken)

    assert inbox.apply(several(0), bookings_of) == 1


def test_member_that_was_slower_makes_only_what_is_left(location: str) -> None:
    def rival() -> None:
        DeltaInbox("billing", location).apply(several(0, 1), bookings_of)

    with before_commit(rival, table="bookings"):
        new = DeltaInbox("billing", location).apply(several(0, 1, 2), bookings_of)

    assert new == 1
    assert booked(location) == ids(*several(0, 1, 2))


def test_foreign_writers_do_not_disturb_it(location: str) -> None:
    def foreign() -> None:
        DeltaInbox("others", location).apply(several(9), bookings_of)

    calls: list[int] = []

    def counted(messages: Sequence[ReceivedMessage]) -> pa.Table:
        calls.append(len(messages))
        return bookings_of(messages)

    with before_commit(foreign, table="bookings"):
        DeltaInbox("billing", location).apply(several(0), counted)

    assert calls == [1]
    assert booked(location) == ids(*several(0, 9))


def test_commit_whose_answer_was_lost_is_not_made_twice(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    with (
        failing_commits(1, error=OSError("gone"), after_commit=True, table="bookings"),
        pytest.raises(StorageError),
    ):
        inbox.apply(several(0), bookings_of)

    assert inbox.apply(several(0), bookings_of) == 0
    assert booked(location) == ids(*several(0))


def test_table_that_others_always_win_says_so(location: str) -> None:
    with failing_commits(999, table="bookings"), pytest.raises(CommitConflictError):
        DeltaInbox("billing", location).apply(several(0), bookings_of)

    assert booked(location) == []


def test_write_of_the_users_own_carries_the_marks(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    inbox.apply(several(0), bookings_of)

    with inbox.delta_rs(several(0, 1)) as (table, new, properties):
        merge(table, new, properties)

    assert booked(location) == ids(*several(0, 1))
    with inbox.delta_rs(several(0, 1)) as (_, new, _):
        assert new == []


def test_slower_write_of_the_users_own_is_refused(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    with (
        pytest.raises(CommitFailedError),
        inbox.delta_rs(several(0, 1)) as (table, new, properties),
    ):
        DeltaInbox("billing", location).apply(several(0), bookings_of)
        merge(table, new, properties)

    assert booked(location) == ids(*several(0))


def test_write_without_the_properties_is_told(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    with (
        pytest.raises(InboxError, match="without a write"),
        inbox.delta_rs(several(0)) as (table, new, _),
    ):
        table.merge(
            bookings_of(new), "s.id = t.id", "s", "t"
        ).when_not_matched_insert_all().execute()


def merge(table: Any, new: Sequence[ReceivedMessage], properties: Any) -> None:
    merging = table.merge(
        bookings_of(new), "s.id = t.id", source_alias="s", target_alias="t",
        commit_properties=properties,
    )  # fmt: skip
    merging.when_not_matched_insert_all().execute()


# --- micro-batches --------------------------------------------------------------------------------


def test_options_name_the_group_and_the_checkpoint(location: str) -> None:
    options = DeltaInbox("billing", location).batch_options(7, checkpoint="june")

    assert options == {"txnAppId": "txmq-inbox-batch/billing/june", "txnVersion": "7"}


def test_batch_of_another_checkpoint_is_told(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    mark(location, "txmq-inbox-batch/billing/june", 7)

    assert inbox.is_done(7, checkpoint="june")
    assert not inbox.is_done(8, checkpoint="june")
    assert not inbox.is_done(0, checkpoint="july")
    with pytest.raises(InboxError, match="another name"):
        inbox.batch_options(0, checkpoint="june")


def mark(location: str, name: str, version: int) -> None:
    from txmq.delta.pinned import PinnedTable

    PinnedTable("test", location).commit_marks({name: version})


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [(1, 0), (0, 0)])
def test_messages_out_of_their_order_are_refused(location: str, offsets: tuple[int, ...]) -> None:
    inbox = DeltaInbox("billing", location)

    with pytest.raises(InboxError, match="order"):
        inbox.apply(several(*offsets), bookings_of)
    assert DeltaTable(location).version() == 0


@pytest.mark.parametrize("batch_id", [-1, True, "7", 1.0, None])
def test_batch_that_is_no_number_is_refused(location: str, batch_id: Any) -> None:
    with pytest.raises(InboxError, match="batch_id"):
        DeltaInbox("billing", location).batch_options(batch_id, checkpoint="june")


@pytest.mark.parametrize("checkpoint", ["", " ", "a\nb", "x" * 201, None, 5])
def test_checkpoint_that_is_no_name_is_refused(location: str, checkpoint: Any) -> None:
    with pytest.raises(InboxError, match="checkpoint"):
        DeltaInbox("billing", location).batch_options(1, checkpoint=checkpoint)


@pytest.mark.parametrize("group", ["", "a/b", None, "DLQ_x"])
def test_what_is_no_group_is_refused(location: str, group: Any) -> None:
    with pytest.raises(InvalidNameError):
        DeltaInbox(group, location)


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no Delta table"):
        DeltaInbox("billing", tmp_path / "nowhere").fresh(several(0))


def test_table_that_forgets_its_marks_is_refused(location: str) -> None:
    table = DeltaTable(location)
    table.alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}, raise_if_not_exists=False
    )

    with pytest.raises(InboxError, match="setTransactionRetentionDuration"):
        DeltaInbox("billing", location).fresh(several(0))


def test_rows_that_do_not_fit_the_table_leave_no_mark(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    with pytest.raises(StorageError):
        inbox.apply(several(0), lambda _: pa.table({"other": [1]}))

    assert inbox.apply(several(0), bookings_of) == 1
