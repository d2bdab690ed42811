# ruff: noqa: ARG002, ARG005
from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from tests.kit.builders import kind_of
from txmq.errors import ConfigError, EnvironmentProblemError, ListenerError
from txmq.listeners.delta import DeltaListener
from txmq.listeners.protocol import (
    DEFAULT_HEAD_COLUMNS,
    HEAD_COLUMNS,
    HalfMessage,
    answer_of,
    answers_rows,
    answers_sets,
    check_listener,
    executing_listener,
    head_columns,
    load_listeners,
)
from txmq.message.message import LocalTransactionState
from txmq.store.config import Config


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


class AnsweringAlone:
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


def test_check_needs_no_method_that_executes() -> None:
    listener = AnsweringAlone()

    assert check_listener("orders", listener) is listener


def test_object_with_both_methods_is_a_listener() -> None:
    listener = Answering()

    assert check_listener("orders", listener) is listener


@pytest.mark.parametrize(
    "listener",
    [None, "x", lambda message: None, Answering, WithFields(), Asynchronous()],
    ids=kind_of,
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
        f"{__name__}:GROUPS",
    ],
)
def test_listener_that_cannot_be_made_is_named(reference: str) -> None:
    with pytest.raises(ListenerError):
        load_listeners({"orders": reference})


class WithoutItsVariable(Answering):
    def __init__(self) -> None:
        raise EnvironmentProblemError("the environment variable DSN is not set", "Set it")


@pytest.mark.parametrize(
    ("setting", "step"),
    [
        ("no_such_module:Class", "PYTHONPATH"),
        (f"{__name__}:NoSuchClass", "check the module and class"),
        ({"class": f"{__name__}:NeedsArguments", "url": "x"}, "argument 'url'; it takes dsn"),
        (f"{__name__}:WithoutItsVariable", "DSN is not set. Set it)"),
    ],
)
def test_listener_that_cannot_be_made_says_the_next_step(setting: object, step: str) -> None:
    with pytest.raises(ListenerError, match=re.escape(step)) as refused:
        load_listeners({"orders": setting})  # type: ignore[dict-item]

    assert ("check the module" in str(refused.value)) == ("check the module" in step)


# --- the set form ------------------------------------------------------------------------------


class ForSpark:
    def check_local_transactions(self, heads: object) -> object:
        return heads


class ForArrow:
    head_columns = ("keys", "transaction_id", "keys")

    def check_local_transactions_arrow(self, heads: object) -> object:
        return heads


class Both(Answering, ForSpark):
    """Asked one by one where there is no Spark."""


class AsynchronousSet:
    async def check_local_transactions(self, heads: object) -> object:
        return heads


class WithColumns(ForArrow):
    def __init__(self, columns: object) -> None:
        self.head_columns = columns  # type: ignore[assignment]


@pytest.mark.parametrize("listener", [ForSpark(), ForArrow(), Both()])
def test_object_that_answers_for_sets_is_a_listener(listener: object) -> None:
    assert check_listener("orders", listener) is listener


@pytest.mark.parametrize("listener", [ForSpark, AsynchronousSet()], ids=kind_of)
def test_what_cannot_answer_for_sets_is_refused(listener: object) -> None:
    with pytest.raises(ListenerError, match="check_local_transactions_arrow"):
        check_listener("orders", listener)


@pytest.mark.parametrize(
    ("listener", "forms"),
    [
        (Answering(), ["rows"]),
        (AnsweringAlone(), ["rows"]),
        (ForSpark(), ["sets with Spark"]),
        (ForArrow(), ["sets", "sets with Spark"]),
        (Both(), ["rows", "sets with Spark"]),
    ],
)
def test_forms_of_a_listener(listener: object, forms: list[str]) -> None:
    found = {
        "rows": answers_rows(listener),
        "sets": answers_sets(listener, with_spark=False),
        "sets with Spark": answers_sets(listener, with_spark=True),
    }

    assert [form for form, answers in found.items() if answers] == forms


def test_set_listener_gets_all_columns_but_the_body_unless_it_names_them() -> None:
    assert head_columns(ForSpark()) == DEFAULT_HEAD_COLUMNS
    assert set(HEAD_COLUMNS) - set(DEFAULT_HEAD_COLUMNS) == {"body"}
    assert head_columns(ForArrow()) == ("transaction_id", "keys")


@pytest.mark.parametrize("columns", ["body", 3, ("bodies",), (None,)])
def test_columns_that_no_head_has_are_refused_at_start(columns: object) -> None:
    with pytest.raises(ListenerError, match="head_columns"):
        check_listener("orders", WithColumns(columns))


def test_misspelt_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ListenerError, match="did you mean body"):
        check_listener("orders", WithColumns(("bodi",)))


def test_producer_needs_a_listener_that_executes() -> None:
    both = Both()

    assert executing_listener("orders", both) is both
    with pytest.raises(ListenerError, match="execute_local_transaction"):
        executing_listener("orders", ForArrow())
    with pytest.raises(ListenerError, match="execute_local_transaction"):
        executing_listener("orders", AnsweringAlone())


# --- arguments in the settings ----------------------------------------------------------------


class WithArguments:
    """A listener that settings make with arguments."""

    def __init__(self, table: str, *, patience_s: float = 1.0) -> None:
        if not table:
            raise ValueError("table is empty")
        self.table, self.patience_s = table, patience_s

    def check_local_transactions_arrow(self, heads: object) -> object:
        return heads


def named(**arguments: object) -> dict[str, object]:
    return {"class": f"{__name__}:WithArguments", **arguments}


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or ModuleType(__name__))
    monkeypatch.setattr(sys.modules[__name__], "WithArguments", WithArguments, raising=False)


@pytest.mark.usefixtures("importable")
def test_settings_give_arguments_to_a_listener() -> None:
    config = Config(listeners={"orders": named(table="/lake/orders", patience_s=2.5)})

    (made,) = load_listeners(config.listeners).values()

    assert isinstance(made, WithArguments)
    assert (made.table, made.patience_s) == ("/lake/orders", 2.5)
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.usefixtures("importable")
def test_misspelt_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ListenerError, match="'tabel'; did you mean table"):
        load_listeners({"orders": named(tabel="x")})


@pytest.mark.usefixtures("importable")
def test_listener_that_refuses_its_arguments_is_named() -> None:
    with pytest.raises(ListenerError, match="ValueError: table is empty"):
        load_listeners({"orders": named(table="")})


def test_ready_made_listener_is_made_by_the_settings() -> None:
    listeners = {"orders": {"class": "txmq:DeltaListener", "table": "/lake/orders"}}

    (made,) = load_listeners(Config(listeners=listeners).listeners).values()

    assert isinstance(made, DeltaListener)


@pytest.mark.parametrize(
    "value",
    [7, None, {}, {"table": "x"}, {"class": 7}, {"class": "no colon"}, {"class": "a:B", "x y": 1},
     {"class": {"class": "a:B"}}, ["a:B"]],
)  # fmt: skip
def test_listener_that_is_none_is_refused_by_the_settings(value: object) -> None:
    with pytest.raises(ConfigError, match="listeners: 'orders' needs"):
        Config(listeners={"orders": value})  # type: ignore[dict-item]
