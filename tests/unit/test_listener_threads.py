from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from txmq.check_rules import Reason
from txmq.listener_threads import HUNG_PER_THREAD, Answered, ListenerThreads, NotReached
from txmq.listeners import HalfMessage
from txmq.message import LocalTransactionState

COMMIT = Answered(LocalTransactionState.COMMIT)
UNKNOWN = LocalTransactionState.UNKNOWN
TIMEOUT = Answered(UNKNOWN, Reason.TIMEOUT)
BUSY = NotReached(Reason.BUSY)
NO_LISTENER = NotReached(Reason.NO_LISTENER)


class Listener:
    def __init__(self, answer: Callable[[HalfMessage], Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> Any:
        self.asked.append(message.transaction_id)
        return self.answer(message)


class Hanging(Listener):
    """Does not answer before it is released."""

    def __init__(self, state: LocalTransactionState = LocalTransactionState.COMMIT) -> None:
        self.released = threading.Event()
        super().__init__(lambda _: self.released.wait(30.0) and state)


def half(transaction_id: str, group: str = "orders") -> HalfMessage:
    return HalfMessage(
        transaction_id, f"{transaction_id}:0", group, "paid", b"secret", None, None, {}, None,
        datetime.now(UTC), 1,
    )  # fmt: skip


@contextmanager
def threads(listeners: dict[str, Any], count: int = 2) -> Iterator[ListenerThreads]:
    asking = ListenerThreads(listeners, count)
    try:
        yield asking
    finally:
        for listener in listeners.values():
            if isinstance(listener, Hanging):
                listener.released.set()
        asking.close()


def wait_for(holds: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def raising(_: HalfMessage) -> Any:
    raise ValueError("secret body")


def exiting(_: HalfMessage) -> Any:
    raise SystemExit


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_answer_of_the_listener_is_the_outcome(state: LocalTransactionState) -> None:
    with threads({"orders": Listener(lambda _: state)}) as asking:
        assert asking.ask([half("a")], 10.0) == {"a": Answered(state)}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raising, "the listener raised ValueError"),
        (exiting, "the listener raised SystemExit"),
        (lambda _: None, "the listener returned NoneType, not a LocalTransactionState"),
        (lambda _: 42, "the listener returned int, not a LocalTransactionState"),
        (lambda _: "commit", "the listener returned str, not a LocalTransactionState"),
        (lambda _: "COMMIT", "the listener returned str, not a LocalTransactionState"),
        (lambda _: True, "the listener returned bool, not a LocalTransactionState"),
    ],
)
def test_nonsense_is_unknown_and_says_why_without_the_text(
    answer: Callable[[HalfMessage], Any], reason: str
) -> None:
    with threads({"orders": Listener(answer)}) as asking:
        assert asking.ask([half("a")], 10.0) == {"a": Answered(UNKNOWN, reason)}


def test_group_without_listener_is_not_reached() -> None:
    with threads({"orders": Listener(lambda _: UNKNOWN)}) as asking:
        assert asking.ask([half("a", "billing")], 10.0) == {"a": NO_LISTENER}


def test_question_that_is_still_open_at_the_end_counts_as_unknown() -> None:
    with threads({"orders": Hanging()}) as asking:
        assert asking.ask([half("a")], 0.05) == {"a": TIMEOUT}


def test_question_that_never_began_does_not_count() -> None:
    hanging = Hanging()
    with threads({"orders": hanging}, count=1) as asking:
        outcomes = asking.ask([half("a"), half("b")], 0.05)

        assert outcomes == {"a": TIMEOUT, "b": BUSY}
        assert hanging.asked == ["a"]


def test_question_that_was_given_up_is_not_asked_later() -> None:
    hanging = Hanging()
    with threads({"orders": hanging}, count=1) as asking:
        asking.ask([half("a"), half("b")], 0.05)
        hanging.released.set()
        asking.ask([half("c")], 10.0)

        assert hanging.asked == ["a", "c"]


def test_round_ends_with_its_last_answer() -> None:
    with threads({"orders": Listener(lambda _: LocalTransactionState.COMMIT)}) as asking:
        began_s = time.monotonic()
        asking.ask([half(str(n)) for n in range(200)], 60.0)

        assert time.monotonic() - began_s < 30.0


def test_group_that_hangs_does_not_hold_up_another() -> None:
    answering = Listener(lambda _: LocalTransactionState.COMMIT)
    with threads({"stuck": Hanging(), "orders": answering}, count=1) as asking:
        stuck = [half(f"s{n}", "stuck") for n in range(50)]
        fine = [half(f"f{n}") for n in range(50)]
        outcomes = asking.ask([*stuck, *fine], 1.0)

        assert {outcomes[f"f{n}"] for n in range(50)} == {COMMIT}


def test_question_that_hangs_does_not_hold_up_its_own_group_in_the_next_round() -> None:
    hanging = Hanging()
    mixed = Listener(
        lambda message: (
            hanging.answer(message)
            if message.transaction_id == "a"
            else LocalTransactionState.COMMIT
        )
    )
    with threads({"orders": mixed, "other": hanging}, count=1) as asking:
        assert asking.ask([half("a")], 0.05) == {"a": TIMEOUT}
        assert asking.ask([half("b")], 10.0) == {"b": COMMIT}


def test_hanging_threads_are_replaced_up_to_a_limit() -> None:
    hanging = Hanging()
    with threads({"orders": hanging}, count=1) as asking:
        outcomes = [asking.ask([half(str(n))], 0.05)[str(n)] for n in range(HUNG_PER_THREAD + 2)]

        assert outcomes == [TIMEOUT] * HUNG_PER_THREAD + [BUSY] * 2
        assert len(hanging.asked) == HUNG_PER_THREAD


def test_listener_that_recovers_is_asked_again() -> None:
    hanging = Hanging()
    with threads({"orders": hanging}, count=1) as asking:
        for n in range(HUNG_PER_THREAD):
            asking.ask([half(str(n))], 0.05)
        hanging.released.set()
        late: list[Any] = []
        wait_for(lambda: late.extend(asking.late_answers()) or len(late) == HUNG_PER_THREAD)

        assert asking.ask([half("again")], 10.0) == {"again": COMMIT}


def test_late_end_is_kept_once() -> None:
    hanging = Hanging(LocalTransactionState.ROLLBACK)
    with threads({"orders": hanging}) as asking:
        asking.ask([half("a")], 0.05)
        hanging.released.set()
        late: list[Any] = []
        wait_for(lambda: late.extend(asking.late_answers()) or late)

        assert [(answer.transaction_id, answer.state) for answer in late] == [
            ("a", LocalTransactionState.ROLLBACK)
        ]
        assert asking.late_answers() == []


def test_late_unknown_is_forgotten() -> None:
    hanging = Hanging(UNKNOWN)
    with threads({"orders": hanging}, count=1) as asking:
        for n in range(HUNG_PER_THREAD):
            asking.ask([half(str(n))], 0.05)
        hanging.released.set()
        wait_for(lambda: asking.ask([half("again")], 10.0) != {"again": BUSY})

        assert asking.late_answers() == []


def test_several_questions_of_a_group_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10.0)

    def answer(_: HalfMessage) -> Any:
        together.wait()
        return LocalTransactionState.COMMIT

    with threads({"orders": Listener(answer)}, count=3) as asking:
        outcomes = asking.ask([half(str(n)) for n in range(3)], 10.0)

        assert set(outcomes.values()) == {COMMIT}
