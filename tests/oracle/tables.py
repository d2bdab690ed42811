"""The tables of a store as frames, each at the version that was pinned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from tests.oracle.log import Logs, read_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD_LETTERS = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
# Of these names only the schedule is one of txmq.
OTHERS = re.compile(r"SCHEDULE_TOPIC_(?!XXXX$).*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)?")
# Before every time, and small enough to stand in a query.
NEVER = -9_000_000_000_000_000_000
WELL_FORMED_ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7"
_TOPICS = "topics/"
_OPEN_SET = "state/open_transactions"
_OF_READABLE = """
    SELECT * FROM {actions} WHERE NOT array_contains(from_json({unread}, 'ARRAY<STRING>'), table)
"""
# A typed topic has more columns, and they may have any other name.
_OF_A_TOPIC = (
    "message_id", "topic", "queue_id", "queue_offset", "tags", "keys", "body", "properties",
    "sharding_key", "born_timestamp", "producer_group", "transaction_id", "sequence", "life",
    "op_version", "store_timestamp",
)  # fmt: skip
_REGISTER = "SELECT {name} AS name, max_by(value, revision) AS value FROM {register}"


@dataclass(frozen=True, slots=True)
class Source:
    """One pinned store, and how to read it."""

    spark: SparkSession
    root: str
    logs: Logs
    unread: tuple[str, ...]

    @classmethod
    def open(cls, spark: SparkSession, root: str, versions: Mapping[str, int] | None) -> Source:
        """Pin all tables; raises StoreNotFoundError."""
        logs = read_logs(spark, root, versions)
        topics = [place[len(_TOPICS) :] for place in logs.pinned if place.startswith(_TOPICS)]
        unread = tuple(sorted(t for t in topics if OTHERS.match(t) or not NAME.fullmatch(t)))
        return cls(spark, root, logs, unread)

    @property
    def topics(self) -> list[str]:
        """Names of the topics that are judged."""
        names = [place[len(_TOPICS) :] for place in self.logs.pinned if place.startswith(_TOPICS)]
        return sorted(set(names) - set(self.unread))

    @property
    def versions(self) -> dict[str, int]:
        """What was pinned, but for topics that are not read."""
        skipped = {f"{_TOPICS}{topic}" for topic in self.unread}
        pinned = self.logs.pinned.items()
        return {place: log.version for place, log in pinned if place not in skipped}

    @property
    def groups(self) -> list[str]:
        """The registers of consumer groups."""
        names = [place.removeprefix("state/") for place in self.logs.pinned]
        return sorted(name for name in names if name.startswith("group_"))

    def actions(self) -> DataFrame:
        """The logs of the tables that are read."""
        unread = json.dumps([f"{_TOPICS}{topic}" for topic in self.unread])
        actions = self.logs.actions
        return self.spark.sql(_OF_READABLE, unread=unread, actions=actions)

    def table(self, place: str, columns: Sequence[str] = ("*",)) -> DataFrame:
        """The rows of a table, each with its file."""
        version = self.logs.pinned[place].version
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        rows = reader.load(f"{self.root}/{place}")
        return rows.selectExpr(*columns, "_metadata.file_name AS file")

    def topic(self, name: str) -> DataFrame:
        """The rows of a topic, each with its file."""
        return self.table(f"{_TOPICS}{name}", _OF_A_TOPIC)

    @property
    def open_set_version(self) -> int:
        """The version of half up to which the open set was read; -1 without one."""
        pinned = self.logs.pinned.get(_OPEN_SET)
        return -1 if pinned is None else pinned.marks.get("txmq-open/half", -1)

    def open_set(self) -> DataFrame:
        """The transactions that the open set names."""
        if self.open_set_version < 0:
            return self.spark.sql("SELECT cast(null AS STRING) AS transaction_id WHERE false")
        rows = self.table(_OPEN_SET).where("part = 'half'")
        return rows.select("transaction_id").distinct()

    def changes(self, place: str) -> DataFrame:
        """What was appended by the commits that can still be read."""
        pinned = self.logs.pinned[place]
        if pinned.readable_from > pinned.version:
            none = "*", "'insert' AS _change_type", "-1L AS _commit_version"
            return self.table(place).where("false").selectExpr(*none)
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", pinned.readable_from)
        return reader.option("endingVersion", pinned.version).load(f"{self.root}/{place}")

    def registers(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The small values that services keep under state/; nothing where there is none."""
        there = [name for name in names if f"state/{name}" in self.logs.pinned]
        frames = [
            self.spark.sql(_REGISTER, name=name, register=self.table(f"state/{name}"))
            for name in there
        ]
        found = united(frames).collect() if frames else []
        kept = {row.name: json.loads(row.value or "{}") for row in found}
        return {name: kept.get(name, {}) for name in names}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the store says about itself; `schedule_us` is NEVER where it keeps all of that."""

    low_water: int
    parked: str
    check_limits: Mapping[str, int]
    kept_day: str
    kept_from: str
    schedule_us: int
    begins: str
    delay: Mapping[str, int]
    group_offsets: str

    @classmethod
    def of(cls, source: Source, check_limits: Mapping[str, int] | None) -> Settings:
        """Read the registers; one Spark job."""
        groups = source.groups
        names = ["publisher", "config", "maintenance", "delay", *groups]
        kept = source.registers(names)
        publisher = kept["publisher"]
        kept_day = kept["maintenance"].get("forgotten_before_date") or ""
        return cls(
            publisher.get("low_water_version", -1),
            json.dumps(publisher.get("parked", {})),
            check_limits or _limits_in(kept["config"]),
            kept_day,
            _first_id_of(kept_day),
            _begin_us(kept["maintenance"].get("schedule_forgotten_before_date") or ""),
            json.dumps(kept["maintenance"].get("topic_begin") or {}),
            _claimed(kept["delay"], source.logs.pinned["op"].table_id),
            json.dumps([row for name in groups for row in _offsets(name, kept[name])]),
        )


def _claimed(delay: Mapping[str, Any], op_id: str) -> dict[str, int]:
    """What the delay service says of this op log; nothing where it speaks of another one."""
    is_believed = delay.get("rule") == "store time" and delay.get("due_ms") is not None
    is_said = is_believed and delay.get("op_table_id") == op_id
    due_us = delay["due_ms"] * 1000 if is_said else NEVER
    return {"delay_version": delay["op_version"] if is_said else -1, "delay_us": due_us}


def _offsets(name: str, group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    attempts = group.get("attempts", {}).items()
    ends = {topic: {q: handed[0] for q, handed in queues.items()} for topic, queues in attempts}
    for by_topic in [*group.get("offsets", {}).values(), ends]:
        for topic, by_queue in by_topic.items():
            for queue, offset in by_queue.items():
                row = {"topic": topic, "queue": queue, "next_offset": offset}
                yield {"group": f"state/{name}", **row}


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of several frames."""
    return reduce(lambda left, right: left.union(right), frames)


def _limits_in(config: Mapping[str, Any]) -> dict[str, int]:
    """The settings of the whole store stand under "", those of a group under its name."""
    settings = {"": config, **config.get("groups", {})}
    found = {group: own.get("transaction_check_max") for group, own in settings.items()}
    return {group: limit for group, limit in found.items() if limit is not None}


def _begin_us(date: str) -> int:
    return round(_midnight(date).timestamp()) * 1_000_000 if date else NEVER


def _midnight(date: str) -> datetime:
    return datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)


def _first_id_of(date: str) -> str:
    """Ids begin with their milliseconds in hexadecimal digits, a dash after eight of them."""
    if not date:
        return ""
    digits = format(round(_midnight(date).timestamp()) * 1000, "012x")
    return "-".join(re.findall("(.{8})(.{4})", digits)[0])
