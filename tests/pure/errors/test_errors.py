from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from txmq import errors
from txmq.errors import (
    AlreadyResolvedError,
    BatchTooLargeError,
    CommitConflictError,
    CommitRefusedError,
    ConfigError,
    IncompleteTransactionError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    StoreFullError,
    TransactionNotFoundError,
    TxmqError,
    UnknownCommitError,
    shown,
)

ALL_ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__.startswith(errors.__name__)
]
SAMPLES = [
    ConfigError(["a must be a number", "b is not a setting"]),
    InvalidNameError("topic", "a/b", "use letters"),
    InvalidMessageError("body", "must be bytes"),
    MessageTooLargeError("body bytes", 5, 4),
    AlreadyResolvedError("id", "COMMITTED", "check"),
    IncompleteTransactionError("id", None, 0),
    StoreFullError("half", "no space"),
]


def test_there_are_errors_to_look_at() -> None:
    assert len(ALL_ERRORS) > 30


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_belongs_to_the_one_tree(kind: type[Exception]) -> None:
    assert issubclass(kind, TxmqError)
    assert kind.__doc__


def sent_on(error: TxmqError) -> TxmqError:
    received: TxmqError = pickle.loads(pickle.dumps(error))  # noqa: S301
    return received


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, sent_on])
def test_error_keeps_its_fields_in_another_process(
    error: TxmqError, again: Callable[[TxmqError], TxmqError]
) -> None:
    received = again(error)

    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        (CommitConflictError, True), (CommitRefusedError, True), (UnknownCommitError, True),
        (StoreFullError, True), (ConfigError, False), (InvalidNameError, False),
        (AlreadyResolvedError, False), (BatchTooLargeError, False),
    ],
)  # fmt: skip
def test_only_what_may_succeed_later_is_retryable(
    kind: type[TxmqError], *, retryable: bool
) -> None:
    assert kind.retryable is retryable


@pytest.mark.parametrize("kind", [ConfigError, InvalidNameError, MessageTooLargeError])
def test_what_the_caller_passed_is_a_value_error(kind: type[TxmqError]) -> None:
    assert issubclass(kind, ValueError)


def test_config_error_shows_all_faults() -> None:
    error = ConfigError(["first", "second"])

    assert error.faults == ("first", "second")
    assert "first" in str(error)
    assert "second" in str(error)


@pytest.mark.parametrize("value", ["x" * 1000, b"x" * 1000, list(range(1000))])
def test_long_value_is_cut(value: object) -> None:
    assert len(shown(value)) <= errors.SHOWN_CHARACTERS
    assert shown(value).endswith("…")


def test_short_value_is_shown_whole() -> None:
    assert shown("orders") == "'orders'"


@pytest.mark.parametrize("value", ["a\u202eb", "a\nb", "a\ud800b", "a\x00b"])
def test_value_that_bends_a_log_line_is_escaped(value: str) -> None:
    assert shown(value).isprintable()


def test_numbers_of_a_limit_are_kept_as_fields() -> None:
    error = MessageTooLargeError("body bytes", 5_000_000, 4_194_304)

    assert (error.field, error.size, error.limit) == ("body bytes", 5_000_000, 4_194_304)
    assert "5,000,000" in str(error)
    assert "4,194,304" in str(error)


@pytest.mark.parametrize(
    ("state", "next_step"),
    [("DISCARDED", "txmq resume"), ("INCOMPLETE", "repair"), ("PENDING", "ask for the end again")],
)
def test_state_that_is_no_final_end_comes_with_the_way_out(state: str, next_step: str) -> None:
    text = str(AlreadyResolvedError("id", state, "check"))

    assert next_step in text
    assert "ended" not in text


def test_id_that_is_not_found_is_shown_once_quoted() -> None:
    assert str(TransactionNotFoundError("abc")).startswith("transaction 'abc': ")
