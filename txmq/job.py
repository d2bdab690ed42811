"""The body of the scripts in jobs/: runs one service of one store, until SIGTERM or once."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txmq.check.recheck import RecheckJob
from txmq.delta.credentials import VARIABLE, Provider
from txmq.errors import EnvironmentProblemError
from txmq.ground.handles import ServiceHandle, end_with_spark_submit
from txmq.ground.results import plain
from txmq.ops.admin.status import verify_opened
from txmq.ops.broker import Broker, BrokerHandle, problem_of, run_until_signal
from txmq.ops.broker_log import LogFormat, LogLevel, log_to_stderr
from txmq.ops.metrics.server import MetricsEndpoint
from txmq.spark.catalogs import CatalogTables
from txmq.store.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Those of the clouds' own tools, and the settings of txmq.
CREDENTIALS = ("AWS", "AZURE", "GOOGLE", "TXMQ")
_NAME = re.compile(f"(?:{'|'.join(CREDENTIALS)})_[A-Z0-9_]+", re.ASCII)


class BatchService(Protocol):
    """A service that a scheduler calls again and again."""

    def run_once(self) -> object:
        """Do what is due and return a small result."""
        ...


class Service(BatchService, Protocol):
    """A service that a job runs until a signal."""

    def start(self) -> ServiceHandle | BrokerHandle:
        """Start the service."""
        ...


def run_job(
    name: str,
    make: Callable[[Store, SparkSession], Service],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse LOCATION [--config FILE] [--once] and run a service on Spark until a signal or once.

    Args:
        name: the name of the job and of its Spark application.
        make: makes the service from the opened store and the session.
        arguments: those of the command line if left out.

    Returns:
        The exit code 0.

    Raises: TxmqError, and with --once SystemExit where somebody must look, so that the scheduler
        sees a failed job.
    """
    return run_plain_job(name, lambda store: make(store, _session(name)), arguments)


def run_broker_job(arguments: Sequence[str] | None = None) -> int:
    """Parse LOCATION [--config FILE] [--once] [--no-spark] [--metrics HOST:PORT …]; serve a store.

    Args:
        arguments: those of the command line if left out.

    Returns:
        The exit code 0.

    Raises: as `run_job`.
    """
    name = "broker"
    parser = _service_parser(name)
    parser.add_argument("--no-spark", action="store_true", help="threads alone, without a session")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="where figures and health are shown")
    parser.add_argument("--metrics-certificate", metavar="FILE", help="TLS for them")
    parser.add_argument("--metrics-key", metavar="FILE", help="its private key")
    parser.add_argument("--metrics-client-authority", metavar="FILE", help="whose clients may look")
    options = parser.parse_args(arguments)
    files = (options.metrics_certificate, options.metrics_key, options.metrics_client_authority)
    endpoint, store = MetricsEndpoint.of(options.metrics, *files), _opened(options)
    spark = None if options.no_spark else _session(name)
    return _run(name, Broker(store, spark=spark, metrics=endpoint), options)


def run_catalog_job(arguments: Sequence[str] | None = None) -> int:
    """Parse LOCATION CATALOG [--config FILE] [--once] and keep the names in a catalog.

    Args:
        arguments: those of the command line if left out.

    Returns:
        The exit code 0.

    Raises: TxmqError, so that the scheduler sees a failed job.
    """
    name = "catalog-tables"
    parser = _service_parser(name)
    parser.add_argument("catalog", help="a schema, such as messages or main.messages")
    options = parser.parse_args(arguments)
    store, catalog = _opened(options), options.catalog
    service = CatalogTables(store, spark=_session(name), catalog=catalog)
    return _run(name, service, options)


def run_plain_job(
    name: str, make: Callable[[Store], Service], arguments: Sequence[str] | None = None
) -> int:
    """Run a service that needs no Spark, as `run_job` does. Raises: as `run_job`."""
    options = _service_parser(name).parse_args(arguments)
    return _run(name, make(_opened(options)), options)


def run_batch_job(
    name: str, make: Callable[[Store], BatchService], arguments: Sequence[str] | None = None
) -> int:
    """Parse LOCATION [--config FILE] and run a service once, without Spark.

    Returns:
        The exit code 0.

    Raises: SystemExit where somebody must look, as `txmq recheck` and `txmq maintenance` end with
        exit code 1; and TxmqError, so that the scheduler sees it.
    """
    options = _batch_parser(name).parse_args(arguments)
    return _run_batch(make(_opened(options)))


def run_recheck_job(arguments: Sequence[str] | None = None) -> int:
    """Parse LOCATION [--config FILE] [--spark] and ask about all due transactions once.

    Args:
        arguments: those of the command line if left out.

    Returns:
        The exit code 0.

    Raises: as `run_batch_job`.
    """
    name = "recheck"
    parser = _batch_parser(name)
    help_text = "with a session, for listeners that answer by a query"
    parser.add_argument("--spark", action="store_true", help=help_text)
    options = parser.parse_args(arguments)
    store = _opened(options)
    return _run_batch(RecheckJob(store, spark=_session(name) if options.spark else None))


def run_verify_job(arguments: Sequence[str] | None = None) -> int:
    """Parse LOCATION [--config FILE] [--drained] and check every promise once, without Spark.

    Args:
        arguments: those of the command line if left out.

    Returns:
        The exit code 0.

    Raises: SystemExit for a broken promise, and TxmqError, so that the scheduler sees it.
    """
    parser = _parser("verify", "txmq verify: checks every promise, then ends")
    help_text = "nothing runs, so what is not published is lost; else it is on its way"
    parser.add_argument("--drained", action="store_true", help=help_text)
    options = parser.parse_args(arguments)
    report = verify_opened(_opened(options), drained=options.drained)
    _tell(report)
    if not report.is_clean:
        text = f"{report.violation_count:,} violations in {report.location}"
        raise SystemExit(f"{text}; run `txmq verify` for the places, and see docs/runbook.md")
    return 0


def _batch_parser(name: str) -> argparse.ArgumentParser:
    return _parser(name, f"txmq {name}: does what is due, then ends")


def _run_batch(service: BatchService) -> int:
    result = service.run_once()
    _tell(result)
    if problem := problem_of(result):
        raise SystemExit(f"{problem}; see docs/runbook.md")
    return 0


def _service_parser(name: str) -> argparse.ArgumentParser:
    parser = _parser(name, f"txmq {name}: runs until SIGTERM")
    parser.add_argument("--once", action="store_true", help="do what is due, then end")
    return parser


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("location", help="where the store is")
    parser.add_argument(
        "--config",
        help="settings in place of the store's, as conf/txmq.yaml; TXMQ_… variables come first",
    )
    parser.add_argument(
        "--secrets",
        metavar="SCOPE",
        default="",
        help="in Databricks: a secret scope whose credentials become variables first",
    )
    parser.add_argument(
        "--credentials",
        metavar="PROVIDER",
        default="",
        choices=["", *Provider],
        help="who lends the credentials of all locations, for a while: unity-catalog",
    )
    parser.add_argument(
        "--log-level", default="info", choices=list(LogLevel), help="from where on logs are shown"
    )
    parser.add_argument(
        "--log-format", default="text", choices=list(LogFormat), help="json: an object a line"
    )
    return parser


def _opened(options: argparse.Namespace) -> Store:
    log_to_stderr(LogLevel(options.log_level).number, LogFormat(options.log_format))
    end_with_spark_submit()
    export_secrets(options.secrets, os.environ)
    if options.credentials:
        os.environ[VARIABLE] = options.credentials
    return open_store(options.location, options.config)


def _session(name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(f"txmq-{name}").getOrCreate()


def _run(name: str, service: Service, options: argparse.Namespace) -> int:
    if options.once:
        return _run_batch(service)
    run_until_signal(lambda: _handle(name, service.start()))
    return 0


def _handle(name: str, handle: ServiceHandle | BrokerHandle) -> BrokerHandle:
    if isinstance(handle, BrokerHandle):
        return handle
    # A broker says it by itself.
    logging.getLogger(__name__).info("the %s service runs until SIGTERM", name)
    return BrokerHandle({name: handle})


def _tell(result: object) -> None:
    """Log the result as one line of JSON, for readers of the log of a job."""
    values = result.to_dict() if hasattr(result, "to_dict") else plain(result)
    fields = values if isinstance(values, dict) else {"value": values}
    name = type(result).__name__
    logging.getLogger(__name__).info("%s", json.dumps({"result": name, **fields}))


def export_secrets(scope: str, environment: MutableMapping[str, str]) -> list[str]:
    """Put the credentials of a secret scope into an environment; other secrets are not read.

    Args:
        scope: its name; who runs the job needs READ on it. Without a name nothing is done.
        environment: usually `os.environ`.

    Returns:
        The names of the variables, sorted.

    Raises: EnvironmentProblemError outside of Databricks, and for a scope without credentials.
    """
    if not scope:
        return []
    secrets = _secrets()
    names: dict[str, str] = {}
    for key in sorted(str(secret.key) for secret in secrets.list(scope)):
        if name := variable_of(key):
            environment[name] = secrets.get(scope, key)
            names[name] = key
    if not names:
        starts = ", ".join(f"{start}_" for start in CREDENTIALS)
        problem = f"the secret scope {scope!r} has no secret whose name begins with {starts}"
        raise EnvironmentProblemError(problem, f"Run `databricks secrets put-secret {scope} NAME`")
    return sorted(names)


def variable_of(key: str) -> str | None:
    """Return the variable that a secret is for; None for another secret.

    A scope on Azure's key vault has no underscores: `azure-storage-account-key` is
    `AZURE_STORAGE_ACCOUNT_KEY`.
    """
    name = key.replace("-", "_").upper()
    return name if _NAME.fullmatch(name) else None


def _secrets() -> Any:
    try:
        runtime = importlib.import_module("databricks.sdk.runtime")
    # The SDK alone, without a workspace, raises the second.
    except (ImportError, ValueError) as error:
        problem = "there are no secret scopes here: this is not Databricks"
        step = "Leave --secrets out, and set the variables of the cloud's own tools"
        raise EnvironmentProblemError(problem, step) from error
    return runtime.dbutils.secrets
