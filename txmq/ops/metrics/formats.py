"""Figures in Prometheus's formats, and as instruments for the user's own OpenTelemetry SDK."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from txmq.errors import ConfigError, EnvironmentProblemError, step_for_extra
from txmq.ground.histogram import BOUNDS_S, Histogram
from txmq.ops.metrics.figures import Figure, FigureKind
from txmq.ops.tracing import check_installed

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


SCOPE = "txmq"
BOUND = "le"
# Labels that the semantic conventions of messaging name; all others are txmq's own.
ATTRIBUTES = {
    "topic": "messaging.destination.name",
    "consumer_group": "messaging.consumer.group.name",
    "producer_group": "txmq.producer.group",
}
# The ends of names of figures, and their units as UCUM has them; the first two are left out.
_UNITS = {"_seconds": "s", "_bytes": "By"}
_COUNTED = {
    "_transactions": "{transaction}", "_transactions_older_than": "{transaction}",
    "_messages": "{message}", "_commits": "{commit}", "_files": "{file}", "_queues": "{queue}",
    "_claims": "{claim}", "_checks": "{check}", "_members": "{member}",
    "_rollbacks": "{transaction}", "_expirations": "{transaction}", "_discards": "{transaction}",
    "_answers": "{answer}", "_failures": "{failure}",
}  # fmt: skip

Figures = Callable[[], Sequence[Figure]]
Attributes = dict[str, str]
Samples = list[tuple[Attributes, float]]


class Series(NamedTuple):
    """What one instrument shows.

    Attributes:
        samples: chooses its values among those of its figure.
    """

    name: str
    unit: str
    is_counter: bool
    samples: Callable[[Figure], Samples]


# --- for Prometheus


def registry_of(figures: Callable[[], Sequence[Figure]]) -> CollectorRegistry:
    """Make a registry of these figures and those of this process: memory, time, open files.

    Raises: EnvironmentProblemError where Prometheus's library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ModuleNotFoundError as error:
        problem = "metrics need the package prometheus-client"
        raise EnvironmentProblemError(problem, step_for_extra("metrics")) from error
    registry = CollectorRegistry()
    registry.register(cast("Any", _Collector(figures)))
    ProcessCollector(registry=registry)
    return registry


def exposition(figures: Iterable[Figure]) -> str:
    """Return the figures as text, for a file that Prometheus's node exporter reads.

    Raises: EnvironmentProblemError where Prometheus's library is not installed.
    """
    rows = list(figures)
    registry = registry_of(lambda: rows)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


class _Collector:
    """Hands the figures of each look to Prometheus's library."""

    def __init__(self, figures: Callable[[], Sequence[Figure]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Return one family for each figure."""
        return map(_family, self._figures())


def _family(figure: Figure) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    name_and_text = (figure.name, figure.description)
    if figure.kind is FigureKind.HISTOGRAM:
        histogram = HistogramMetricFamily(*name_and_text, labels=figure.labels)
        for labels, value in cast("Mapping[tuple[str, ...], Histogram]", figure.samples).items():
            histogram.add_metric(labels, _cumulated(value), value.sum_s)
        return histogram
    family = CounterMetricFamily if figure.kind is FigureKind.COUNTER else GaugeMetricFamily
    metric = family(*name_and_text, labels=figure.labels)
    for labels, number in cast("Mapping[tuple[str, ...], float]", figure.samples).items():
        metric.add_metric(labels, number)
    return metric


def _cumulated(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the durations up to each bound, as Prometheus counts them."""
    bounds = [*(str(bound_s) for bound_s in BOUNDS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


# --- for OpenTelemetry


class OpenTelemetryMetrics:
    """Offers the figures of a store and its broker to OpenTelemetry; for `Broker(metrics=...)`.

    They are the figures that Prometheus gets, as observable instruments. One of these is for one
    running broker or MetricsService at a time; after its stop nothing is observed.

    Args:
        meter_provider: of OpenTelemetry's SDK; the global one by default.

    Raises:
        EnvironmentProblemError: OpenTelemetry's API is not installed, or has no meter.

    Example:
        >>> broker = Broker(store, metrics=OpenTelemetryMetrics())
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        """Make no instrument yet."""
        self._meter = _meter(meter_provider)
        self._lock = threading.Lock()
        self._figures: Figures | None = None
        self._instruments: set[str] = set()

    def begin(self, figures: Figures) -> None:
        """Observe these figures from now on; nothing where the provider raises.

        Raises: ConfigError if others are observed.
        """
        with self._lock:
            if self._figures is not None:
                problem = "this OpenTelemetryMetrics shows a running broker or MetricsService"
                raise ConfigError([f"metrics: {problem}; make another one, or stop that"])
            self._figures = figures
        try:
            self.look()
        except BaseException:
            self.stop()
            raise

    def look(self) -> None:
        """Make the instruments of figures that are new; a count brings some."""
        for figure in self._now():
            for series in series_of(figure):
                self._offer(figure, series)

    def stop(self) -> None:
        """Observe nothing any more."""
        with self._lock:
            self._figures = None

    def _now(self) -> Sequence[Figure]:
        figures = self._figures
        return () if figures is None else figures()

    def _offer(self, figure: Figure, series: Series) -> None:
        with self._lock:
            if series.name in self._instruments:
                return
            self._instruments.add(series.name)
        try:
            self._make(figure, series)
        except BaseException:
            with self._lock:
                self._instruments.discard(series.name)
            raise

    def _make(self, figure: Figure, series: Series) -> None:
        make: Any = (
            self._meter.create_observable_counter
            if series.is_counter
            else self._meter.create_observable_gauge
        )
        callback = self._callback(figure.name, series.samples)
        make(series.name, [callback], unit=series.unit, description=figure.description)

    def _callback(
        self, name: str, samples: Callable[[Figure], Samples]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for figure in self._now():
                if figure.name == name:
                    for attributes, value in samples(figure):
                        yield Observation(value, attributes)

        return observe


def _meter(provider: MeterProvider | None) -> Meter:
    check_installed()
    from opentelemetry.metrics import get_meter_provider

    try:
        return (provider or get_meter_provider()).get_meter(SCOPE)
    except Exception as error:
        problem = f"OpenTelemetry's meter provider cannot be loaded: {type(error).__name__}"
        step = "Correct or unset OTEL_PYTHON_METER_PROVIDER"
        raise EnvironmentProblemError(problem, step) from error


def series_of(figure: Figure) -> list[Series]:
    """Return the instrument of a figure; of a histogram its count, its sum and its buckets.

    OpenTelemetry has no observable histogram, and durations that are counted already cannot be
    recorded one by one.
    """
    name, unit = name_of(figure), unit_of(figure)
    if figure.kind is not FigureKind.HISTOGRAM:
        return [Series(name, unit, figure.kind is FigureKind.COUNTER, _values)]
    return [
        Series(f"{name}.count", "{duration}", is_counter=True, samples=_counts),
        Series(f"{name}.sum", unit, is_counter=True, samples=_sums),
        Series(f"{name}.bucket", "{duration}", is_counter=True, samples=_buckets),
    ]


def name_of(figure: Figure) -> str:
    """Name a figure by OpenTelemetry's conventions: a namespace, and the unit apart."""
    name = figure.name.replace("txmq_", "txmq.", 1)
    return next((name.removesuffix(end) for end in _UNITS if name.endswith(end)), name)


def unit_of(figure: Figure) -> str:
    """Return the unit of a figure, as UCUM has it."""
    ends = {**_UNITS, **_COUNTED}
    return next((unit for end, unit in ends.items() if figure.name.endswith(end)), "1")


def _values(figure: Figure) -> Samples:
    samples = cast("Mapping[tuple[str, ...], float]", figure.samples)
    return [(_attributes(figure, key), value) for key, value in samples.items()]


def _counts(figure: Figure) -> Samples:
    return [(attributes, float(histogram.total)) for attributes, histogram in _histograms(figure)]


def _sums(figure: Figure) -> Samples:
    return [(attributes, histogram.sum_s) for attributes, histogram in _histograms(figure)]


def _buckets(figure: Figure) -> Samples:
    return [
        ({**attributes, BOUND: bound}, count)
        for attributes, histogram in _histograms(figure)
        for bound, count in _cumulated(histogram)
    ]


def _histograms(figure: Figure) -> Iterator[tuple[Attributes, Histogram]]:
    samples = cast("Mapping[tuple[str, ...], Histogram]", figure.samples)
    return ((_attributes(figure, key), value) for key, value in samples.items())


def _attributes(figure: Figure, values: tuple[str, ...]) -> Attributes:
    return dict(zip(map(attribute_of, figure.labels), values, strict=True))


def attribute_of(label: str) -> str:
    """Name a label as an attribute."""
    return ATTRIBUTES.get(label, f"{SCOPE}.{label}")
