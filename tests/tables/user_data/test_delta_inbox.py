"""The inbox in a Delta table: what comes again, races and deaths have one effect."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.kit import handed_out
from tests.kit.reading import rows_of
from txmq.consumer.send_back import FailedMessage, SendBack
from txmq.delta.actions import LOG_FOLDER, commit_actions, commit_path
from txmq.delta.pinned import PinnedTable
from txmq.errors import (
    CommitConflictError,
    InboxError,
    InvalidNameError,
    StorageError,
    StoreNotFoundError,
)
from txmq.message.names import FIRST_PLACES
from txmq.message.received import ReceivedMessage, first_places_text
from txmq.testing import before_commit, failing_commits
from txmq.user_data.delta_inbox import DeltaInbox, Place, names_of

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
    with failing_commits(1, error=OSError("gone"), after_commit=True, table="bookings"):
        assert inbox.apply(several(0), bookings_of) == 1

    assert inbox.apply(several(0), bookings_of) == 0
    assert booked(location) == ids(*several(0))


def test_commit_that_failed_is_an_error_and_made_the_next_time(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    with (
        failing_commits(1, error=OSError("gone"), table="bookings"),
        pytest.raises(StorageError),
    ):
        inbox.apply(several(0), bookings_of)

    assert inbox.apply(several(0), bookings_of) == 1


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


def test_table_that_is_made_anew_under_a_running_inbox_is_no_continuation(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    for offset in range(3):
        inbox.apply(several(offset), bookings_of)
    shutil.rmtree(location)
    DeltaTable.create(location, BOOKINGS)
    for offset in range(7, 12):
        DeltaInbox("others", location).apply(several(offset), bookings_of)

    assert inbox.apply(several(0, 1), bookings_of) == 2


def test_older_copy_that_grew_under_a_running_inbox_is_no_continuation(
    location: str, tmp_path: Path
) -> None:
    inbox = DeltaInbox("billing", location)
    inbox.apply(several(0), bookings_of)
    shutil.copytree(location, tmp_path / "copy")
    inbox.apply(several(1), bookings_of)
    inbox.apply(several(2), bookings_of)
    shutil.rmtree(location)
    (tmp_path / "copy").rename(location)
    for offset in range(7, 12):
        DeltaInbox("others", location).apply(several(offset), bookings_of)

    assert inbox.apply(several(0, 1, 2), bookings_of) == 2


# --- retries of what took effect ------------------------------------------------------------------


def retry_of(failed: ReceivedMessage, offset: int = 0) -> ReceivedMessage:
    """As the retry topic hands it out."""
    sender = SendBack.__new__(SendBack)
    sender._group, sender._max_times = "billing", 16
    keyed = sender._keyed_message(FailedMessage(failed, "something after the effect failed"))
    return handed_out.message(
        "retry", topic="RETRY_billing", queue_offset=offset,
        properties=dict(keyed.message.properties),
    )  # fmt: skip


def replay_of(dead: ReceivedMessage) -> ReceivedMessage:
    """As the topic hands out a dead letter that was sent to it again."""
    place = first_places_text({"billing": (dead.queue_id, dead.queue_offset)})
    return handed_out.message(
        "replay", topic=TOPIC, queue_id=1, queue_offset=0, properties={FIRST_PLACES: place}
    )


def mark_names(location: str) -> set[str]:
    """The names of all marks that the log has ever had."""
    commits = sorted(Path(location, LOG_FOLDER).glob("*.json"))
    return {name for commit in commits for name in commit_actions(commit.read_bytes()).marks}


def test_retry_of_a_message_that_took_effect_repeats_nothing(location: str) -> None:
    """Its handler failed after the effect; the retry is another message of another queue."""
    inbox, first = DeltaInbox("billing", location), message(0)
    inbox.apply([first], bookings_of)

    assert DeltaInbox("billing", location).apply([retry_of(first)], bookings_of) == 0
    assert DeltaInbox("billing", location).apply([retry_of(retry_of(first))], bookings_of) == 0
    assert DeltaInbox("audit", location).apply([retry_of(first)], bookings_of) == 1
    assert booked(location) == sorted([*ids(first), "retry"])


def test_retry_of_a_message_that_took_no_effect_makes_it(location: str) -> None:
    inbox, first = DeltaInbox("billing", location), message(0)
    inbox.apply(several(1), bookings_of)

    assert inbox.apply([retry_of(first)], bookings_of) == 1


def test_message_that_took_effect_in_an_earlier_try_is_not_repeated_by_its_retry(
    location: str,
) -> None:
    """A member died after the effect; the next one is handed out the message and fails."""
    DeltaInbox("billing", location).apply(several(0), bookings_of)
    again = message(0)
    assert DeltaInbox("billing", location).apply([again], bookings_of) == 0

    assert DeltaInbox("billing", location).apply([retry_of(again)], bookings_of) == 0


def test_effect_of_a_handler_that_hung_is_not_repeated_by_the_retry(location: str) -> None:
    """Its message was sent back meanwhile."""
    hanging, retry = message(0), retry_of(message(0))
    DeltaInbox("billing", location).apply([hanging], bookings_of)

    assert DeltaInbox("billing", location).apply([retry], bookings_of) == 0
    assert booked(location) == ids(hanging)


def test_handler_that_hung_does_not_repeat_the_effect_of_the_retry(location: str) -> None:
    hanging, retry = message(0), retry_of(message(0))

    def meanwhile() -> None:
        DeltaInbox("billing", location).apply([retry], bookings_of)

    with before_commit(meanwhile, table="bookings"):
        assert DeltaInbox("billing", location).apply([hanging], bookings_of) == 0

    assert booked(location) == ["retry"]
    assert DeltaInbox("billing", location).next_offset(TOPIC, 0) == 1


@pytest.mark.parametrize("count_between", [1, 30])
def test_effect_after_the_message_was_sent_back_is_known_also_behind_later_messages(
    location: str, count_between: int
) -> None:
    """The handler hung; then a later message took effect, and only then the retry comes."""
    DeltaInbox("billing", location).apply(several(0, 1), bookings_of)
    for offset in (3, *range(5, 5 + count_between)):
        DeltaInbox("billing", location).apply(several(offset), bookings_of)

    inbox = DeltaInbox("billing", location)
    news = inbox.fresh([retry_of(message(offset), offset) for offset in range(5)])

    assert [message.queue_offset for message in news] == [2, 4]


def test_write_of_the_users_own_names_its_messages_too(location: str) -> None:
    inbox, hanging = DeltaInbox("billing", location), message(0)
    with inbox.delta_rs([hanging]) as (table, new, properties):
        merge(table, new, properties)
    inbox.apply(several(2), bookings_of)

    assert DeltaInbox("billing", location).fresh([retry_of(message(0))]) == []


def test_handler_that_hung_on_a_later_message_does_not_repeat_the_effect_of_its_retry(
    location: str,
) -> None:
    """Messages before it were sent back, or a filter left them out."""
    DeltaInbox("billing", location).apply([retry_of(message(7))], bookings_of)

    assert DeltaInbox("billing", location).apply([message(7)], bookings_of) == 0


def test_a_retry_leaves_the_mark_of_its_queue_alone(location: str) -> None:
    """It is handled by another member, before the messages that were handed out with it."""
    DeltaInbox("billing", location).apply([retry_of(message(7))], bookings_of)

    rest = several(*range(7), 8, 9)
    assert DeltaInbox("billing", location).apply(rest, bookings_of) == len(rest)
    assert DeltaInbox("billing", location).next_offset(TOPIC, 0) == 10


def test_a_replay_leaves_the_mark_of_its_first_queue_alone(location: str) -> None:
    DeltaInbox("billing", location).apply([replay_of(message(7))], bookings_of)

    assert DeltaInbox("billing", location).apply(several(*range(7)), bookings_of) == 7


def test_message_that_comes_again_after_its_retry_took_effect_repeats_nothing(
    location: str,
) -> None:
    """The group went back; no later message of the queue had an effect."""
    DeltaInbox("billing", location).apply(several(0, 1), bookings_of)
    retries = [retry_of(message(5)), retry_of(message(3), 1)]
    DeltaInbox("billing", location).apply(retries, bookings_of)

    news = DeltaInbox("billing", location).fresh(several(*range(7)))

    assert [message.queue_offset for message in news] == [2, 4, 6]


def test_retry_of_the_next_message_of_its_queue_moves_the_mark(location: str) -> None:
    """So that a queue of which all messages fail and come again needs no other marks."""
    for at, offset in enumerate((1, 0, 2)):
        DeltaInbox("billing", location).apply([retry_of(message(offset), at)], bookings_of)

    assert DeltaInbox("billing", location).next_offset(TOPIC, 0) == 3


def test_marks_of_retries_are_used_again_when_the_queue_has_passed_them(location: str) -> None:
    for offset in range(0, 40, 4):
        retries = [retry_of(message(offset + at), offset + at) for at in (1, 2)]
        DeltaInbox("billing", location).apply(retries, bookings_of)
        DeltaInbox("billing", location).apply(several(offset, offset + 3), bookings_of)

    assert len(booked(location)) == 40
    queue = f"txmq-inbox/billing/{TOPIC}/0"
    retry_queue = "txmq-inbox/billing/RETRY_billing/0"
    assert mark_names(location) == {queue, f"{queue}/0", f"{queue}/1", retry_queue}


def test_second_retry_of_a_message_is_known_after_its_queue_has_passed_it(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    inbox.apply([retry_of(message(5))], bookings_of)
    for offsets in ((0, 1), (2,), (7,), (8,)):
        inbox.apply(several(*offsets), bookings_of)

    news = inbox.fresh([retry_of(message(5), 1), retry_of(message(6), 2)])

    assert [message.queue_offset for message in news] == [2]


def test_marks_of_earlier_versions_are_read(location: str) -> None:
    """There a retry raised the mark of its first queue, over messages that had no effect yet."""
    queue = f"txmq-inbox/billing/{TOPIC}/0"
    marks = {queue: 8, "txmq-inbox/billing/RETRY_billing/0": 1}
    PinnedTable("test", location).commit_marks(marks, names_of([Place(queue, 7)], 0))

    inbox = DeltaInbox("billing", location)
    news = inbox.fresh([*several(6, 7, 8, 9), retry_of(message(7), 1), retry_of(message(3), 2)])

    assert [message.message_id for message in news] == [*ids(*several(8, 9)), "retry"]


def test_message_that_was_passed_over_is_not_told_as_done_by_its_retry(location: str) -> None:
    """It was sent back, a later one took effect, the group went back, and its handler failed."""
    inbox, again = DeltaInbox("billing", location), message(0)
    inbox.apply(several(1, 2), bookings_of)
    assert inbox.apply([again], bookings_of) == 0

    assert inbox.apply([retry_of(again)], bookings_of) == 1


def test_two_tries_of_one_message_at_once_have_one_effect(location: str) -> None:
    """Also where a later message of the queue took effect before."""
    DeltaInbox("billing", location).apply(several(1), bookings_of)
    first = retry_of(message(0))
    second = handed_out.changed(first, queue_id=1)

    def meanwhile() -> None:
        DeltaInbox("billing", location).apply([second], bookings_of)

    with before_commit(meanwhile, table="bookings"):
        assert DeltaInbox("billing", location).apply([first], bookings_of) == 0

    assert len(booked(location)) == 2


def test_two_tries_of_one_message_in_one_call_have_one_effect(location: str) -> None:
    tries = [retry_of(message(0)), retry_of(message(0), 1), retry_of(message(1), 2)]

    news = DeltaInbox("billing", location).fresh(tries)

    assert [message.queue_offset for message in news] == [0, 2]


@pytest.mark.parametrize(
    "content", ["{}", '{"commitInfo": {"txmq.note": "[1]"}}', '{"commitInfo": {"txmq.note": 5}}']
)
def test_commits_of_another_shape_name_no_message(location: str, content: str) -> None:
    inbox = DeltaInbox("billing", location)
    inbox.apply(several(1), bookings_of)
    inbox.apply(several(2), bookings_of)
    Path(location, commit_path(1)).write_text(content)

    assert inbox.fresh([retry_of(message(0))])


def test_block_that_fails_after_its_write_is_not_repeated_by_the_retry(location: str) -> None:
    inbox, first = DeltaInbox("billing", location), message(0)
    with (
        pytest.raises(ZeroDivisionError),
        inbox.delta_rs([first]) as (table, new, properties),
    ):
        merge(table, new, properties)
        raise ZeroDivisionError

    assert inbox.apply([retry_of(first)], bookings_of) == 0


def test_block_that_fails_before_its_write_is_made_by_the_retry(location: str) -> None:
    inbox, first = DeltaInbox("billing", location), message(0)
    with pytest.raises(ZeroDivisionError), inbox.delta_rs([first]):
        raise ZeroDivisionError

    assert inbox.apply([retry_of(first)], bookings_of) == 1


def test_write_of_another_member_is_not_taken_for_the_own_one(location: str) -> None:
    """The next owner of the queue sent the first message back without an effect."""
    inbox, (first, second) = DeltaInbox("billing", location), several(0, 1)
    with pytest.raises(ZeroDivisionError), inbox.delta_rs([first, second]):
        DeltaInbox("billing", location).apply(several(1), bookings_of)
        raise ZeroDivisionError

    assert inbox.apply([retry_of(first)], bookings_of) == 1
    assert booked(location) == [second.message_id, "retry"]


def test_block_without_a_write_is_told_beside_the_write_of_another_member(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    with pytest.raises(InboxError, match="without a write"), inbox.delta_rs(several(0, 1)):
        DeltaInbox("billing", location).apply(several(1), bookings_of)


def test_failed_commit_beside_one_of_another_member_is_an_error(location: str) -> None:
    inbox = DeltaInbox("billing", location)

    with ExitStack() as stack:

        def slow(messages: Sequence[ReceivedMessage]) -> pa.Table:
            DeltaInbox("billing", location).apply(several(1), bookings_of)
            stack.enter_context(failing_commits(1, error=OSError("gone"), table="bookings"))
            return bookings_of(messages)

        with pytest.raises(StorageError):
            inbox.apply(several(0, 1), slow)


# --- micro-batches --------------------------------------------------------------------------------


def test_options_name_the_group_and_the_checkpoint(location: str) -> None:
    options = DeltaInbox("billing", location).batch_options(7, checkpoint="june")

    assert options == {
        "txnAppId": "txmq-inbox-batch/billing/june",
        "txnVersion": "7",
        "userMetadata": ('txmq {"read": 0, "mark": "txmq-inbox-batch/billing/june", "batch": 7}'),
    }


def test_batch_of_another_checkpoint_is_told(location: str) -> None:
    inbox = DeltaInbox("billing", location)
    mark(location, "txmq-inbox-batch/billing/june", 7)

    assert inbox.is_done(7, checkpoint="june")
    assert not inbox.is_done(8, checkpoint="june")
    assert not inbox.is_done(0, checkpoint="july")
    with pytest.raises(InboxError, match="another name"):
        inbox.batch_options(0, checkpoint="june")


def mark(location: str, name: str, version: int) -> None:
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
