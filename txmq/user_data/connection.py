"""An open connection to a user's database: of a DB-API driver or of SQLAlchemy, ORM sessions too.

The caller begins and ends the transactions of the connection.
"""

from __future__ import annotations

import re
from typing import Any

from txmq.errors import EnvironmentProblemError, InvalidNameError

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


def database_name(dialect: str) -> str:
    """The name in DATABASES of a dialect; mariadb is mysql. Raises: InvalidNameError."""
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
        """The first row of a query outside of any transaction of the caller; None without one.

        SQLAlchemy's pool gives another connection. A driver's own connection is asked itself, and
        a transaction that the query begins is ended.

        Raises: the driver's own errors, also where the connection is closed.
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
        """The name in DATABASES, and the driver's placeholder of a parameter."""
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
    """Whether a transaction has begun; asks sqlite3 and mysql, then psycopg, then PyMySQL."""
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
