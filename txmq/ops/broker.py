"""The broker: publisher, check service, delay service and maintenance in one process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from txmq.check.claims import RoundResult
from txmq.check.recheck import RecheckResult
from txmq.check.service import CheckService
from txmq.ground.clock import Clock
from txmq.ground.handles import (
    OfOneProcess,
    ServiceHandle,
    caused,
    ended,
    set_by_signals,
    start_stopped_by,
    stopping_start,
)
from txmq.listeners.hooks import Hook, Hooks
from txmq.maintenance.service import Maintenance, MaintenanceResult
from txmq.message.names import shown_name
from txmq.ops.admin.groups import untold_settings
from txmq.ops.broker_log import BrokerCounts, ReportHandle
from txmq.ops.brokers import Heartbeat, HeartbeatHandle
from txmq.ops.metrics.figures import Latencies
from txmq.ops.metrics.service import MetricsHandle, MetricsService, Shown, checked_shown
from txmq.publish.delay_service import DelayResult, DelayService
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult
from txmq.spark.catalogs import catalog_tables
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.listeners.protocol import CheckListener


logger = logging.getLogger(__name__)
LOOK_INTERVAL_S = 0.5
# As others are told of them, in the order of a message's way.
SERVICES = ("publisher", "check service", "delay service", "maintenance")
PARKED = "topics could not be written and are parked; `txmq topics` names them"


@dataclass(frozen=True, slots=True)
class BrokerResult:
    """The results of the services in one `run_once()`."""

    published: PublishResult
    checked: RecheckResult
    delivered: DelayResult
    maintained: MaintenanceResult

    @property
    def counts(self) -> BrokerCounts:
        """The counts of all services together."""
        results = (self.published, self.checked.checks, self.delivered, self.maintained)
        return counts_of(*results)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and how many transactions are still open, for JSON."""
        return {**self.counts.to_dict(), "open_transactions": self.checked.open_transactions}


def problem_of(result: object) -> str | None:
    """Return what somebody must look at, although the service did what it could."""
    match result:
        case RecheckResult(unheard_groups=(_, *_) as groups):
            names = ", ".join(map(shown_name, groups))
            return f"no listener was found for groups with open transactions: {names}"
        case BrokerResult(published=published, maintained=maintained):
            return problem_of(published) or problem_of(maintained)
        case PublishResult(parked=parked) if parked:
            return PARKED
        case MaintenanceResult(failed=failed) if failed:
            return "failed: " + "; ".join(f"{table}: {why}" for table, why in failed.items())
    return None


class Broker(OfOneProcess):
    """All services of a store in one process; several brokers may serve one store.

    Args:
        store: the store to serve.
        spark: the session that publisher and check service run on; without it they are threads,
            and no Java runs.
        listeners: the listener of each producer group, beside those that the settings name; a
            group in a namespace is named `tenant%group` (R94).
        clock: the clock of this machine. Messages and checks are due by the store's time, however
            wrong that clock is (decision 0031).
        name: the name of the publisher in logs and queries; a random one if left out.
        hooks: are told of the questions and ends of the check service (R89), and of messages with
            a trace context that became visible.
        catalog: a schema of the session's catalog, such as `main.messages`, in which topics and
            logs get names (see `CatalogTables`); none without it.
        metrics: where figures and health are shown while the broker runs, one or several of
            MetricsEndpoint and OpenTelemetryMetrics; nowhere without it.

    Example:
        >>> result = Broker(store).run_once()
    """

    def __init__(  # noqa: PLR0913 - the options of all services
        self,
        store: Store,
        *,
        spark: SparkSession | None = None,
        listeners: Mapping[str, CheckListener] | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        hooks: Iterable[Hook] = (),
        catalog: str | None = None,
        metrics: Shown | None = None,
    ) -> None:
        """Build the services; start none.

        Raises:
            ListenerError: a listener lacks a method, or the settings name one that cannot be made.
            HookError: an object among `hooks` is no hook.
            ConfigError: `catalog` names no schema, or there is no session for it; `metrics` or
                `name` is something else.
        """
        check_store(store)
        hooks, self.store = tuple(Hooks(hooks)), store
        self.catalog_tables = catalog_tables(store, spark, catalog)
        self._metrics = None if metrics is None else checked_shown(metrics)
        # One for all, so that they look at the storage once.
        clock = StoreClock.of(store, clock)
        self.publisher = Publisher(store, spark=spark, clock=clock, name=name, hooks=hooks)
        self.check_service = CheckService(
            store, spark=spark, listeners=dict(listeners or {}), clock=clock, hooks=hooks
        )
        self.delay_service = DelayService(store, clock=clock)
        self.maintenance = Maintenance(store, clock=clock)
        self._clock = clock

    def run_once(self) -> BrokerResult:
        """Do everything that is due once, for schedulers.

        Publishes what has ended, asks about open transactions that are due, publishes the
        answers, delivers delayed messages that are due, and does one round of maintenance.

        Commits: those of `Publisher.run_once` (up to three times), `CheckService.run_once`,
        `DelayService.run_once` and `Maintenance.run_once`. A call that failed or was killed can be
        repeated: each service continues where the tables say it is.

        Returns:
            What each service did.

        Raises:
            SourceRestoredError: the op log was restored to an older version.
            CommitConflictError: other writers won every attempt.
            CatalogError: the schema of `catalog` is not there.
            StorageError: a table cannot be read or written. A topic that cannot be written is
                parked and raises nothing; maintenance names its failures in its result.
        """
        first = self.publisher.run_once()
        checked = self.check_service.run_once()
        second = self.publisher.run_once()
        # A message that an answer has just committed may be due already.
        delivered = self.delay_service.run_once()
        third = self.publisher.run_once() if delivered.delivered else PublishResult()
        maintained = self.maintenance.run_once()
        if self.catalog_tables is not None:
            self.catalog_tables.run_once()
        return BrokerResult(first + second + third, checked, delivered, maintained)

    def start(self) -> BrokerHandle:
        """Start all services in threads and streaming queries of their own.

        The publisher catches up before this returns; maintenance runs meanwhile. Where one service
        cannot start, those that run are stopped. A killed broker can be started again, on this
        machine or another one.

        Commits: those of `Publisher.run_once`; afterwards each service commits as its `run_once`
        does, again and again.

        Returns:
            The handle that stops the services and says why one ended.

        Raises:
            EnvironmentProblemError: Spark's Java process has ended; the address for metrics cannot
                be had, or the extra `metrics` is not installed.
            SourceRestoredError, CommitConflictError, StorageError: as `run_once`.
        """
        services: dict[str, ServiceHandle] = {}
        watched = WatchedServices(self, services)
        begun_s = time.monotonic()
        self._tell_untold_settings()
        logger.info("serving %s; %s", self.store.location, _described(self.check_service.listeners))
        try:
            if self._metrics is not None:
                shown, clock = self._metrics, self._clock
                service = MetricsService(self.store, shown, broker=watched, clock=clock)
                services["metrics"] = service.start()
            # Before the publisher: it catches up first, and a backlog makes logs long.
            services["maintenance"] = self.maintenance.start()
            services["heartbeat"] = HeartbeatHandle(self._heartbeat())
            services["publisher"] = self.publisher.start()
            if stopping_start().is_set():
                handle = BrokerHandle(services)
                handle.stop()
                return handle
            # After it: what is not settled yet they would hold in memory.
            rests = self.store.config.deadline_join == "auto"
            services["check service"] = self.check_service.start(rests=rests)
            services["delay service"] = self.delay_service.start()
            if self.catalog_tables is not None:
                services["catalog"] = self.catalog_tables.start()
            services["report"] = ReportHandle(watched.counts)
        except BaseException:
            BrokerHandle(services).stop()
            raise
        watched.all_run()
        logger.info("ready after %.1f s: %s", time.monotonic() - begun_s, ", ".join(services))
        return BrokerHandle(services)

    def _tell_untold_settings(self) -> None:
        """Warn of settings of consumer groups that members do not read."""
        for group, settings in untold_settings(self.store).items():
            words = " ".join(f"--set {name}={value}" for name, value in sorted(settings.items()))
            logger.warning(
                "this broker was given settings of consumer group %s that the store does not keep: "
                "members that are not given them do not follow them; to keep them: "
                "txmq groups alter LOCATION %s %s --apply",
                shown_name(group), shown_name(group), words,
            )  # fmt: skip

    def _heartbeat(self) -> Heartbeat:
        services = [*SERVICES, *(["catalog"] if self.catalog_tables is not None else [])]
        return Heartbeat(self.store.tables, self._clock, self.publisher.name, services)


class BrokerHandle:
    """The running services of a broker, by name; the end of a `with` block stops them."""

    def __init__(self, services: Mapping[str, ServiceHandle]) -> None:
        """Take the services that `Broker.start()` has started, in the order of their starts."""
        self._services = dict(services)
        self._is_stopping = False

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop all services."""
        self.stop()

    def stop(self) -> None:
        """Stop all services, each between two rounds or micro-batches; returns when none runs.

        The publisher stops after the check service, whose last answers it publishes.

        Raises: the first failure, after every service was told to stop.
        """
        self._is_stopping = True
        failure: BaseException | None = None
        for name in reversed(self._services):
            logger.info("stopping the %s", name)
            try:
                self._services[name].stop()
            except BaseException as error:
                # Whatever it is, the other services stop too.
                logger.exception("the %s could not be stopped", name)
                failure = failure or error
        if failure is not None:
            raise failure

    @property
    def is_alive(self) -> bool:
        """Whether every service runs."""
        return all(service.is_alive for service in self._services.values())

    @property
    def exception(self) -> BaseException | None:
        """The failure of the first service that failed; None where none did."""
        failures = (service.exception for service in self._services.values())
        return next((failure for failure in failures if failure is not None), None)

    @property
    def metrics_port(self) -> int | None:
        """The port of the figures and of health; None where they are not shown."""
        service = self._services.get("metrics")
        return service.port if isinstance(service, MetricsHandle) else None

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Wait until `stopping` is set or a service ends, then stop all services.

        Args:
            stopping: set by another thread or a signal; without it only a failure ends the wait.

        Raises:
            EnvironmentProblemError: a service ended by itself, by SystemExit or by a panic.
            Exception: the failure that ended a service, else the first failure of `stop()`.
        """
        event = stopping or threading.Event()
        failure: BaseException | None = None
        try:
            while self.is_alive and not event.wait(LOOK_INTERVAL_S):
                pass
            if event.is_set():
                logger.info("stopping after the current micro-batch")
                self._is_stopping = True
            failure = self._why_ended()
        finally:
            self._stop_after(failure)
        if failure is not None:
            raise failure

    def _why_ended(self) -> BaseException | None:
        """Log and return why a service ended; None if all run, or were told to stop."""
        for name, service in self._services.items():
            failure = service.exception
            if failure is not None:
                logger.error("the %s ended by %s", name, type(failure).__name__)
                is_error = isinstance(failure, Exception)
                return failure if is_error else caused(ended(f"the {name}", failure), failure)
            if not service.is_alive and not self._is_stopping:
                return ended(f"the {name}", None)
        return None

    def _stop_after(self, failure: BaseException | None) -> None:
        try:
            self.stop()
        except BaseException:
            # The failure that ended a service says more than the failure to stop another one.
            if failure is None:
                raise


class WatchedServices:
    """What the running services of a broker have done and measured."""

    def __init__(self, broker: Broker, services: Mapping[str, Any]) -> None:
        """Watch `services`, which fills up while they start."""
        self._broker, self._services, self._is_begun = broker, services, False

    def all_run(self) -> None:
        """Note that the last service has started."""
        self._is_begun = True

    def counts(self) -> BrokerCounts:
        """Return what the services have done."""
        if not {"maintenance", "check service"} <= self._services.keys():
            return BrokerCounts()
        return counts_of(
            self._broker.publisher.total,
            self._services["check service"].checked,
            self._broker.delay_service.total,
            self._services["maintenance"].total,
        )

    def latencies(self) -> Latencies:
        """Return what the services have measured."""
        published = self._broker.publisher.total
        delayed = self._broker.delay_service.total.lateness
        return Latencies(published.end_latency, published.publish_latency, delayed)

    def services(self) -> Mapping[str, bool]:
        """Tell of each service whether it runs; an empty mapping until all have started."""
        names = list(self._services) if self._is_begun else []
        return {name: self._services[name].is_alive for name in names}


def counts_of(
    published: PublishResult,
    checked: RoundResult,
    delivered: DelayResult,
    maintained: MaintenanceResult,
) -> BrokerCounts:
    """Add up the counts of all services."""
    return BrokerCounts(
        settled=published.settled, published=published.published, delivered=delivered.delivered,
        asked=checked.asked, committed=checked.committed, rolled_back=checked.rolled_back,
        unknown=checked.unknown, discarded=checked.discarded, set_aside=published.set_aside,
        refused=published.refused, files_merged=maintained.compacted.files_before,
        commits_cleaned=maintained.commits_cleaned, failures=len(maintained.failed),
    )  # fmt: skip


def _described(listeners: Mapping[str, object]) -> str:
    """Name the class that answers for each group, for the log."""
    if not listeners:
        return "no listener of its own: live producers that answer checks are asked, or nobody"
    pairs = (
        f"{shown_name(group)}={type(listener).__name__}" for group, listener in listeners.items()
    )
    return f"listeners: {', '.join(sorted(pairs))}"


class Waiting(Protocol):
    """Services that run until they are told to stop."""

    def wait(self, stopping: threading.Event | None = None) -> None:
        """See `BrokerHandle.wait`."""


def run_until_signal(start: Callable[[], Waiting]) -> None:
    """Run services until SIGTERM or SIGINT, then stop them: the body of a job.

    Call it in the main thread, which alone receives signals. A publisher that is still catching up
    stops after the range that it is at.

    Raises: what `start` raises, and as `BrokerHandle.wait`.
    """
    stopping = threading.Event()
    with set_by_signals(stopping):
        with start_stopped_by(stopping):
            services = start()
        services.wait(stopping)
