"""Values for JSON, and sums of results."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import pytest

from txmq.ground.results import Plain, Sum, plain

MOMENT = datetime(2026, 7, 1, 12, 0, 0, 5, UTC)


class Kind(enum.Enum):
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class Inner(Plain, Sum):
    count: int = 0
    days: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer(Plain, Sum):
    inner: Inner = field(default_factory=Inner)
    seconds: float = 0.0
    failed: Mapping[str, str] = field(default_factory=dict)
    groups: frozenset[str] = field(default_factory=frozenset)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (1.5, 1.5),
        ("text", "text"),
        (Kind.SMALL, "small"),
        (MOMENT, "2026-07-01T12:00:00.000005+00:00"),
        (MOMENT.date(), "2026-07-01"),
        ((1, (2,)), [1, [2]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (MappingProxyType({1: MOMENT.date()}), {"1": "2026-07-01"}),
        (Inner(1, (MOMENT.date(),)), {"count": 1, "days": ["2026-07-01"]}),
        ([Inner()], [{"count": 0, "days": []}]),
    ],
)
def test_plain_value_is_what_json_gives_back(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value))) == expected


def test_fields_keep_their_order() -> None:
    assert list(Outer().to_dict()) == ["inner", "seconds", "failed", "groups"]


def test_class_itself_is_no_result() -> None:
    assert plain(Inner) is Inner


def test_sum_adds_counts_and_joins_the_rest() -> None:
    first = Outer(Inner(1, (date(2026, 1, 1),)), 0.5, {"a": "x", "b": "x"}, frozenset({"g"}))
    second = Outer(Inner(2, (date(2026, 1, 2),)), 1.0, {"b": "y"}, frozenset({"h"}))

    total = first + second

    assert total == Outer(
        Inner(3, (date(2026, 1, 1), date(2026, 1, 2))),
        1.5,
        {"a": "x", "b": "y"},
        frozenset({"g", "h"}),
    )
    assert total + Outer() == total
