"""Local transactions in the places where people have them, each slowed at random."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.endurance.race.spark_business import SparkBusiness
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.producer.transaction import Transaction
from txmq.user_data.database_marker import DONE as DONE_ROW
from txmq.user_data.database_marker import MarkerTable
from txmq.user_data.delta_marker import DONE, MarkedTable

GROUP = "orders"
COLUMNS = pa.schema([("transaction_id", pa.string())])
Pause = Callable[[], None]


class Business(Protocol):
    """A business table; `do` is the local transaction, of `threads` at once.

    The check asks after `immunity_s`; a local transaction pauses up to three times, each time up to
    six times as long.
    """

    threads: int
    immunity_s: float

    def errors(self) -> tuple[type[Exception], ...]: ...

    def create(self) -> None: ...

    def do(self, transaction: Transaction, pause: Pause) -> None: ...

    def rows(self) -> list[str]: ...

    def listener(self, *, fenced: bool) -> Any: ...


class DeltaBusiness:
    """An append by delta-rs, whose commits on a local disk never overwrite another."""

    threads = 12
    immunity_s = 0.25

    def __init__(self, location: str) -> None:
        self._location = location

    def errors(self) -> tuple[type[Exception], ...]:
        return (DeltaError,)

    def create(self) -> None:
        DeltaTable.create(self._location, schema=COLUMNS)

    def do(self, transaction: Transaction, pause: Pause) -> None:
        with transaction.delta_rs(self._location) as (handle, properties):
            pause()
            rows = pa.table({"transaction_id": [transaction.id]}, COLUMNS)
            write_deltalake(handle, rows, mode="append", commit_properties=properties)
            pause()

    def rows(self) -> list[str]:
        found = DeltaTable(self._location).to_pyarrow_table()
        return [str(each) for each in found["transaction_id"].to_pylist()]

    def listener(self, *, fenced: bool) -> Any:
        return DeltaListener(self._location) if fenced else UnfencedDelta(self._location)


class PostgresBusiness:
    """An INSERT beside its marker row."""

    threads = 12
    immunity_s = 0.25

    def __init__(self, connection: str) -> None:
        self._connection = connection

    def errors(self) -> tuple[type[Exception], ...]:
        return (psycopg.Error,)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._connection)

    def create(self) -> None:
        with self.connect() as connection:
            connection.execute("CREATE TABLE orders (transaction_id text PRIMARY KEY)")
        self.listener(fenced=True).create_marker_table()

    def do(self, transaction: Transaction, pause: Pause) -> None:
        with self.connect() as connection, transaction.database(connection):
            pause()
            connection.execute("INSERT INTO orders VALUES (%s)", [transaction.id])
            pause()
        pause()

    def rows(self) -> list[str]:
        with self.connect() as connection:
            return [str(row[0]) for row in connection.execute("SELECT transaction_id FROM orders")]

    def listener(self, *, fenced: bool) -> Any:
        return DatabaseListener(self.connect) if fenced else UnfencedPostgres(self.connect)


class UnfencedDelta:
    """What a listener without a fence says: not there, so roll back."""

    def __init__(self, location: str) -> None:
        self._marked = MarkedTable("orders", location)

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        ids = heads["transaction_id"].to_pylist()
        marks = self._marked.refresh().markers(ids)
        return said(ids, [marks.get(each) == DONE for each in ids])


class UnfencedPostgres:
    """As UnfencedDelta."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        ids = heads["transaction_id"].to_pylist()
        with self._connect() as connection:
            found = MarkerTable(connection).outcomes(ids)
        return said(ids, [found.get(each) == DONE_ROW for each in ids])


def said(ids: list[str], there: list[bool]) -> pa.Table:
    states = ["COMMIT" if is_there else "ROLLBACK" for is_there in there]
    return pa.table({"transaction_id": ids, "state": states})


def business(spec: str) -> Business:
    """`delta:LOCATION`, `postgresql:CONNECTION` or `spark:ENDPOINT`."""
    kind, _, place = spec.partition(":")
    kinds = {"delta": DeltaBusiness, "postgresql": PostgresBusiness, "spark": SparkBusiness}
    return kinds[kind](place)


def journal(path: str, **line: object) -> None:
    """One line that survives a kill."""
    with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - one write, no buffer
        file.write(json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
