"""The marker row of a local transaction in a user's database, and the fence row in its place.

One table with a unique key decides: the row DONE belongs to the user's own transaction, the row
FENCED to the check; whoever commits first keeps the other out. Ids travel as one JSON parameter,
so a hundred thousand of them are one statement in every dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txmq.errors import EnvironmentProblemError, InvalidNameError

DONE, FENCED = "DONE", "FENCED"
MARKER_TABLE = "txmq_marker"
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_TABLE_RULE = "letters, digits and _, with a schema and a dot in front at most"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database says what the marker needs.

    `{table}` stands for the marker table, `{p}` for the parameter: one id, or a JSON list of ids.
    """

    name: str
    create: str
    # Mark one local transaction, in the user's own transaction.
    insert_one: str
    # Fence all that have no row.
    insert_many: str
    select_many: str
    # What a fence waits for a local transaction that is still running.
    wait_shortly: str
    busy: re.Pattern[str]


_SELECT_ONE = "SELECT outcome FROM {table} WHERE transaction_id = {p}"
POSTGRESQL = Dialect(
    name="postgresql",
    create="""\
CREATE TABLE IF NOT EXISTS {table} (
  transaction_id VARCHAR(64) NOT NULL PRIMARY KEY,
  outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('DONE', 'FENCED')),
  marked_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
    insert_one="""\
INSERT INTO {table} (transaction_id, outcome) VALUES ({p}, 'DONE')
ON CONFLICT (transaction_id) DO NOTHING""",
    insert_many="""\
INSERT INTO {table} (transaction_id, outcome)
SELECT id, 'FENCED' FROM json_array_elements_text(CAST({p} AS json)) AS asked(id) ORDER BY id
ON CONFLICT (transaction_id) DO NOTHING""",
    select_many="""\
SELECT transaction_id, outcome FROM {table} WHERE transaction_id IN
(SELECT id FROM json_array_elements_text(CAST({p} AS json)) AS asked(id))""",
    wait_shortly="SET LOCAL lock_timeout = '100ms'",
    busy=re.compile(r"lock timeout|55P03|deadlock"),
)
MYSQL = Dialect(
    name="mysql",
    create="""\
CREATE TABLE IF NOT EXISTS {table} (
  transaction_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  outcome VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  marked_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB""",
    insert_one="INSERT IGNORE INTO {table} (transaction_id, outcome) VALUES ({p}, 'DONE')",
    insert_many="""\
INSERT IGNORE INTO {table} (transaction_id, outcome)
SELECT id, 'FENCED' FROM JSON_TABLE({p}, '$[*]' COLUMNS
(id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS asked ORDER BY id""",
    select_many="""\
SELECT transaction_id, outcome FROM {table} WHERE transaction_id IN
(SELECT id FROM JSON_TABLE({p}, '$[*]' COLUMNS
(id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS asked)""",
    wait_shortly="SET SESSION innodb_lock_wait_timeout = 1",
    busy=re.compile(r"\b1205\b|\b1213\b|Lock wait timeout|Deadlock"),
)
SQLITE = Dialect(
    name="sqlite",
    create="""\
CREATE TABLE IF NOT EXISTS {table} (
  transaction_id TEXT NOT NULL PRIMARY KEY,
  outcome TEXT NOT NULL CHECK (outcome IN ('DONE', 'FENCED')),
  marked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
    insert_one="INSERT OR IGNORE INTO {table} (transaction_id, outcome) VALUES ({p}, 'DONE')",
    insert_many="""\
INSERT OR IGNORE INTO {table} (transaction_id, outcome)
SELECT value, 'FENCED' FROM json_each({p})""",
    select_many="""\
SELECT transaction_id, outcome FROM {table} WHERE transaction_id IN
(SELECT value FROM json_each({p}))""",
    wait_shortly="PRAGMA busy_timeout = 100",
    busy=re.compile(r"database is locked|database table is locked"),
)
DIALECTS = {dialect.name: dialect for dialect in (POSTGRESQL, MYSQL, SQLITE)}
_ALIASES = {"mariadb": "mysql"}
# By the first name of the module that a DB-API connection comes from.
_DRIVERS = {
    "psycopg": POSTGRESQL, "psycopg2": POSTGRESQL, "pg8000": POSTGRESQL,
    "pymysql": MYSQL, "MySQLdb": MYSQL, "mysql": MYSQL, "mariadb": MYSQL,
    "sqlite3": SQLITE,
}  # fmt: skip
# SERVER_STATUS_IN_TRANS of the MySQL protocol.
_IN_TRANSACTION = 1
_QUESTION_MARKS = ("sqlite3", "mariadb")


def marker_table_ddl(dialect: str, table: str = MARKER_TABLE) -> str:
    """The statement that makes the marker table, for postgresql, mysql (MariaDB too) or sqlite.

    Raises: InvalidNameError.
    """
    found = DIALECTS.get(_ALIASES.get(dialect, dialect))
    if found is None:
        raise InvalidNameError("dialect", dialect, f"one of {', '.join(DIALECTS)}")
    return found.create.format(table=check_table(table))


def check_table(table: str) -> str:
    """A name that may stand in a statement. Raises: InvalidNameError."""
    if TABLE_NAME.fullmatch(table) is None:
        raise InvalidNameError("marker table", table, _TABLE_RULE)
    return table


class MarkerTable:
    """The marker table as one open connection sees it.

    The connection is of a DB-API driver or of SQLAlchemy (also an ORM session); the caller begins
    and ends its transactions.
    """

    def __init__(self, connection: Any, table: str = MARKER_TABLE) -> None:
        """Raise EnvironmentProblemError for a connection of an unknown driver."""
        self.table = check_table(table)
        # An ORM session lends its connection.
        is_session = hasattr(connection, "get_bind") and hasattr(connection, "connection")
        self._connection = connection.connection() if is_session else connection
        self._is_sqlalchemy = hasattr(self._connection, "exec_driver_sql")
        self.dialect, self._parameter = self._spoken()

    def mark(self, transaction_id: str) -> bool:
        """Write DONE; False where a row is there already."""
        return bool(self._run(self.dialect.insert_one, transaction_id).rowcount == 1)

    def outcome(self, transaction_id: str) -> str | None:
        """DONE, FENCED or None."""
        row = self._run(_SELECT_ONE, transaction_id).fetchone()
        return str(row[0]) if row else None

    def outcomes(self, transaction_ids: Sequence[str]) -> dict[str, str]:
        """DONE or FENCED of those that have either: one statement."""
        found = self._run(self.dialect.select_many, json.dumps(list(transaction_ids)))
        return {str(key): str(outcome) for key, outcome in found.fetchall()}

    def fence(self, transaction_ids: Sequence[str]) -> None:
        """Write FENCED where there is no row: one statement."""
        self._run(self.dialect.insert_many, json.dumps(list(transaction_ids)))

    def wait_shortly(self) -> None:
        """Let this transaction's statements give up soon where they would wait for another."""
        self._run(self.dialect.wait_shortly)

    def is_busy(self, error: BaseException) -> bool:
        """Whether a statement gave up because another transaction holds the row."""
        return self.dialect.busy.search(str(error)) is not None

    def create(self) -> None:
        """Make the table if it is not there."""
        self._run(self.dialect.create)

    @property
    def is_open(self) -> bool:
        """Whether a transaction of the caller waits for its commit."""
        if getattr(self._connection, "closed", False):
            return False
        if self._is_sqlalchemy:
            return bool(self._connection.in_transaction())
        try:
            return _waits_for_commit(self._connection)
        except Exception:  # noqa: BLE001 - what a driver says of a connection that is closed
            return False

    @property
    def commits_by_itself(self) -> bool:
        """Whether each statement would be a transaction of its own."""
        driver = self._driver_connection()
        return _is_autocommit(driver) and not _waits_for_commit(driver)

    def _driver_connection(self) -> Any:
        if not self._is_sqlalchemy:
            return self._connection
        return self._connection.connection.dbapi_connection

    def _spoken(self) -> tuple[Dialect, str]:
        """The dialect, and how the driver writes a parameter."""
        if self._is_sqlalchemy:
            spoken = self._connection.dialect
            name = _ALIASES.get(spoken.name, spoken.name)
            dialect, is_qmark = DIALECTS.get(name), spoken.paramstyle == "qmark"
        else:
            name = type(self._connection).__module__.partition(".")[0]
            dialect, is_qmark = _DRIVERS.get(name), name in _QUESTION_MARKS
        if dialect is None:
            what = f"no marker table is known for connections of {name}"
            raise EnvironmentProblemError(what, f"Use one of {', '.join(_DRIVERS)}, or SQLAlchemy.")
        return dialect, "?" if is_qmark else "%s"

    def _run(self, statement: str, *parameters: str) -> Any:
        text = statement.format(table=self.table, p=self._parameter)
        if self._is_sqlalchemy:
            return self._connection.exec_driver_sql(text, parameters)
        cursor = self._connection.cursor()
        cursor.execute(text, parameters)
        return cursor


def _waits_for_commit(driver: Any) -> bool:
    """Whether a transaction has begun: sqlite3 and mysql, psycopg, then PyMySQL say it so."""
    if getattr(driver, "in_transaction", False):
        return True
    info = getattr(driver, "info", None)
    if getattr(info, "transaction_status", 0):
        return True
    return bool(getattr(driver, "server_status", 0) & _IN_TRANSACTION)


def _is_autocommit(driver: Any) -> bool:
    if hasattr(driver, "isolation_level") and hasattr(driver, "in_transaction"):
        # sqlite3: None is its old way to say so.
        return driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return bool(getattr(driver, "autocommit", False))
