"""(g) 100,000 due transactions in one round, answered by the Delta and by the Postgres listener."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from bench.messages import GROUP, one_message_transactions
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from tests.kit import databases
from txmq.check.recheck import RecheckJob
from txmq.ground.clock import SystemClock
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.user_data.database_marker import DONE as DONE_ROW
from txmq.user_data.delta_marker import DONE, MarkedTable

PER_COMMIT = 10_000
BODY_BYTES = 16
LEAST_PER_S = 20_000.0
DAY_MS = 86_400_000


@dataclass
class Round:
    """One round: how long the listener took, the whole round, and what it cost."""

    listener_s: float
    round_s: float
    facts: dict[str, int]


class Timed:
    """A listener and how long its one call took."""

    def __init__(self, listener: Any) -> None:
        """Called by the round."""
        self.head_columns = listener.head_columns
        self._listener = listener
        self.passed_s = 0.0

    def check_local_transactions_arrow(self, heads: Any) -> Any:
        """The listener's answer."""
        began_s = time.perf_counter()
        answer = self._listener.check_local_transactions_arrow(heads)
        self.passed_s += time.perf_counter() - began_s
        return answer


class CountingCursor(psycopg.Cursor[Any]):
    """Counts the statements of all connections."""

    statements = 0

    def execute(self, *arguments: Any, **options: Any) -> Any:
        """As psycopg's."""
        CountingCursor.statements += 1
        return super().execute(*arguments, **options)


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Questions a second of each listener; the whole round is among the facts."""
    count = sizes.due_transactions
    delta = [_delta_round(count, folder) for _ in range(sizes.rounds)]
    outcomes = [_outcome("Delta", delta)]
    if databases.missing("postgresql") is None:
        with databases.running_postgres() as server:
            postgres = [_postgres_round(count, folder, server) for _ in range(sizes.rounds)]
        outcomes.append(_outcome("Postgres", postgres))
    return outcomes


def _outcome(name: str, rounds: list[Round]) -> Outcome:
    count = rounds[0].facts["questions"]
    return Outcome(
        "listeners", f"{name}, {count:,} due in one round", "questions/s",
        [count / each.listener_s for each in rounds], bar=Bar(LEAST_PER_S, at_most=False),
        facts={**rounds[0].facts, "round_s": [round(each.round_s, 2) for each in rounds]},
    )  # fmt: skip


def _delta_round(count: int, folder: Path) -> Round:
    """Half of them are marked in the user's table, the others are fenced."""
    store, ids = _store_with(count, folder)
    location = str(fresh_folder(folder, "orders"))
    DeltaTable.create(location, schema=_schema())
    MarkedTable("orders", location).commit_marks(dict.fromkeys(ids[::2], DONE))
    version = DeltaTable(location).version()
    made = _round(store, DeltaListener(location), count)
    made.facts["commits"] = DeltaTable(location).version() - version
    return made


def _postgres_round(count: int, folder: Path, server: databases.Server) -> Round:
    store, ids = _store_with(count, folder)
    with _marked(server, ids[::2]):
        CountingCursor.statements = 0
        made = _round(store, DatabaseListener(lambda: _counted(server)), count)
        made.facts["statements"] = CountingCursor.statements
    return made


def _counted(server: databases.Server) -> Any:
    connection = server.connect()
    connection.cursor_factory = CountingCursor
    return connection


@contextmanager
def _marked(server: databases.Server, ids: list[str]) -> Iterator[None]:
    DatabaseListener(server.connect).create_marker_table()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO txmq_marker (transaction_id, outcome) VALUES (%s, %s)",
            [(each, DONE_ROW) for each in ids],
        )
    yield
    with server.connect() as connection:
        connection.execute("DROP TABLE txmq_marker")


def _round(store: Store, listener: Any, count: int) -> Round:
    timed = Timed(listener)
    clock = ManualClock(SystemClock().now_ms() + DAY_MS)
    began_s = time.perf_counter()
    result = RecheckJob(store, listeners={GROUP: timed}, clock=clock).run_once()
    round_s = time.perf_counter() - began_s
    checks = result.checks
    if (checks.committed, checks.rolled_back) != ((count + 1) // 2, count // 2):
        problem = f"{checks.committed} committed, {checks.rolled_back} rolled back of {count}"
        raise AssertionError(problem)
    return Round(timed.passed_s, round_s, {"questions": count})


def _store_with(count: int, folder: Path) -> tuple[Store, list[str]]:
    """Halves that nobody ended."""
    config = Config(listener_timeout_s=60.0, check_lease_s=120.0)
    store = Store.create(fresh_folder(folder, "store"), config)
    table, ids = store.tables.half_log().table, []
    for number in range(-(-count // PER_COMMIT)):
        rows = min(PER_COMMIT, count - number * PER_COMMIT)
        halves, _ = one_message_transactions(rows, BODY_BYTES)
        table.writer.append(halves, app_id="bench", number=number + 1)
        ids += halves["transaction_id"].to_pylist()
    return store, ids


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("id", pa.int64())])
