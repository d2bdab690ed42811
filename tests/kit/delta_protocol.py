"""A strict reader of Delta's log, written after the protocol (PROTOCOL.md), sharing no code.

It accepts only what the protocol allows a writer of txmq's tables to write: reader version 1,
writer versions up to 7, no feature that changes how files are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

COMMIT = re.compile(r"(\d{20})\.json")
# For each action its required fields and their types, then its optional ones.
_TEXT, _NUMBER, _FLAG, _MAP, _LIST = str, int, bool, dict, list
_FIELDS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "add": (
        {
            "path": _TEXT, "partitionValues": _MAP, "size": _NUMBER,
            "modificationTime": _NUMBER, "dataChange": _FLAG,
        },
        {"stats": _TEXT, "tags": _MAP, "baseRowId": _NUMBER, "defaultRowCommitVersion": _NUMBER,
         "clusteringProvider": _TEXT, "deletionVector": _MAP},
    ),
    "remove": (
        {"path": _TEXT, "dataChange": _FLAG},
        {"deletionTimestamp": _NUMBER, "extendedFileMetadata": _FLAG, "partitionValues": _MAP,
         "size": _NUMBER, "stats": _TEXT, "tags": _MAP, "deletionVector": _MAP,
         "baseRowId": _NUMBER, "defaultRowCommitVersion": _NUMBER},
    ),
    "txn": ({"appId": _TEXT, "version": _NUMBER}, {"lastUpdated": _NUMBER}),
    "metaData": (
        {"id": _TEXT, "format": _MAP, "schemaString": _TEXT, "partitionColumns": _LIST,
         "configuration": _MAP},
        {"name": _TEXT, "description": _TEXT, "createdTime": _NUMBER},
    ),
    "protocol": (
        {"minReaderVersion": _NUMBER, "minWriterVersion": _NUMBER},
        {"readerFeatures": _LIST, "writerFeatures": _LIST},
    ),
}  # fmt: skip
_STATS = {"numRecords", "minValues", "maxValues", "nullCount", "tightBounds"}


@dataclass
class Snapshot:
    """A table as its log says."""

    live: dict[str, dict[str, Any]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    version: int = -1

    @property
    def columns(self) -> set[str]:
        schema = json.loads(self.metadata["schemaString"])
        return {column["name"] for column in schema["fields"]}


def checked(location: str | Path) -> Snapshot:
    """Read a table whose log begins at version 0, and check each word. Raises: AssertionError."""
    snapshot = Snapshot()
    for version, path in _commits(Path(location)):
        assert version == snapshot.version + 1, f"version {version} follows {snapshot.version}"
        snapshot.version = version
        _apply(path.read_bytes(), snapshot, str(path))
    for path, action in snapshot.live.items():
        _check_file(Path(location, path), action, snapshot)
    return snapshot


def _commits(location: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(Path(location, "_delta_log").iterdir()):
        name = COMMIT.fullmatch(path.name)
        if name:
            yield int(name[1]), path


def _apply(content: bytes, snapshot: Snapshot, name: str) -> None:
    actions = [json.loads(line) for line in content.decode("utf-8").removesuffix("\n").split("\n")]
    assert actions, f"{name}: a commit has an action"
    paths: set[tuple[str, str]] = set()
    kinds: list[str] = []
    for action in actions:
        assert len(action) == 1, f"{name}: one action a line"
        ((kind, values),) = action.items()
        kinds.append(kind)
        _check_fields(kind, values, name)
        if kind in {"add", "remove"}:
            place = (kind, unquote(values["path"]))
            assert place not in paths, f"{name}: {place} is there once"
            paths.add(place)
    for once in ("metaData", "protocol", "commitInfo"):
        assert kinds.count(once) <= 1, f"{name}: one {once} at most"
    added = {path for kind, path in paths if kind == "add"}
    removed = {path for kind, path in paths if kind == "remove"}
    assert not added & removed, f"{name}: no file is added and removed"
    for action in actions:
        _take(action, snapshot, name)


def _check_fields(kind: str, values: Any, name: str) -> None:
    assert isinstance(values, dict), f"{name}: {kind} has fields"
    if kind == "commitInfo":
        assert isinstance(values.get("timestamp", 0), int), f"{name}: a time is a number"
        return
    assert kind in _FIELDS, f"{name}: no action {kind} is expected"
    required, optional = _FIELDS[kind]
    assert required.keys() <= values.keys(), (
        f"{name}: {kind} lacks {required.keys() - values.keys()}"
    )
    for key, value in values.items():
        wanted = (required | optional).get(key)
        assert wanted is not None, f"{name}: {kind} has no field {key}"
        assert value is None or type(value) is wanted, f"{name}: {kind}.{key} is {value!r}"
    if kind in {"add", "remove"}:
        _check_path(values["path"], name)


def _check_path(path: str, name: str) -> None:
    assert not path.startswith("/"), f"{name}: {path} is relative"
    assert ".." not in unquote(path).split("/"), f"{name}: {path} stays in the table"
    assert re.fullmatch(r"[A-Za-z0-9/=:@!$&'()*+,;\-._~%]+", path), f"{name}: {path} is a URI"


def _take(action: dict[str, Any], snapshot: Snapshot, name: str) -> None:
    ((kind, values),) = action.items()
    if kind == "add":
        path = unquote(values["path"])
        is_again = path in snapshot.live
        assert not (is_again and values["dataChange"]), f"{name}: {path} is live already"
        snapshot.live[path] = values
    elif kind == "remove":
        path = unquote(values["path"])
        assert path in snapshot.live, f"{name}: {path} is removed and was not live"
        removed = snapshot.live.pop(path)
        if values.get("extendedFileMetadata"):
            assert values["size"] == removed["size"], f"{name}: {path} has one size"
            assert values["partitionValues"] == removed["partitionValues"], f"{name}: {path}"
    elif kind == "txn":
        snapshot.marks[values["appId"]] = values["version"]
    elif kind == "metaData":
        snapshot.metadata = values
    elif kind == "protocol":
        assert values["minReaderVersion"] == 1, f"{name}: any reader can read it"


def _check_file(path: Path, action: dict[str, Any], snapshot: Snapshot) -> None:
    assert path.stat().st_size == action["size"], f"{path}: size"
    columns = snapshot.metadata["partitionColumns"]
    assert set(action["partitionValues"]) == set(columns), f"{path}: a value for each partition"
    assert all(v is None or type(v) is str for v in action["partitionValues"].values()), str(path)
    parquet = pq.ParquetFile(path)
    stored = set(parquet.schema_arrow.names)
    assert stored <= snapshot.columns - set(columns), f"{path}: partition columns are not stored"
    if action.get("stats"):
        _check_stats(json.loads(action["stats"]), parquet, str(path))


def _check_stats(stats: dict[str, Any], parquet: pq.ParquetFile, name: str) -> None:
    assert stats.keys() <= _STATS, f"{name}: {stats.keys()}"
    assert stats["numRecords"] == parquet.metadata.num_rows, f"{name}: numRecords"
    rows = parquet.read()
    for column, low in stats.get("minValues", {}).items():
        values = [value for value in rows[column].to_pylist() if value is not None]
        if values and isinstance(low, str | int) and isinstance(values[0], str | int):
            high = stats["maxValues"][column]
            assert low <= min(values), f"{name}: min of {column}"
            assert high >= max(values), f"{name}: max of {column}"
    for column, nulls in stats.get("nullCount", {}).items():
        assert nulls == rows[column].null_count, f"{name}: nulls of {column}"
