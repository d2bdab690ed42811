from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.ground.clock import SystemClock, milliseconds, moment_problem, timestamp
from txmq.testing import START_MS, ManualClock

YEAR_3000_MS = 32_503_680_000_000


def test_system_clock_shows_the_time_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    shown = SystemClock().now_ms()
    after = time.time_ns() // 1_000_000

    assert before <= shown <= after


def test_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()

    assert clock.now_ms() == clock.now_ms() == START_MS

    clock.advance(1.25)

    assert clock.now_ms() == START_MS + 1250


def test_manual_clock_can_be_set_back() -> None:
    clock = ManualClock(now_ms=10_000)

    clock.advance(-4)

    assert clock.now_ms() == 6_000


def test_start_of_the_manual_clock_is_a_round_date() -> None:
    assert timestamp(START_MS) == datetime(2026, 1, 1, tzinfo=UTC)


@given(st.integers(-YEAR_3000_MS, YEAR_3000_MS))
def test_milliseconds_survive_the_way_through_a_timestamp(now_ms: int) -> None:
    moment = timestamp(now_ms)

    assert moment.utcoffset() == timedelta(0)
    assert moment.microsecond % 1000 == 0
    assert milliseconds(moment) == now_ms


def test_timestamp_of_another_zone_is_the_same_instant() -> None:
    moment = datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))

    assert milliseconds(moment) == START_MS


def test_naive_time_is_not_taken_for_utc() -> None:
    with pytest.raises(TypeError):
        milliseconds(datetime(2026, 1, 1))  # noqa: DTZ001


class BrokenZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise RuntimeError

    def tzname(self, _: datetime | None) -> str:
        return "broken"


class ZoneOfNothing(BrokenZone):
    def utcoffset(self, _: datetime | None) -> None:  # type: ignore[override]
        return None


FAR_EAST, FAR_WEST = timezone(timedelta(hours=23)), timezone(-timedelta(hours=23))


@pytest.mark.parametrize(
    ("moment", "problem"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001
        (datetime(2026, 1, 1, tzinfo=ZoneOfNothing()), "no time zone"),
        (datetime(2026, 1, 1, tzinfo=BrokenZone()), "cannot be computed"),
        (datetime.min.replace(tzinfo=FAR_EAST), "years 1 to 9999"),
        (datetime.max.replace(tzinfo=FAR_WEST), "years 1 to 9999"),
    ],
)
def test_time_that_is_none_in_utc_says_why(moment: datetime, problem: str) -> None:
    assert problem in str(moment_problem(moment))


@given(st.datetimes(timezones=st.timezones()))
def test_time_without_a_problem_has_milliseconds(moment: datetime) -> None:
    if moment_problem(moment) is None:
        assert abs(milliseconds(moment) - moment.timestamp() * 1000) <= 1


class TimeOfALibrary(datetime):
    """As pendulum's, which Airflow hands to its tasks: a difference that cannot be divided."""

    def __sub__(self, other: object) -> Any:
        return object()


def test_time_of_a_library_is_a_time() -> None:
    moment = TimeOfALibrary(2027, 1, 1, 8, tzinfo=timezone(timedelta(hours=1)))

    assert milliseconds(moment) == milliseconds(datetime(2027, 1, 1, 7, tzinfo=UTC))
