"""What other programs put into a table's log by hand: rows of any value, properties, odd files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

INT32, INT64 = (-(2**31), -1, 0, 1, 4096, 2**31 - 1), (-(2**63), -1, 0, 1, 10**12, 2**63 - 1)
TEXTS = (
    b"", b" ", b"null", b"0", b"..", b"../../evil", b"a/b", b"\x00", b"\xff\xfe", b"x" * 100_000,
    "\u00e4\u2028\U0001f980".encode(), b"<script>", b"%RETRY%x", b"SCHEDULE_TOPIC_XXXX",
    b"TRANS_CHECK_MAX_TIME_TOPIC", b"COMMIT", b"COMMITTED", b"EXPLODE",
    b"00000000-0000-7000-8000-000000000000", b"ffffffff-ffff-7fff-bfff-ffffffffffff",
)  # fmt: skip
BYTES = (b"", b"\xff", b"x" * 100_000)
LISTS: tuple[Any, ...] = (
    [], [0], [None], [0, 0], [-1], [2**63 - 1], [-(2**63)], list(range(1000)), [0, None, 1],
)  # fmt: skip
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-320, 1e308)
DAYS = (-(2**31), -719_163, -719_162, 0, 2_932_896, 2_932_897, 2**31 - 1)
MOMENTS_US = (*INT64, -62_135_596_800_000_001, 253_402_300_800_000_000)
MAPS: tuple[Any, ...] = ((), ((b"", b""),), ((b"\xff", b"\xff"),), ((b"a", b"1"), (b"a", b"2")),
    ((b"a", None),), ((b"CHECK_IMMUNITY_TIME_IN_SECONDS", b"x"),), ((b"__txmq_erased", b"1"),),
    ((b"RETRY_TOPIC", b"../x"), (b"RECONSUME_TIME", b"x"), (b"DELAY", b"9" * 400)),
)  # fmt: skip
NUMBERS_AS_TEXT = (
    "", "x", "-1", "0", "1e400", "NaN", "9" * 400, "9" * 5000, "null", "true", "interval 1 day",
    "interval 9999999999999 weeks", "\u0663", "{}", "[", " 7 ",
)  # fmt: skip


STATISTICS = (
    None, "", "{}", "null", "[]", "x", '{"numRecords": null}', '{"numRecords": -1}',
    '{"numRecords": 1e30}', '{"numRecords": 99999999999999999999}', '{"numRecords": "x"}',
    '{"numRecords": 1, "minValues": {"transaction_id": null}, "maxValues": {}}',
    '{"numRecords": 1, "minValues": {"transaction_id": 7}, "maxValues": {"sequence": "x"}}',
    '{"numRecords": 1, "minValues": [], "maxValues": "x", "nullCount": 7}',
)  # fmt: skip


def odd_values(kind: pa.DataType) -> tuple[Any, ...]:
    """Values of a type that nobody expects; null too."""
    for is_kind, values in (
        (pa.types.is_int32, INT32), (pa.types.is_int64, INT64), (pa.types.is_string, TEXTS),
        (pa.types.is_binary, BYTES), (pa.types.is_list, LISTS), (pa.types.is_floating, FLOATS),
        (pa.types.is_date, DAYS), (pa.types.is_timestamp, MOMENTS_US), (pa.types.is_map, MAPS),
        (pa.types.is_boolean, (True, False)),
    ):  # fmt: skip
        if is_kind(kind):
            return (None, *values)
    raise AssertionError(kind)


def column_of(value: Any, kind: pa.DataType) -> pa.Array:
    """One row with this value, also where Python has no such value of the type."""
    if value is None:
        return pa.nulls(1, kind)
    if pa.types.is_string(kind):
        return _text([value])
    if pa.types.is_map(kind):
        keys, items = (_text([pair[place] for pair in value]) for place in (0, 1))
        return pa.MapArray.from_arrays(pa.array([0, len(value)], pa.int32()), keys, items)
    if pa.types.is_timestamp(kind):
        return pa.array([value], pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array([value], pa.int32()).cast(kind)
    return pa.array([value], kind)


def _text(values: list[bytes | None]) -> pa.Array:
    raw = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(raw), *reversed(raw.buffers()[:0:-1]), raw.buffers()[0])


class Told(NamedTuple):
    """How a log tells of a foreign file, where that is not as the protocol says."""

    stats: str | None = None
    size_bytes: int | None = None
    partition: Mapping[str, str | None] | None = None


AS_THE_PROTOCOL_SAYS = Told()


class ForeignProgram:
    """Commits to a table by hand, as its author wants it."""

    def __init__(self, location: str, path: str) -> None:
        self.folder = Path(location, path)
        self.log = self.folder / "_delta_log"

    def append(
        self,
        row: Mapping[str, pa.Array],
        partition_by: tuple[str, ...],
        told: Told = AS_THE_PROTOCOL_SAYS,
    ) -> str:
        """One row as a file of its own; the path of the file."""
        name = f"foreign-{uuid.uuid4()}.parquet"
        stored = {key: value for key, value in row.items() if key not in partition_by}
        pq.write_table(pa.table(stored), self.folder / name)
        partition = {key: _partition_text(row[key]) for key in partition_by}
        size = (self.folder / name).stat().st_size
        add = {
            "path": name,
            "partitionValues": {**partition, **(told.partition or {})},
            "size": size if told.size_bytes is None else told.size_bytes,
            "modificationTime": 0,
            "dataChange": True,
            "stats": told.stats,
        }
        self._commit({"add": {key: value for key, value in add.items() if value is not None}})
        return name

    def remove(self, name: str) -> None:
        """Take the file away again."""
        self._commit({"remove": {"path": name, "dataChange": True, "deletionTimestamp": 0}})

    def set_property(self, key: str, value: str) -> str | None:
        """Change one property of the table; return what it was."""
        actions = [
            json.loads(line)
            for path in sorted(self.log.glob("*.json"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
        before: str | None = metadata["configuration"].get(key)
        metadata["configuration"] = {**metadata["configuration"], key: value}
        self._commit({"metaData": metadata})
        return before

    def set_mark(self, name: str, number: int) -> None:
        """Set a mark of the table."""
        self._commit({"txn": {"appId": name, "version": number, "lastUpdated": 0}})

    def _commit(self, action: Mapping[str, Any]) -> None:
        version = max(int(path.stem) for path in self.log.glob("*.json")) + 1
        info = {"commitInfo": {"operation": "WRITE", "operationParameters": {}}}
        lines = "\n".join(json.dumps(each) for each in (info, action))
        (self.log / f"{version:020}.json").write_text(lines, encoding="utf-8")


def _partition_text(column: pa.Array) -> str | None:
    value = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    number = value[0].as_py()
    if number is None:
        return None
    if pa.types.is_date(column.type):
        try:
            return str(column[0].as_py())
        except (ValueError, OverflowError):
            return "+5881580-07-11" if number > 0 else "-5877641-06-23"
    return str(number)
