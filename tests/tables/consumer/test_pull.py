"""What a consumer without Spark is given, and what its group remembers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.consumer_world import (
    BILLING,
    QUEUES,
    ConsumerWorld,
    are_in_order,
    bodies,
    drained,
    offsets_of,
    settle,
    shares,
    wake,
)
from tests.kit.delay_world import TOPIC
from tests.kit.reading import commits, wait_until
from txmq.consumer.group import group_in
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.member import GroupMember, LeaseRenewal
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, TopicNotFoundError
from txmq.ground.clock import SystemClock
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.testing import failing_commits

RETRY = f"RETRY_{BILLING}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


# --- what is handed out -------------------------------------------------------------------------


def test_every_message_is_handed_out_once_and_each_queue_in_order(world: ConsumerWorld) -> None:
    world.fill(5)
    consumer = world.consumer()

    messages = drained(consumer, 3)

    assert sorted(bodies(messages)) == sorted(f"{q}-{n}" for q in range(QUEUES) for n in range(5))
    assert are_in_order(messages)


def test_topic_that_nobody_made_is_told_once_and_read_when_it_comes(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.send("1")
    mistyped, typed = TOPIC + "s", world.consumer()
    consumer = PullConsumer(
        world.store, consumer_group="others", topics=[mistyped, TOPIC], clock=world.clock
    )
    with consumer:
        for _ in range(3):
            consumer.poll(timeout_s=0)
            typed.poll(timeout_s=0)
        (told,) = [text for text in caplog.messages if "waits for topic" in text]
        assert told == (
            f"group others waits for topic {mistyped}: nobody has made or written it; "
            f"did you mean {TOPIC}?"
        )

        world.producer.send(Message(mistyped, b"2"))
        world.publisher.run_once()
        assert bodies(drained(consumer, 1)) == ["2"]


def test_message_shows_what_was_sent_and_where_it_is(world: ConsumerWorld) -> None:
    sent = world.send("42", tags="eu", keys="order-42", properties={"a": "b"}, sharding_key="k")
    (message,) = world.consumer().poll(timeout_s=0)

    assert (message.body, message.tags, message.keys) == (b"42", "eu", "order-42")
    assert (message.properties, message.sharding_key) == ({"a": "b"}, "k")
    assert (message.message_id, message.topic) == (sent[0], TOPIC)
    assert message.transaction_id == sent[0].partition(":")[0]
    assert (message.producer_group, message.queue_offset) == ("orders-service", 0)
    assert message.born_timestamp == message.store_timestamp == world.now
    assert (message.reconsume_times, message.origin_topic) == (0, TOPIC)
    assert message.origin_message_id == message.message_id


def test_body_is_in_no_text_of_a_message(world: ConsumerWorld) -> None:
    world.send("secret")
    (message,) = world.consumer().poll(timeout_s=0)

    assert "secret" not in f"{message!r} {message}"
    with pytest.raises(TypeError):
        bytes(message)  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        message.body = b"other"  # type: ignore[misc]


def test_message_that_is_published_later_is_handed_out_by_a_later_poll(
    world: ConsumerWorld,
) -> None:
    consumer = world.consumer()
    assert consumer.poll(timeout_s=0) == []

    for number in range(3):
        world.send_to(0, f"m{number}")
        assert bodies(consumer.poll(timeout_s=0)) == [f"m{number}"]


def test_poll_hands_out_no_more_than_it_is_asked_for(world: ConsumerWorld) -> None:
    world.fill(3)
    consumer = world.consumer()

    assert [len(consumer.poll(5, 0)) for _ in range(4)] == [5, 5, 2, 0]


def test_topic_that_nobody_made_is_refused_where_topics_are_made_by_hand(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, auto_create_topic_enable=False)
    with pytest.raises(TopicNotFoundError, match="topics create"):
        world.consumer("no-such-topic")


def test_topic_that_is_not_there_yet_is_read_from_its_first_message(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    assert consumer.poll(timeout_s=0) == []
    world.send("first")

    assert bodies(consumer.poll(timeout_s=0)) == ["first"]


def test_several_topics_are_read_by_one_consumer(world: ConsumerWorld) -> None:
    world.send("paid")
    world.send("sent", topic="order-sent")

    messages = drained(world.consumer([TOPIC, "order-sent"]))

    assert sorted(bodies(messages)) == ["paid", "sent"]
    assert {message.topic for message in messages} == {TOPIC, "order-sent"}


def test_only_what_a_filter_lets_through_is_handed_out_and_the_rest_is_consumed(
    world: ConsumerWorld,
) -> None:
    for number in range(6):
        world.send(f"m{number}", tags="eu" if number % 2 else "us")
    consumer = world.consumer({TOPIC: "eu"})

    assert sorted(bodies(drained(consumer))) == ["m1", "m3", "m5"]
    consumer.commit()
    assert sum(lag.lag for lag in consumer.lag()) == 0


def test_backlog_that_no_filter_lets_through_is_consumed_without_a_word(
    world: ConsumerWorld,
) -> None:
    world.fill(4)
    consumer = world.consumer({TOPIC: "none-of-them"})
    assert drained(consumer) == []

    world.clock.advance(5)
    wake(consumer)
    consumer.poll(timeout_s=0)

    assert sum(lag.lag for lag in consumer.lag()) == 0


# --- where a group goes on ----------------------------------------------------------------------


def test_next_member_goes_on_after_what_was_committed(world: ConsumerWorld) -> None:
    world.fill(3)
    first = world.consumer()
    taken = first.poll(5, 0)
    result = first.commit()
    first.poll(2, 0)
    first.close()

    rest = drained(world.consumer())

    assert sum(result.offsets.values()) == 5
    assert not result.refused
    assert sorted(bodies([*taken, *rest])) == sorted(
        f"{q}-{n}" for q in range(QUEUES) for n in range(3)
    )


def test_commit_without_anything_to_say_is_no_commit(world: ConsumerWorld) -> None:
    world.fill(1)
    consumer = world.consumer()
    before = commits(world.store, f"state/group_{BILLING}")
    consumer.commit()
    drained(consumer)
    assert commits(world.store, f"state/group_{BILLING}") == before

    consumer.commit()
    consumer.commit()

    assert commits(world.store, f"state/group_{BILLING}") == before + 1


@pytest.mark.parametrize(
    ("from_where", "expected"),
    [(ConsumeFromWhere.FIRST_OFFSET, ["old", "new"]), (ConsumeFromWhere.LAST_OFFSET, ["new"])],
)
def test_new_group_begins_where_it_says(
    world: ConsumerWorld, from_where: ConsumeFromWhere, expected: list[str]
) -> None:
    world.send_to(1, "old")
    consumer = world.consumer(from_where=from_where)
    world.send_to(1, "new")

    assert bodies(drained(consumer)) == expected


def test_group_that_began_last_keeps_what_came_while_no_member_lived(world: ConsumerWorld) -> None:
    world.send_to(0, "old")
    world.consumer(from_where=ConsumeFromWhere.LAST_OFFSET).close()
    world.send_to(0, "meanwhile")

    again = world.consumer(from_where=ConsumeFromWhere.LAST_OFFSET)

    assert bodies(drained(again)) == ["meanwhile"]


def test_new_group_begins_at_a_moment(world: ConsumerWorld) -> None:
    for number in range(4):
        world.send_to(number % 2, f"m{number}")
        world.clock.advance(60)
    moment = world.now - timedelta(seconds=150)

    consumer = world.consumer(from_where=ConsumeFromWhere.TIMESTAMP, from_timestamp=moment)

    assert sorted(bodies(drained(consumer))) == ["m2", "m3"]


def test_new_group_begins_at_given_offsets_and_elsewhere_at_the_first(
    world: ConsumerWorld,
) -> None:
    world.fill(3)

    messages = drained(world.consumer(from_where={TOPIC: {0: 2, 1: 3}}))

    assert sorted(bodies(messages)) == ["0-2", *(f"{q}-{n}" for q in (2, 3) for n in range(3))]


def test_stored_offset_wins_over_where_to_begin(world: ConsumerWorld) -> None:
    world.fill(1)
    first = world.consumer(from_where=ConsumeFromWhere.LAST_OFFSET)
    first.close()

    assert drained(world.consumer(from_where=ConsumeFromWhere.FIRST_OFFSET)) == []


# --- members ------------------------------------------------------------------------------------


def test_members_share_the_queues_and_each_message_has_one_of_them(world: ConsumerWorld) -> None:
    world.fill(3)
    members = [world.consumer(), world.consumer()]
    settle(members)

    messages = [drained(member) for member in members]

    # Four queues and the retry topic's one.
    assert sorted(len(share) for share in shares(members)) == [2, 3]
    assert not set.intersection(*shares(members))
    assert sorted(bodies([*messages[0], *messages[1]])) == sorted(
        f"{q}-{n}" for q in range(QUEUES) for n in range(3)
    )


def test_queue_with_messages_in_hand_is_kept_until_they_are_committed(
    world: ConsumerWorld,
) -> None:
    world.fill(2)
    first = world.consumer()
    taken = drained(first)
    second = world.consumer()
    settle([first, second])
    assert shares([second]) == [set()] or drained(second) == []

    first.commit()
    settle([first, second])

    assert len(taken) == 2 * QUEUES
    assert sorted(len(share) for share in shares([first, second])) == [2, 3]
    assert drained(second) == []


def test_others_go_on_when_the_lease_of_a_silent_member_is_over(world: ConsumerWorld) -> None:
    world.fill(2)
    silent = world.consumer()
    handed = silent.poll(3, 0)
    other = world.consumer()
    assert drained(other) == []

    world.clock.advance(world.store.config.consumer_lease_s + 0.1)
    messages = drained_soon(other)

    assert len(handed) == 3
    assert len(messages) == 2 * QUEUES
    assert silent.assignment == ()
    result = silent.commit()
    assert result.offsets == {}
    assert result.refused == {TopicQueue(m.topic, m.queue_id) for m in handed}
    other.commit()
    assert sum(offsets_of(world).values()) == 2 * QUEUES


def drained_soon(consumer: PullConsumer) -> list[ReceivedMessage]:
    wake(consumer)
    return drained(consumer)


def test_member_whose_lease_is_over_hands_nothing_out_of_what_it_read_ahead(
    world: ConsumerWorld,
) -> None:
    world.fill(3)
    consumer = world.consumer()
    consumer.poll(1, 0)
    other = world.consumer()
    world.clock.advance(world.store.config.consumer_lease_s + 0.1)
    taken = drained_soon(other)

    again = consumer.poll(32, 0)

    assert len(taken) == 3 * QUEUES
    assert again == []


def test_member_that_was_silent_goes_on_by_itself_where_nobody_took_over(
    world: ConsumerWorld,
) -> None:
    world.fill(2)
    consumer = world.consumer()
    taken = consumer.poll(3, 0)
    world.clock.advance(3600)

    rest = drained_soon(consumer)

    assert sorted(bodies([*taken, *rest])) == sorted(
        f"{q}-{n}" for q in range(QUEUES) for n in range(2)
    )
    assert consumer.commit().refused == frozenset()


def test_what_a_member_held_while_it_slept_comes_again_in_order_where_nobody_took_over(
    world: ConsumerWorld,
) -> None:
    world.fill(4)
    handled: list[ReceivedMessage] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message)
        if len(handled) == 2:
            world.clock.advance(world.store.config.consumer_lease_s + 0.1)

    consumer = world.consumer()
    for _ in range(2):
        consumer.run_once(handle)

    assert sorted(bodies(handled)) == sorted(f"{q}-{n}" for q in range(QUEUES) for n in range(4))
    assert are_in_order(handled)


def test_second_member_of_a_name_waits_for_the_first(world: ConsumerWorld) -> None:
    world.fill(1)
    world.consumer(member_id="blue")
    again = world.consumer(member_id="blue")
    assert drained(again) == []
    assert again.assignment == ()

    world.clock.advance(world.store.config.consumer_lease_s + 0.1)

    wake(again)
    assert len(drained(again)) == QUEUES


def test_each_member_of_a_broadcast_has_every_message_and_offsets_of_its_own(
    world: ConsumerWorld,
) -> None:
    world.fill(2)
    blue, red = (
        world.consumer(mode=ConsumeMode.BROADCASTING, member_id=name) for name in ("blue", "red")
    )
    assert len(drained(blue)) == len(drained(red)) == 2 * QUEUES
    blue.commit()
    blue.close()
    red.close()

    again = [
        world.consumer(mode=ConsumeMode.BROADCASTING, member_id=name) for name in ("blue", "red")
    ]

    assert [len(drained(member)) for member in again] == [0, 2 * QUEUES]
    assert TopicQueue(RETRY, 0) not in again[0].assignment


def test_two_groups_do_not_know_of_each_other(world: ConsumerWorld) -> None:
    world.fill(1)

    assert len(drained(world.consumer())) == QUEUES
    assert len(drained(world.consumer(group="shipping"))) == QUEUES


def test_lease_lives_on_while_a_handler_is_slow_and_nobody_else_gets_the_message(
    tmp_path: Path,
) -> None:
    world = ConsumerWorld(tmp_path, consumer_lease_s=1.0)
    world.send_to(0, "m")
    clock, go_on = SystemClock(), threading.Event()
    slow = world.consumer(clock=clock)
    handle = slow.start(lambda _: wait_for(go_on))
    other = world.consumer(clock=clock)
    begin_ms = clock.now_ms()

    def has_lived_on() -> bool:
        assert other.poll(timeout_s=0.1) == []
        return slow.member_id in living_at(world, begin_ms + 2_500)

    wait_until(has_lived_on)
    go_on.set()
    handle.stop()

    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 1
    world.close()


def test_member_that_has_not_asked_for_long_loses_its_lease(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, consumer_lease_s=0.5, consume_timeout_s=0.001)
    world.send_to(0, "m")
    stuck = world.consumer(clock=SystemClock())
    assert len(stuck.poll(timeout_s=0)) == 1
    other = world.consumer(clock=SystemClock())

    assert bodies(other.poll(timeout_s=30)) == ["m"]
    assert stuck.commit().refused == {TopicQueue(TOPIC, 0)}
    world.close()


def wait_for(event: threading.Event) -> None:
    assert event.wait(30)


def living_at(world: ConsumerWorld, moment_ms: int) -> list[str]:
    return group_in(world.store, BILLING).read().living(moment_ms)


def test_heart_goes_on_when_a_renewal_fails(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, consumer_lease_s=1.0)
    clock = SystemClock()
    consumer = world.consumer(clock=clock)
    begin_ms = clock.now_ms()
    with failing_commits(1, error=OSError("no disk"), table=f"state/group_{BILLING}") as failed:
        wait_until(lambda: bool(failed))
    wait_until(lambda: consumer.member_id in living_at(world, begin_ms + 1_500))

    assert consumer.assignment
    world.close()


def test_heart_goes_on_after_a_panic_of_a_library(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = world.consumer()
    panics: list[BaseException] = []

    class PanicException(BaseException):
        pass

    def panic(_: GroupMember) -> None:
        panics.append(PanicException("a panic"))
        raise panics[-1]

    monkeypatch.setattr(GroupMember, "renew_if_late", panic)
    renewal = LeaseRenewal(consumer._reader._member, 0.0)
    renewal.begin()
    wait_until(lambda: len(panics) > 1)
    renewal.stop()

    assert renewal.exception is None


def test_member_whose_swaps_are_contested_commits_all_the_same(world: ConsumerWorld) -> None:
    world.fill(1)
    consumer = world.consumer()
    drained(consumer)

    with failing_commits(3, table=f"state/group_{BILLING}") as failed:
        result = consumer.commit()

    assert len(failed) == 3
    assert sum(result.offsets.values()) == QUEUES


# --- handlers -----------------------------------------------------------------------------------


def test_handler_is_given_all_that_is_visible_and_it_is_committed(world: ConsumerWorld) -> None:
    world.fill(3)
    seen: list[ReceivedMessage] = []

    result = world.consumer().run_once(seen.append)

    assert (result.consumed, result.sent_back) == (3 * QUEUES, 0)
    assert are_in_order(seen)
    assert sum(offsets_of(world).values()) == 3 * QUEUES


def test_poison_message_is_sent_back_and_holds_up_nobody(world: ConsumerWorld) -> None:
    world.send_to(0, "good", "poison", "after")
    seen: list[str] = []

    def handler(message: ReceivedMessage) -> ConsumeStatus:
        if message.body == b"poison":
            raise ValueError("no such order")
        seen.append(message.body.decode())
        return ConsumeStatus.SUCCESS

    result = world.consumer().run_once(handler)

    assert seen == ["good", "after"]
    assert (result.consumed, result.sent_back) == (3, 1)
    assert world.sent_back.messages == [(b"poison", "ValueError('no such order')", 0)]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3


@pytest.mark.parametrize("answer", [ConsumeStatus.RECONSUME_LATER, "SUCCESS", False])
def test_answer_other_than_success_sends_back(world: ConsumerWorld, answer: object) -> None:
    world.send_to(0, "m")

    world.consumer().run_once(lambda _: answer)  # type: ignore[arg-type, return-value]

    assert len(world.sent_back.messages) == 1


def test_message_that_cannot_be_sent_back_is_given_again_with_what_came_after_it(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "m0", "poison", "m2")
    world.send_to(1, "other")
    world.sent_back.failing = 1
    consumer, seen = world.consumer(), list[str]()

    def handler(message: ReceivedMessage) -> ConsumeStatus:
        seen.append(message.body.decode())
        is_poison = message.body == b"poison"
        return ConsumeStatus.RECONSUME_LATER if is_poison else ConsumeStatus.SUCCESS

    with pytest.raises(OSError, match="no disk"):
        consumer.run_once(handler)
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 1
    consumer.run_once(handler)

    assert [body for body in seen if body != "other"] == ["m0", "poison", "poison", "m2"]
    assert seen.count("other") == 1
    assert [body for body, _, _ in world.sent_back.messages] == [b"poison"]


def test_user_sends_back_with_a_level_of_its_own(world: ConsumerWorld) -> None:
    world.send_to(0, "m")
    consumer = world.consumer()
    (message,) = consumer.poll(timeout_s=0)

    consumer.send_back(message, reason="not now", delay_level=5)

    assert world.sent_back.messages == [(b"m", "'not now'", 5)]


def test_message_that_fails_again_after_a_seek_is_sent_back_again(world: ConsumerWorld) -> None:
    world.send_to(0, "poison")
    consumer = world.consumer()
    for _ in range(2):
        consumer.run_once(lambda _: ConsumeStatus.RECONSUME_LATER)
        consumer.seek(TOPIC, 0, 0)
    consumer.run_once(lambda _: ConsumeStatus.RECONSUME_LATER)

    assert world.sent_back.replays == [0, 1, 2]


def test_broadcast_drops_what_its_handler_cannot_handle(world: ConsumerWorld) -> None:
    world.send_to(0, "m0", "m1")
    consumer = world.consumer(mode=ConsumeMode.BROADCASTING, member_id="blue")

    result = consumer.run_once(lambda _: ConsumeStatus.RECONSUME_LATER)

    assert result.consumed == 2
    assert world.sent_back.messages == []


def test_started_handler_is_given_what_comes_until_it_is_stopped(world: ConsumerWorld) -> None:
    seen: list[str] = []
    consumer = world.consumer()
    handle = consumer.start(lambda message: seen.append(message.body.decode()))
    world.send_to(0, "m0")
    wait_until(lambda: seen == ["m0"])
    world.send_to(0, "m1")
    wait_until(lambda: seen == ["m0", "m1"])

    handle.stop()

    assert handle.exception is None
    assert handle.total.consumed == 2
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 2
    world.send_to(0, "m2")
    assert bodies(consumer.poll(timeout_s=0)) == ["m2"]


def test_stop_in_the_middle_commits_what_was_handled_and_no_more(world: ConsumerWorld) -> None:
    world.send_to(0, *(f"m{n}" for n in range(10)))
    seen, at_third, go_on = list[str](), threading.Event(), threading.Event()

    def handler(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())
        if len(seen) == 3:
            at_third.set()
            go_on.wait(30)

    consumer = world.consumer()
    handle = consumer.start(handler)
    assert at_third.wait(30)
    handle._stopping.set()
    go_on.set()
    handle.stop()

    assert seen == ["m0", "m1", "m2"]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3
    assert bodies(drained(consumer)) == [f"m{n}" for n in range(3, 10)]


def test_poison_message_comes_again_by_the_retry_topic_and_ends_among_the_dead_letters(
    tmp_path: Path,
) -> None:
    world = ConsumerWorld(tmp_path, max_reconsume_times=2, message_delay_level="1s 2s 3s 4s")
    world.send_to(0, "poison", "good")
    seen: list[tuple[str, int, str]] = []

    def handler(message: ReceivedMessage) -> None:
        seen.append((message.body.decode(), message.reconsume_times, message.origin_topic))
        if message.body == b"poison":
            raise ValueError

    sends_back = SendBack(world.store, BILLING, world.clock)
    consumer = world.consumer(sends_back=sends_back)
    for _ in range(5):
        consumer.run_once(handler)
        world.after(6)

    assert seen == [(TOPIC_BODY, 0, TOPIC) for TOPIC_BODY in ("poison", "good")] + [
        ("poison", times, TOPIC) for times in (1, 2)
    ]
    (dead,) = world.rows(f"DLQ_{BILLING}")
    assert dead["body"] == b"poison"
    world.close()


# --- moving -------------------------------------------------------------------------------------


def test_paused_queue_is_not_handed_out_until_it_is_resumed(world: ConsumerWorld) -> None:
    world.fill(2)
    consumer = world.consumer()
    consumer.pause(TOPIC, 0)
    rest = drained(consumer)
    assert {message.queue_id for message in rest} == {1, 2, 3}
    consumer.commit()

    consumer.resume(TOPIC, 0)

    assert bodies(drained(consumer)) == ["0-0", "0-1"]


def test_paused_topic_is_not_handed_out_until_it_is_resumed(world: ConsumerWorld) -> None:
    world.fill(1)
    world.send("other", topic="stock")
    consumer = world.consumer([TOPIC, "stock"])
    consumer.pause(TOPIC)
    assert bodies(drained(consumer)) == ["other"]

    consumer.resume(TOPIC)

    assert len(drained(consumer)) == QUEUES


def test_seek_goes_back_and_forth_for_the_whole_group(world: ConsumerWorld) -> None:
    world.fill(4)
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()

    consumer.seek(TOPIC, 0, 1)
    consumer.seek(TOPIC, 1, 4)

    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 1
    assert bodies(drained(consumer)) == ["0-1", "0-2", "0-3"]
    assert consumer.commit().offsets == {TopicQueue(TOPIC, 0): 4}


def test_seek_to_a_moment_goes_on_with_what_was_stored_since(world: ConsumerWorld) -> None:
    for number in range(4):
        world.send_to(number % 2, f"m{number}")
        world.clock.advance(2)
    consumer = world.consumer()
    drained(consumer)

    consumer.seek_to_time(TOPIC, world.now - timedelta(seconds=5))

    assert sorted(bodies(drained(consumer))) == ["m2", "m3"]


def test_lag_is_what_the_tables_say(world: ConsumerWorld) -> None:
    world.fill(3)
    consumer = world.consumer()
    consumer.poll(5, 0)
    consumer.commit()

    lags = consumer.lag()

    by_topic = {
        topic: sum(lag.lag for lag in lags if lag.topic == topic) for topic in (TOPIC, RETRY)
    }
    assert by_topic == {TOPIC: 3 * QUEUES - 5, RETRY: 0}
    assert {lag.owner for lag in lags} == {consumer.member_id}


# --- namespaces ---------------------------------------------------------------------------------


def test_consumer_in_a_namespace_reads_its_topics_and_shows_them_without_it(
    world: ConsumerWorld,
) -> None:
    from txmq.message.message import Message
    from txmq.producer.producer import TransactionProducer

    with TransactionProducer(
        world.store, producer_group="orders", namespace="tenant", clock=world.clock
    ) as producer:
        producer.send(Message(TOPIC, b"theirs"))
    world.publisher.run_once()
    world.send("ours")
    consumer = world.consumer(namespace="tenant")

    (message,) = drained(consumer)

    assert (message.body, message.topic, message.producer_group) == (b"theirs", TOPIC, "orders")
    assert consumer.consumer_group == f"tenant.{BILLING}"
    assert TopicQueue(TOPIC, 0) in consumer.assignment
    consumer.seek(TOPIC, message.queue_id, 0)
    assert bodies(drained(consumer)) == ["theirs"]


def test_consumer_says_where_queues_begin_and_end(world: ConsumerWorld) -> None:
    world.topics.create(TOPIC, queue_nums=3)
    world.send_to(0, "a", "b")
    world.clock.advance(10)
    moment = world.now
    world.send_to(0, "c")
    world.send_to(1, "d")
    consumer = world.consumer()

    assert consumer.min_offsets(TOPIC) == {0: 0, 1: 0, 2: 0}
    assert consumer.max_offsets(TOPIC) == {0: 3, 1: 1, 2: 0}
    assert consumer.offsets_at(TOPIC, moment) == {0: 2, 1: 0, 2: 0}
    with pytest.raises(ConfigError):
        consumer.max_offsets("other")
    with pytest.raises(ConfigError):
        consumer.offsets_at(TOPIC, datetime(2026, 1, 1))  # noqa: DTZ001 - as it is refused
