"""DatabaseListener for clusters that have a JDBC driver and no Python one: all by Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txmq.clock import Clock, SystemClock
from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.listeners.protocol import ages_s
from txmq.message.message import LocalTransactionState
from txmq.user_data.database_marker import DIALECTS, DONE, FENCED, MARKER_TABLE, check_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATEMENT_IDS = 10_000
# What txmq makes itself; an id by hand may be anything, and is not put into a statement.
_SAFE_ID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
# With a URL jdbc:mariadb: Spark quotes names as MariaDB quotes texts.
_URLS = ("jdbc:postgresql:", "jdbc:mysql:")
_STATES = {
    DONE: (LocalTransactionState.COMMIT.value, "its marker is in the database"),
    FENCED: (LocalTransactionState.ROLLBACK.value, "its marker is not in the database: fenced"),
}
_NOT_YET = (LocalTransactionState.UNKNOWN.value, "its marker is not in the database yet")


class JdbcListener:
    """As DatabaseListener, by Spark's JDBC source: Postgres, MySQL and MariaDB.

    Spark can only read by JDBC; the fence is the statement that Spark runs when it opens the
    session of such a read (`sessionInitStatement`). A local transaction that is still running
    holds it up until the listener's time is over: then all of that call are UNKNOWN.

    Args:
        url_variable: the environment variable of the driver that holds the JDBC URL.
        user_variable, password_variable: those with the name and the password, if the URL has none.
        options: more options of Spark's JDBC source, such as `driver`.
        table: the marker table, see `marker_table_ddl`.
        rollback_after_s: UNKNOWN instead of a fence while a transaction is younger.
    """

    head_columns = ("transaction_id", "born_timestamp")

    def __init__(  # noqa: PLR0913 - settings of a user's, each by its name
        self,
        *,
        url_variable: str,
        user_variable: str | None = None,
        password_variable: str | None = None,
        options: Mapping[str, str] | None = None,
        table: str = MARKER_TABLE,
        rollback_after_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing yet. Raises: InvalidNameError, EnvironmentProblemError."""
        self._options = dict(options or {}) | _secrets(
            {"url": url_variable, "user": user_variable, "password": password_variable}
        )
        url = self._options["url"]
        if not url.startswith(_URLS):
            problem = f"{url_variable} must begin with {' or '.join(_URLS)} (MariaDB too)"
            raise ListenerError(type(self).__name__, problem)
        self._dialect = DIALECTS[url.split(":")[1]]
        self._table = check_table(table)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        """Two reads for every 10,000 heads; a third where some have no marker."""
        spark, asked = heads.sparkSession, heads.toArrow()
        young = (ages_s(asked, self._clock) < self._rollback_after_s).tolist()
        ids = asked["transaction_id"].to_pylist()
        is_young = dict(zip(ids, young, strict=True))
        rows: list[tuple[str, str, str]] = []
        for chunk in _chunks([each for each in ids if _SAFE_ID.fullmatch(each)]):
            found = self._read(spark, chunk)
            undecided = [each for each in chunk if each not in found and not is_young[each]]
            if undecided:
                found |= self._read(spark, undecided, fence=True)
            rows += [(each, *_STATES.get(found.get(each, ""), _NOT_YET)) for each in chunk]
        return spark.createDataFrame(rows, "transaction_id string, state string, reason string")

    def _read(
        self, spark: SparkSession, ids: Sequence[str], *, fence: bool = False
    ) -> dict[str, str]:
        reader: Any = spark.read.format("jdbc").options(**self._options)
        if fence:
            reader = reader.option(
                "sessionInitStatement", self._with(self._dialect.insert_many, ids)
            )
        found = reader.option("query", self._with(self._dialect.select_many, ids)).load().toArrow()
        names, outcomes = found.column(0).to_pylist(), found.column(1).to_pylist()
        return dict(zip(names, outcomes, strict=True))

    def _with(self, statement: str, ids: Sequence[str]) -> str:
        """The statement with the ids as a literal: they are letters, digits and dashes."""
        return statement.format(table=self._table, p=f"'{json.dumps(list(ids))}'")


def _secrets(variables: Mapping[str, str | None]) -> dict[str, str]:
    found = {}
    for option, variable in variables.items():
        if variable is None:
            continue
        value = os.environ.get(variable)
        if not value:
            problem = f"the environment variable {variable} is not set"
            raise EnvironmentProblemError(problem, f"Set it to the JDBC {option}.")
        found[option] = value
    return found


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), STATEMENT_IDS):
        yield ids[first : first + STATEMENT_IDS]
