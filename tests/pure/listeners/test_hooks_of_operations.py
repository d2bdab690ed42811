"""Hooks of operations: what they return is checked, and what they raise is harmless."""

from __future__ import annotations

from typing import Any

import pytest

from txmq.errors import HookError
from txmq.listeners.hooks import Hooks, Operation, OperationName, SendContext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = SendContext("orders", None, ("t",), ())
CHECK = Operation(OperationName.CHECK, "order-paid", "t:0", "t")


class Returning:
    """A hook that returns something from `before_send`."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def before_send(self, _: SendContext) -> Any:
        return self.returned

    def after_send(self, context: SendContext) -> None: ...


class Journal:
    """Keeps the ends of operations."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self.begun: list[Operation] = []
        self.ended: list[tuple[BaseException | None, str | None]] = []

    def begin_operation(self, operation: Operation) -> Journal:
        self.begun.append(operation)
        return self

    def end(self, error: BaseException | None, outcome: str | None) -> None:
        self.ended.append((error, outcome))


class Breaking:
    """Fails wherever it can."""

    def __init__(self, *, breaks_at_once: bool) -> None:
        self.breaks_at_once = breaks_at_once

    def begin_operation(self, _: Operation) -> Breaking:
        if self.breaks_at_once:
            raise RuntimeError("private-body")
        return self

    def end(self, *_: object) -> None:
        raise RuntimeError("private-body")


def test_context_of_the_first_hook_that_has_one_is_carried() -> None:
    first = {"traceparent": PARENT, "tracestate": "congo=1"}
    hooks = Hooks([Returning(None), Returning(first), Returning({"traceparent": PARENT})])

    assert hooks.before_send(CONTEXT) == first


@pytest.mark.parametrize(
    "returned",
    [
        PARENT,
        {"traceparent": "secret"},
        {"tracestate": "congo=1"},
        {"traceparent": PARENT, "own": "1"},
        {"traceparent": PARENT, "tracestate": "="},
        {1: PARENT},
    ],
)
def test_what_is_no_context_is_left_out(returned: object, caplog: pytest.LogCaptureFixture) -> None:
    assert Hooks([Returning(returned)]).before_send(CONTEXT) == {}
    assert "returned no traceparent and tracestate" in caplog.text
    assert "secret" not in caplog.text


def test_operation_ends_with_its_answer_or_its_error() -> None:
    journal, error = Journal(), ValueError()
    hooks = Hooks([journal])

    with hooks.operation(lambda: CHECK) as running:
        running.answered("COMMIT")
    with pytest.raises(ValueError), hooks.operation(lambda: CHECK):  # noqa: PT011
        raise error
    hooks.over(CHECK, "UNKNOWN")

    assert journal.begun == [CHECK] * 3
    assert journal.ended == [(None, "COMMIT"), (error, None), (None, "UNKNOWN")]


def test_hook_that_is_off_hears_nothing_and_nothing_is_made_for_it() -> None:
    journal = Journal(is_on=False)
    hooks = Hooks([journal])

    assert not hooks
    with hooks.operation(lambda: pytest.fail("made")) as running:
        running.answered("COMMIT")
    journal.is_on = True
    assert hooks
    hooks.over(CHECK)
    assert journal.ended == [(None, None)]


@pytest.mark.parametrize("breaks_at_once", [True, False])
def test_hook_that_breaks_harms_no_operation(
    caplog: pytest.LogCaptureFixture, *, breaks_at_once: bool
) -> None:
    journal = Journal()
    with Hooks([Breaking(breaks_at_once=breaks_at_once), journal]).operation(lambda: CHECK):
        pass

    assert journal.ended == [(None, None)]
    assert "hook Breaking raised RuntimeError" in caplog.text
    assert "private-body" not in caplog.text


def test_what_has_no_form_of_a_hook_is_refused() -> None:
    with pytest.raises(HookError, match="begin_operation"):
        Hooks([object()])  # type: ignore[list-item]
