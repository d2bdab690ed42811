"""The logs of all tables as one frame: every action of every commit and checkpoint that is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txmq.errors import StoreNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What services keep comes first, then what follows is pinned before what it follows.
_SCHEDULE = "topics/SCHEDULE_TOPIC_XXXX"
# What is taken away is said before it is done.
_SAID = "state/maintenance"
PLACES = ("state", "topics", _SCHEDULE, "settled", "op", "half", _SAID)
_SHELVES = ("state", "topics")
_NEEDED = ("settled", "op", "half")
_APART = f"/({_SCHEDULE}|{_SAID})/_delta_log/"
_GLOB_CHARACTERS = re.compile(r"([{}*?\[\]\\])")
_ACTIONS = """
    commitInfo STRUCT<timestamp: BIGINT, operation: STRING>, metaData STRUCT<id: STRING>,
    add STRUCT<path: STRING, size: BIGINT, dataChange: BOOLEAN, stats: STRING,
        partitionValues: MAP<STRING, STRING>>,
    remove STRUCT<path: STRING, dataChange: BOOLEAN>, txn STRUCT<appId: STRING, version: BIGINT>
"""
_OF_A_PLACE = """
    SELECT
        if({shelf} = '', {place},
            concat({shelf}, '/', regexp_extract(file, '/([^/]+)/_delta_log/', 1))) AS table,
        cast(regexp_extract(file, '/_delta_log/([0-9]+)[.][^/]*$', 1) AS BIGINT) AS version,
        {is_commit} AS is_commit, file_ms, commitInfo AS info, metaData.id AS table_id,
        named_struct(
            'name', regexp_extract(add.path, '[^/]+$', 0), 'path', add.path, 'size', add.size,
            'is_change', add.dataChange, 'day', add.partitionValues['store_date'],
            'row_count', cast(get_json_object(add.stats, '$.numRecords') AS BIGINT),
            'largest_id', get_json_object(add.stats, '$.maxValues.transaction_id')
        ) AS added,
        named_struct('path', remove.path, 'is_change', remove.dataChange) AS removed, txn
    FROM {actions}
    WHERE file RLIKE {pattern} AND ({shelf} = '' OR NOT file RLIKE {apart})
"""
_FILES = """
    SELECT regexp_extract(path, '[^/]+$', 0) AS name, min(length) AS size
    FROM {files} GROUP BY 1
"""
_VERSIONS = """
    WITH commits AS (
        SELECT table, version, max(table_id) AS table_id, bool_or(is_commit) AS is_commit,
            bool_or(added.is_change AND is_commit AND f.name IS NULL) AS lacks_rows
        FROM {actions} LEFT JOIN {files} f ON added.name = f.name
        GROUP BY table, version
    ), numbered AS (
        SELECT *, max(version) OVER (PARTITION BY table) AS latest,
            row_number() OVER (PARTITION BY table, is_commit ORDER BY version DESC) AS back
        FROM commits
    ), newest AS (
        SELECT table, txn.appId AS app_id, max_by(txn.version, version) AS number
        FROM {actions} WHERE txn IS NOT NULL GROUP BY table, txn.appId
    ), marked AS (
        SELECT table, map_from_entries(collect_list(struct(app_id, number))) AS marks
        FROM newest GROUP BY table
    )
    SELECT table, max(latest) AS latest, max(table_id) AS table_id, any_value(marks) AS marks,
        greatest(
            coalesce(min(if(is_commit AND version + back = latest + 1, version, NULL)),
                max(latest) + 1),
            coalesce(max(if(lacks_rows, version + 1, NULL)), 0)
        ) AS readable_from
    FROM numbered LEFT JOIN marked USING (table) GROUP BY table
"""


@dataclass(frozen=True, slots=True)
class PinnedLog:
    """One table's place in time."""

    version: int
    readable_from: int
    table_id: str
    marks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Logs:
    """All logs of a store.

    Attributes:
        actions: table, version, is_commit (or from a checkpoint), file_ms, info, added, removed,
            txn, table_id.
        files: name and size of every data file that is there.
        pinned: by the place of a table in the store.
    """

    actions: DataFrame
    files: DataFrame
    pinned: Mapping[str, PinnedLog]


def read_logs(spark: SparkSession, root: str, versions: Mapping[str, int] | None) -> Logs:
    """Pin all tables, at `versions` where they are given; one Spark job.

    Raises: StoreNotFoundError.
    """
    actions = _actions(spark, root)
    if versions is not None:
        known = spark.createDataFrame(list(versions.items()), "table STRING, last BIGINT")
        query = "SELECT a.* FROM {actions} a JOIN {known} USING (table) WHERE version <= last"
        actions = spark.sql(query, actions=actions, known=known)
    actions, files = kept(actions), kept(_files(spark, root))
    rows = spark.sql(_VERSIONS, actions=actions, files=files).collect()
    pinned = {
        row.table: PinnedLog(row.latest, row.readable_from, row.table_id, row.marks or {})
        for row in rows
    }
    return Logs(actions, files, pinned)


def kept(frame: DataFrame) -> DataFrame:
    """Read once and cut off from how it was made: one job, rows stay with the executors.

    A plan of all views together takes minutes to optimize, and many small parts make many tasks.
    """
    parts = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    return frame.coalesce(parts).localCheckpoint()


def globbed(location: str) -> str:
    """A location that stands for itself where Spark expects a pattern."""
    return _GLOB_CHARACTERS.sub(r"\\\1", location)


def _actions(spark: SparkSession, root: str) -> DataFrame:
    """Listed place by place, in order: what comes later can only be newer."""
    parts = [part for place in PLACES for part in _of_place(spark, root, place)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _of_place(spark: SparkSession, root: str, place: str) -> Iterator[DataFrame]:
    shelf = place if place in _SHELVES else ""
    folder = f"{globbed(root)}/{place}/*" if shelf else f"{globbed(root)}/{place}"
    commits = _listed(spark, "json", f"{folder}/_delta_log/*.json")
    if commits is None and place in _NEEDED:
        raise StoreNotFoundError(place, "is not there; check the location of the store")
    checkpoints = _listed(spark, "parquet", f"{folder}/_delta_log/*.checkpoint*.parquet")
    pattern = {"json": "/[0-9]{20}[.]json$", "parquet": "/[0-9]{20}[.]checkpoint[^/]*[.]parquet$"}
    for kind, found in (("json", commits), ("parquet", checkpoints)):
        if found is not None:
            yield spark.sql(
                _OF_A_PLACE, place=place, shelf=shelf, is_commit=kind == "json",
                pattern=pattern[kind], apart=_APART, actions=found,
            )  # fmt: skip


def _listed(spark: SparkSession, kind: str, pattern: str) -> DataFrame | None:
    """The files of a pattern as they are now; None without any."""
    from pyspark.errors import AnalysisException

    try:
        found = spark.read.format(kind).schema(_ACTIONS).load(pattern)
        # Spark Connect looks at the path here, and not before.
        found.columns  # noqa: B018
    except AnalysisException:
        return None
    return found.selectExpr(
        "*", "_metadata.file_path AS file",
        "unix_millis(_metadata.file_modification_time) AS file_ms",
    )  # fmt: skip


def _files(spark: SparkSession, root: str) -> DataFrame:
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    found = reader.option("pathGlobFilter", "*.parquet").load(globbed(root))
    return spark.sql(_FILES, files=found.select("path", "length"))
