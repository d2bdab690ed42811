from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from txmq.listeners.answering import SetAnswers, set_answers
from txmq.listeners.protocol import MAX_REASON_CHARACTERS
from txmq.message.message import LocalTransactionState

ASKED = pa.array(["a", "b", "c"])


def checked(*rows: tuple[Any, ...]) -> SetAnswers:
    names = ["transaction_id", "state", "reason"]
    width = max(map(len, rows), default=2)
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(width)]
    return set_answers(pa.table(columns, names[:width]), ASKED)


def outcomes(*rows: tuple[Any, ...]) -> dict[str, tuple[str, str | None]]:
    return said(checked(*rows).outcomes)


def said(table: pa.Table) -> dict[str, tuple[str, str | None]]:
    return {row["transaction_id"]: (row["state"], row["reason"]) for row in table.to_pylist()}


def test_answers_are_taken_as_they_are() -> None:
    rows = [("c", "ROLLBACK", "no such order"), ("a", "COMMIT", None), ("b", "UNKNOWN", "?")]

    assert outcomes(*rows) == {own_id: (state, reason) for own_id, state, reason in rows}


def test_transaction_without_an_answer_is_unknown() -> None:
    assert outcomes(("a", "COMMIT")) == {
        "a": ("COMMIT", None),
        "b": ("UNKNOWN", "NO_ANSWER"),
        "c": ("UNKNOWN", "NO_ANSWER"),
    }


def test_no_row_at_all_is_no_answer() -> None:
    assert set(outcomes().values()) == {("UNKNOWN", "NO_ANSWER")}


@pytest.mark.parametrize(
    "states", [("COMMIT", "ROLLBACK"), ("UNKNOWN", "COMMIT"), ("COMMIT", "yes"), ("COMMIT", None)]
)
def test_transaction_with_two_states_is_unknown(states: tuple[str, str]) -> None:
    for first, second in (states, states[::-1]):
        assert outcomes(("a", first), ("a", second))["a"] == ("UNKNOWN", "CONTRADICTION")


def test_same_answer_twice_is_one_answer() -> None:
    assert outcomes(("a", "COMMIT"), ("a", "COMMIT"), ("b", "ROLLBACK"))["a"] == ("COMMIT", None)


@pytest.mark.parametrize("state", ["commit", "COMMITTED", "", "secret body", None])
def test_state_that_is_none_is_unknown_and_is_not_repeated(state: str | None) -> None:
    assert outcomes(("a", state))["a"] == ("UNKNOWN", "NO_STATE")


def test_answers_about_others_are_counted_and_ignored() -> None:
    found = checked(("x", "COMMIT"), (None, "COMMIT"), ("a", "COMMIT"))

    assert found.strangers == 2
    assert set(said(found.outcomes)) == {"a", "b", "c"}


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_every_state_is_known_by_its_name(state: LocalTransactionState) -> None:
    assert outcomes(("a", state.value))["a"] == (state.value, None)


ROWS = {"transaction_id": ["a", "b"], "state": ["COMMIT", "ROLLBACK"]}


@pytest.mark.parametrize(
    "answer",
    [
        ROWS,
        pa.table(ROWS),
        pa.table(ROWS).to_batches()[0],
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype("category"),
        pa.table({name: pa.array(values, pa.large_string()) for name, values in ROWS.items()}),
        pa.table({name: pa.array(values, pa.string_view()) for name, values in ROWS.items()}),
        pa.table({**ROWS, "reason": pa.nulls(2), "more": [1, 2]}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_any_kind_of_table_is_an_answer(answer: object) -> None:
    found = said(set_answers(answer, ASKED).outcomes)

    assert (found["a"], found["b"]) == (("COMMIT", None), ("ROLLBACK", None))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "NoneType"),
        ("COMMIT", "str"),
        (LocalTransactionState.COMMIT, "LocalTransactionState"),
        ([("a", "COMMIT")], "list"),
        ({"transaction_id": ["a"]}, "dict"),
        ({"transaction_id": ["a"], "states": ["COMMIT"]}, "dict"),
        ({"transaction_id": [["a"]], "state": ["COMMIT"]}, "dict"),
        (pd.DataFrame({"transaction_id": ["a"], "state": [object()]}), "DataFrame"),
    ],
)
def test_what_is_no_table_of_answers_is_unknown_for_all(answer: object, kind: str) -> None:
    found = said(set_answers(answer, ASKED).outcomes)

    assert {state for state, _ in found.values()} == {"UNKNOWN"}
    (reason,) = {reason for _, reason in found.values()}
    assert reason is not None
    assert reason.startswith(f"the listener returned {kind}, not a table with transaction_id")


def test_reason_is_one_bounded_line() -> None:
    _, reason = outcomes(("a", "UNKNOWN", "no\n\x1b[31m" + "x" * 1_000))["a"]

    assert reason is not None
    assert len(reason) == MAX_REASON_CHARACTERS
    assert reason.isprintable()


def test_what_a_listener_left_keeps_its_place_and_has_no_state() -> None:
    said = outcomes(("a", None, "LEFT"), ("b", "COMMIT", "LEFT"), ("c", "maybe", "LEFT"))

    assert said == {"a": (None, "LEFT"), "b": ("COMMIT", "LEFT"), "c": ("UNKNOWN", "NO_STATE")}
