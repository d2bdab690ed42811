"""The service that counts a store and shows its figures, to Prometheus or to OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from txmq.errors import ConfigError
from txmq.ground.clock import Clock
from txmq.ground.handles import ServiceHandle
from txmq.ops.metrics.formats import OpenTelemetryMetrics, exposition, registry_of
from txmq.ops.metrics.meter import Meter, MeterHandle, Watched
from txmq.ops.metrics.server import Answers, MetricsEndpoint, ServerHandle
from txmq.store.store import Store, check_store

logger = logging.getLogger(__name__)

# Where figures are shown.
Shown = MetricsEndpoint | OpenTelemetryMetrics | Sequence["MetricsEndpoint | OpenTelemetryMetrics"]
_View = ServiceHandle | OpenTelemetryMetrics


class MetricsService:
    """Counts a store each 15 seconds, and shows the figures to Prometheus or OpenTelemetry.

    A count takes at most a twentieth of the time: a large store is counted less often. Requests
    never count, so they cost the same however often they come.

    Args:
        store: the store to count.
        shown: where Prometheus looks (on another address than this machine's own it needs TLS and a
            client authority), or what OpenTelemetry exports, or several of them.
        broker: the broker in this process, whose counts and health are shown too.
        clock: the clock by which ages and lags are computed.

    Example:
        >>> "txmq_open_transactions 0.0" in MetricsService(store).run_once()
        True
    """

    def __init__(
        self,
        store: Store,
        shown: Shown | None = None,
        *,
        broker: Watched | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Count nothing yet."""
        check_store(store)
        self._meter = Meter(store, broker=broker, clock=clock)
        self._shown = checked_shown(MetricsEndpoint("127.0.0.1:9464") if shown is None else shown)
        self._broker = broker

    def run_once(self) -> str:
        """Count once, and return the figures in Prometheus's text format.

        Reads: as `Admin.status` and `ConsumerLag.of_all`. Commits: 0. A retry counts again.

        Raises:
            StorageError: a table cannot be read.
            EnvironmentProblemError: Prometheus's library is not installed.
        """
        self._meter.count()
        return exposition(self._meter.figures())

    def start(self) -> MetricsHandle:
        """Show the figures, and count in a thread; a count that fails is tried again.

        Commits: 0.

        Raises:
            ConfigError: a file of the endpoint cannot be read, or the OpenTelemetryMetrics shows
                another store.
            EnvironmentProblemError: the address cannot be had, or Prometheus's library is not
                installed.
        """
        instruments = [shown for shown in self._shown if isinstance(shown, OpenTelemetryMetrics)]
        with ExitStack() as stack:
            views: list[_View] = []
            for shown in self._shown:
                views.append(self._view(shown))
                stack.callback(views[-1].stop)
            meter = MeterHandle(self._meter.count, counted=lambda: _look(instruments))
            stack.pop_all()
        return MetricsHandle([*views, meter])

    def _view(self, shown: MetricsEndpoint | OpenTelemetryMetrics) -> _View:
        if isinstance(shown, MetricsEndpoint):
            return self._server(shown)
        shown.begin(self._meter.figures)
        logger.info("figures for OpenTelemetry")
        return shown

    def _server(self, endpoint: MetricsEndpoint) -> ServerHandle:
        registry = registry_of(self._meter.figures)
        from prometheus_client import make_wsgi_app

        answers = Answers(
            make_wsgi_app(registry), self._health, self._missing, is_local=endpoint.is_local
        )
        server = ServerHandle(endpoint, answers)
        logger.info("figures at %s/metrics, health beside", server.address)
        return server

    def _health(self) -> Mapping[str, bool]:
        return self._broker.services() if self._broker else {}

    def _missing(self) -> list[str]:
        """List what is not ready."""
        services = self._health()
        ended = [f"the {name}, which has ended" for name, is_up in services.items() if not is_up]
        starting = ["the start of the broker"] if self._broker and not services else []
        uncounted = [] if self._meter.has_counted else ["a count of the store"]
        return [*ended, *starting, *uncounted]


class MetricsHandle:
    """What shows the figures, and the thread that counts."""

    def __init__(self, parts: Sequence[_View]) -> None:
        """Hold what `MetricsService.start()` made; the last one counts, and stops first."""
        self._parts = parts
        self._threads = [part for part in parts if not isinstance(part, OpenTelemetryMetrics)]

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of it."""
        self.stop()

    @property
    def port(self) -> int | None:
        """The port that it listens on; None where it listens on none."""
        ports = (part.port for part in self._parts if isinstance(part, ServerHandle))
        return next(ports, None)

    def stop(self) -> None:
        """Stop all of it; returns when nothing runs."""
        _stop_all(self._parts)

    @property
    def is_alive(self) -> bool:
        """Whether all of it runs."""
        return all(thread.is_alive for thread in self._threads)

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended one of them; None if none did."""
        failures = (thread.exception for thread in self._threads)
        return next((failure for failure in failures if failure is not None), None)


def checked_shown(shown: Shown) -> Sequence[MetricsEndpoint | OpenTelemetryMetrics]:
    """Return all of them as a sequence. Raises: ConfigError for something else."""
    several = shown if isinstance(shown, Sequence) else (shown,)
    for place in several:
        if not isinstance(place, MetricsEndpoint | OpenTelemetryMetrics):
            kinds = "a MetricsEndpoint or an OpenTelemetryMetrics"
            raise ConfigError([f"metrics: must be {kinds}, not {type(place).__name__}"])
    return several


def _look(instruments: Sequence[OpenTelemetryMetrics]) -> None:
    for instrument in instruments:
        instrument.look()


def _stop_all(parts: Sequence[_View]) -> None:
    """Stop all, the last one first, whichever of them fails."""
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.stop)
