"""Charts as SVG, drawn by the server: no script draws, and nothing comes from elsewhere. Pure.

A chart fills the box that the page gives it; its words stand beside it as HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from sys import float_info

WIDTH, HEIGHT = 600.0, 120.0
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
# Of fewer values nothing is drawn.
LEAST = 2
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)

# A moment in seconds, and the value then; None where nothing was measured.
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, by its name."""

    name: str
    points: Sequence[Point]

    @property
    def last(self) -> float | None:
        """The newest value that was measured."""
        return next((value for _, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart, and the numbers at the ends of its axes."""

    svg: str
    top: float
    begin_s: float
    end_s: float


def chart(lines: Sequence[Line], label: str) -> Chart | None:
    """The lines over one another, from zero; None where there are not two moments.

    Args:
        lines: the first one is filled.
        label: what a reader hears who does not see it.
    """
    moments = sorted({at_s for line in lines for at_s, _ in line.points})
    values = [value for line in lines for _, value in line.points if value is not None]
    if len(moments) < LEAST or not values:
        return None
    begin_s, end_s, top = moments[0], moments[-1], nice_top(max(values))
    box = _Box(WIDTH, HEIGHT, begin_s, end_s, top)
    drawn = "".join(box.drawn(line.points, number) for number, line in enumerate(lines, 1))
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{y:g}" y2="{y:g}"/>'
        for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
    )
    return Chart(_svg("chart", WIDTH, HEIGHT, grid + drawn, label), top, begin_s, end_s)


def sparkline(points: Sequence[Point]) -> str:
    """A small line without axes; an empty text where there are not two values.

    It adds nothing to the number beside it, so nobody is read it out.
    """
    values = [value for _, value in points if value is not None]
    if len(values) < LEAST:
        return ""
    box = _Box(SPARK_WIDTH, SPARK_HEIGHT, points[0][0], points[-1][0], max(values) * 1.1 or 1.0)
    return _svg("spark", SPARK_WIDTH, SPARK_HEIGHT, box.drawn(points, 1), None)


def nice_top(highest: float) -> float:
    """The next round number above; 1 for nothing, or as good as nothing."""
    # Of less there is no power of ten.
    if highest < float_info.min:
        return 1.0
    size: float = 10.0 ** floor(log10(highest))
    return next(step * size for step in _NICE if step * size >= highest * 0.999)


@dataclass(frozen=True, slots=True)
class _Box:
    """Where values lie in a picture."""

    width: float
    height: float
    begin_s: float
    end_s: float
    top: float

    def drawn(self, points: Sequence[Point], number: int) -> str:
        """The line and, below the first one, its area; a gap where nothing was measured."""
        parts = []
        for run in _runs(points):
            places = [self._place(at_s, value) for at_s, value in run]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            if len(places) == 1:
                path += "h0.01"
            if number == 1 and len(places) > 1:
                ends = f"L{places[-1][0]:.1f} {self.height:g}L{places[0][0]:.1f} {self.height:g}Z"
                parts.append(f'<path class="area" d="{path}{ends}"/>')
            parts.append(f'<path class="line s{number}" d="{path}"/>')
        return "".join(parts)

    def _place(self, at_s: float, value: float) -> tuple[float, float]:
        length_s = self.end_s - self.begin_s or 1.0
        x = (at_s - self.begin_s) / length_s * self.width
        part = min(1.0, max(0.0, value / self.top))
        # The line is drawn inside the picture, not half beside it.
        return x, self.height - 1.5 - part * (self.height - 3.0)


def _runs(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for at_s, value in points:
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((at_s, value))
    if run:
        yield run


def _svg(kind: str, width: float, height: float, content: str, label: str | None) -> str:
    spoken = 'aria-hidden="true"' if label is None else f'role="img" aria-label="{escape(label)}"'
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" '
        f'focusable="false" {spoken}>{content}</svg>'
    )
