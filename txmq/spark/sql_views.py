"""Views over the tables of a store, for whoever lives in SQL.

A catalog of Spark gets them as views; for Spark without a catalog and for DuckDB they are
statements to copy. Each name in them comes from an allow-list.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from txmq.delta.folder import inside, spark_location
from txmq.errors import ConfigError, StoreFormatError, shown
from txmq.ground.printable import printable
from txmq.message.lifecycle import FINAL_STATES, TransactionState
from txmq.message.names import (
    DEAD_LETTER_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    check_readable_topic,
)
from txmq.store.store import Store

# Logs in a schema with the topics; no topic of a user begins so (R22).
LOG_PREFIX = "txmq_"
LOGS = ("half", "op", "settled")
_PART = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)
_PARTS = 2
_EXAMPLE = "messages or main.messages"
_NOT_VISIBLE = (SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
# The last fact of each transaction.
_FACTS = """
  SELECT transaction_id, producer_group, state, sequences, source, reason, settled_timestamp,
         op_version, op_timestamp
  FROM (
    SELECT *, row_number() OVER (
      PARTITION BY transaction_id ORDER BY op_version DESC, ordinal DESC) AS place
    FROM {settled} AS settled
    WHERE state IN ({states})
  ) AS all_facts
  WHERE place = 1
"""
_TRANSACTIONS = """
SELECT head.transaction_id, head.producer_group, head.message_count,
       head.born_timestamp AS prepared_timestamp,
       coalesce(fact.state, 'PENDING') AS state, fact.source AS ended_by, fact.reason,
       fact.settled_timestamp, head.client_id
FROM {half} AS head
LEFT JOIN ({facts}) AS fact ON fact.transaction_id = head.transaction_id
WHERE head.sequence = 0 AND NOT coalesce(head.ordinary, false)
"""
# The last check of a transaction that was not resumed since.
_CHECKS = """
  SELECT transaction_id, check_times, next_check_timestamp, reason
  FROM (
    SELECT *, row_number() OVER (
      PARTITION BY transaction_id ORDER BY op_timestamp DESC, ordinal DESC) AS place
    FROM {op} AS op
    WHERE kind IN ('UNKNOWN', 'RESUME')
  ) AS all_checks
  WHERE place = 1 AND kind = 'UNKNOWN'
"""
_STUCK_TRANSACTIONS = """
SELECT coalesce(begun.transaction_id, fact.transaction_id) AS transaction_id,
       coalesce(begun.producer_group, fact.producer_group) AS producer_group,
       coalesce(fact.state, 'PENDING') AS state,
       begun.prepared_timestamp, coalesce(begun.messages, 0) AS messages,
       checked.check_times, checked.next_check_timestamp,
       CASE WHEN coalesce(fact.state, 'PENDING') = 'PENDING' THEN checked.reason
            ELSE fact.reason END AS reason
FROM (
  SELECT transaction_id, min(producer_group) AS producer_group,
         min(born_timestamp) AS prepared_timestamp, count(real_topic) AS messages
  FROM {half} AS half
  GROUP BY transaction_id
) AS begun
FULL JOIN ({facts}) AS fact ON fact.transaction_id = begun.transaction_id
LEFT JOIN ({checks}) AS checked ON checked.transaction_id = begun.transaction_id
WHERE coalesce(fact.state, 'PENDING') IN ({stuck})
  AND (begun.transaction_id IS NOT NULL OR fact.state <> 'PENDING')
"""
_IS_UNPUBLISHED = """fact.state = 'COMMITTED' AND half.delay_s IS NULL
      AND half.deliver_timestamp IS NULL AND fact.op_version > coalesce(shown.op_version, -1)
      AND (fact.sequences IS NULL OR array_contains(fact.sequences, half.sequence))"""
_TOPIC_LAG = """
SELECT coalesce(shown.topic, waiting.topic) AS topic,
       coalesce(shown.messages, 0) AS visible_messages,
       coalesce(waiting.half_messages, 0) AS half_messages,
       coalesce(waiting.unpublished_messages, 0) AS unpublished_messages,
       waiting.unpublished_since
FROM ({shown}) AS shown
FULL JOIN (
  SELECT half.real_topic AS topic,
    count(CASE WHEN coalesce(fact.state, 'PENDING') = 'PENDING' THEN 1 END) AS half_messages,
    count(CASE WHEN {unpublished} THEN 1 END) AS unpublished_messages,
    min(CASE WHEN {unpublished} THEN fact.op_timestamp END) AS unpublished_since
  FROM {half} AS half
  LEFT JOIN ({facts}) AS fact ON fact.transaction_id = half.transaction_id
  LEFT JOIN ({shown}) AS shown ON shown.topic = half.real_topic
  WHERE half.real_topic IS NOT NULL
    AND (half.real_topic NOT IN ({deleted}) OR coalesce(fact.state, 'PENDING') = 'PENDING')
  GROUP BY half.real_topic
) AS waiting ON waiting.topic = shown.topic
"""
_SHOWN = (
    "SELECT '{name}' AS topic, count(*) AS messages, max(op_version) AS op_version FROM {table}"
)
_NO_TOPIC = (
    "SELECT '' AS topic, CAST(0 AS BIGINT) AS messages, CAST(0 AS BIGINT) AS op_version WHERE false"
)
_LETTERS = """SELECT '{name}' AS dead_letter_topic, message_id, topic, queue_id, queue_offset,
       transaction_id, producer_group, tags, keys, born_timestamp,
       store_timestamp AS dead_since
FROM {table}"""
_NO_LETTERS = """(
  SELECT message_id, real_topic AS topic, real_queue_id AS queue_id, sequence AS queue_offset,
         transaction_id, producer_group, tags, keys, born_timestamp,
         born_timestamp AS store_timestamp
  FROM {half} AS half WHERE false
) AS no_letters"""
_VIEWS: Mapping[str, str] = {
    "txmq_transactions": _TRANSACTIONS,
    "txmq_stuck": _STUCK_TRANSACTIONS,
    "txmq_topic_lag": _TOPIC_LAG,
    "txmq_dead_letters": "{letters}",
}
# The columns that the views read, and their types in DuckDB; partition columns are not in files.
_TYPES = {
    "message_id": "VARCHAR", "transaction_id": "VARCHAR", "sequence": "BIGINT",
    "producer_group": "VARCHAR", "real_topic": "VARCHAR", "real_queue_id": "INTEGER",
    "topic": "VARCHAR", "queue_id": "INTEGER", "queue_offset": "BIGINT", "tags": "VARCHAR",
    "keys": "VARCHAR", "born_timestamp": "TIMESTAMPTZ", "delay_s": "BIGINT",
    "deliver_timestamp": "TIMESTAMPTZ", "ordinary": "BOOLEAN", "message_count": "BIGINT",
    "client_id": "VARCHAR", "ordinal": "BIGINT", "kind": "VARCHAR", "sequences": "BIGINT[]",
    "source": "VARCHAR", "life": "INTEGER", "check_times": "INTEGER",
    "next_check_timestamp": "TIMESTAMPTZ", "reason": "VARCHAR", "op_timestamp": "TIMESTAMPTZ",
    "state": "VARCHAR", "op_version": "BIGINT", "settled_timestamp": "TIMESTAMPTZ",
    "store_timestamp": "TIMESTAMPTZ",
}  # fmt: skip
_READ_FILES = "SELECT * FROM read_parquet([{files}], union_by_name = true)"
# DuckDB reads more than the one file that such a path names.
_PATTERN = re.compile(r"[*?\[]")
_COLUMNS_OF = "(SELECT {columns} FROM ({files}) AS files)"


class SqlEngine(enum.StrEnum):
    """Who reads the views."""

    SPARK = "spark"
    DUCKDB = "duckdb"


def sql_views(store: Store, engine: SqlEngine, *, is_live: bool = False) -> dict[str, str]:
    """Return a statement for each view, for a session of the engine. Commits: 0.

    Args:
        store: whose tables are read.
        engine: Spark gets temporary views over the tables, which show the newest version. DuckDB
            gets views over the files of the versions of this moment, and needs no extension.
        is_live: DuckDB reads the newest version, by its extension `delta`.

    Raises: StorageError.
    """
    if engine is SqlEngine.SPARK:
        return _statements("CREATE OR REPLACE TEMPORARY VIEW", _sources(store, _spark_table))
    table = _duckdb_scan if is_live else _duckdb_files
    return _statements("CREATE OR REPLACE VIEW", _sources(store, table))


def _statements(create: str, sources: ViewSources) -> dict[str, str]:
    return {name: f"{create} {name} AS\n{text}" for name, text in view_queries(sources).items()}


def _sources(store: Store, table: Callable[[Store, str], str]) -> ViewSources:
    logs = {name: table(store, name) for name in LOGS}
    names = store.topics()
    topics: Mapping[str, str] = {topic: table(store, f"topics/{topic}") for topic in names}
    return ViewSources(logs, topics, no_letters_of(logs["half"]), hidden_topics(store, names))


def _spark_table(store: Store, path: str) -> str:
    location = spark_location(f"{store.location}/{path}").replace("`", "``")
    return f"delta.`{location}`"


def _duckdb_scan(store: Store, path: str) -> str:
    return f"delta_scan({_text(f'{store.location}/{path}')})"


def _duckdb_files(store: Store, path: str) -> str:
    """Read the live files by DuckDB; a column that no file has is null."""
    table = store.tables.table_at(path)
    partitions, columns = table.schema.partition_by, table.schema.columns.names
    names = [name for name in columns if name in _TYPES and name not in partitions]
    none = ", ".join(f"CAST(NULL AS {_TYPES[name]}) AS {name}" for name in names)
    parts = [f"SELECT {none} WHERE false"]
    files = [_text(f"{table.location}/{_plain(path, file.path)}") for file in table.files.all()]
    if files:
        listed = ", ".join(files)
        parts.append(_READ_FILES.format(files=listed))
    union = " UNION ALL BY NAME ".join(parts)
    return _COLUMNS_OF.format(columns=", ".join(names), files=union)


def _plain(table: str, path: str) -> str:
    """Spell a file of the table as neither a terminal nor DuckDB can mistake it."""
    problem = f"its log names the file {shown(path)}, which {{}}; `txmq doctor` says more"
    if printable(path) != path or _PATTERN.search(path):
        raise StoreFormatError(table, problem.format("has characters that no view may have"))
    try:
        return inside(path)
    except StoreFormatError as error:
        raise StoreFormatError(table, problem.format("leads out of its folder")) from error


def _text(value: str) -> str:
    """Quote a literal."""
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


# --- Queries -------------------------------------------------------------------------------------


def _words(values: list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_STATES = _words([state.value for state in TransactionState])


_STUCK = _words([state.value for state in TransactionState if state not in FINAL_STATES])


@dataclass(frozen=True, slots=True)
class ViewSources:
    """What stands behind FROM for each table.

    Attributes:
        logs: by the names in LOGS.
        topics: by the stored names of the topics that have a table.
        no_letters: what stands there where nobody has dead letters.
        deleted: stored names of deleted topics without a row: of what was committed to them
            nothing waits.
    """

    logs: Mapping[str, str]
    topics: Mapping[str, str]
    no_letters: str
    deleted: frozenset[str] = frozenset()


def view_queries(sources: ViewSources) -> dict[str, str]:
    """Return the query of each view, by its name. Raises: InvalidNameError."""
    topics = {check_readable_topic(name): table for name, table in sources.topics.items()}
    letters = {name: table for name, table in topics.items() if _has_dead_letters(name)}
    shown = {name: table for name, table in topics.items() if name not in _NOT_VISIBLE}
    logs = {**sources.logs, "states": _STATES, "stuck": _STUCK}
    given = {
        **logs,
        "facts": _FACTS.format(**logs),
        "checks": _CHECKS.format(**logs),
        "deleted": _words(sorted(map(check_readable_topic, sources.deleted)) or [""]),
        "unpublished": _IS_UNPUBLISHED,
        "shown": _union(_SHOWN, shown) or _NO_TOPIC,
        "letters": _union(_LETTERS, letters or {TRANS_CHECK_MAX_TIME_TOPIC: sources.no_letters}),
    }
    return {name: query.format(**given).strip() for name, query in _VIEWS.items()}


def view_statements(
    schema: CatalogSchema,
    topics: Mapping[str, str] | None = None,
    deleted: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Return `CREATE OR REPLACE VIEW` for each view of a catalog, by its name.

    Args:
        schema: has the logs.
        topics: the names in the schema of the topics that have one, by their stored names.
        deleted: as in ViewSources.
    """
    logs = {name: schema.table(LOG_PREFIX + name) for name in LOGS}
    tables = {topic: schema.table(name) for topic, name in (topics or {}).items()}
    queries = view_queries(ViewSources(logs, tables, no_letters_of(logs["half"]), deleted))
    return {
        name: f"CREATE OR REPLACE VIEW {schema.table(name)} AS {query}"
        for name, query in queries.items()
    }


def no_letters_of(half: str) -> str:
    """Select the columns of a topic without a row, from half."""
    return _NO_LETTERS.format(half=half)


def _has_dead_letters(topic: str) -> bool:
    return topic == TRANS_CHECK_MAX_TIME_TOPIC or topic.startswith(DEAD_LETTER_PREFIX)


def _union(query: str, tables: Mapping[str, str]) -> str:
    parts = (query.format(name=name, table=table) for name, table in sorted(tables.items()))
    return "\nUNION ALL\n".join(parts)


# --- Names ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CatalogSchema:
    """A schema (a database) of a catalog: `messages`, or `main.messages`."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: object) -> CatalogSchema:
        """Parse the name of a schema. Raises: ConfigError."""
        parts = text.split(".") if isinstance(text, str) else []
        if not 1 <= len(parts) <= _PARTS or not all(map(_PART.fullmatch, parts)):
            rule = f"name a schema of letters, digits and _, such as {_EXAMPLE}"
            raise ConfigError([f"catalog {text!r}: {rule}"])
        return cls(tuple(parts))

    def __str__(self) -> str:
        """Spell it as users write it."""
        return ".".join(self.parts)

    def table(self, name: str) -> str:
        """Return the whole name of a table in it, quoted: a name may begin with a digit."""
        return ".".join(f"`{part}`" for part in (*self.parts, name))


def hidden_topics(store: Store, shown: Collection[str]) -> frozenset[str]:
    """Find the stored names of deleted topics that are not `shown`. Raises: StorageError."""
    return store.tables.topic_register().read().deleted.difference(shown)


def name_in_catalog(topic: str) -> str:
    """Name a topic's table, with `_` in place of what needs quotes in SQL."""
    return re.sub(r"[^A-Za-z0-9_]", "_", topic)


def names_in_catalog(topics: Collection[str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Name the tables of topics; list the problems of topics that would share a name.

    A catalog does not tell upper from lower case. Of several topics with one name that one gets it
    which is spelt so; without such a one nobody does.
    """
    same: dict[str, list[str]] = {}
    for topic in sorted(topics):
        same.setdefault(name_in_catalog(topic).lower(), []).append(topic)
    names: dict[str, str] = {}
    problems: dict[str, str] = {}
    for group in same.values():
        owners = group if len(group) == 1 else [t for t in group if name_in_catalog(t) == t]
        names.update((topic, name_in_catalog(topic)) for topic in owners)
        for topic in set(group) - set(owners):
            others = ", ".join(other for other in group if other != topic)
            problems[topic] = (
                f"would be named {name_in_catalog(topic)} as {others}; read it by path"
            )
    return names, problems
