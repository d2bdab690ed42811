"""The dashboard as a service: it counts a store, and shows pages of what it saw."""

from __future__ import annotations

import logging
import threading

from txmq.clock import Clock
from txmq.dashboard.app import DashboardApp
from txmq.dashboard.lookups import Lookups
from txmq.dashboard.rendering import Pages
from txmq.dashboard.snapshot import Counting
from txmq.handles import LOOK_INTERVAL_S
from txmq.metrics.endpoint import Endpoint
from txmq.metrics.meter import MeterHandle
from txmq.metrics.server import ServerHandle
from txmq.metrics.service import MetricsHandle
from txmq.store.store import Store

logger = logging.getLogger(__name__)


class DashboardEndpoint(Endpoint):
    """Where the dashboard is shown; see `Endpoint` for arguments and errors."""

    purpose = "dashboard"
    usual = "127.0.0.1:8320"


class Dashboard:
    """Web pages over a store; needs no Spark, changes nothing.

    It counts the store each 15 seconds, and for at most a twentieth of the time. Most pages show
    the last count; those of one transaction, message, topic or group read a bounded part of tables.

    Args:
        store: the store to show.
        endpoint: where to listen; on another address than this machine's own it needs TLS and a
            client authority.
        show_bodies: show the bodies of messages on their pages.
        clock: the clock by which ages and lags are computed.

    Example:
        >>> with Dashboard(store, DashboardEndpoint("127.0.0.1:8320")).start() as running:
        ...     print(running.address)
        http://127.0.0.1:8320/
    """

    def __init__(
        self,
        store: Store,
        endpoint: DashboardEndpoint | None = None,
        *,
        show_bodies: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Count nothing yet. Raises: EnvironmentProblemError where Jinja2 is not installed."""
        self._endpoint = endpoint or DashboardEndpoint(DashboardEndpoint.usual)
        self.counting = Counting(store, clock)
        lookups = Lookups(store, clock, show_bodies)
        pages = Pages(store.location, show_bodies=show_bodies)
        self.app = DashboardApp(self.counting, lookups, pages, is_local=self._endpoint.is_local)

    def start(self) -> DashboardHandle:
        """Listen, and count in a thread; a count that fails is tried again. Commits: 0.

        Raises:
            ConfigError: a file of the endpoint cannot be read.
            EnvironmentProblemError: the address cannot be had.
        """
        server = ServerHandle(self._endpoint, self.app)
        address = f"{server.address}/"
        logger.info("the dashboard is at %s", address)
        return DashboardHandle(server, MeterHandle(self.counting.count), address)


class DashboardHandle(MetricsHandle):
    """The running dashboard.

    Attributes:
        address: where a browser finds it.
    """

    def __init__(self, server: ServerHandle, meter: MeterHandle, address: str) -> None:
        """Made by `Dashboard.start()`."""
        super().__init__([server, meter])
        self.address = address

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Wait until `stopping` is set or a part ends, then stop; raises what ended it."""
        event = stopping or threading.Event()
        try:
            while self.is_alive and not event.wait(LOOK_INTERVAL_S):
                pass
            failure = self.exception
        finally:
            self.stop()
        if failure is not None:
            raise failure
