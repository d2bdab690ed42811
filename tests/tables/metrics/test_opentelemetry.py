"""OpenTelemetry gets the figures that Prometheus gets, by a real SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import TOPIC
from tests.kit.reading import wait_until
from txmq.errors import ConfigError
from txmq.ground.histogram import Histogram
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics.figures import Figure, FigureKind, Latencies
from txmq.ops.metrics.formats import OpenTelemetryMetrics, attribute_of, exposition
from txmq.ops.metrics.meter import Meter
from txmq.ops.metrics.service import MetricsService
from txmq.store.store import Store

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
WAIT_S = 60.0
# What differs between two counts of the same tables.
OF_THE_COUNT = ("txmq_count_", "process_")


class Watched:
    """A broker that has done something of each kind."""

    def counts(self) -> BrokerCounts:
        return BrokerCounts(published=11, settled=7, committed=3, asked=4)

    def latencies(self) -> Latencies:
        return Latencies(publish=Histogram.of([3.0, 40.0, 70_000.0]), delay=Histogram.of([1.0]))

    def services(self) -> Mapping[str, bool]:
        return {"publisher": True, "delay service": False}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    world = ConsumerWorld(tmp_path)
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"open"))
    transaction.prepare()
    world.producer.send([Message(TOPIC, b"1")] * 5)
    world.publisher.run_once()
    world.consumer().poll(timeout_s=0)
    yield world
    world.close()


def observed(reader: InMemoryMetricReader) -> Samples:
    """Return all that the SDK would export, by names as Prometheus has them."""
    data = reader.get_metrics_data()
    return {
        (prometheus_name(metric), frozenset(dict(point.attributes or {}).items())): point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }  # fmt: skip


def prometheus_name(metric: Any) -> str:
    """Name it by the rules of OpenTelemetry's own exporter for Prometheus."""
    unit = {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
    name: str = metric.name.replace(".", "_")
    for part in ("_bucket", "_count", "_sum"):
        if type(metric.data).__name__ == "Sum" and name.endswith(f"_latency{part}"):
            # Prometheus has these three in one family.
            return f"{name.removesuffix(part)}_seconds{part}"
    is_counter = type(metric.data).__name__ == "Sum"
    return f"{name}{unit}{'_total' if is_counter else ''}"


def exposed(text: str) -> Samples:
    """Return the same as `observed`, from Prometheus's text."""
    return {
        (sample.name, frozenset((_attribute(k), v) for k, v in sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def _attribute(label: str) -> str:
    return label if label == "le" else attribute_of(label)


def test_both_get_the_same_figures(world: ConsumerWorld) -> None:
    meter = Meter(world.store, broker=Watched(), clock=world.clock)
    meter.count()
    reader = InMemoryMetricReader()
    shown = OpenTelemetryMetrics(MeterProvider([reader]))
    shown.begin(meter.figures)

    by_opentelemetry, by_prometheus = observed(reader), exposed(exposition(meter.figures()))
    assert by_opentelemetry == by_prometheus
    topic = frozenset({("messaging.destination.name", TOPIC)})
    assert by_opentelemetry["txmq_half_messages", topic] == 1
    assert by_opentelemetry["txmq_topic_messages", topic] == 5
    assert len(by_opentelemetry) > 100


def test_broker_shows_them_while_it_runs_and_again_after_a_restart(store: Store) -> None:
    reader = InMemoryMetricReader()
    broker = Broker(store, metrics=OpenTelemetryMetrics(MeterProvider([reader])))
    open_transactions = ("txmq_open_transactions", frozenset[tuple[str, str]]())
    for _ in range(2):
        with broker.start() as handle:
            assert handle.metrics_port is None
            wait_until(lambda: open_transactions in observed(reader), WAIT_S, "a count")
            up = frozenset({("txmq.service", "publisher")})
            assert observed(reader)["txmq_service_up", up] == 1
        assert observed(reader) == {}


def test_prometheus_may_look_beside_it(store: Store) -> None:
    from txmq.ops.metrics.server import MetricsEndpoint

    reader = InMemoryMetricReader()
    shown = [MetricsEndpoint("127.0.0.1:0"), OpenTelemetryMetrics(MeterProvider([reader]))]
    with MetricsService(store, shown).start() as handle:
        assert handle.port
        assert handle.is_alive
        wait_until(lambda: len(observed(reader)) > 20, WAIT_S, "a count")
    assert not handle.is_alive


def test_one_is_for_one_store_at_a_time(store: Store) -> None:
    shown = OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()]))
    first = MetricsService(store, shown).start()
    with pytest.raises(ConfigError, match="make another one, or stop that"):
        MetricsService(store, shown).start()
    first.stop()
    MetricsService(store, shown).start().stop()


def test_what_shows_no_figures_is_refused(store: Store) -> None:
    wrong: Any = "127.0.0.1:9464"
    with pytest.raises(ConfigError, match="must be a MetricsEndpoint or an OpenTelemetryMetrics"):
        Broker(store, metrics=wrong)
    with pytest.raises(ConfigError, match="not int"):
        MetricsService(store, [9464])  # type: ignore[list-item]


def test_without_an_sdk_nothing_is_observed(store: Store) -> None:
    with MetricsService(store, OpenTelemetryMetrics()).start() as handle:
        assert handle.is_alive


class RefusesOnce:
    """A provider, and its meter, that are not ready at first."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.refused = 0

    def get_meter(self, *_: object) -> Any:
        return self

    def create_observable_gauge(self, name: str, *_: object, **__: object) -> None:
        if not self.refused:
            self.refused += 1
            raise RuntimeError("the SDK is not ready")
        self.made.append(name)


def test_start_that_the_provider_refuses_can_be_tried_again() -> None:
    provider = RefusesOnce()
    shown: Any = OpenTelemetryMetrics(provider)  # type: ignore[arg-type]
    figure = Figure("txmq_open", FigureKind.GAUGE, "Open ones.", (), {(): 1.0})
    with pytest.raises(RuntimeError, match="not ready"):
        shown.begin(lambda: [figure])

    shown.begin(lambda: [figure])

    assert provider.made == ["txmq.open"]
