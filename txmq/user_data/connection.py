"""An open connection of a user's database, whichever driver it is of.

It is of a DB-API driver or of SQLAlchemy (also an ORM session); the caller begins and ends its
transactions.
"""

from __future__ import annotations

import re
from typing import Any

from txmq.errors import EnvironmentProblemError, InvalidNameError

POSTGRESQL, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
DATABASES = (POSTGRESQL, MYSQL, SQLITE)
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_TABLE_RULE = "letters, digits and _, with a schema and a dot in front at most"
_ALIASES = {"mariadb": MYSQL}
# By the first name of the module that a DB-API connection comes from.
_DRIVERS = {
    "psycopg": POSTGRESQL, "psycopg2": POSTGRESQL, "pg8000": POSTGRESQL,
    "pymysql": MYSQL, "MySQLdb": MYSQL, "mysql": MYSQL, "mariadb": MYSQL,
    "sqlite3": SQLITE,
}  # fmt: skip
# SERVER_STATUS_IN_TRANS of the MySQL protocol.
_IN_TRANSACTION = 1
_QUESTION_MARKS = ("sqlite3", "mariadb")


def database_name(dialect: str) -> str:
    """One of DATABASES; mariadb is mysql. Raises: InvalidNameError."""
    found = _ALIASES.get(dialect, dialect)
    if found not in DATABASES:
        raise InvalidNameError("dialect", dialect, f"one of {', '.join(DATABASES)}")
    return found


def check_table(table: object, kind: str) -> str:
    """A name that may stand in a statement. Raises: InvalidNameError."""
    if not isinstance(table, str) or TABLE_NAME.fullmatch(table) is None:
        raise InvalidNameError(kind, table, _TABLE_RULE)
    return table


class UserDatabase:
    """Runs statements on the caller's connection, in the caller's transaction."""

    def __init__(self, connection: Any) -> None:
        """Raise EnvironmentProblemError for a connection of an unknown driver."""
        # An ORM session lends its connection.
        is_session = hasattr(connection, "get_bind") and hasattr(connection, "connection")
        self._connection = connection.connection() if is_session else connection
        self._is_sqlalchemy = hasattr(self._connection, "exec_driver_sql")
        self.name, self._parameter = self._spoken()

    def run(self, statement: str, table: str, *parameters: Any) -> Any:
        """`{table}` stands for a checked name, `{p}` for each parameter in turn."""
        text = statement.format(table=table, p=self._parameter)
        if self._is_sqlalchemy:
            return self._connection.exec_driver_sql(text, parameters)
        cursor = self._connection.cursor()
        cursor.execute(text, parameters)
        return cursor

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

    def _spoken(self) -> tuple[str, str]:
        """The kind of database, and how the driver writes a parameter."""
        if self._is_sqlalchemy:
            spoken = self._connection.dialect
            name, is_qmark = spoken.name, spoken.paramstyle == "qmark"
            found = _ALIASES.get(name, name)
        else:
            name = type(self._connection).__module__.partition(".")[0]
            found, is_qmark = _DRIVERS.get(name, ""), name in _QUESTION_MARKS
        if found not in DATABASES:
            what = f"no marker table is known for connections of {name}"
            raise EnvironmentProblemError(what, f"Use one of {', '.join(_DRIVERS)}, or SQLAlchemy.")
        return found, "?" if is_qmark else "%s"


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
