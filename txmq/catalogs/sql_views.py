"""The views as statements to copy, for Spark without a catalog and for DuckDB."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping

from txmq.catalogs.names import LOGS, hidden_topics
from txmq.catalogs.views import ViewSources, no_letters_of, view_queries
from txmq.delta.object_store import spark_location
from txmq.delta.rooted import inside
from txmq.errors import StoreFormatError, shown
from txmq.printable import printable
from txmq.store.store import Store

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
    """A statement for each view, by its name; run them in a session of the engine. Commits: 0.

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
    """The live files; a column that no file has is null."""
    table = store.tables.table_at(path)
    partitions, columns = table.schema.partition_by, table.schema.columns.names
    names = [name for name in columns if name in _TYPES and name not in partitions]
    none = ", ".join(f"CAST(NULL AS {_TYPES[name]}) AS {name}" for name in names)
    parts = [f"SELECT {none} WHERE false"]
    files = [_text(f"{table.location}/{_plain(path, file.path)}") for file in table.files()]
    if files:
        listed = ", ".join(files)
        parts.append(_READ_FILES.format(files=listed))
    union = " UNION ALL BY NAME ".join(parts)
    return _COLUMNS_OF.format(columns=", ".join(names), files=union)


def _plain(table: str, path: str) -> str:
    """A file of the table, as neither a terminal nor DuckDB can mistake it."""
    problem = f"its log names the file {shown(path)}, which {{}}; `txmq doctor` says more"
    if printable(path) != path or _PATTERN.search(path):
        raise StoreFormatError(table, problem.format("has characters that no view may have"))
    try:
        return inside(path)
    except StoreFormatError as error:
        raise StoreFormatError(table, problem.format("leads out of its folder")) from error


def _text(value: str) -> str:
    """A literal."""
    quoted = value.replace("'", "''")
    return f"'{quoted}'"
