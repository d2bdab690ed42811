"""Filters made at random, each with what it means in plain Python, and rows to try them on."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from txmq.store.schemas import PROPERTIES

Properties = tuple[tuple[str, str | None], ...] | None
Row = tuple[str | None, Properties]
Truth = bool | None

NAMES = ("a", "b", "order-id", "TAGS")
NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?")
VALUES = (
    "1", "2", "-1", "+1", "1.0", "01", "1e0", "1.5", ".5", "5.", "9007199254740993", "1e99", "-0",
    "1e-99", "1e999", "NaN", "inf", "0x1", "1d", " 1", "1\n", "\uff11", "", "-", "+", "+-1", "true",
    "TRUE", "tRuE", "false", "truE ", "fal\u017fe", "x", "X", "it's", "é", "😀", "%", "9" * 41,
    "' OR '1'='1",
)  # fmt: skip
COMPARED: dict[str, Callable[[object, object], bool]] = {
    "=": operator.eq, "<>": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip
FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True)
class Written:
    """An expression, and its truth for one row."""

    text: str
    truth: Callable[[Row], Truth]

    def __repr__(self) -> str:
        return self.text


def value_of(row: Row, name: str) -> str | None:
    tags, properties = row
    if name == "TAGS":
        return tags
    return next((value for key, value in properties or () if key == name), None)


def read_as(text: str | None, literal: object) -> object:
    """A property as the kind that the literal is; None is UNKNOWN."""
    if text is None or isinstance(literal, str):
        return text
    if isinstance(literal, bool):
        return {"true": True, "false": False}.get(text.lower()) if text.isascii() else None
    return float(text) if NUMBER.fullmatch(text) else None


def compared(row: Row, name: str, sign: str, literal: object) -> Truth:
    value = read_as(value_of(row, name), literal)
    return None if value is None else COMPARED[sign](value, literal)


def both(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def either(left: Truth, right: Truth) -> Truth:
    return negated(both(negated(left), negated(right)))


def written_name(name: str) -> str:
    return f'"{name}"' if "-" in name else name


def written_literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


texts = st.sampled_from([value for value in VALUES if "\n" not in value])
numbers = st.sampled_from([0, 1, -1, 1.5, 0.5, 5, 9007199254740993, 1e99, -2.5e-3])
names = st.sampled_from(NAMES)


@st.composite
def comparisons(draw: st.DrawFn) -> Written:
    name, literal = draw(names), draw(st.one_of(texts, numbers, st.booleans()))
    signs = ["=", "<>"] if isinstance(literal, bool) else list(COMPARED)
    sign = draw(st.sampled_from(signs))
    own, other = written_name(name), written_literal(literal)
    # An int of Python is compared exactly; properties are read as 64-bit floats.
    value = literal if isinstance(literal, bool | str) else float(literal)
    text = draw(
        st.sampled_from([f"{own}{sign}{other}", f"{other} {FLIPPED.get(sign, sign)} {own}"])
    )
    return Written(text, lambda row: compared(row, name, sign, value))


@st.composite
def ranges(draw: st.DrawFn) -> Written:
    name = draw(names)
    low, high = draw(st.one_of(st.tuples(texts, texts), st.tuples(numbers, numbers)))
    is_not = draw(st.booleans())
    word = "NOT BETWEEN" if is_not else "between"
    text = f"{written_name(name)} {word} {written_literal(low)} AND {written_literal(high)}"
    bounds = [each if isinstance(each, str) else float(each) for each in (low, high)]

    def truth(row: Row) -> Truth:
        inside = both(compared(row, name, ">=", bounds[0]), compared(row, name, "<=", bounds[1]))
        return negated(inside) if is_not else inside

    return Written(text, truth)


@st.composite
def lists(draw: st.DrawFn) -> Written:
    name = draw(names)
    items = draw(st.lists(st.one_of(texts, numbers, st.booleans()), min_size=1, max_size=4))
    is_not = draw(st.booleans())
    listed = ", ".join(map(written_literal, items))
    text = f"{written_name(name)} {'NOT IN' if is_not else 'In'} ({listed})"

    def truth(row: Row) -> Truth:
        found: Truth = False
        for item in items:
            value = item if isinstance(item, bool | str) else float(item)
            found = either(found, compared(row, name, "=", value))
        return negated(found) if is_not else found

    return Written(text, truth)


@st.composite
def null_tests(draw: st.DrawFn) -> Written:
    name, is_not = draw(names), draw(st.booleans())
    text = f"{written_name(name)} IS {'NOT ' if is_not else ''}NULL"
    return Written(text, lambda row: (value_of(row, name) is None) is not is_not)


@st.composite
def constants(draw: st.DrawFn) -> Written:
    value = draw(st.booleans())
    return Written(str(value), lambda _: value)


def joined(terms: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def several(word: str, join: Callable[[Truth, Truth], Truth]) -> st.SearchStrategy[Written]:
        return st.tuples(terms, terms).map(
            lambda pair: Written(
                f"({pair[0].text}) {word} ({pair[1].text})",
                lambda row: join(pair[0].truth(row), pair[1].truth(row)),
            )
        )

    turned = terms.map(lambda one: Written(f"NOT ({one.text})", lambda r: negated(one.truth(r))))
    return st.one_of(several("AND", both), several("or", either), turned)


simple = st.one_of(comparisons(), ranges(), lists(), null_tests(), constants())
expressions = st.recursive(simple, joined, max_leaves=8)

property_values = st.one_of(st.none(), st.sampled_from(VALUES))
properties = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "order-id", "TAGS"]), property_values),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ).map(tuple),
)
rows = st.tuples(st.one_of(st.none(), st.sampled_from(VALUES)), properties)
row_lists = st.lists(rows, max_size=6)


def table_of(several: list[Row]) -> pa.Table:
    """The two columns that a filter looks at."""
    tags, properties = [row[0] for row in several], [row[1] for row in several]
    columns = {
        "tags": pa.array(tags, pa.string()),
        "properties": pa.array([None if p is None else list(p) for p in properties], PROPERTIES),
    }
    return pa.table(columns)
