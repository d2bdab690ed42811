"""The processes: producers that keep what was acknowledged, brokers, and readers of two engines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from txmq.errors import TxmqError
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

TOPIC, GROUP = "numbers", "writers"
# A number names its producer and its place there.
NUMBERS_EACH = 1_000_000_000
PAUSE_S = 0.2
# Twenty that never rest take all of two cores, and brokers and readers get none.
SEND_PAUSE_S = 0.25
LISTINGS_MAX = 100
SPARK_LISTINGS_MAX = 30
Read = Callable[[str], "np.ndarray[Any, Any]"]


def main(role: str, location: str, folder: str, name: str) -> None:
    """One actor, until its stop file is there or a signal ends it."""
    roles = {"producer": produce, "broker": serve, "delta-rs": by_delta_rs, "spark": by_spark}
    roles[role](location, Path(folder), name)


def stopped(folder: Path, role: str) -> bool:
    return (folder / f"stop {role}s").exists()


# --- who writes -----------------------------------------------------------------------------------


def produce(location: str, folder: Path, name: str) -> None:
    """Send numbers; the journal has a number once its send has returned."""
    first = int(name) * NUMBERS_EACH
    journal = os.open(folder / f"acknowledged-{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    with TransactionProducer(Store.open(location), producer_group=GROUP) as producer:
        for number in range(first, first + NUMBERS_EACH):
            if stopped(folder, "producer"):
                break
            try:
                producer.send(Message(TOPIC, b"%d" % number))
            except TxmqError:
                continue
            os.write(journal, np.int64(number).tobytes())
            time.sleep(SEND_PAUSE_S)


def serve(location: str, folder: Path, name: str) -> None:  # noqa: ARG001 - as the others
    """A broker: publisher, maintenance and the rest."""
    with Broker(Store.open(location)).start():
        while not stopped(folder, "broker"):
            time.sleep(PAUSE_S)


# --- who reads ------------------------------------------------------------------------------------


def by_delta_rs(location: str, folder: Path, name: str) -> None:
    """Reads by delta-rs's own engine."""

    def read(path: str) -> np.ndarray[Any, Any]:
        builder = QueryBuilder().register("messages", _opened(path))
        rows = builder.execute("SELECT CAST(CAST(body AS VARCHAR) AS BIGINT) AS n FROM messages")
        return np.array(rows.read_all()["n"].to_pylist(), np.int64)

    _read_on(read, location, folder, name)


def _opened(path: str) -> DeltaTable:
    """The table; a listing of a local folder may miss a file that is older than one it has."""
    for _ in range(LISTINGS_MAX):
        with suppress(DeltaError):
            return DeltaTable(path)
    return DeltaTable(path)


def by_spark(location: str, folder: Path, name: str) -> None:
    """Reads by Spark."""
    from txmq.spark.session import local_session

    spark = local_session("readers", for_minutes=True)

    def read_once(path: str) -> np.ndarray[Any, Any]:
        rows = spark.read.format("delta").load(path).selectExpr("cast(string(body) AS bigint) AS n")
        return np.array(rows.toArrow()["n"].to_pylist(), np.int64)

    def read(path: str) -> np.ndarray[Any, Any]:
        for _ in range(SPARK_LISTINGS_MAX):
            try:
                return read_once(path)
            except Exception as error:
                # As for delta-rs: of two new commits the listing has the later one alone.
                if "DELTA_VERSIONS_NOT_CONTIGUOUS" not in str(error):
                    raise
        return read_once(path)

    _read_on(read, location, folder, name)


def _read_on(read: Read, location: str, folder: Path, name: str) -> None:
    with (folder / f"reads-{name}.jsonl").open("a", buffering=1, encoding="utf-8") as told:
        while not stopped(folder, "reader"):
            for line in _looked(read, location, folder):
                told.write(json.dumps({"reader": name, **line}) + "\n")
            time.sleep(PAUSE_S)


def _looked(read: Read, location: str, folder: Path) -> Iterator[dict[str, Any]]:
    """What the half log lacks of what was acknowledged before, and what is there twice."""
    for path in ("half", f"topics/{TOPIC}"):
        if not Path(location, path, "_delta_log").exists():
            continue
        before = acknowledged(folder) if path == "half" else np.array([], np.int64)
        with _told_errors() as errors:
            numbers = read(f"{location}/{path}")
            missing = np.setdiff1d(before, numbers)
            doubled = len(numbers) - len(np.unique(numbers))
            yield {"table": path, "rows": len(numbers), "missing": len(missing), "doubled": doubled}
        yield from ({"table": path, "error": error} for error in errors)


@contextmanager
def _told_errors() -> Iterator[list[str]]:
    errors: list[str] = []
    try:
        yield errors
    except Exception as error:  # noqa: BLE001 - whatever a reader meets is a finding
        errors.append(f"{type(error).__name__}: {error}"[:500])


def acknowledged(folder: Path) -> np.ndarray[Any, Any]:
    """The numbers of all journals."""
    parts = [np.fromfile(path, np.int64) for path in sorted(folder.glob("acknowledged-*"))]
    return np.concatenate([np.array([], np.int64), *parts])
