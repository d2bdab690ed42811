"""Handlers that fail, hang or are none: what is logged, sent back, and what goes on behind them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, offsets_of, wake
from tests.kit.delay_world import TOPIC
from tests.kit.reading import wait_until
from txmq.consumer import push
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, ConsumeTimeoutError, HandlerResultError
from txmq.message.received import ReceivedMessage

TIMEOUT_S = 4.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


class PanicError(BaseException):
    """As a panic of a Rust library: no Exception."""


class Handler:
    """Notes what it is given; hangs on some bodies until it is let go."""

    def __init__(self, *hanging: bytes) -> None:
        self.seen: list[str] = []
        self._hanging = hanging
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body.decode())
        if message.body in self._hanging:
            self.hangs.set()
            assert self.go_on.wait(60)


# --- what a handler may be -----------------------------------------------------------------------


async def asynchronous(_: ReceivedMessage) -> None:
    """A call makes a coroutine, and nothing else."""


def generator(_: ReceivedMessage) -> Iterator[None]:
    yield


class AsynchronousObject:
    async def __call__(self, message: ReceivedMessage) -> None:
        """As `asynchronous`."""


@pytest.mark.parametrize("handler", [None, 5, asynchronous, generator, AsynchronousObject()])
@pytest.mark.parametrize("run", [PullConsumer.run_once, PullConsumer.start])
def test_handler_that_does_nothing_when_it_is_called_is_refused_at_once(
    world: ConsumerWorld, handler: Any, run: Callable[..., Any]
) -> None:
    consumer = world.consumer()

    with pytest.raises(ConfigError, match="handler"):
        run(consumer, handler)

    assert consumer.poll(1, 0) == []


@pytest.mark.parametrize("on_error", [5, asynchronous])
def test_hook_that_cannot_be_called_is_refused(world: ConsumerWorld, on_error: Any) -> None:
    with pytest.raises(ConfigError, match="on_error"):
        world.consumer(on_error=on_error)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), "5", True])
def test_consume_timeout_is_a_number_of_seconds(world: ConsumerWorld, timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="consume_timeout_s"):
        world.consumer(consume_timeout_s=timeout_s)


# --- what is said of a failure -------------------------------------------------------------------


def test_log_has_the_text_the_traceback_and_the_id_of_a_failure_but_no_body(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.send_to(0, "secret body")

    def fails(_: ReceivedMessage) -> None:
        raise ValueError("no such order")

    with caplog.at_level(logging.DEBUG, logger="txmq"):
        world.consumer().run_once(fails)

    (record,) = [entry for entry in caplog.records if entry.exc_info]
    (row,) = world.rows()
    # Spark gives pytest's handler a format of its own, so the text is formatted here.
    text = logging.Formatter("%(message)s").format(record)
    assert record.levelno == logging.WARNING
    assert row["message_id"] in record.getMessage()
    assert "no such order" in text
    assert "in fails" in text
    assert "secret body" not in text + caplog.text
    assert len(world.sent_back.messages) == 1


def test_hook_is_handed_the_message_and_the_error(world: ConsumerWorld) -> None:
    world.send_to(0, "raises", "returns", "later", "good")
    told: list[tuple[str, str]] = []

    def handle(message: ReceivedMessage) -> Any:
        if message.body == b"raises":
            raise ValueError("no such order")
        return {b"returns": 5, b"later": ConsumeStatus.RECONSUME_LATER}.get(message.body)

    def on_error(message: ReceivedMessage, error: BaseException) -> None:
        told.append((message.body.decode(), type(error).__name__))

    result = world.consumer(on_error=on_error).run_once(handle)

    assert told == [("raises", "ValueError"), ("returns", HandlerResultError.__name__)]
    assert (result.consumed, result.sent_back) == (4, 3)


def test_hook_that_fails_is_logged_and_holds_up_nobody(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.send_to(0, "bad", "good")

    def on_error(_: ReceivedMessage, error: BaseException) -> None:
        raise LookupError("pager is off") from error

    handler = Handler()
    world.consumer(on_error=on_error).run_once(
        lambda message: handler(message) or (1 / 0 if message.body == b"bad" else None)  # type: ignore[arg-type, func-returns-value]
    )

    assert handler.seen == ["bad", "good"]
    assert "pager is off" in caplog.text
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 2


@pytest.mark.parametrize("result", [False, "SUCCESS", 0, object()])
def test_result_that_is_no_status_is_an_error_that_says_so(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture, result: object
) -> None:
    world.send_to(0, "m")

    world.consumer().run_once(lambda _: result)  # type: ignore[arg-type, return-value]

    ((_, reason, _),) = world.sent_back.messages
    assert "which is no ConsumeStatus; return None" in reason
    assert [entry.levelno for entry in caplog.records if entry.exc_info] == [logging.ERROR]


@pytest.mark.filterwarnings("error")
def test_coroutine_that_a_function_returns_is_an_error_too(world: ConsumerWorld) -> None:
    world.send_to(0, "m")

    world.consumer().run_once(lambda message: asynchronous(message))  # type: ignore[arg-type, return-value] # noqa: PLW0108

    assert "coroutine" in world.sent_back.messages[0][1]


def test_panic_of_a_library_is_a_failure_of_one_message(world: ConsumerWorld) -> None:
    world.send_to(0, "bad", "good")
    handler = Handler()

    def handle(message: ReceivedMessage) -> None:
        handler(message)
        if message.body == b"bad":
            raise PanicError

    result = world.consumer().run_once(handle)

    assert handler.seen == ["bad", "good"]
    assert (result.consumed, result.sent_back) == (2, 1)


def test_queues_of_a_consumer_that_an_error_has_ended_are_free_at_once(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "m")

    def exits(_: ReceivedMessage) -> None:
        raise SystemExit(3)

    handle = world.consumer().start(exits)
    wait_until(lambda: not handle.is_alive)

    assert isinstance(handle.exception, SystemExit)
    assert bodies(drained(world.consumer())) == ["m"]


# --- a failed message and those behind it --------------------------------------------------------


def test_failed_message_is_durable_before_the_next_one_of_its_queue_is_handled(
    world: ConsumerWorld,
) -> None:
    """An inbox by offset takes all messages before the one that took effect for done."""
    world.send_to(0, "bad", "worse", "good")
    world.send_to(1, "other")
    durable: dict[str, list[bytes]] = {}

    def handle(message: ReceivedMessage) -> ConsumeStatus:
        durable[message.body.decode()] = [body for body, _, _ in world.sent_back.messages]
        is_bad = message.body in (b"bad", b"worse")
        return ConsumeStatus.RECONSUME_LATER if is_bad else ConsumeStatus.SUCCESS

    world.consumer().run_once(handle)

    assert durable["worse"] == [b"bad"]
    assert durable["good"] == [b"bad", b"worse"]


# --- handlers that hang --------------------------------------------------------------------------


def let_time_pass(world: ConsumerWorld) -> None:
    """Longer than the consume timeout, and less than a lease."""
    world.clock.advance(TIMEOUT_S + 1)


def test_message_whose_handler_hangs_is_sent_back_and_what_is_behind_it_goes_on(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "good", "hangs", "behind it", "and this")
    told: list[str] = []
    consumer = world.consumer(
        consume_timeout_s=TIMEOUT_S, on_error=lambda _, error: told.append(type(error).__name__)
    )
    handler = Handler(b"hangs")
    handle = consumer.start(handler)
    assert handler.hangs.wait(30)

    let_time_pass(world)
    wait_until(lambda: "and this" in handler.seen)
    handle.stop()

    assert handler.seen == ["good", "hangs", "behind it", "and this"]
    assert [body for body, _, _ in world.sent_back.messages] == [b"hangs"]
    wait_until(lambda: told == [ConsumeTimeoutError.__name__])
    assert (handle.exception, handle.total.consumed, handle.total.sent_back) == (None, 4, 1)
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 4
    handler.go_on.set()


@pytest.mark.parametrize("way", ["exits", "hangs"])
def test_hook_that_exits_or_hangs_after_a_call_was_given_up_holds_up_nobody(
    world: ConsumerWorld, way: str
) -> None:
    world.send_to(0, "hangs", "behind it", "hangs too", "and this")
    go_on = threading.Event()
    told: list[bytes] = []

    def hook(message: ReceivedMessage, _: BaseException) -> None:
        told.append(message.body)
        if way == "exits":
            raise SystemExit(3)
        assert go_on.wait(60)

    handler = Handler(b"hangs", b"hangs too")
    handle = world.consumer(consume_timeout_s=TIMEOUT_S, on_error=hook).start(handler)
    assert handler.hangs.wait(30)
    let_time_pass(world)
    wait_until(lambda: "hangs too" in handler.seen)
    let_time_pass(world)
    wait_until(lambda: "and this" in handler.seen)
    handle.stop()

    wait_until(lambda: told == [b"hangs", b"hangs too"])
    assert handle.exception is None
    assert [body for body, _, _ in world.sent_back.messages] == [b"hangs", b"hangs too"]
    go_on.set()
    handler.go_on.set()


def test_call_that_comes_back_after_it_was_given_up_changes_nothing(world: ConsumerWorld) -> None:
    world.send_to(0, "hangs", "behind it")
    consumer = world.consumer(consume_timeout_s=TIMEOUT_S)
    handler = Handler(b"hangs")
    handle = consumer.start(handler)
    assert handler.hangs.wait(30)
    let_time_pass(world)
    wait_until(lambda: "behind it" in handler.seen)

    handler.go_on.set()
    world.send_to(0, "later")
    wait_until(lambda: "later" in handler.seen)
    handle.stop()

    assert handler.seen == ["hangs", "behind it", "later"]
    assert handle.exception is None
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3


def test_message_that_always_hangs_is_a_dead_letter_in_the_end(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, max_reconsume_times=1, message_delay_level="1s 1s 1s 1s")
    world.send_to(0, "hangs", "good")
    consumer = world.consumer(
        consume_timeout_s=TIMEOUT_S, sends_back=SendBack(world.store, BILLING, world.clock)
    )
    handler = Handler(b"hangs")
    handle = consumer.start(handler)
    assert handler.hangs.wait(30)
    let_time_pass(world)
    wait_until(lambda: "good" in handler.seen)
    handler.hangs.clear()

    def is_given_again() -> bool:
        world.clock.advance(0.5)
        world.deliver()
        return handler.hangs.is_set()

    wait_until(is_given_again)
    let_time_pass(world)
    wait_until(lambda: world.deliver() is not None and bool(world.rows(f"DLQ_{BILLING}")))
    handle.stop()

    assert handler.seen == ["hangs", "good", "hangs"]
    handler.go_on.set()
    world.close()


def test_others_go_on_behind_a_message_on_which_run_once_hangs(world: ConsumerWorld) -> None:
    world.send_to(0, "hangs", "behind it")
    handler, results = Handler(b"hangs"), list[Any]()
    stuck = world.consumer(consume_timeout_s=TIMEOUT_S)
    thread = threading.Thread(target=lambda: results.append(stuck.run_once(handler)))
    thread.start()
    assert handler.hangs.wait(30)
    other = world.consumer()

    let_time_pass(world)
    handed: list[ReceivedMessage] = []

    def has_the_rest() -> bool:
        wake(other)
        handed.extend(drained(other))
        return bool(handed)

    wait_until(has_the_rest)
    handler.go_on.set()
    thread.join(60)

    assert bodies(handed) == ["behind it"]
    assert [body for body, _, _ in world.sent_back.messages] == [b"hangs"]
    assert (results[0].consumed, results[0].sent_back) == (1, 1)


def test_message_that_hangs_while_the_disk_is_full_is_sent_back_later(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "hangs", "behind it")
    world.sent_back.failing = 2
    handler = Handler(b"hangs")
    handle = world.consumer(consume_timeout_s=TIMEOUT_S).start(handler)
    assert handler.hangs.wait(30)

    let_time_pass(world)
    wait_until(lambda: "behind it" in handler.seen)
    handle.stop()

    assert [body for body, _, _ in world.sent_back.messages] == [b"hangs"]
    handler.go_on.set()


def test_consumer_whose_handler_hangs_too_often_ends_and_leaves_its_group(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "HANGING_MAX", 1)
    world.send_to(0, "hangs", "behind it")
    handler = Handler(b"hangs")
    handle = world.consumer(consume_timeout_s=TIMEOUT_S).start(handler)
    assert handler.hangs.wait(30)

    let_time_pass(world)
    wait_until(lambda: not handle.is_alive)

    assert isinstance(handle.exception, ConsumeTimeoutError)
    assert bodies(drained(world.consumer())) == ["behind it"]
    handler.go_on.set()


# --- handlers of lists ----------------------------------------------------------------------------


def test_handler_gets_lists_of_one_queue_in_its_order(world: ConsumerWorld) -> None:
    world.fill(5, queues=2)
    lists: list[list[str]] = []

    result = world.consumer().run_once(
        lambda messages: lists.append(bodies(messages)), consume_message_batch_max_size=3
    )

    assert lists == [["0-0", "0-1", "0-2"], ["0-3", "0-4"], ["1-0", "1-1", "1-2"], ["1-3", "1-4"]]
    assert result.consumed == 10


def test_list_that_fails_is_sent_back_as_a_whole(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    failed: list[str] = []
    consumer = world.consumer(on_error=lambda message, _: failed.append(message.body.decode()))

    def handle(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == b"a":
            raise ValueError

    result = consumer.run_once(handle, consume_message_batch_max_size=2)

    assert (result.consumed, result.sent_back) == (3, 2)
    assert [body for body, _, _ in world.sent_back.messages] == [b"a", b"b"]
    assert failed == ["a", "b"]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3


def test_list_whose_call_hangs_is_given_up_as_a_whole(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")
    hangs, go_on, lists = threading.Event(), threading.Event(), list[list[str]]()

    def handle(messages: list[ReceivedMessage]) -> None:
        lists.append(bodies(messages))
        if messages[0].body == b"a":
            hangs.set()
            go_on.wait(60)

    handle_ = world.consumer(consume_timeout_s=TIMEOUT_S).start(
        handle, consume_message_batch_max_size=2
    )
    assert hangs.wait(30)
    let_time_pass(world)
    wait_until(lambda: ["c"] in lists)
    handle_.stop()
    go_on.set()

    assert [body for body, _, _ in world.sent_back.messages] == [b"a", b"b"]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3


def test_in_order_a_list_that_fails_comes_again_from_its_first_message(tmp_path: Path) -> None:
    own = {"consume_message_orderly": True, "suspend_current_queue_time_s": 0.0}
    world = ConsumerWorld(tmp_path, queues=1, consumer_groups={BILLING: own})
    world.fill(5, queues=1)
    lists: list[tuple[list[str], int]] = []

    def handle(messages: list[ReceivedMessage]) -> ConsumeStatus | None:
        lists.append((bodies(messages), messages[0].reconsume_times))
        fails = lists[-1] == (["0-2", "0-3"], 0)
        return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if fails else None

    consumer = world.consumer()
    consumer.run_once(handle, consume_message_batch_max_size=2)
    consumer.run_once(handle, consume_message_batch_max_size=2)

    assert lists == [
        (["0-0", "0-1"], 0), (["0-2", "0-3"], 0), (["0-2", "0-3"], 1), (["0-4"], 0),
    ]  # fmt: skip
    assert world.sent_back.messages == []
    world.close()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_wrong_size_of_lists_is_refused(world: ConsumerWorld, wrong: Any) -> None:
    for run in (world.consumer().run_once, world.consumer().start):
        with pytest.raises(ConfigError, match="consume_message_batch_max_size"):
            run(lambda _: None, consume_message_batch_max_size=wrong)
    consumer = world.consumer()
    consumer.on(TOPIC)(lambda _: None)
    with pytest.raises(ConfigError, match="given one message"):
        consumer.run_once(consume_message_batch_max_size=2)
