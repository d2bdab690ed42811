"""Shapes that are read from the annotations of classes, and which register has which form."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import pytest

import txmq
from txmq.ops.admin.forms import form_of
from txmq.store.shapes import (
    LATER,
    AtMost,
    Day,
    Moment,
    Name,
    QueueNumber,
    json_text,
    problem_of_value,
    shape_of,
)
from txmq.store.tables import CONSUMER_GROUP, DEAD_LETTERS, OPTIONAL_REGISTERS, REGISTERS, REMOTE


class End(NamedTuple):
    mark: int
    messages: int


@dataclass(frozen=True, slots=True)
class Entry:
    title: Name
    since_ms: Moment
    weight: float | None


class Value(TypedDict):
    entries: Mapping[str, Entry]
    ends: NotRequired[Mapping[QueueNumber, End]]
    pairs: NotRequired[Sequence[tuple[int, str]]]
    few: NotRequired[Annotated[tuple[int, ...], AtMost(2)]]
    two: NotRequired[Annotated[Mapping[str, Any], AtMost(2)]]
    day: NotRequired[Day]
    packed: NotRequired[Annotated[str, json_text(shape_of(Entry))]]


@dataclass(frozen=True, slots=True)
class Settled:
    mark: int = 0
    count: Annotated[int, LATER] = 0
    names: Mapping[str, str] = field(default_factory=dict)


ENTRY = {"title": "one", "since_ms": 5, "weight": 1.5}


@pytest.mark.parametrize(
    "value",
    [
        {"entries": {}},
        {"entries": {"a": ENTRY, "b": {**ENTRY, "weight": None}}, "written_by_a_later_txmq": 1},
        {
            "entries": {},
            "ends": {"0": [1, 2]},
            "pairs": [[1, "a"]],
            "few": [1, 2],
            "two": {"a": []},
        },
        {"entries": {}, "two": {"a": []}, "day": "2026-01-31"},
        {"entries": {}, "packed": '{"title": "", "since_ms": 0, "weight": 1}'},
    ],
)
def test_value_of_this_shape_has_no_problem(value: dict[str, Any]) -> None:
    assert problem_of_value(Value, value) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"ends": {}}, "entries is missing"),
        ({"entries": []}, "entries must be an object"),
        ({"entries": {"a": 1}}, "entries.a must be an object"),
        ({"entries": {"a": {"title": "x"}}}, "entries.a.since_ms is missing"),
        ({"entries": {"a": ENTRY | {"title": 1}}},
         "entries.a.title must be text of 256 characters at most"),
        ({"entries": {"a": ENTRY | {"since_ms": 10**18}}},
         "entries.a.since_ms must be a time in milliseconds"),
        ({"entries": {"a": ENTRY | {"weight": True}}}, "entries.a.weight must be a number"),
        ({"entries": {}, "ends": {"x": [1, 2]}}, "ends.x must be the number of a queue"),
        ({"entries": {}, "ends": {"0": [1]}}, "ends.0 must be a list of 2"),
        ({"entries": {}, "ends": {"0": [1, True]}}, "ends.0.1 must be a whole number"),
        ({"entries": {}, "ends": {"0": [1, 2**63]}}, "ends.0.1 must be a whole number"),
        ({"entries": {}, "ends": None}, "ends must be an object"),
        ({"entries": {}, "pairs": {}}, "pairs must be a list"),
        ({"entries": {}, "pairs": [[1, 2]]}, "pairs.0.1 must be text"),
        ({"entries": {}, "few": [1, 2, 3]}, "few must be a list of 2 at most"),
        ({"entries": {}, "two": {"a": 1, "b": 2, "c": 3}},
         "two must have 2 entries at most, not 3"),
        ({"entries": {}, "day": "2026-02-31"}, "day must be a date such as 2026-01-31"),
        ({"entries": {}, "packed": "{"}, "packed must be a text of JSON"),
        ({"entries": {}, "packed": "{}"}, "packed.title is missing"),
    ],
)  # fmt: skip
def test_first_problem_is_told_by_its_place(value: dict[str, Any], problem: str) -> None:
    assert problem_of_value(Value, value) == problem


def test_default_of_a_field_does_not_make_its_key_optional() -> None:
    assert problem_of_value(Settled, {"mark": 1, "names": {}}) is None
    assert problem_of_value(Settled, {"mark": 1}) == "names is missing"
    assert problem_of_value(Settled, {}) is None
    assert problem_of_value(None, {"anything": 1}) is None


@pytest.mark.parametrize(
    "name",
    [*REGISTERS, *OPTIONAL_REGISTERS, *(f"{p}a" for p in (CONSUMER_GROUP, DEAD_LETTERS, REMOTE))],
)
def test_every_register_but_the_settings_has_a_form(name: str) -> None:
    assert (form_of(name) is None) == (name == "config")


def calls_of_register(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr == "register" and owner.endswith("tables"):
                yield node


def test_whoever_reads_a_value_names_its_form() -> None:
    without = [
        f"{path.name}: {ast.unparse(call.args[0])}"
        for path in sorted(Path(txmq.__file__).parent.rglob("*.py"))
        for call in calls_of_register(ast.parse(path.read_text()))
        if len(call.args) < 2
    ]

    # A backup looks at the versions of tables alone.
    assert without == ["backup.py: name", "store.py: 'config'", "store.py: 'config'"]
