"""Hooks that break in every way: what they watch goes on, and has the same outcome (R89)."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pure.listeners.test_hooks_of_operations import CHECK, CONTEXT, PARENT, Journal, Returning
from txmq.errors import SendForbiddenError
from txmq.listeners.hooks import TOLD_S, EndContext, Hooks, SendContext
from txmq.message.message import LocalTransactionState, Message
from txmq.publish import announcement as publish_watch
from txmq.publish.announcement import PublishWatch

END = EndContext("orders", None, "t", LocalTransactionState.COMMIT, "PRODUCER", from_check=False)
LATER = "01" + PARENT[2:]


class PanicException(BaseException):
    """As pyo3 raises it."""


SURVIVED = (RuntimeError, StopIteration, asyncio.CancelledError, GeneratorExit, PanicException)
EXITS = (SystemExit, KeyboardInterrupt)


class Raising:
    """All forms of a hook; each call raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _raise(self, *_: object) -> Any:
        raise self.error

    before_send = after_send = end_transaction = begin_operation = _raise


class Unsure(Journal):
    """A hook that breaks when it is asked whether it is on."""

    error: type[BaseException] = StopIteration

    def __init__(self) -> None:
        self.begun, self.ended = [], []

    @property
    def is_on(self) -> bool:  # type: ignore[override]
        raise self.error


class Ending:
    """Breaks at the end of an operation."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def begin_operation(self, _: object) -> Ending:
        return self

    def end(self, *_: object) -> None:
        raise self.error


class Veto:
    """Breaks when it is asked."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def check_forbidden(self, _: SendContext) -> None:
        raise self.error


def call_all(hooks: Hooks) -> None:
    hooks.before_send(CONTEXT)
    hooks.after_send(CONTEXT)
    hooks.ended(END)
    with hooks.operation(lambda: CHECK):
        pass


@pytest.mark.parametrize("error", SURVIVED)
def test_what_a_hook_raises_ends_its_own_call_alone(error: type[BaseException]) -> None:
    call_all(Hooks([Raising(error), Ending(error)]))


@pytest.mark.parametrize("error", SURVIVED)
def test_veto_that_breaks_refuses_the_send(error: type[BaseException]) -> None:
    with pytest.raises(SendForbiddenError) as refused:
        Hooks([Veto(error)]).before_send(CONTEXT)

    assert isinstance(refused.value.__cause__, error)


@pytest.mark.parametrize("error", EXITS)
def test_exit_goes_on_in_the_main_thread_alone(error: type[BaseException]) -> None:
    hooks, done = Hooks([Raising(error), Ending(error)]), list[str]()

    def in_a_thread() -> None:
        call_all(hooks)
        done.append("went on")

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()

    assert done == ["went on"]
    with pytest.raises(error):
        hooks.after_send(CONTEXT)


def test_operation_that_cannot_be_made_holds_up_nothing() -> None:
    journal = Journal()

    def panic() -> Any:
        raise PanicException

    with Hooks([journal]).operation(panic):
        pass
    assert journal.begun == []


@pytest.mark.parametrize("error", SURVIVED)
def test_hook_whose_switch_breaks_is_off_and_told_once(
    error: type[BaseException], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsure, "error", error)
    unsure, journal = Unsure(), Journal()

    hooks = Hooks([unsure])
    assert not hooks
    assert not hooks.hear_ends
    assert not hooks.hear_operations
    Hooks([unsure, journal]).over(CHECK)

    assert (unsure.begun, journal.begun) == ([], [CHECK])
    assert caplog.text.count(f"hook Unsure raised {error.__name__} in is_on") == 2


def test_hook_that_is_off_hears_nothing_beside_one_that_is_on() -> None:
    off, on = Journal(is_on=False), Journal()

    Hooks([off, on]).over(CHECK)

    assert (off.begun, on.begun) == ([], [CHECK])


# --- what before_send returns -------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(), lambda one: st.lists(one, max_size=3)
)
PARENTS = st.sampled_from([PARENT, LATER]) | st.builds(
    "{}-{}".format, st.just(LATER), st.text(st.characters(categories=None), max_size=300)
)
CONTEXTS = st.fixed_dictionaries(
    {"traceparent": PARENTS | ANYTHING},
    optional={"tracestate": st.sampled_from(["congo=1", "a=b c"]) | st.text() | ANYTHING},
)


@given(CONTEXTS | st.dictionaries(st.text() | st.integers(), ANYTHING, max_size=3) | ANYTHING)
def test_whatever_a_hook_returns_is_left_out_or_fit_for_a_message(returned: Any) -> None:
    carried = Hooks([Returning(returned)]).before_send(CONTEXT)

    assert carried.keys() <= {"traceparent", "tracestate"}
    Message("order-paid", b"", properties=carried)
    assert all(value.encode("ascii").isascii() for value in carried.values())


@pytest.mark.parametrize("rest", ["-\ud800", "-\n", "-\x00", "-é", "- ", "-" + "x" * 300])
def test_rest_of_a_parent_is_bounded_and_printable(rest: str) -> None:
    assert Hooks([Returning({"traceparent": LATER + rest})]).before_send(CONTEXT) == {}


class Odd:
    """A mapping whose keys break."""

    def keys(self) -> Any:
        raise asyncio.CancelledError


class Sly(str):  # noqa: SLOT000 - as a user may write it
    """A str that is more than its text."""


def test_mapping_that_breaks_is_left_out() -> None:
    assert Hooks([Returning(Odd())]).before_send(CONTEXT) == {}
    (carried,) = Hooks([Returning({"traceparent": Sly(PARENT)})]).before_send(CONTEXT).values()
    assert type(carried) is str


# --- slow hooks ---------------------------------------------------------------------------------


class Slow(Journal):
    """Each call takes the time that a test says, on the test's clock."""

    def __init__(self, cost_s: float) -> None:
        super().__init__()
        self.cost_s, self.now_s = cost_s, 0.0

    def begin_operation(self, operation: Any) -> Journal:
        self.now_s += self.cost_s
        return super().begin_operation(operation)


@pytest.mark.parametrize(("cost_s", "told"), [(0.0, 128), (TOLD_S / 4, 4), (TOLD_S * 100, 1)])
def test_slow_hook_holds_up_a_commit_for_a_bounded_time(
    cost_s: float, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "txmq.listeners.hooks")
    monkeypatch.setattr(publish_watch, "operations", lambda *_: [CHECK] * 128)
    slow, plan = Slow(cost_s), object()

    PublishWatch(Hooks([slow]), lambda: slow.now_s).published("order-paid", plan, 0)  # type: ignore[arg-type]

    assert len(slow.ended) == told
    assert (f"{128 - told} operations are not told" in caplog.text) is (told < 128)


def test_panic_of_what_reads_the_messages_harms_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object) -> Any:
        raise PanicException

    monkeypatch.setattr(publish_watch, "operations", panic)
    PublishWatch(Hooks([Journal()])).published("order-paid", object(), 0)  # type: ignore[arg-type]
