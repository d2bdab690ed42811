"""`txmq serve` runs a store, `txmq metrics` prints its figures once."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from txmq.cli.shared import (
    AsJson,
    ConfigFile,
    Location,
    print_result,
    say,
    titled_pairs,
)
from txmq.errors import EnvironmentProblemError
from txmq.metrics.endpoint import MetricsEndpoint
from txmq.store.opening import open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from txmq.broker import BrokerResult
    from txmq.hooks import Hook
    from txmq.metrics.otel import OpenTelemetryMetrics

FilePath = str | None


def add_serve_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(serve)
    app.command()(metrics)


def serve(  # noqa: PLR0913 - the options of a command
    context: typer.Context,
    location: Location,
    config: ConfigFile = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do what is due, then end.")] = False,
    with_spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Without Spark: threads, no Java, a start at once. Without either of the two:"
            " with Spark where it is installed.",
        ),
    ] = None,
    metrics_address: Annotated[
        FilePath,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Show /metrics, /healthz and /readyz here, such as 127.0.0.1:9464.",
        ),
    ] = None,
    certificate: Annotated[
        FilePath, typer.Option("--metrics-certificate", metavar="FILE", help="TLS for them.")
    ] = None,
    key: Annotated[
        FilePath, typer.Option("--metrics-key", metavar="FILE", help="Its private key.")
    ] = None,
    authority: Annotated[
        FilePath,
        typer.Option(
            "--metrics-client-authority",
            metavar="FILE",
            help="Whose clients may look; other addresses than this machine's own need it.",
        ),
    ] = None,
    with_opentelemetry: Annotated[
        bool,
        typer.Option(
            "--opentelemetry",
            help="Spans and figures by the SDK that opentelemetry-instrument has set up.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run all services of a store until SIGTERM or Ctrl-C."""
    endpoint = MetricsEndpoint.of(metrics_address, certificate, key, authority)
    hooks, shown = _opentelemetry() if with_opentelemetry else ([], [])
    shown += [endpoint] if endpoint is not None else []
    store = open_store(location, config)
    from txmq.broker import Broker, run_until_signal
    from txmq.local_spark.session import local_session

    if context.obj is None:
        logging.getLogger("txmq").setLevel(logging.INFO)
    spark = local_session("txmq-broker") if _wants_spark(asked=with_spark) else None
    broker = Broker(store, spark=spark, metrics=shown or None, hooks=hooks)
    if once:
        print_result(broker.run_once(), _broker_view, as_json=as_json)
        return
    engine = "without Spark" if spark is None else "on Spark"
    say(f"Serving {store.location} {engine}; Ctrl-C stops it.")
    run_until_signal(broker.start)


def _wants_spark(*, asked: bool | None) -> bool:
    return find_spec("pyspark") is not None if asked is None else asked


def _opentelemetry() -> tuple[list[Hook], list[MetricsEndpoint | OpenTelemetryMetrics]]:
    """The hook for spans, and where figures are shown. Raises: EnvironmentProblemError."""
    from txmq.metrics.otel import OpenTelemetryMetrics
    from txmq.tracing import OpenTelemetryHook, check_provider

    hook = OpenTelemetryHook()
    check_provider()
    if not hook.is_on:
        step = "Run `opentelemetry-instrument txmq serve ...` (pip install opentelemetry-distro)"
        raise EnvironmentProblemError("this process has no SDK of OpenTelemetry", step)
    return [hook], [OpenTelemetryMetrics()]


def metrics(location: Location) -> None:
    """Print the figures of a store once, in Prometheus's text format."""
    store = open_store(location)
    from txmq.metrics.service import MetricsService

    typer.echo(MetricsService(store).run_once(), nl=False)


def _broker_view(result: BrokerResult) -> RenderableType:
    names = result.to_dict().items()
    return titled_pairs("broker", {name.replace("_", " "): f"{count:,}" for name, count in names})
