from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from txmq.listeners.threads import HUNG_PER_THREAD, ListenerThreads, Unanswered

HANGS, NOT_BEGUN = Unanswered.HANGS, Unanswered.NOT_BEGUN
ALL_HANG = "all hang"


class Listener:
    """Answers, and keeps what it was asked."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, question: str) -> Any:
        self.asked.append(question)
        return self.answer(question)


class Hanging(Listener):
    """Does not answer before it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        super().__init__(lambda question: self.released.wait(30.0) and f"{question}!")


def error_answer(question: str, error: BaseException) -> str:
    return f"{question} raised {type(error).__name__}"


@contextmanager
def threads(listener: Listener, count: int = 2) -> Iterator[ListenerThreads[str, Any]]:
    asking = ListenerThreads[str, Any]("orders", listener, error_answer, count)
    try:
        yield asking
    finally:
        if isinstance(listener, Hanging):
            listener.released.set()
        asking.close()


def ask(asking: ListenerThreads[str, Any], *questions: str, timeout_s: float = 10.0) -> Any:
    put = asking.ask(questions)
    return ALL_HANG if put is None else put.answers(time.monotonic() + timeout_s)


def ask_until_asked(
    asking: ListenerThreads[str, Any], hanging: Hanging, *questions: str, count: int = 1
) -> Any:
    """What came of the questions at the moment when `count` more of them have been asked."""
    before = len(hanging.asked)
    put = asking.ask(questions)
    if put is None:
        return ALL_HANG
    wait_for(lambda: len(hanging.asked) >= before + count)
    return put.answers(time.monotonic())


def wait_for(holds: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def answering(question: str) -> str:
    return f"{question}!"


def test_answers_stand_in_the_order_of_the_questions() -> None:
    with threads(Listener(answering)) as asking:
        assert ask(asking, "a", "b", "c") == ["a!", "b!", "c!"]


def test_no_question_has_no_answer() -> None:
    with threads(Listener(answering)) as asking:
        assert ask(asking) == []


def test_question_that_is_still_open_at_the_end_hangs() -> None:
    hanging = Hanging()
    with threads(hanging) as asking:
        assert ask_until_asked(asking, hanging, "a") == [HANGS]


def test_question_that_never_began_says_so() -> None:
    hanging = Hanging()
    with threads(hanging, count=1) as asking:
        assert ask_until_asked(asking, hanging, "a", "b") == [HANGS, NOT_BEGUN]
        assert hanging.asked == ["a"]


def test_question_that_was_given_up_is_not_asked_later() -> None:
    hanging = Hanging()
    with threads(hanging, count=1) as asking:
        ask_until_asked(asking, hanging, "a", "b")
        hanging.released.set()
        ask(asking, "c")

        assert hanging.asked == ["a", "c"]


def test_round_ends_with_its_last_answer() -> None:
    with threads(Listener(answering)) as asking:
        # Who waited for the deadline would be stopped by the limit of tests long before.
        assert len(ask(asking, *map(str, range(200)), timeout_s=86_400.0)) == 200


def test_question_that_hangs_does_not_hold_up_the_next_round() -> None:
    hanging = Hanging()
    mixed = Listener(lambda question: hanging(question) if question == "a" else answering(question))
    with threads(hanging), threads(mixed, count=1) as asking:
        assert ask_until_asked(asking, hanging, "a") == [HANGS]
        assert ask(asking, "b") == ["b!"]


def test_hanging_threads_are_replaced_up_to_a_limit() -> None:
    hanging = Hanging()
    with threads(hanging, count=1) as asking:
        answers = [ask_until_asked(asking, hanging, str(n)) for n in range(HUNG_PER_THREAD + 2)]

        assert answers == [[HANGS]] * HUNG_PER_THREAD + [ALL_HANG] * 2
        assert len(hanging.asked) == HUNG_PER_THREAD


def test_listener_that_recovers_is_asked_again() -> None:
    hanging = Hanging()
    with threads(hanging, count=1) as asking:
        for n in range(HUNG_PER_THREAD):
            ask_until_asked(asking, hanging, str(n))
        hanging.released.set()
        late: list[Any] = []
        wait_for(lambda: late.extend(asking.late()) or len(late) == HUNG_PER_THREAD)

        assert ask(asking, "again") == ["again!"]


def test_late_answer_is_kept_once() -> None:
    hanging = Hanging()
    with threads(hanging) as asking:
        ask_until_asked(asking, hanging, "a")
        hanging.released.set()
        late: list[Any] = []
        wait_for(lambda: late.extend(asking.late()) or late)

        assert late == ["a!"]
        assert asking.late() == []


def test_only_the_newest_late_answers_are_kept_if_nobody_takes_them() -> None:
    hanging = Hanging()
    with threads(hanging, count=1) as asking:
        for n in range(HUNG_PER_THREAD + 1):
            hanging.released.clear()
            assert ask_until_asked(asking, hanging, str(n)) == [HANGS]
            hanging.released.set()
            wait_for(lambda last=f"{n}!": asking._late and asking._late[-1] == last)

        assert asking.late() == [f"{n}!" for n in range(1, HUNG_PER_THREAD + 1)]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_thread_answers_for_whatever_is_raised_and_goes_on(error: type[BaseException]) -> None:
    def raising(question: str) -> str:
        if question == "a":
            raise error
        return answering(question)

    with threads(Listener(raising), count=1) as asking:
        assert ask(asking, "a", "b") == [f"a raised {error.__name__}", "b!"]
        assert asking._running == 1


def test_thread_that_cannot_start_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with threads(Listener(answering), count=1) as asking:
        with monkeypatch.context() as patched, pytest.raises(RuntimeError):
            patched.setattr(threading.Thread, "start", refused)
            asking.ask(["a"])

        assert ask(asking, "b") == ["b!"]


def test_several_questions_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10.0)
    with threads(Listener(lambda _: together.wait()), count=3) as asking:
        assert sorted(ask(asking, "a", "b", "c")) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 5])
def test_no_more_threads_than_allowed_are_started(count: int) -> None:
    hanging = Hanging()
    with threads(hanging, count=count) as asking:
        ask_until_asked(asking, hanging, *map(str, range(20)), count=count)

        assert len(hanging.asked) == count
