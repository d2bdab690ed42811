"""The marker row of a local transaction in a user's database, and the fence row in its place.

The unique key of one table decides: the user's own transaction writes DONE, the check writes
FENCED, and whichever commits first keeps the other out (decision 0012). A statement gets its ids
as one JSON parameter, so 100,000 ids are one statement in every dialect.

`UserDatabase` is any connection of a user, also for the inbox.
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
_SELECT_ONE = "SELECT outcome FROM {table} WHERE transaction_id = {p}"
POSTGRESQL, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
DATABASES = (POSTGRESQL, MYSQL, SQLITE)
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_TABLE_RULE = (
    "write table or schema.table, each up to 63 letters, digits and _, and no digit in front"
)
_ALIASES = {"mariadb": MYSQL}
# By the top-level module of the class of a DB-API connection.
_DRIVERS = {
    "psycopg": POSTGRESQL, "psycopg2": POSTGRESQL, "pg8000": POSTGRESQL,
    "pymysql": MYSQL, "MySQLdb": MYSQL, "mysql": MYSQL, "mariadb": MYSQL,
    "sqlite3": SQLITE,
}  # fmt: skip
# SERVER_STATUS_IN_TRANS of the MySQL protocol.
_IN_TRANSACTION = 1
_QUESTION_MARKS = ("sqlite3", "mariadb")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one kind of database.

    `{table}` stands for the marker table, `{p}` for the parameter: one id, or a JSON list of ids.
    """

    name: str
    create: str
    # Writes the marker of one local transaction, in the user's own transaction.
    insert_one: str
    # Writes a fence for each id without a row.
    insert_many: str
    select_many: str
    # Bounds how long a fence waits for a local transaction that is still running.
    wait_shortly: str
    # Found in the error of a statement that waited too long.
    busy: re.Pattern[str]


_POSTGRESQL = Dialect(
    name=POSTGRESQL,
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
_MYSQL = Dialect(
    name=MYSQL,
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
_SQLITE = Dialect(
    name=SQLITE,
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
DIALECTS = {dialect.name: dialect for dialect in (_POSTGRESQL, _MYSQL, _SQLITE)}


class MarkerTable:
    """The marker table, through one open connection of the caller; commits nothing."""

    def __init__(self, connection: Any, table: str = MARKER_TABLE) -> None:
        """Raise EnvironmentProblemError for a connection of an unknown driver."""
        self.table = check_marker_table(table)
        self._database = UserDatabase(connection)
        self.dialect = DIALECTS[self._database.name]

    def mark(self, transaction_id: str) -> bool:
        """Write DONE; return false if there is a row already."""
        return bool(self._run(self.dialect.insert_one, transaction_id).rowcount == 1)

    def outcome(self, transaction_id: str) -> str | None:
        """Read DONE or FENCED; None if there is no row."""
        row = self._run(_SELECT_ONE, transaction_id).fetchone()
        return str(row[0]) if row else None

    def committed_outcome(self, transaction_id: str) -> str | None:
        """Read as `outcome`, outside of any transaction of the caller: what is committed."""
        row = self._database.first_row(_SELECT_ONE, self.table, transaction_id)
        return str(row[0]) if row else None

    def outcomes(self, transaction_ids: Sequence[str]) -> dict[str, str]:
        """Read DONE or FENCED of the ids that have a row: one statement."""
        rows = self._run(self.dialect.select_many, json.dumps(list(transaction_ids)))
        return {str(key): str(outcome) for key, outcome in rows.fetchall()}

    def fence(self, transaction_ids: Sequence[str]) -> None:
        """Write FENCED for the ids without a row: one statement."""
        self._run(self.dialect.insert_many, json.dumps(list(transaction_ids)))

    def wait_shortly(self) -> None:
        """Bound how long the statements of this transaction wait for another transaction."""
        self._run(self.dialect.wait_shortly)

    def is_busy(self, error: BaseException) -> bool:
        """Tell whether a statement failed because another transaction holds the row."""
        return self.dialect.busy.search(str(error)) is not None

    def create(self) -> None:
        """Make the table if it does not exist."""
        self._run(self.dialect.create)

    @property
    def is_open(self) -> bool:
        """Whether the caller's transaction has begun and is not committed."""
        return self._database.is_open

    @property
    def commits_by_itself(self) -> bool:
        """Whether the connection is in autocommit: each statement is its own transaction."""
        return self._database.commits_by_itself

    def _run(self, statement: str, *parameters: str) -> Any:
        try:
            return self._database.run(statement, self.table, *parameters)
        except Exception as error:
            # The drivers have no error in common for a table that is missing.
            if self.table.rpartition(".")[2] in str(error):
                ways = f"create_marker_table(), or `txmq marker-table {self.dialect.name}`"
                error.add_note(f"if the table {self.table} is not there, make it: {ways}")
            raise


def marker_table_ddl(dialect: str, table: str = MARKER_TABLE) -> str:
    """Return the statement that makes the marker table of DatabaseListener and JdbcListener.

    The statement does nothing if the table exists, so it can be run again. The schema, if `table`
    names one, must exist.

    Args:
        dialect: postgresql, mysql, mariadb or sqlite.
        table: the name of the table, with its schema if needed.

    Raises:
        InvalidNameError: the dialect is not known, or `table` is no table name.

    Example:
        >>> marker_table_ddl("sqlite").splitlines()[0]
        'CREATE TABLE IF NOT EXISTS txmq_marker ('
    """
    return DIALECTS[database_name(dialect)].create.format(table=check_marker_table(table))


def check_marker_table(table: str) -> str:
    """Return the name of a marker table that is safe in a statement. Raises: InvalidNameError."""
    return check_table(table, "marker table")


# --- connections of users -------------------------------------------------------------------------


class UserDatabase:
    """Runs statements on the caller's connection, in the caller's transaction."""

    def __init__(self, connection: Any) -> None:
        """Raise EnvironmentProblemError for a connection of an unknown driver."""
        # An ORM session holds a connection.
        is_session = hasattr(connection, "get_bind") and hasattr(connection, "connection")
        self._connection = connection.connection() if is_session else connection
        self._is_sqlalchemy = hasattr(self._connection, "exec_driver_sql")
        self.name, self._parameter = self._name_and_parameter()

    def run(self, statement: str, table: str, *parameters: Any) -> Any:
        """Run a statement and return the driver's cursor, or SQLAlchemy's result.

        `{table}` in the statement is replaced by `table`, a checked name, and each `{p}` by the
        driver's placeholder of a parameter.
        """
        text = statement.format(table=table, p=self._parameter)
        if self._is_sqlalchemy:
            return self._connection.exec_driver_sql(text, parameters)
        cursor = self._connection.cursor()
        cursor.execute(text, parameters)
        return cursor

    def first_row(self, statement: str, table: str, *parameters: Any) -> Any:
        """Return the first row of a query, or None, outside of any transaction of the caller.

        SQLAlchemy's pool gives another connection. A driver's own connection is asked itself, and
        a transaction that the query begins is ended.

        Raises: the driver's own errors, also if the connection is closed.
        """
        if self._is_sqlalchemy:
            with self._connection.engine.connect() as another:
                return UserDatabase(another).run(statement, table, *parameters).fetchone()
        row = self.run(statement, table, *parameters).fetchone()
        if _waits_for_commit(self._connection):
            self._connection.rollback()
        return row

    @property
    def is_open(self) -> bool:
        """Whether the caller's transaction has begun and is not committed."""
        if getattr(self._connection, "closed", False):
            return False
        if self._is_sqlalchemy:
            return bool(self._connection.in_transaction())
        try:
            return _waits_for_commit(self._connection)
        except Exception:  # noqa: BLE001 - a driver may raise anything for a closed connection
            return False

    @property
    def commits_by_itself(self) -> bool:
        """Whether the connection is in autocommit: each statement is its own transaction."""
        driver = self._driver_connection()
        return _is_autocommit(driver) and not _waits_for_commit(driver)

    def _driver_connection(self) -> Any:
        if not self._is_sqlalchemy:
            return self._connection
        return self._connection.connection.dbapi_connection

    def _name_and_parameter(self) -> tuple[str, str]:
        """Find the name in DATABASES, and the driver's placeholder of a parameter."""
        if self._is_sqlalchemy:
            dialect = self._connection.dialect
            driver, is_qmark = dialect.name, dialect.paramstyle == "qmark"
            database = _ALIASES.get(driver, driver)
        else:
            driver = type(self._connection).__module__.partition(".")[0]
            database, is_qmark = _DRIVERS.get(driver, ""), driver in _QUESTION_MARKS
        if database not in DATABASES:
            problem = f"connections of {driver} are not supported"
            next_step = f"Use one of {', '.join(_DRIVERS)}, or SQLAlchemy."
            raise EnvironmentProblemError(problem, next_step)
        return database, "?" if is_qmark else "%s"


def _waits_for_commit(driver: Any) -> bool:
    """Tell whether a transaction has begun; ask sqlite3 and mysql, then psycopg, then PyMySQL."""
    if getattr(driver, "in_transaction", False):
        return True
    info = getattr(driver, "info", None)
    if getattr(info, "transaction_status", 0):
        return True
    return bool(getattr(driver, "server_status", 0) & _IN_TRANSACTION)


def _is_autocommit(driver: Any) -> bool:
    if hasattr(driver, "isolation_level") and hasattr(driver, "in_transaction"):
        # sqlite3: isolation_level None is its older form of autocommit.
        return driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return bool(getattr(driver, "autocommit", False))


def database_name(dialect: str) -> str:
    """Return the name in DATABASES of a dialect; mariadb is mysql. Raises: InvalidNameError."""
    name = _ALIASES.get(dialect, dialect)
    if name not in DATABASES:
        raise InvalidNameError("dialect", dialect, f"one of {', '.join(DATABASES)}")
    return name


def check_table(table: object, kind: str) -> str:
    """Return a table name that is safe in a statement; `kind` names it in the error.

    Raises: InvalidNameError.
    """
    if not isinstance(table, str) or TABLE_NAME.fullmatch(table) is None:
        raise InvalidNameError(kind, table, _TABLE_RULE)
    return table
