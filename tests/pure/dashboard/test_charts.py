"""Charts are XML of numbers, inside their box, with gaps where nothing was measured."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from txmq.ops.dashboard.rendering import HEIGHT, WIDTH, Line, chart, nice_top, sparkline
from txmq.ops.dashboard.snapshot import NAMED_MAX, SAMPLES_MAX, History, Sample, rates, topic_rate

POINTS = st.lists(
    st.tuples(st.floats(0, 1e9), st.none() | st.floats(0, 1e12)), max_size=30
)  # fmt: skip


@given(POINTS)
@example([(0.0, 0.0), (1.0, 5e-324)])
@example([(0.0, 0.0), (1.0, 2.3e-308)])
def test_lines_stay_in_the_picture(points: list[tuple[float, float | None]]) -> None:
    drawn = chart([Line("x", sorted(points, key=lambda point: point[0]))], "rate & <b>")
    if drawn is None:
        return
    root = ET.fromstring(drawn.svg)  # noqa: S314 - made here
    numbers = [
        (float(x), float(y))
        for path in root.iter("path")
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
    ]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers)
    assert root.attrib["aria-label"] == "rate & <b>"


@given(st.floats(1e-9, 1e15))
def test_top_is_a_round_number_not_far_above(highest: float) -> None:
    assert highest * 0.99 <= nice_top(highest) <= highest * 2.6


def test_gap_is_a_gap() -> None:
    drawn = chart([Line("x", [(0, 1.0), (1, 1.0), (2, None), (3, 1.0), (4, 2.0)])], "x")

    assert drawn is not None
    assert drawn.svg.count('class="line s1"') == 2
    assert Line("x", [(0, 1.0), (1, None)]).last == 1.0


def test_nothing_is_drawn_of_one_value() -> None:
    assert chart([Line("x", [(0, 1.0)])], "x") is None
    assert sparkline([(0, 1.0)]) == ""
    assert "svg" in sparkline([(0, 0.0), (1, 0.0)])


def test_rate_of_what_fell_is_zero() -> None:
    samples = [Sample(0.0, committed=5), Sample(10.0, committed=25), Sample(20.0, committed=3)]

    assert rates(samples, lambda one: one.committed) == [(10.0, 2.0), (20.0, 0.0)]


def test_history_is_bounded() -> None:
    history = History()
    for number in range(SAMPLES_MAX + 50):
        many = {f"topic-{place}": number for place in range(3_000 if number % 50 == 0 else 0)}
        topics = {**many, "t": number * 10_000}
        history.add(Sample(float(number), messages=topics, lags={"g": number}))

    samples = history.samples()
    assert len(samples) == SAMPLES_MAX
    assert all(not one.messages for one in samples[:-NAMED_MAX])
    assert all(len(one.messages) <= 2_000 for one in samples)
    assert samples[0].lag == 50
    assert topic_rate(samples, "t") == 10_000
    assert topic_rate(samples, "no such topic") is None
