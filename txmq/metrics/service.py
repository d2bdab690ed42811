"""The service that counts a store and shows its figures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Self

from txmq.clock import Clock
from txmq.handles import ServiceHandle
from txmq.metrics.endpoint import MetricsEndpoint
from txmq.metrics.meter import Meter, MeterHandle, Watched
from txmq.metrics.prometheus import exposition, registry_of
from txmq.metrics.server import Answers, ServerHandle
from txmq.store.store import Store

logger = logging.getLogger(__name__)


class MetricsService:
    """Counts a store each 15 seconds, and shows the figures to Prometheus.

    A count takes at most a twentieth of the time: a large store is counted less often. Requests
    never count, so they cost the same however often they come.

    Args:
        store: the store to count.
        endpoint: where to listen; on another address than this machine's own it needs TLS and a
            client authority.
        broker: the broker in this process, whose counts and health are shown too.
        clock: the clock by which ages and lags are computed.

    Example:
        >>> "txmq_open_transactions 0.0" in MetricsService(store).run_once()
        True
    """

    def __init__(
        self,
        store: Store,
        endpoint: MetricsEndpoint | None = None,
        *,
        broker: Watched | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Count nothing yet."""
        self._meter = Meter(store, broker=broker, clock=clock)
        self._endpoint = endpoint or MetricsEndpoint("127.0.0.1:9464")
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
        """Listen, and count in a thread; a count that fails is tried again.

        Commits: 0.

        Raises:
            ConfigError: a file of the endpoint cannot be read.
            EnvironmentProblemError: the address cannot be had, or Prometheus's library is not
                installed.
        """
        registry = registry_of(self._meter.figures)
        from prometheus_client import make_wsgi_app

        answers = Answers(
            make_wsgi_app(registry),
            self._health,
            self._missing,
            is_local=self._endpoint.is_local,
        )
        server = ServerHandle(self._endpoint, answers)
        scheme = "http" if self._endpoint.certificate is None else "https"
        host = self._endpoint.address.rpartition(":")[0]
        logger.info("figures at %s://%s:%d/metrics, health beside", scheme, host, server.port)
        return MetricsHandle(server, MeterHandle(self._meter.count))

    def _health(self) -> Mapping[str, bool]:
        return self._broker.services() if self._broker else {}

    def _missing(self) -> list[str]:
        """What is not ready."""
        services = self._health()
        ended = [f"the {name}, which has ended" for name, is_up in services.items() if not is_up]
        starting = ["the start of the broker"] if self._broker and not services else []
        uncounted = [] if self._meter.has_counted else ["a count of the store"]
        return [*ended, *starting, *uncounted]


class MetricsHandle:
    """The running endpoint and the thread that counts."""

    def __init__(self, server: ServerHandle, meter: ServiceHandle) -> None:
        """Made by `MetricsService.start()`."""
        self._server, self._meter = server, meter

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both."""
        self.stop()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    def stop(self) -> None:
        """Stop both; returns when nothing runs."""
        try:
            self._meter.stop()
        finally:
            self._server.stop()

    @property
    def is_alive(self) -> bool:
        """Whether both run."""
        return self._server.is_alive and self._meter.is_alive

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended one of them; None if none did."""
        return self._server.exception or self._meter.exception
