"""Messages that a consumer could not handle: when they come again, where they end, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.builders import table_versions
from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.handed_out import changed, received
from txmq.check.recheck import RecheckJob
from txmq.consumer.send_back import FailedMessage, PlacedMessage, SendBack, SentBack
from txmq.errors import (
    AccessDeniedError,
    CommitConflictError,
    InvalidMessageError,
    InvalidNameError,
    InvalidReasonError,
    StorageError,
)
from txmq.ground.clock import timestamp
from txmq.ground.fail_points import FailPoint, arm
from txmq.listeners.hooks import SendContext
from txmq.message.ids import IdempotencyKey, keyed_transaction_id
from txmq.message.message import Message
from txmq.message.names import RETRY_PROPERTIES
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.store_clock import StoreClock
from txmq.testing import WrongClock, failing_commits
from txmq.verify import verify

GROUP = "billing"
RETRY, DEAD = "RETRY_billing", "DLQ_billing"
DAY_S = 86_400


@pytest.fixture
def world(delay_world: DelayWorld) -> DelayWorld:
    return delay_world


def sender(world: DelayWorld, group: str = GROUP) -> SendBack:
    """Another process of the group: it knows nothing but the tables."""
    return SendBack(world.store, group, world.clock)


def first(world: DelayWorld, body: str = "order", **fields: Any) -> ReceivedMessage:
    """A message as a consumer is handed it."""
    (own_id,) = world.send(body, **fields)
    (row,) = [row for row in world.rows() if row["message_id"] == own_id]
    return received(row)


def fail(world: DelayWorld, message: ReceivedMessage, **options: Any) -> SentBack:
    sent = sender(world).send_back(message, **{"reason": "no customer", **options})
    world.publisher.run_once()
    return sent


def after(world: DelayWorld, seconds: float, topic: str = RETRY) -> list[ReceivedMessage]:
    """What is in a topic once the clock has moved on."""
    world.clock.advance(seconds)
    world.deliver()
    return [received(row) for row in world.rows(topic)]


def is_clean(world: DelayWorld) -> bool:
    report = verify(world.store.location)
    assert report.is_clean, report
    return report.is_clean


def commits(world: DelayWorld) -> tuple[int, int]:
    return world.store.tables.half_log().table.version, world.store.tables.op_log().table.version


# --- retries --------------------------------------------------------------------------------------


def test_failed_message_comes_again_after_the_third_level(world: DelayWorld) -> None:
    message = first(world, tags="paid", keys="order-1 order-2", properties={"region": "eu"})

    sent = fail(world, message)

    assert (sent.topic, sent.reconsume_times) == ("%RETRY%billing", 1)
    assert not sent.is_dead_letter
    assert after(world, 9) == []
    (again,) = after(world, 2)
    assert again.message_id == sent.message_id
    assert (again.body, again.tags, again.keys) == (b"order", "paid", "order-1 order-2")
    assert again.born_timestamp == message.born_timestamp
    assert is_clean(world)


def test_retry_says_where_it_comes_from(world: DelayWorld) -> None:
    message = first(world, properties={"region": "eu"})

    fail(world, message, reason="no customer\nof this name")

    (again,) = after(world, 10)
    assert again.properties == {
        "region": "eu",
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": message.message_id,
        "ORIGIN_QUEUE_ID": str(message.queue_id),
        "ORIGIN_QUEUE_OFFSET": "0",
        "RECONSUME_TIMES": "1",
        "RECONSUME_REASON": "no customer of this name",
    }
    assert set(again.properties) - {"region"} <= RETRY_PROPERTIES


def test_each_try_waits_one_level_longer_and_the_origin_stays(world: DelayWorld) -> None:
    message = first(world)
    waits_s = [10, 30, 60, 120]

    for times, wait_s in enumerate(waits_s, start=1):
        assert fail(world, message).reconsume_times == times
        assert len(after(world, wait_s - 1)) == times - 1
        message = after(world, 1)[-1]
        assert message.reconsume_times == times
        assert message.origin_topic == TOPIC
        assert message.properties["ORIGIN_QUEUE_OFFSET"] == "0"
    assert len({row["message_id"] for row in world.rows(RETRY)}) == len(waits_s)
    assert is_clean(world)


def test_level_that_is_given_counts(world: DelayWorld) -> None:
    fail(world, first(world), delay_level=1)

    assert len(after(world, 1)) == 1


def test_level_above_the_last_is_the_last(world: DelayWorld) -> None:
    fail(world, first(world), delay_level=99)

    assert after(world, 7_199) == []
    assert len(after(world, 1)) == 1


# --- dead letters ---------------------------------------------------------------------------------


def test_level_below_zero_is_a_dead_letter_at_once(world: DelayWorld) -> None:
    message = first(world)

    sent = fail(world, message, delay_level=-1)

    assert (sent.topic, sent.reconsume_times, sent.is_dead_letter) == ("%DLQ%billing", 1, True)
    (dead,) = after(world, 0, DEAD)
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == message.message_id
    assert dead.properties["RECONSUME_REASON"] == "no customer"
    assert is_clean(world)


def test_sixteen_tries_and_then_it_is_a_dead_letter(world: DelayWorld) -> None:
    message = first(world)

    for times in range(1, 17):
        assert fail(world, message, delay_level=1).topic == "%RETRY%billing"
        message = after(world, 1)[-1]
        assert message.reconsume_times == times

    assert fail(world, message, delay_level=1).topic == "%DLQ%billing"
    (dead,) = after(world, 0, DEAD)
    assert dead.reconsume_times == 17
    assert dead.origin_topic == TOPIC
    assert len(world.rows(RETRY)) == 16
    assert is_clean(world)


def test_settings_say_how_many_tries_there_are(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, max_reconsume_times=1)
    message = first(world)

    fail(world, message)
    (again,) = after(world, 10)

    assert fail(world, again).is_dead_letter
    world.producer.close()


def test_a_group_that_reads_dead_letters_of_another_has_tries_of_its_own(world: DelayWorld) -> None:
    fail(world, first(world), delay_level=-1)
    (dead,) = after(world, 0, DEAD)

    sent = sender(world, "audit").send_back(changed(dead, topic=DEAD), reason="x")

    assert (sent.topic, sent.reconsume_times) == ("%RETRY%audit", 1)


# --- once -----------------------------------------------------------------------------------------


def test_second_try_finds_the_first(world: DelayWorld) -> None:
    message = first(world)
    sent = fail(world, message)
    before = commits(world)

    again = fail(world, message, reason="another reason", delay_level=2)

    assert again.message_id == sent.message_id
    assert commits(world) == before
    assert len(after(world, 60)) == 1


def test_message_that_failed_again_in_a_replay_is_sent_back_again(world: DelayWorld) -> None:
    message = first(world)

    sent = [fail(world, message, replay=number) for number in (0, 1, 1)]

    assert len({retry.message_id for retry in sent}) == 2
    assert len(after(world, 10)) == 2
    assert is_clean(world)


@pytest.mark.parametrize(
    "point", [FailPoint.HALF_COMMITTED, FailPoint.END_READY, FailPoint.END_COMMITTED]
)
def test_sender_that_died_in_between_is_finished_by_the_next(
    world: DelayWorld, point: FailPoint
) -> None:
    message = first(world)
    with dying_at(point), pytest.raises(ZeroDivisionError):
        fail(world, message)

    fail(world, message, reason="seen by another")

    assert len(after(world, 10)) == 1
    assert is_clean(world)


def test_retry_that_the_check_rolled_back_is_sent_again(world: DelayWorld) -> None:
    message = first(world)
    with dying_at(FailPoint.HALF_COMMITTED), pytest.raises(ZeroDivisionError):
        fail(world, message)
    world.clock.advance(60)
    result = RecheckJob(world.store, clock=world.clock).run_once()
    assert (result.checks.never_acknowledged, result.checks.asked) == (1, 0)

    fail(world, message)
    fail(world, message)

    assert len(after(world, 10)) == 1
    assert is_clean(world)


def test_check_that_is_faster_than_the_end_costs_nothing(world: DelayWorld) -> None:
    message = first(world)

    def check(point: FailPoint) -> None:
        if point is FailPoint.END_READY and not checked:
            checked.append(point)
            world.clock.advance(60)
            RecheckJob(world.store, clock=world.clock).run_once()

    checked: list[FailPoint] = []
    disarm = arm(check)
    fail(world, message)
    disarm()

    assert checked
    assert len(after(world, 10)) == 1
    assert is_clean(world)


@pytest.mark.parametrize("table", ["half", "op"])
def test_commit_whose_answer_was_lost_is_not_made_twice(world: DelayWorld, table: str) -> None:
    message = first(world)
    with failing_commits(1, table=table, after_commit=True):
        sent = fail(world, message)

    assert fail(world, message).message_id == sent.message_id
    assert len(after(world, 10)) == 1
    assert is_clean(world)


def test_members_that_send_back_the_same_at_once_send_it_once(world: DelayWorld) -> None:
    several = [first(world, f"order-{number}") for number in range(3)]

    def member(number: int) -> None:
        sending = sender(world)
        reason = f"member {number}"
        sent.extend(sending.send_back(message, reason=reason).message_id for message in several)

    sent: list[str] = []
    threads = [threading.Thread(target=member, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.publisher.run_once()

    assert (len(sent), len(set(sent))) == (12, 3)
    assert len(after(world, 10)) == 3
    assert is_clean(world)


def test_many_are_sent_in_one_commit_of_each_log(world: DelayWorld) -> None:
    world.send(*(f"order-{number}" for number in range(50)))
    failed = [FailedMessage(received(row), "x") for row in world.rows()]
    half, op = commits(world)

    sent = sender(world).send_back_all([*failed, failed[0]])
    world.publisher.run_once()

    assert commits(world) == (half + 1, op + 1)
    assert sent[0] == sent[-1]
    assert len(after(world, 10)) == 50
    assert [row["queue_offset"] for row in world.rows(RETRY)] == list(range(50))
    assert is_clean(world)


def test_nothing_to_send_back_costs_nothing(world: DelayWorld) -> None:
    before = commits(world)

    assert sender(world).send_back_all([]) == []
    assert commits(world) == before


def test_old_message_gets_an_id_of_now_and_is_still_sent_once(world: DelayWorld) -> None:
    message = first(world)
    old = changed(message, store_timestamp=timestamp(world.clock.now_ms() - 400 * DAY_S * 1000))

    sent = fail(world, old)
    world.clock.advance(DAY_S - 60)

    assert fail(world, old).message_id == sent.message_id
    (row,) = world.rows("SCHEDULE_TOPIC_XXXX")
    halves = world.store.tables.half_log().table
    (day,) = {file.partition["store_date"] for file in halves.files.all()[:1]}
    assert abs((world.now.date() - day).days) <= 2
    assert row["message_id"] == sent.message_id
    assert is_clean(world)


def test_message_that_gets_old_between_two_tries_is_sent_once(world: DelayWorld) -> None:
    message = first(world)
    sent = fail(world, message)

    world.clock.advance(1.5 * DAY_S)

    assert fail(world, message).message_id == sent.message_id


def test_message_from_the_future_gets_an_id_of_now(world: DelayWorld) -> None:
    ahead = changed(first(world), store_timestamp=timestamp(world.clock.now_ms() + DAY_S * 1000))

    sent = fail(world, ahead)

    assert fail(world, ahead).message_id == sent.message_id
    assert len(after(world, 10)) == 1


# --- others ---------------------------------------------------------------------------------------


def test_topics_of_a_group_have_one_queue(world: DelayWorld) -> None:
    fail(world, first(world), delay_level=-1)

    topic = Topics(world.store).describe("%DLQ%billing")

    assert topic.summary.settings.queue_nums == 1
    assert dict(topic.next_offsets) == {0: 1}


def test_group_in_a_namespace_has_topics_there(world: DelayWorld) -> None:
    message = first(world)

    sent = sender(world, "acme.billing").send_back(message, reason="x", delay_level=-1)
    world.publisher.run_once()

    assert sent.topic == "%DLQ%acme%billing"
    (dead,) = world.rows("DLQ_acme.billing")
    assert dict(dead["properties"])["RETRY_TOPIC"] == f"acme.{TOPIC}"
    assert is_clean(world)


def test_users_hooks_are_not_told(world: DelayWorld) -> None:
    class Hook:
        def before_send(self, context: SendContext) -> None:
            contexts.append(context)

        def after_send(self, context: SendContext) -> None:
            contexts.append(context)

    contexts: list[SendContext] = []
    with TransactionProducer(world.store, producer_group="x", hooks=[Hook()]):
        fail(world, first(world))

    assert contexts == []


def test_body_is_sent_on_though_it_is_at_every_limit(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, max_message_size_bytes=10, max_properties_size_bytes=40)
    message = first(world, "x" * 10, properties={"a": "b" * 30})

    fail(world, message)

    (again,) = after(world, 10)
    assert (again.body, again.properties["a"]) == (b"x" * 10, "b" * 30)
    world.producer.close()


def test_immunity_of_the_first_sender_is_left_out(world: DelayWorld) -> None:
    message = first(world, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})

    fail(world, message)

    (again,) = after(world, 10)
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in again.properties


def test_of_an_exception_only_its_class_is_kept(world: DelayWorld) -> None:
    fail(world, first(world), reason=KeyError("the body says secret"))

    (again,) = after(world, 10)
    assert again.properties["RECONSUME_REASON"] == "KeyError"


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "refusal"),
    [({"reason": None}, InvalidReasonError), ({"reason": 5}, InvalidReasonError),
     ({"delay_level": "3"}, InvalidMessageError), ({"delay_level": True}, InvalidMessageError),
     ({"replay": 1.5}, InvalidMessageError)],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    world: DelayWorld, options: Mapping[str, Any], refusal: type[Exception]
) -> None:
    message = first(world)
    before = table_versions(world.store)

    with pytest.raises(refusal):
        sender(world).send_back(message, **{"reason": "x", **options})

    assert table_versions(world.store) == before


@pytest.mark.parametrize("reason", ["", "\x00" * 9, "x" * 100_000, "a\ud800b", "\u2028"])
def test_any_text_is_a_reason_that_fits(world: DelayWorld, reason: str) -> None:
    fail(world, first(world), reason=reason)

    (again,) = after(world, 10)
    kept = again.properties["RECONSUME_REASON"]
    assert kept.isprintable()
    assert 0 < len(kept) <= 500


@pytest.mark.parametrize("name", sorted(RETRY_PROPERTIES))
def test_users_cannot_set_what_a_retry_carries(name: str) -> None:
    with pytest.raises(InvalidMessageError, match="reserved"):
        Message(TOPIC, b"", properties={name: "x"})


@pytest.mark.parametrize("group", ["", "a/b", "RETRY_x", "DLQ_x", "rmq_sys_retry"])
def test_group_that_is_no_group_is_refused(world: DelayWorld, group: str) -> None:
    with pytest.raises(InvalidNameError):
        sender(world, group)


def test_store_that_takes_nothing_says_so(world: DelayWorld) -> None:
    message = first(world)

    with failing_commits(1, error=OSError("disk"), table="half"), pytest.raises(StorageError):
        fail(world, message)
    with failing_commits(1_000, table="half"), pytest.raises(CommitConflictError):
        fail(world, message)

    fail(world, message)
    assert len(after(world, 10)) == 1


class dying_at:  # noqa: N801 - reads as a word in a with statement
    """The process ends at a fail point, once."""

    def __init__(self, point: FailPoint) -> None:
        self._point = point

    def __enter__(self) -> None:
        self._disarm = arm(self._strike)

    def __exit__(self, *_: object) -> None:
        self._disarm()

    def _strike(self, point: FailPoint) -> None:
        if point is self._point:
            raise ZeroDivisionError


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [-7_200, -3_600, 3_600, 7_200])
def test_a_retry_is_found_by_a_machine_whose_clock_is_wrong(tmp_path: Path, ahead_s: int) -> None:
    """The message is older than a window, so the id of its retry has the time of the window."""
    world = DelayWorld(tmp_path, file_reserved_time_h=1)
    message = first(world)
    world.clock.advance(30 * 60)
    sender(world).send_back(message, reason="no customer")
    world.clock.advance(60)

    wrong = SendBack(world.store, GROUP, WrongClock(ahead_s, of_store=world.clock))

    assert wrong.are_sent_back([PlacedMessage.of(message, 0)]) == [True]
    versions = commits(world)
    wrong.send_back(message, reason="no customer")
    assert commits(world) == versions


def test_a_member_that_may_not_ask_for_the_stores_time_goes_by_its_own_and_says_so(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = first(world)
    refused = AccessDeniedError("clock", "may not be written")
    monkeypatch.setattr(StoreClock, "now_ms", raising(refused))
    one = sender(world)

    sent = [one.send_back(message, reason="no customer") for _ in range(2)]

    assert sent[0] == sent[1]
    assert caplog.text.count("this machine's clock tells") == 1


def raising(error: Exception) -> Callable[[object], int]:
    def now_ms(_: object) -> int:
        raise error

    return now_ms


# --- producer groups with the name of a consumer group --------------------------------------------


def keyed_like_the_retry_of(world: DelayWorld, message: ReceivedMessage) -> Transaction:
    """A transaction of a producer group of this name, whose key is made like that of a retry."""
    producer = TransactionProducer(world.store, producer_group=GROUP, clock=world.clock)
    transaction = producer.begin_transaction(
        idempotency_key=f"send-back\n{message.message_id}\n0",
        key_timestamp=message.store_timestamp,
    )
    transaction.send(Message(TOPIC, b"of the producer"))
    transaction.prepare()
    return transaction


@pytest.mark.parametrize("is_of_earlier_txmq", [False, True])
def test_a_producer_cannot_take_the_id_of_a_retry(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, *, is_of_earlier_txmq: bool
) -> None:
    fail(world, first(world, "another"))
    message = first(world)
    with monkeypatch.context() as patch:
        if is_of_earlier_txmq:
            patch.setattr(IdempotencyKey, "transaction_ids", ids_of_earlier_txmq)
        transaction = keyed_like_the_retry_of(world, message)
        transaction.commit()
    world.publisher.run_once()

    assert sender(world).are_sent_back([PlacedMessage.of(message, 0)]) == [False]
    assert keyed_like_the_retry_of(world, message).id == transaction.id


def test_a_retry_and_a_producer_of_its_groups_name_do_not_meet(world: DelayWorld) -> None:
    message = first(world)
    fail(world, message)
    keyed_like_the_retry_of(world, message).commit()
    world.publisher.run_once()

    assert [each.body for each in after(world, 60)] == [b"order"]
    assert b"of the producer" in [row["body"] for row in world.rows()]
    assert is_clean(world)


def ids_of_earlier_txmq(key: IdempotencyKey, group: str, attempt: int) -> tuple[str, ...]:
    return (keyed_transaction_id(group, key.key, key.time_ms, attempt),)
