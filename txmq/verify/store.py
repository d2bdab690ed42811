"""The checker's own reading of a store: every table at one version, and what services keep."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import index
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.credentials import storage_options_of
from txmq.errors import ConfigError, StorageError, StoreNotFoundError, shown
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify import tables
from txmq.verify.arrays import UNSAID, Flags, Integers
from txmq.verify.history import FINGERPRINT_DIGITS
from txmq.verify.tables import NOTHING, IdRange, PinnedTable, table_names

SIGNED = (
    "transaction_id", "kind", "sequences", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp",
)  # fmt: skip
SIGNATURE = "signature"
# Of these names only the schedule is one of txmq.
UNREAD_PREFIXES = ("SCHEDULE_TOPIC_",)
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)?")
_GROUP = "group_"
OPEN_SET = "state/open_transactions"
_OPEN_SET, _LOGS = "txmq-open/", ("half", "op", "settled")
# Libraries in C++ end the process where they meet these.
_NO_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_WELL_FORMED_ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7"
# The rule by which the delay service's progress is believed (decision 0030).
STORE_TIME = "store time"


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """The tables of a store, opened in an order that gives a running store no false alarm.

    What the services say comes first, then topics, the schedule, settled, op, half: whatever an
    earlier table shows must be explained by a later one, which can only hold more.

    Attributes:
        check_limits: checks before a DISCARD by producer group, "" for all others; may be empty.
        forgotten_before_date: retention may have taken transactions of the days before it.
        schedule_forgotten_before_date: the same of the schedule, by due_date.
        topic_begin: rows of a topic up to this op version may be gone.
        set_aside: transactions that wait because a file cannot be read.
        late: those, and those that waited once; their messages may lie behind later ones.
        registers: versions of the tables under state/ that were read.
        claimed: what the delay service says that it has claimed.
        open_set: what rechecks keep; None where they keep nothing that can be used.
        group_offsets: the next offsets of each consumer group, by the place of its register.
    """

    low_water_version: int
    parked: Mapping[str, int]
    check_limits: Mapping[str, int]
    forgotten_before_date: str
    schedule_forgotten_before_date: str
    topic_begin: Mapping[str, int]
    set_aside: frozenset[str]
    late: frozenset[str]
    registers: Mapping[str, int]
    topics: Mapping[str, PinnedTable]
    unread: tuple[str, ...]
    settled: PinnedTable
    op: PinnedTable
    half: PinnedTable
    claimed: Claimed
    group_offsets: Mapping[str, Sequence[GroupOffset]]
    open_set: KeptOpenSet | None

    @classmethod
    def open(
        cls,
        location: str,
        options: Mapping[str, str],
        check_limits: Mapping[str, int] | None = None,
        claim_keys: Mapping[str, Sequence[str]] | None = None,
    ) -> PinnedStore:
        """Pin every table. Raises: StoreNotFoundError, StorageError."""
        # One loan for all its tables.
        options = storage_options_of(location, options)
        # First of all: what it names must be in the logs.
        open_set = KeptOpenSet.of(location, options)
        registers = _Registers(location, options)
        publisher, config = registers.value("publisher"), registers.value("config")
        delay, group_offsets = registers.value("delay"), registers.group_offsets()
        parked = publisher.get("parked", {})
        names = table_names(location, "topics", options)
        # The schedule last: what a topic shows was in it before.
        readable = sorted(filter(_is_readable, names), key=is_schedule)
        topics = {name: PinnedTable(f"{location}/topics/{name}", options) for name in readable}
        settled = PinnedTable(f"{location}/settled", options)
        op = SignedLog(f"{location}/op", options, claim_keys or {})
        half = PinnedTable(f"{location}/half", options)
        aside = registers.value("set_aside")
        waiting = frozenset(aside.get("transactions", ()))
        # What is taken away is said before it is done, so this is read after the tables.
        retention = registers.value("maintenance")
        return cls(
            publisher.get("low_water_version", NOTHING),
            {name: entry["from_version"] for name, entry in parked.items()},
            check_limits or _check_limits(config),
            retention.get("forgotten_before_date") or "",
            retention.get("schedule_forgotten_before_date") or "",
            retention.get("topic_begin") or {},
            waiting,
            waiting.union(aside.get("late", ())),
            registers.versions,
            topics,
            tuple(name for name in names if name not in topics),
            settled,
            op,
            half,
            Claimed.of(delay),
            group_offsets,
            open_set,
        )

    def id_ranges(self) -> list[IdRange]:
        """Cut the transactions into ranges that each fit into memory; one for a small store."""
        if sum(table.row_count for table in self.tables.values()) <= tables.RANGE_ROWS:
            return [IdRange()]
        extents = (extent for table in self.tables.values() for extent in table.extents())
        return tables.id_ranges(extents)

    def within(self, ids: IdRange) -> PinnedStore:
        """Return the same store with the rows of one range of transactions only."""
        return replace(
            self,
            topics={name: table.within(ids) for name, table in self.topics.items()},
            settled=self.settled.within(ids),
            op=self.op.within(ids),
            half=self.half.within(ids),
        )

    @property
    def mark_id(self) -> str:
        """Under this name each table keeps how far it follows the op log."""
        return f"txmq/{self.op.table_id}"

    @property
    def followers(self) -> dict[str, PinnedTable]:
        """The tables that follow the op log, each by its place in the store."""
        return {**{f"topics/{name}": t for name, t in self.topics.items()}, "settled": self.settled}

    @property
    def tables(self) -> dict[str, PinnedTable]:
        """All tables with rows of transactions, each by its place in the store."""
        return {"half": self.half, "op": self.op, **self.followers}

    @property
    def versions(self) -> dict[str, int]:
        """What was pinned."""
        kept = self.open_set
        return {
            **self.registers,
            **({} if kept is None else {OPEN_SET: kept.version}),
            **{name: table.version for name, table in sorted(self.tables.items())},
        }

    def reached(self, topic: str) -> int:
        """Return the op version up to which a topic must be complete while services run."""
        own = self.topics[topic].mark(self.mark_id) if topic in self.topics else NOTHING
        limit = self.low_water_version
        if topic in self.parked:
            limit = min(limit, self.parked[topic] - 1)
        return max(own, limit)

    def may_lack(self, topic: str, op_versions: Integers) -> Flags:
        """Flag op versions whose rows retention may have taken from a topic."""
        flags: Flags = op_versions <= self.topic_begin.get(topic, UNSAID)
        return flags

    def forgets(self, transaction_id: str) -> bool:
        """Tell whether retention may have taken this transaction."""
        return bool(self.forgotten(pa.chunked_array([[transaction_id]])).to_numpy()[0])

    def forgotten(self, transaction_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Flag transactions that retention may have taken, as the store itself says."""
        older = pc.less(transaction_ids, _first_id_of(self.forgotten_before_date))
        flags = pc.and_(older, pc.match_substring_regex(transaction_ids, _WELL_FORMED_ID))
        return pc.fill_null(flags, False)  # noqa: FBT003


class KeptOpenSet(NamedTuple):
    """What rechecks keep of the open transactions.

    Attributes:
        version: of its table.
        versions, fingerprints: the commit of half, op and settled up to which it was read.
        ids: the transactions that it names.
    """

    version: int
    versions: Mapping[str, int]
    fingerprints: Mapping[str, int]
    ids: pa.Array

    @classmethod
    def of(cls, location: str, options: Mapping[str, str]) -> KeptOpenSet | None:
        """Read it; None where there is none, or one that rechecks pass over."""
        place = f"{location}/{OPEN_SET}"
        if not tables.is_table(place, options):
            return None
        table = PinnedTable(place, options)
        rows = table.rows(["part", "transaction_id"])
        halves = rows.filter(pc.equal(rows["part"], "half"))
        is_whole = table.mark(f"{_OPEN_SET}files") == _name_print(table.file_names())
        has_all = not pc.any(pc.equal(rows["part"], "unread"), min_count=0).as_py()
        if not (is_whole and has_all):
            return None
        versions = {name: table.mark(f"{_OPEN_SET}{name}") for name in _LOGS}
        prints = {name: table.mark(f"{_OPEN_SET}{name}-fingerprint") for name in _LOGS}
        return cls(table.version, versions, prints, pc.unique(halves["transaction_id"]))

    def is_of(self, logs: Iterable[PinnedTable]) -> bool:
        """Tell whether these logs have the commits up to which it was read."""
        commits = {log.name: log.history.commits.get(self.versions[log.name]) for log in logs}
        return all(
            commit is not None and commit.fingerprint == self.fingerprints[name]
            for name, commit in commits.items()
        )


def _name_print(paths: Iterable[str]) -> int:
    digest = hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()
    return int(digest[:FINGERPRINT_DIGITS], 16)


class GroupOffset(NamedTuple):
    """The next offset of a group, or of one of its members, in a queue."""

    topic: str
    queue: str
    offset: int


class Claimed(NamedTuple):
    """What was committed up to a version of an op log and due up to a time is claimed, it says."""

    op_table_id: str
    op_version: int
    due_us: int

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Claimed:
        """Read the value of state/delay; without one, or with an older rule, nothing is claimed."""
        due_ms = value.get("due_ms") if value.get("rule") == STORE_TIME else None
        due_us = UNSAID if due_ms is None else int(due_ms) * 1000
        return cls(value.get("op_table_id", ""), value.get("op_version", NOTHING), due_us)


def _check_limits(config: Mapping[str, Any]) -> dict[str, int]:
    name = "transaction_check_max"
    groups = {group: own[name] for group, own in config.get("groups", {}).items() if name in own}
    return {**({"": config[name]} if name in config else {}), **groups}


def _first_id_of(day: str) -> str:
    """Return the smallest id of a day: ids begin with their time in milliseconds."""
    if not day:
        return ""
    digits = f"{midnight_us(day) // 1000:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _is_readable(topic: str) -> bool:
    is_foreign = topic.startswith(UNREAD_PREFIXES) and not is_schedule(topic)
    return bool(_TOPIC.fullmatch(topic)) and not is_foreign


def is_dead_letters(topic: str) -> bool:
    """Tell whether a topic table holds what no listener could end."""
    return topic == TRANS_CHECK_MAX_TIME_TOPIC


def is_schedule(topic: str) -> bool:
    """Tell whether a topic table holds what waits for its time."""
    return topic == SCHEDULE_TOPIC


def midnight_us(day: str) -> int:
    """Return when a day begins; UNSAID without a day."""
    if not day:
        return UNSAID
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000


def checked_location(location: object) -> str:
    """Return the location as text. Raises: ConfigError if it is no path and no URI."""
    text: object = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or _NO_TEXT.search(text):
        raise ConfigError([f"location must be a path or a URI, not {shown(location)}"])
    return text


def plain_location(location: str) -> str:
    """Turn a `file:` location into a path."""
    for prefix in ("file://", "file:"):
        if location.startswith(prefix):
            return "/" + location[len(prefix) :].strip("/")
    return location.rstrip("/") or "/"


class _Registers:
    """The small values that services keep under state/, and the versions that were read."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._location, self._options = location, options
        self.versions: dict[str, int] = {}

    def group_offsets(self) -> dict[str, list[GroupOffset]]:
        """Read the offsets of each group; pinned before the topics, which only grow."""
        names = table_names(self._location, "state", self._options)
        groups = [name for name in names if name.startswith(_GROUP)]
        return {f"state/{name}": self._offsets(name) for name in groups}

    def _offsets(self, name: str) -> list[GroupOffset]:
        value = self.value(name)
        try:
            return _offsets(value)
        except (AttributeError, TypeError, ValueError):
            raise _foreign(name, "holds no offsets of a consumer group") from None

    def value(self, name: str) -> dict[str, Any]:
        """Read what a service keeps; {} if it never kept anything.

        Raises: StorageError if another program put something else there.
        """
        try:
            table = PinnedTable(f"{self._location}/state/{name}", self._options)
        except StoreNotFoundError:
            return {}
        self.versions[f"state/{name}"] = table.version
        try:
            rows = table.rows(["revision", "value"]).to_pylist()
            newest = max(rows, key=lambda row: row["revision"] or 0, default={"value": "{}"})
            value = json.loads(newest["value"])
        except (TypeError, ValueError):
            value = None
        if not isinstance(value, dict):
            raise _foreign(name, "is no JSON object")
        return value


def _foreign(name: str, what: str) -> StorageError:
    problem = f"its newest row {what}, another program wrote it"
    return StorageError(f"state/{name}", f"{problem}; take that row back, then verify again")


def _offsets(group: Mapping[str, Any]) -> list[GroupOffset]:
    """List how far a group is, and each member where each reads all messages.

    That is the next offset, and where messages are acknowledged one by one also the end of what was
    handed out.
    """
    handed = {
        topic: {queue: end for queue, (end, _) in by_queue.items()}
        for topic, by_queue in group.get("attempts", {}).items()
    }
    return [
        GroupOffset(topic, queue, index(offset))
        for by_topic in (*group.get("offsets", {}).values(), handed)
        for topic, by_queue in by_topic.items()
        for queue, offset in by_queue.items()
    ]


class SignedLog(PinnedTable):
    """An op log whose rows are the claims that count."""

    def __init__(
        self, location: str, options: Mapping[str, str], keys: Mapping[str, Sequence[str]]
    ) -> None:
        """Open it; `keys` has the keys of each group whose claims are signed."""
        super().__init__(location, options)
        self._keys = keys
        # A store of an earlier txmq has no such column.
        self._types.setdefault(SIGNATURE, pa.binary())

    def _file(
        self, path: str, partition: Mapping[str, Any], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        if not self._keys:
            yield from super()._file(path, partition, columns)
            return
        names = [*dict.fromkeys([*columns, *SIGNED, SIGNATURE])]
        for batch in super()._file(path, partition, names):
            mask = pa.array([self._counts(claim) for claim in _claims(batch)], pa.bool_())
            yield batch.filter(mask).select(list(columns))

    def _counts(self, claim: Mapping[str, Any]) -> bool:
        keys = self._keys.get(claim["producer_group"])
        if keys is None:
            return True
        text = json.dumps([self.table_id, *(claim[name] for name in SIGNED)]).encode()
        valid = (_signature(key.encode(), text) for key in keys)
        return any(hmac.compare_digest(each, claim[SIGNATURE] or b"") for each in valid)


def _signature(key: bytes, text: bytes) -> bytes:
    """Return the first eight bytes that name the key, and the digest."""
    name = hashlib.sha256(b"txmq claim key\n" + key).digest()[:8]
    return name + hmac.new(key, text, hashlib.sha256).digest()


def checked_keys(keys: object) -> Mapping[str, Sequence[str]]:
    """Return the keys as they came. Raises: ConfigError if they are no mapping to lists of keys."""
    entries = keys.items() if isinstance(keys, Mapping) else [(None, None)]
    for group, of_group in entries:
        is_list = isinstance(of_group, list | tuple) and all(isinstance(k, str) for k in of_group)
        if not isinstance(group, str) or not is_list:
            # Nothing of a value is shown: it may be the secret.
            raise ConfigError(["claim_keys must map a producer group to a list of keys"])
    return cast("Mapping[str, Sequence[str]]", keys)


def _claims(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield claims as plain values: times in microseconds, text that is no UTF-8 unchanged."""
    plain = pa.table({name: _plain(batch[name]) for name in (*SIGNED, SIGNATURE)})
    for row in plain.to_pylist():
        signature = row.pop(SIGNATURE)
        texts = {
            name: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        yield {**texts, SIGNATURE: signature}


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pc.cast(column, pa.int64())
    return pc.cast(column, pa.binary()) if pa.types.is_string(column.type) else column
