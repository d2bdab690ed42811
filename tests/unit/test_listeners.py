# ruff: noqa: ARG002, ARG005
from __future__ import annotations

import pytest

from txmq.errors import ListenerError
from txmq.listeners import HalfMessage, answer_of, check_listener, load_listeners
from txmq.message import LocalTransactionState


class Answering:
    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK


class NeedsArguments(Answering):
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn


class Asynchronous(Answering):
    async def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:  # type: ignore[override]
        return LocalTransactionState.COMMIT


class HalfDone:
    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


class WithFields:
    execute_local_transaction = "COMMIT"
    check_local_transaction = "COMMIT"


@pytest.mark.parametrize("state", LocalTransactionState)
def test_state_is_taken_as_the_answer(state: LocalTransactionState) -> None:
    assert answer_of(state) == (state, None)


@pytest.mark.parametrize("value", [None, "COMMIT", True, 1, object(), LocalTransactionState])
def test_anything_else_is_unknown_and_says_why(value: object) -> None:
    state, problem = answer_of(value)

    assert state is LocalTransactionState.UNKNOWN
    assert type(value).__name__ in str(problem)


def test_object_with_both_methods_is_a_listener() -> None:
    listener = Answering()

    assert check_listener("orders", listener) is listener


@pytest.mark.parametrize(
    "listener",
    [None, "x", lambda message: None, Answering, HalfDone(), WithFields(), Asynchronous()],
    ids=repr,
)
def test_what_cannot_answer_is_refused_at_start(listener: object) -> None:
    with pytest.raises(ListenerError, match="orders"):
        check_listener("orders", listener)


def test_listeners_are_made_from_their_names() -> None:
    made = load_listeners({"orders": f"{__name__}:Answering"})

    assert isinstance(made["orders"], Answering)


@pytest.mark.parametrize(
    "reference",
    [
        "no_such_module:Class",
        f"{__name__}:NoSuchClass",
        f"{__name__}:NeedsArguments",
        f"{__name__}:HalfDone",
        f"{__name__}:GROUPS",
    ],
)
def test_listener_that_cannot_be_made_is_named(reference: str) -> None:
    with pytest.raises(ListenerError):
        load_listeners({"orders": reference})
