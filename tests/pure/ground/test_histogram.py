"""Durations are counted by bounds, and sums of counts are counts of all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txmq.ground.histogram import BOUNDS_S, NO_DURATIONS, Histogram

durations_ms = st.lists(st.floats(-1e6, 1e9, allow_nan=False), max_size=30)


@given(durations_ms, durations_ms)
def test_sum_of_two_counts_all(first: list[float], second: list[float]) -> None:
    both = Histogram.of(first) + Histogram.of(second)

    assert both.counts == Histogram.of(first + second).counts
    assert both.total == len(first) + len(second)


@given(durations_ms)
def test_each_duration_is_counted_at_its_bound(values: list[float]) -> None:
    histogram = Histogram.of(values)

    below = 0
    for count, bound_s in zip(histogram.counts, BOUNDS_S, strict=False):
        below += count
        assert below == sum(max(value, 0.0) / 1000 <= bound_s for value in values)


def test_nothing_is_nothing() -> None:
    assert Histogram.of([]) == NO_DURATIONS
    assert NO_DURATIONS.total == 0


def test_time_below_zero_counts_as_none() -> None:
    histogram = Histogram.of([-5_000])

    assert (histogram.counts[0], histogram.sum_s) == (1, 0.0)
