"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from txmq.ground.amounts import counted
from txmq.ground.histogram import BOUNDS_S, NO_DURATIONS, Histogram
from txmq.ops.dashboard import rendering as words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, words.NOTHING), (0, "0 s"), (0.0002, "1 ms"), (0.027, "27 ms"), (1.24, "1.2 s"),
        (42, "42 s"), (60, "1 min"), (61, "1 min 1 s"), (3_599, "59 min 59 s"), (3_600, "1 h"),
        (7_800, "2 h 10 min"), (86_400, "1 d"), (3 * 86_400 + 4 * 3_600 + 59, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations_have_units(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (None, words.NOTHING),
        (0, "0/s"),
        (1_234.5, "1,234/s"),
        (0.5, "0.5/s"),
        (0.05, "3/min"),
        (0.001, "3.6/h"),
    ],
)  # fmt: skip
def test_rates_have_units(per_s: float | None, text: str) -> None:
    assert words.rate(per_s) == text


def test_times_say_their_zone() -> None:
    elsewhere = datetime(2026, 11, 23, 1, 2, 3, tzinfo=timezone(timedelta(hours=9)))

    assert words.moment(elsewhere) == "2026-11-22 16:02:03 UTC"
    assert words.clock_time(elsewhere.timestamp()) == "16:02:03 UTC"
    assert words.moment(None) == words.NOTHING


def test_sizes_and_counts() -> None:
    assert [words.size(n) for n in (0, 1_023, 1_024, 5 * 1_024**3)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 GiB",
    ]  # fmt: skip
    assert (words.count(1_234_567), words.count(None)) == ("1,234,567", words.NOTHING)
    assert counted(1, "message") == "1 message"
    assert counted(2, "thing needs", "things need") == "2 things need"
    assert words.hours(None) == "for ever"
    assert words.hours(72.0) == "3 d"


def test_quantile_lies_between_the_bounds_of_its_count() -> None:
    half, none = Histogram.of([40.0] * 9 + [900.0]), NO_DURATIONS

    assert 0.025 <= (half.quantile(0.5) or 0) <= 0.05
    assert 0.5 <= (half.quantile(0.99) or 0) <= 1.0
    assert none.quantile(0.5) is None
    assert Histogram.of([1e9]).quantile(0.5) == BOUNDS_S[-1]
