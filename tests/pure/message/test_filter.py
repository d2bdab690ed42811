"""Filters: what they mean, and what is refused before anything is read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.filters import table_of
from txmq.errors import InvalidFilterError
from txmq.message.filter import MAX_FILTER_CHARACTERS, MessageFilter, parse_filter
from txmq.message.filter_grammar import MAX_COMPARISONS, MAX_DEPTH

ROWS = table_of(
    [
        ("A", (("amount", "5"), ("paid", "true"))),
        ("B", (("amount", "50"), ("paid", "FALSE"))),
        (None, (("amount", "much"),)),
        ("A", None),
    ]
)


def wanted(text: str) -> list[int]:
    """Which of ROWS a filter takes."""
    return [place for place, flag in enumerate(parse_filter(text).mask(ROWS).to_pylist()) if flag]


# --- tags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows"),
    [("*", [0, 1, 2, 3]), (" * ", [0, 1, 2, 3]), ("A", [0, 3]), ("A||B", [0, 1, 3]),
     (" B || C ", [1]), ("a", []), ("A B", [])],
)  # fmt: skip
def test_tags_are_compared_by_exact_text(text: str, rows: list[int]) -> None:
    assert wanted(text) == rows


def test_a_filter_has_one_spelling() -> None:
    assert parse_filter("B||A ||B").text == "B || A"
    assert parse_filter("sql:  a = 1 ").text == "sql:a = 1"
    assert parse_filter("*").is_all
    assert not parse_filter("A").is_all


# --- SQL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("amount > 5", [1]), ("amount >= 5", [0, 1]), ("5 < amount", [1]), ("amount = 5.0", [0]),
        ("amount <> 5", [1]), ("NOT amount = 5", [1]), ("amount = '5'", [0]),
        ("amount <> '5'", [1, 2]), ("amount BETWEEN 5 AND 10", [0]),
        ("amount NOT BETWEEN 5 AND 10", [1]), ("amount IN ('5', 50)", [0, 1]),
        ("amount NOT IN ('5')", [1, 2]), ("amount IS NULL", [3]), ("amount IS NOT NULL", [0, 1, 2]),
        ("paid = TRUE", [0]), ("paid <> true", [1]), ("TAGS = 'A' AND amount IS NULL", [3]),
        ("TAGS IS NULL or paid = FALSE", [1, 2]), ("tags IS NULL", [0, 1, 2, 3]),
        ("TRUE", [0, 1, 2, 3]), ("FALSE", []), ("amount > -1 AND amount < +6", [0]),
        ("amount = 1 OR amount = 5 AND TAGS = 'B'", []),
        ("(amount=5 OR amount=50)AND TAGS='B'", [1]),
        ("amount\n>\t5", [1]), ("amount = .5e1", [0]),
    ],
)  # fmt: skip
def test_sql_is_true_or_the_message_is_not_wanted(expression: str, rows: list[int]) -> None:
    assert wanted(f"sql:{expression}") == rows
    assert MessageFilter.sql(expression) == parse_filter(f"sql:{expression}")


def test_name_that_is_no_word_is_quoted() -> None:
    rows = table_of([("A", (("order-id", "it's"),)), ("A", (("order-id", "x"),))])

    assert parse_filter("""sql:"order-id" = 'it''s'""").mask(rows).to_pylist() == [True, False]


def test_no_rows_give_an_empty_mask() -> None:
    assert parse_filter("sql:a = 1 AND TAGS = 'A'").mask(ROWS.slice(0, 0)).to_pylist() == []
    assert parse_filter("*").mask(table_of([])).type == pa.bool_()


def test_filter_may_be_sent_to_another_process() -> None:
    once = parse_filter("sql:a = 1 OR NOT b IN ('x', 'y')")

    assert pickle.loads(pickle.dumps(once)) == once  # noqa: S301
    assert parse_filter(once) is once


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0), ("  ", 0), ("A ||", 4), ("|| A", 0), ("A || || B", 4), ("A | B", 0), ("A || *", 4),
        ("A\x00", 1), ("A\n", 1), ("\ud800", 0), ("sql:", 4), ("sql:  ", 6), ("sql:a", 5),
        ("sql:a =", 7), ("sql:a = b", 8), ("sql:= 1", 4), ("sql:(a = 1", 10), ("sql:a = 1)", 9),
        ("sql:a = 'x", 8), ('sql:"" = 1', 4), ("sql:a = 'x\x00'", 8), ("sql:a == 1", 7),
        ("sql:a = 1; DROP TABLE t", 9), ("sql:a = 1 -- x", 10), ("sql:a != 1", 6),
        ("sql:a LIKE 'x%'", 6), ("sql:a IN ()", 10), ("sql:a IN ('x',)", 14), ("sql:a IS 1", 9),
        ("sql:a BETWEEN 1", 15), ("sql:a BETWEEN TRUE AND 2", 14), ("sql:a > TRUE", 8),
        ("sql:1 = 1", 8), ("sql:'x'", 7), ("sql:a = 1e999", 8), ("sql:a = --1", 9), ("sql:a b", 6),
        ("sql:NOT", 7), ("sql: a = $(id)", 9), ("sql:é = 1", 4), ("sql:a = 1 a = 2", 10),
        ("sql:a NOT = 1", 10), ("sql:exec(1)", 8),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_with_its_place(text: str, position: int) -> None:
    with pytest.raises(InvalidFilterError) as refused:
        parse_filter(text)

    assert refused.value.position == position
    assert refused.value.problem in str(refused.value)


@pytest.mark.parametrize("value", [None, 1, b"A", ["A"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    for read in (parse_filter, MessageFilter.tags, MessageFilter.sql):
        with pytest.raises(InvalidFilterError, match="must be a str"):
            read(value)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("a b", "needs BETWEEN, IN, IS, NOT or a comparison (= <> > >= < <=)"),
        ("a =", "needs FALSE, TRUE, a 'text' or a number"),
        ("a = 1 a", "needs AND, OR or the end"),
        ("(a = 1", "needs a closing bracket"),
        ("a BETWEEN 1", "needs AND"),
        ("a IS 1", "needs NOT or NULL"),
        ("1 = 1", "needs a property"),
        ("or = 1", "needs FALSE, NOT, TRUE, a 'text', a number, a property or an opening bracket"),
        ("a = 'x", "has a quote that is not closed, or quotes nothing or a control character"),
        ("a; b", "has an unexpected character"),
        ("a = 1e999", "has a number that is too large"),
        ("a > TRUE", "compares with TRUE or FALSE, which have no order; use = or <>"),
    ],
)
def test_error_says_what_is_needed_in_that_place(expression: str, problem: str) -> None:
    with pytest.raises(InvalidFilterError) as refused:
        MessageFilter.sql(expression)

    assert refused.value.problem == problem


# Letters that are small or capital forms of ASCII letters for Unicode alone.
@pytest.mark.parametrize(
    "expression", ["a \u0131N (1)", "a I\u017f NULL", "\u212a = 1", "a AN\uff24 b"]
)
def test_words_are_ascii_alone(expression: str) -> None:
    with pytest.raises(InvalidFilterError):
        MessageFilter.sql(expression)


HOSTILE = {
    "brackets": "(" * 4_000 + "a = 1" + ")" * 4_000,
    "open brackets": "(" * 8_000,
    "negations": "NOT " * 2_000 + "a = 1",
    "comparisons": " OR ".join(["a = 1"] * (MAX_COMPARISONS + 1)),
    "comparisons to the limit of characters": " or ".join(["a=1"] * 1_100),
    "numbers": f"a IN ({', '.join(['1'] * (MAX_COMPARISONS + 1))})",
    "name": "a" * (MAX_FILTER_CHARACTERS + 1),
    "quotes in a text": "a = '" + "''" * 4_000,
    "digits": "a = " + "9" * 8_000,
    "quotes": "'" * 8_001,
    "names": "a = 1 " * 1_300,
    "signs": "a = " + "-" * 8_000,
    "not ASCII": "é" * 8_000,
    "a megabyte of a name": "a" * 1_000_000,
    "a megabyte of brackets": "(" * 500_000 + ")" * 500_000,
    "ten thousand brackets": "(" * 10_000 + "a = 1" + ")" * 10_000,
    "a megabyte of spaces": " " * 1_000_000 + ";",
}
STEPS_OF_A_CHARACTER = 100


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_after_work_that_its_length_bounds(expression: str) -> None:
    assert parse_filter("sql:a = 1").condition  # The parser itself is made once.
    steps = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with pytest.raises(InvalidFilterError) as refused:
            MessageFilter.sql(expression)
    finally:
        sys.setprofile(None)

    assert steps < STEPS_OF_A_CHARACTER * min(len(expression), MAX_FILTER_CHARACTERS)
    assert len(str(refused.value)) < 300


def test_parser_is_loaded_for_sql_alone() -> None:
    program = "import sys, txmq; txmq.parse_filter('A || B'); sys.exit('lark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_what_is_within_the_limits_is_taken() -> None:
    deep = "(" * MAX_DEPTH + "amount = 5" + ")" * MAX_DEPTH
    wide = " OR ".join(["amount = 5"] * MAX_COMPARISONS)

    listed = ", ".join(f"'{number}'" for number in range(500))

    assert wanted(f"sql:{deep}") == [0]
    assert wanted(f"sql:{wide}") == [0]
    assert wanted(f"sql:amount IN ({listed})") == [0, 1]


@pytest.mark.parametrize("hostile", ["' OR '1'='1", "'; DROP TABLE t; --", "%", "\\", "$(id)"])
def test_hostile_tag_is_only_a_tag(hostile: str) -> None:
    rows = table_of([(hostile, None), ("A", None)])

    assert parse_filter(hostile).mask(rows).to_pylist() == [True, False]
