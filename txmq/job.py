"""The body of the scripts in jobs/: one service of one store, until SIGTERM or once."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from txmq.broker import BrokerHandle, run_until_signal
from txmq.config import Config
from txmq.service import ServiceHandle
from txmq.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Service(Protocol):
    """What a job runs."""

    def run_once(self) -> object:
        """Do what is due and return a small result."""
        ...

    def start(self) -> ServiceHandle | BrokerHandle:
        """Run until told to stop."""
        ...


def run_job(
    name: str,
    make: Callable[[Store, SparkSession], Service],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse LOCATION [--config FILE] [--once], run the service, return the exit code.

    Raises: TxmqError, so that the scheduler sees a failed job.
    """
    from pyspark.sql import SparkSession

    options = _parser(name).parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    config = Config.from_yaml(options.config) if options.config else None
    store = Store.open(options.location, config)
    spark = SparkSession.builder.appName(f"txmq-{name}").getOrCreate()
    service = make(store, spark)
    if options.once:
        logging.getLogger(__name__).info("%s", service.run_once())
    else:
        run_until_signal(lambda: _handle(name, service.start()))
    return 0


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=f"txmq {name}: runs until SIGTERM")
    parser.add_argument("location", help="where the store is")
    parser.add_argument("--config", help="settings in place of the store's, as conf/txmq.yaml")
    parser.add_argument("--once", action="store_true", help="do what is due, then end")
    return parser


def _handle(name: str, handle: ServiceHandle | BrokerHandle) -> BrokerHandle:
    return handle if isinstance(handle, BrokerHandle) else BrokerHandle({name: handle})
