"""`txmq serve`, `recheck`, `metrics` and `jobs`: run the services of a store, or hand them over."""

from __future__ import annotations

import ast
import logging
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.errors import EnvironmentProblemError
from txmq.message.names import shown_name
from txmq.ops.cli.shared import (
    AsJson,
    ConfigFile,
    Location,
    moment,
    rows_view,
    say,
    show,
    titled_pairs,
)
from txmq.ops.metrics.server import MetricsEndpoint
from txmq.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from txmq.listeners.hooks import Hook
    from txmq.ops.broker import BrokerResult
    from txmq.ops.metrics.formats import OpenTelemetryMetrics


EXIT_UNHEARD = 1
SHOWN_INCOMPLETE = 5
# In a clone these are links to the folders at its top.
_FILES = Path(__file__).parent / "files"
_FOLDERS = {"jobs": "*.py", "conf": "*.*"}

FilePath = str | None

jobs_app = typer.Typer(no_args_is_help=True, help="The scripts for spark-submit, and settings.")


def add_serve_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(serve)
    app.command()(recheck)
    app.command()(metrics)
    app.add_typer(jobs_app, name="jobs")


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
    """Run all services of a store until SIGTERM or Ctrl-C.

    With --once exit code 1 where somebody must look: a parked topic, failed maintenance, or open
    transactions of a group without a listener.
    """
    endpoint = MetricsEndpoint.of(metrics_address, certificate, key, authority)
    hooks, shown = _opentelemetry() if with_opentelemetry else ([], [])
    shown += [endpoint] if endpoint is not None else []
    store = open_store(location, config)
    from txmq.ops.broker import Broker, run_until_signal
    from txmq.spark.session import local_session

    if context.obj is None:
        logging.getLogger("txmq").setLevel(logging.INFO)
    wants_spark = find_spec("pyspark") is not None if with_spark is None else with_spark
    spark = local_session("txmq-broker") if wants_spark else None
    broker = Broker(store, spark=spark, metrics=shown or None, hooks=hooks)
    if once:
        from txmq.ops.broker import problem_of

        result = broker.run_once()
        show(result, _broker_view, as_json=as_json)
        if problem := problem_of(result):
            typer.echo(problem, err=True)
            raise typer.Exit(1)
        return
    engine = "without Spark" if spark is None else "on Spark"
    say(f"Serving {store.location} {engine}; Ctrl-C stops it.")
    run_until_signal(broker.start)


def _opentelemetry() -> tuple[list[Hook], list[MetricsEndpoint | OpenTelemetryMetrics]]:
    """Return the hook for spans, and where figures go. Raises: EnvironmentProblemError."""
    from txmq.ops.metrics.formats import OpenTelemetryMetrics
    from txmq.ops.tracing import OpenTelemetryHook, check_provider

    hook = OpenTelemetryHook()
    check_provider()
    if not hook.is_on:
        step = "Run `opentelemetry-instrument txmq serve ...` (pip install opentelemetry-distro)"
        raise EnvironmentProblemError("this process has no SDK of OpenTelemetry", step)
    return [hook], [OpenTelemetryMetrics()]


def _broker_view(result: BrokerResult) -> RenderableType:
    names = result.to_dict().items()
    return titled_pairs("broker", {name.replace("_", " "): f"{count:,}" for name, count in names})


def recheck(location: Location, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Ask the configured listeners about all due transactions, once; for schedulers.

    Exit code 1 if the last check of a group with open transactions found no listener.
    """
    result = RecheckJob(open_store(location, config)).run_once()
    show(result, _recheck_view, as_json=as_json)
    if result.unheard_groups:
        raise typer.Exit(EXIT_UNHEARD)


def _recheck_view(result: RecheckResult) -> RenderableType:
    checks = result.checks
    lines = {
        "asked": f"{checks.asked:,}",
        "committed": f"{checks.committed:,}",
        "rolled back": f"{checks.rolled_back:,}",
        "unknown, asked again later": f"{checks.unknown:,}",
        "not asked yet": f"{checks.unasked:,}",
        "discarded": f"{checks.discarded:,}",
        "still open": f"{result.open_transactions:,}",
    }
    if result.next_check is not None:
        lines["asked again"] = f"the next one at {moment(result.next_check)}; each: txmq open"
    if result.unheard_groups:
        lines["groups without a listener"] = ", ".join(map(shown_name, result.unheard_groups))
    if result.incomplete:
        lines["with messages missing"] = ", ".join(result.incomplete[:SHOWN_INCOMPLETE])
    if not result.is_complete:
        lines["not finished"] = "another service asks now; nothing is lost"
    return titled_pairs("recheck", lines)


def metrics(location: Location) -> None:
    """Print the figures of a store once, in Prometheus's text format."""
    store = open_store(location)
    from txmq.ops.metrics.service import MetricsService

    typer.echo(MetricsService(store).run_once(), nl=False)


@jobs_app.command("list")
def list_jobs(*, as_json: AsJson = False) -> None:
    """List the scripts and settings files, each with what it is for."""
    purposes = {name: _purpose(path) for name, path in _paths().items()}
    summary = f"{len(purposes)} files; txmq jobs path NAME says where one is"
    show(purposes, lambda _: rows_view(("name", "for"), purposes.items(), summary), as_json=as_json)


@jobs_app.command("path")
def path_of_job(
    name: Annotated[str, typer.Argument(help="Such as broker, or spark-defaults.conf.")],
) -> None:
    """Print where a script or a settings file is."""
    paths = _paths()
    if name.removesuffix(".py") not in paths:
        raise typer.BadParameter(f"{name!r} is not there; there are {', '.join(paths)}")
    say(str(paths[name.removesuffix(".py")].resolve()))


@jobs_app.command("copy")
def copy_jobs(
    folder: Annotated[Path, typer.Argument(help="Gets jobs/ and conf/; made where it is missing.")],
) -> None:
    """Copy all scripts and settings files into a folder; files that are there are not touched."""
    copied = 0
    for source in _paths().values():
        target = folder / source.parent.name / source.name
        if target.exists():
            say(f"kept    {target}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied += 1
    say(f"{copied} files copied to {folder}")


def _paths() -> Mapping[str, Path]:
    """Return all files by their names: scripts without their ending."""
    paths = {
        path.name.removesuffix(".py"): path
        for folder, pattern in _FOLDERS.items()
        for path in sorted((_FILES / folder).glob(pattern))
    }
    if not paths:
        problem = "this copy of txmq has no jobs and no settings files"
        raise EnvironmentProblemError(problem, "Install it from a wheel, or work in a whole clone")
    return paths


def _purpose(path: Path) -> str:
    """Return the first line of a script's docstring, or of a settings file's comment."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return text.partition("\n")[0].lstrip("# ")
