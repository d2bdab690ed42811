"""The broker: settle, publish, check, delay and maintenance in one driver."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from txmq.check.recheck import RecheckResult
from txmq.check.service import CheckService
from txmq.clock import Clock, SystemClock
from txmq.handles import ServiceHandle
from txmq.maintenance.service import Maintenance, MaintenanceResult
from txmq.publish.delay import DelayResult, DelayService
from txmq.publish.publisher import Publisher
from txmq.publish.round import PublishResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.hooks import Hook
    from txmq.listeners.protocol import CheckListener
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class BrokerResult:
    """What one `run_once()` did."""

    published: PublishResult
    checked: RecheckResult
    delivered: DelayResult
    maintained: MaintenanceResult


class Broker:
    """All services of a store in one driver; several brokers may serve one store.

    Args:
        store: where the logs are.
        spark: the session that the services run on; without it they are threads, and no Java runs.
        listeners: who answers for a producer group, beside those that the settings name; one in a
            namespace is named `tenant%group` (R94).
        hooks: told of the ends that the check writes (R89).

    Example:
        >>> result = Broker(store).run_once()
    """

    def __init__(  # noqa: PLR0913 - what its services are told once
        self,
        store: Store,
        *,
        spark: SparkSession | None = None,
        listeners: Mapping[str, CheckListener] | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Build the services; nothing runs yet.

        Raises: ListenerError, HookError.
        """
        self.store = store
        clock = clock or SystemClock()
        self.publisher = Publisher(store, spark=spark, clock=clock, name=name)
        self.check_service = CheckService(
            store, spark=spark, listeners=dict(listeners or {}), clock=clock, hooks=hooks
        )
        self.delay_service = DelayService(store, clock=clock)
        self.maintenance = Maintenance(store, clock=clock)

    def run_once(self) -> BrokerResult:
        """For schedules: publish what is there, ask what is due, deliver, publish the answers."""
        first = self.publisher.run_once()
        checked = self.check_service.run_once()
        second = self.publisher.run_once()
        # What an answer has just committed may be due already.
        delivered = self.delay_service.run_once()
        third = self.publisher.run_once() if delivered.delivered else PublishResult()
        maintained = self.maintenance.run_once()
        return BrokerResult(first + second + third, checked, delivered, maintained)

    def start(self) -> BrokerHandle:
        """Start all services; they run until `stop()`."""
        publishing = self.publisher.start()
        try:
            checking = self.check_service.start()
        except BaseException:
            publishing.stop()
            raise
        services: dict[str, ServiceHandle] = {
            "publisher": publishing,
            "check service": checking,
            "delay service": self.delay_service.start(),
            "maintenance": self.maintenance.start(),
        }
        return BrokerHandle(services)


class BrokerHandle:
    """Services that run."""

    def __init__(self, services: Mapping[str, ServiceHandle]) -> None:
        """Made by `Broker.start()`."""
        self._services = dict(services)

    def stop(self) -> None:
        """Stop asking first, then publish what was answered; each between two micro-batches."""
        for name in reversed(self._services):
            logger.info("stopping the %s", name)
            self._services[name].stop()

    @property
    def is_alive(self) -> bool:
        """Whether every service runs."""
        return all(service.is_alive for service in self._services.values())

    @property
    def exception(self) -> BaseException | None:
        """Why the first service that failed ended."""
        failures = (service.exception for service in self._services.values())
        return next((failure for failure in failures if failure is not None), None)

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Return when told to stop or when a service ended; then all are stopped.

        Raises: what ended the service.
        """
        event = stopping or threading.Event()
        try:
            while self.is_alive and not event.wait(LOOK_INTERVAL_S):
                pass
        finally:
            failure = self.exception
            self.stop()
        if failure is not None:
            raise failure


def run_until_signal(start: Callable[[], BrokerHandle]) -> None:
    """Run services until SIGTERM or SIGINT, then stop them cleanly: the body of a job."""
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        logger.info("signal %s: stopping after the micro-batch on its way", number)
        stopping.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        start().wait(stopping)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
