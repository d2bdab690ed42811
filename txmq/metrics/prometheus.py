"""Figures in the formats of Prometheus, by its own library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from txmq.errors import EnvironmentProblemError
from txmq.histogram import BOUNDS_S, Histogram
from txmq.metrics.figures import Figure, FigureKind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class _Collector:
    """Hands the figures of each look to Prometheus's library."""

    def __init__(self, figures: Callable[[], Sequence[Figure]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """One family for each figure."""
        return map(_family, self._figures())


def registry_of(figures: Callable[[], Sequence[Figure]]) -> CollectorRegistry:
    """A registry with these figures, and with those of this process: memory, time, open files.

    Raises: EnvironmentProblemError where Prometheus's library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ModuleNotFoundError as error:
        problem = "metrics need the package prometheus-client"
        raise EnvironmentProblemError(problem, "Run `pip install 'txmq[metrics]'`") from error
    registry = CollectorRegistry()
    registry.register(cast("Any", _Collector(figures)))
    ProcessCollector(registry=registry)
    return registry


def exposition(figures: Iterable[Figure]) -> str:
    """The figures as text, for a file that Prometheus's node exporter reads.

    Raises: EnvironmentProblemError where Prometheus's library is not installed.
    """
    kept = list(figures)
    registry = registry_of(lambda: kept)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def _family(figure: Figure) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    arguments = (figure.name, figure.description)
    if figure.kind is FigureKind.HISTOGRAM:
        histogram = HistogramMetricFamily(*arguments, labels=figure.labels)
        for labels, value in cast("Mapping[tuple[str, ...], Histogram]", figure.samples).items():
            histogram.add_metric(labels, _buckets(value), value.sum_s)
        return histogram
    family = CounterMetricFamily if figure.kind is FigureKind.COUNTER else GaugeMetricFamily
    metric = family(*arguments, labels=figure.labels)
    for labels, number in cast("Mapping[tuple[str, ...], float]", figure.samples).items():
        metric.add_metric(labels, number)
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus counts all up to a bound."""
    bounds = [*(str(bound_s) for bound_s in BOUNDS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
