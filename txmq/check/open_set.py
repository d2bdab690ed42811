"""Keeps which transactions have no end yet, so that nobody searches all halves for them.

The open set is what half, op and settled say up to one version of each: the halves, claims and
facts of all transactions without a final fact, and how many have one. Each read takes it on by what
the logs appended since, as RocketMQ's check goes on at the progress of its half and op queues
(R55). So memory and reads follow the open transactions and the new rows, however many are retained.

It is derived. Where it is not there, or the logs went another way, it is built anew from the files,
in pieces of bounded size. A service writes it to `state/open_transactions`, for processes that
start.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.file_rows import in_pieces
from txmq.delta.files import DataFile, UnreadableFile
from txmq.delta.log_files import commit_fingerprint, fingerprint_of
from txmq.delta.reading import COMMIT_VERSION, MOVED_ATTEMPTS
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, StorageError
from txmq.ground.columns import Groups, Integers, integers, sound_rows
from txmq.listeners.heads import UNREADABLE_ERRORS
from txmq.message.ids import HEAD_SEQUENCE
from txmq.message.lifecycle import FINAL_STATES
from txmq.store.half import NO_SEQUENCE
from txmq.store.logs import Logs
from txmq.store.op import SIGNED_COLUMNS
from txmq.store.schemas import OPEN_SET, PART
from txmq.store.settled import FACT_COLUMNS, facts_among, without_deliveries
from txmq.store.tables import StoreTables

logger = logging.getLogger(__name__)

# After so many rows that were read since, a service writes the set again.
KEEP_EVERY_ROWS = 100_000
# Claims that are read together.
PIECE_ROWS = 200_000
HALF_COLUMNS = (
    "transaction_id", "sequence", "producer_group", "real_topic", "message_count",
    "check_immunity_time_s", "ordinary",
)  # fmt: skip
_RUN_COLUMNS = (
    "transaction_id", "producer_group", "first_sequence", "last_sequence", "is_payload",
    "half_version", "message_count", "check_immunity_time_s", "ordinary",
)  # fmt: skip
_TOPIC_COLUMNS = ("transaction_id", "real_topic", "messages")
_FINAL = pa.array(sorted(state.value for state in FINAL_STATES))


def _schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([OPEN_SET.columns.field(name) for name in names])


# A run is what one producer group sent of a transaction without a gap between the sequences, with
# the columns of the head where it is in the run, and the commit of half that brought its first row
# where the row was not found among the files.
RUNS, TOPICS = _schema(_RUN_COLUMNS), _schema(_TOPIC_COLUMNS)
_CLAIMS, _FACTS = _schema(SIGNED_COLUMNS), _schema(FACT_COLUMNS)
_PARTS = {"half": RUNS, "topic": TOPICS, "claim": _CLAIMS, "fact": _FACTS}
_MARK, _ENDED = "txmq-open/", "txmq-ended/"
FILES_MARK = f"{_MARK}files"
# By which keys the claims were judged.
JUDGING_MARK = f"{_MARK}judging"
_LOGS = ("half", "op", "settled")
_NO_SNAPSHOT = object()
_UNKNOWN_VERSION = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class OpenSet:
    """All transactions without a final fact, up to one version of half, op and settled.

    Attributes:
        versions: of half, op and settled, in this order.
        runs: their halves, as RUNS.
        topics: how many messages each has for each topic, as TOPICS.
        claims: the rows of op about them, as SIGNED_COLUMNS.
        facts: the facts about them, as FACT_COLUMNS; none is final.
        ended: how many transactions have a final fact, or had one that retention took, by state.
        unread: the files of half that could not be read, each with its problem.
    """

    versions: tuple[int, int, int]
    runs: pa.Table
    topics: pa.Table
    claims: pa.Table
    facts: pa.Table
    ended: Mapping[str, int]
    unread: Mapping[str, str]

    @classmethod
    def empty(cls, ended: Mapping[str, int]) -> OpenSet:
        """Return a set without transactions, of no version."""
        runs, topics, claims, facts = (schema.empty_table() for schema in _PARTS.values())
        return cls((-1, -1, -1), runs, topics, claims, facts, ended, {})

    def without(self, transaction_ids: pa.Array) -> OpenSet:
        """Return the set without these transactions."""
        if not len(transaction_ids):
            return self
        return self.with_tables([_without(table, transaction_ids) for table in self.tables])

    def with_halves(self, rows: pa.Table) -> OpenSet:
        """Return the set with HALF_COLUMNS of more messages."""
        runs = pa.concat_tables([self.runs, runs_of(rows)])
        return replace(self, runs=runs, topics=_joined_topics(self.topics, rows))

    def with_claims(self, claims: pa.Table) -> OpenSet:
        """Return the set with more claims about its transactions."""
        more = claims.select(list(SIGNED_COLUMNS)).cast(_CLAIMS)
        return replace(self, claims=pa.concat_tables([self.claims, more]))

    def with_facts(self, facts: pa.Table) -> OpenSet:
        """Return the set with more facts about its transactions."""
        more = facts.select(list(FACT_COLUMNS)).cast(_FACTS)
        return replace(self, facts=pa.concat_tables([self.facts, more]))

    @property
    def tables(self) -> tuple[pa.Table, ...]:
        """Its tables, in the order of the attributes."""
        return self.runs, self.topics, self.claims, self.facts

    def with_tables(self, tables: Sequence[pa.Table]) -> OpenSet:
        """Return the set with these tables, each as one chunk."""
        runs, topics, claims, facts = (table.combine_chunks() for table in tables)
        return replace(self, runs=runs, topics=topics, claims=claims, facts=facts)

    @property
    def ids(self) -> pa.Array:
        """Its transactions, each once."""
        return pc.unique(self.runs["transaction_id"])


class OpenSetReader:
    """Reads the open set again and again, by the handles of one reader.

    Not safe for several threads. The first read begins at the set that a service has kept.
    """

    def __init__(self, logs: Logs, tables: StoreTables) -> None:
        """Open nothing yet."""
        self._logs, self._tables = logs, tables
        self._set: OpenSet | None = None
        self._snapshots: tuple[object, ...] = (_NO_SNAPSHOT,) * len(_LOGS)
        self._rows_since = 0
        self._kept_versions: tuple[int, ...] = ()

    @cached_property
    def _kept(self) -> Table:
        return self._tables.open_set()

    def read(self) -> OpenSet:
        """Read the open set as of now; 0 commits.

        Half is read first, so that each half is read with its end.

        Raises: StorageError; the next read begins at what is kept.
        """
        self._logs.refresh_after_half()
        logs = self._log_tables
        for log in logs:
            # What a commit without content held may come back, below the versions of a set.
            if log.log.snapshot.empty:
                log.log.reopen()
        is_whole = not any(log.log.snapshot.empty for log in logs)
        before = (self._continued() or self._loaded()) if is_whole else None
        self._set = None
        after = self._advanced(before) or self._built()
        half, op, settled = (log.version for log in logs)
        after = replace(after.with_tables(after.tables), versions=(half, op, settled))
        if is_whole:
            self._set, self._snapshots = after, tuple(log.log.snapshot for log in logs)
        return after

    def keep(self, *, before_clean_up: bool = False) -> bool:
        """Write the set that was read last, if enough rows were read since; return whether it was.

        One commit, and one more for the first one. Another service may be faster: its set is as
        good. Where it cannot be written, a process that starts has more to read.

        Args:
            before_clean_up: write it after any commit, for who cleans the logs takes away from
                where an older set could go on.
        """
        if self._set is None or self._set.versions == self._kept_versions:
            return False
        if self._rows_since < KEEP_EVERY_ROWS and not before_clean_up:
            return False
        self._rows_since = 0
        try:
            self._write(self._set)
        except CommitRefusedError:
            return False
        except StorageError as error:
            logger.warning("the open transactions could not be written down: %s", error)
            return False
        self._kept_versions = self._set.versions
        return True

    # --- where to begin ----------------------------------------------------------------------

    @property
    def _log_tables(self) -> tuple[Table, Table, Table]:
        return self._logs.half.table, self._logs.op.table, self._logs.settled.table

    def _continued(self) -> OpenSet | None:
        """Return the set of the last read, unless a log was opened anew since."""
        pairs = zip(self._log_tables, self._snapshots, strict=True)
        return self._set if all(log.log.snapshot is seen for log, seen in pairs) else None

    def _loaded(self) -> OpenSet | None:
        """Read the set that is kept; None without one of these logs that can be read."""
        with suppress(*UNREADABLE_ERRORS):
            if self._kept.exists():
                return self._as_kept()
        return None

    def _as_kept(self) -> OpenSet | None:
        marks = self._kept.refresh().log.marks(_MARK)
        versions = tuple(marks.get(f"{_MARK}{name}", -1) for name in _LOGS)
        for name, log, version in zip(_LOGS, self._log_tables, versions, strict=True):
            fingerprint = commit_fingerprint(log, version)
            if fingerprint is None or fingerprint != marks.get(f"{_MARK}{name}-fingerprint"):
                return None
        files = self._kept.files.all()
        if marks.get(FILES_MARK) != name_print(file.path for file in files):
            # Another program changed its rows.
            return None
        if marks.get(JUDGING_MARK) != name_print(self._logs.op.judging):
            # Who wrote it dropped claims that count here, or took some that do not.
            return None
        self._kept_versions = versions
        return self._of_rows(self._kept.rows.read(files, OPEN_SET.columns.names), versions)

    def _of_rows(self, rows: pa.Table, versions: tuple[int, ...]) -> OpenSet:
        parts = {name: rows.filter(pc.equal(rows[PART], name)) for name in (*_PARTS, "unread")}
        tables = [parts[name].select(schema.names) for name, schema in _PARTS.items()]
        ended = self._kept.log.marks(_ENDED)
        unread = parts["unread"].select(["transaction_id", "reason"]).to_pylist()
        problems = {row["transaction_id"]: row["reason"] for row in unread}
        half, op, settled = versions
        loaded = OpenSet.empty(_without_prefix(ended)).with_tables(tables)
        # Who wrote them may have had other keys.
        claims = self._logs.op.judge(loaded.claims).counted
        return replace(loaded, versions=(half, op, settled), claims=claims, unread=problems)

    # --- go on -------------------------------------------------------------------------------

    def _advanced(self, before: OpenSet | None) -> OpenSet | None:
        """Take the set on to the pinned versions; None where it must be built anew."""
        if before is None:
            return None
        try:
            return self._read_again(self._with_news(before))
        except UNREADABLE_ERRORS as error:
            logger.warning("the open transactions are searched anew: %s", error)
            return None

    def _with_news(self, before: OpenSet) -> OpenSet:
        half_version, op_version, settled_version = before.versions
        after = self._with_new_facts(before, settled_version)
        after = self._with_new_claims(after, op_version)
        half, *_ = self._log_tables
        span = (half_version + 1, half.version)
        return self._with_new_halves(after, half.changes.pieces(*span, HALF_COLUMNS))

    def _with_new_facts(self, before: OpenSet, version: int) -> OpenSet:
        *_, settled = self._log_tables
        after, ids = before, before.ids
        for rows in settled.changes.pieces(version + 1, settled.version, FACT_COLUMNS):
            self._rows_since += rows.num_rows
            facts = without_deliveries(facts_among(rows))
            is_final = pc.is_in(facts["state"], value_set=_FINAL)
            final = facts.filter(is_final)
            after = replace(after, ended=_counted(after.ended, final))
            facts = facts.filter(pc.and_(pc.invert(is_final), _is_about(facts, ids)))
            after = after.with_facts(facts).without(pc.unique(final["transaction_id"]))
        return after

    def _with_new_claims(self, before: OpenSet, version: int) -> OpenSet:
        op, after, ids = self._logs.op, before, before.ids
        while version < op.table.version:
            judged, version = op.first_between(
                version, op.table.version, PIECE_ROWS, refuses_removals=True
            )
            self._rows_since += judged.counted.num_rows
            after = after.with_claims(judged.counted.filter(_is_about(judged.counted, ids)))
        return after

    def _with_new_halves(self, before: OpenSet, pieces: Iterator[pa.Table]) -> OpenSet:
        """Add the halves of transactions that have no final fact, with their facts and claims."""
        after, ids = before, before.ids
        for piece in pieces:
            self._rows_since += piece.num_rows
            # What is left out was written by hand, and nobody could end it.
            rows = sound_rows(piece, ("transaction_id",))
            others = pc.unique(_without(rows, ids)["transaction_id"])
            facts = self._logs.settled.facts_of(others)
            is_final = pc.is_in(facts["state"], value_set=_FINAL)
            rows = _without(rows, pc.unique(facts.filter(is_final)["transaction_id"]))
            is_new = _is_about(facts, pc.unique(_without(rows, after.ids)["transaction_id"]))
            facts = facts.filter(pc.and_(pc.invert(is_final), is_new))
            after = after.with_halves(rows).with_facts(facts)
        new = after.ids.filter(pc.invert(pc.is_in(after.ids, value_set=ids)))
        return after.with_claims(self._logs.op.rows_about(new)) if len(new) else after

    # --- build anew --------------------------------------------------------------------------

    def _built(self) -> OpenSet:
        """Build the set from the files of the pinned versions, one piece after the other.

        Build it again where a file that could not be read was replaced meanwhile.
        """
        half, *_ = self._log_tables
        for _ in range(MOVED_ATTEMPTS):
            after = self._built_once()
            files = [DataFile(path, 0, 0, {}) for path in after.unread]
            unreadable = [UnreadableFile(file, None, None, "") for file in files]
            if not unreadable or not half.search.has_replaced(unreadable):
                break
        return after

    def _built_once(self) -> OpenSet:
        half, _, settled = self._log_tables
        self._rows_since = 0
        ended: Mapping[str, int] = self._logs.settled.forgotten
        for rows in settled.rows.pieces(settled.files.all(), ("transaction_id", "state")):
            ended = _counted(ended, without_deliveries(facts_among(rows)))
        return self._with_files(OpenSet.empty(ended), half.files.all())

    def _with_files(self, before: OpenSet, files: Sequence[DataFile]) -> OpenSet:
        unread = dict[str, str]()
        after = self._with_new_halves(before, self._readable_pieces(files, unread))
        return replace(after, unread=unread)

    def _readable_pieces(
        self, files: Sequence[DataFile], unread: dict[str, str]
    ) -> Iterator[pa.Table]:
        """Yield HALF_COLUMNS of these files; note each that cannot be read in `unread`."""
        half, *_ = self._log_tables
        for together in in_pieces(files):
            try:
                yield from half.rows.pieces(together, HALF_COLUMNS)
                continue
            except UNREADABLE_ERRORS:
                pass
            for file in together:
                read = partial(half.rows.read, [file], HALF_COLUMNS)
                rows, problem = half.search.readable(file, read)
                if rows is None:
                    logger.warning("a file of half cannot be read: %s", problem)
                    unread[file.path] = problem
                else:
                    yield rows

    def _read_again(self, before: OpenSet) -> OpenSet:
        """Try the files again that could not be read."""
        if not before.unread:
            return before
        half, *_ = self._log_tables
        files = [file for file in half.files.all() if file.path in before.unread]
        if len(files) < len(before.unread):
            # A file that was repaired and merged is in no commit that appends rows.
            raise StorageError("half", "a file that could not be read was replaced")
        return self._with_files(before, files)

    # --- write it down -----------------------------------------------------------------------

    def _write(self, after: OpenSet) -> None:
        if not self._kept.exists():
            self._tables.create_open_set()
        kept = self._kept.refresh()
        there = [kept.log.mark(f"{_MARK}{name}") or 0 for name in _LOGS]
        if any(map(operator.gt, there, after.versions)):
            # Another service has read more, or the logs were restored; that is seen by a search.
            return
        files = kept.writer.new_files(_as_rows(after))
        marks = {FILES_MARK: name_print(file.path for file in files)}
        marks[JUDGING_MARK] = name_print(self._logs.op.judging)
        for name, log, version in zip(_LOGS, self._log_tables, after.versions, strict=True):
            fingerprint = commit_fingerprint(log, version)
            if fingerprint is None:
                return
            marks |= {f"{_MARK}{name}": version, f"{_MARK}{name}-fingerprint": fingerprint}
        marks |= {f"{_ENDED}{state}": count for state, count in after.ended.items()}
        kept.writer.replace_files(files, marks)


def name_print(paths: Iterable[str]) -> int:
    """Return a number for the files that hold a set: no other commit has files of these names."""
    return fingerprint_of(hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest())


def _without_prefix(ended: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(_ENDED): count for name, count in ended.items()}


def _as_rows(of: OpenSet) -> pa.Table:
    """Return a set as rows of OPEN_SET."""
    unread = pa.table({"transaction_id": [*of.unread], "reason": [*of.unread.values()]})
    tables = {"half": of.runs, "topic": of.topics, "claim": of.claims, "fact": of.facts}
    parts = [_as_part(rows, name) for name, rows in {**tables, "unread": unread}.items()]
    return pa.concat_tables(parts)


def _as_part(rows: pa.Table, part: str) -> pa.Table:
    count = rows.num_rows
    columns = [
        pa.repeat(pa.scalar(part), count)
        if field.name == PART
        else rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(count, field.type)
        for field in OPEN_SET.columns
    ]
    return pa.table(columns, schema=OPEN_SET.columns)


# --- rows -----------------------------------------------------------------------------------------


def _is_about(rows: pa.Table, transaction_ids: pa.Array) -> pa.ChunkedArray:
    return pc.is_in(rows["transaction_id"], value_set=transaction_ids)


def _without(rows: pa.Table, transaction_ids: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(_is_about(rows, transaction_ids)))


def _counted(ended: Mapping[str, int], facts: pa.Table) -> dict[str, int]:
    """Add the final ones of these facts; a transaction has one."""
    is_final = pc.is_in(facts["state"], value_set=_FINAL)
    counts = pc.value_counts(facts["state"].filter(is_final)).to_pylist()
    more = {row["values"]: row["counts"] for row in counts}
    return {state: ended.get(state, 0) + more.get(state, 0) for state in _FINAL.to_pylist()}


def _joined_topics(topics: pa.Table, rows: pa.Table) -> pa.Table:
    """Add the messages in HALF_COLUMNS to TOPICS."""
    payload = rows.filter(pc.is_valid(rows["real_topic"])).select(["transaction_id", "real_topic"])
    counts = payload.group_by(["transaction_id", "real_topic"]).aggregate([([], "count_all")])
    more = counts.rename_columns({"count_all": "messages"}).select(TOPICS.names).cast(TOPICS)
    return pa.concat_tables([topics, more])


def runs_of(rows: pa.Table) -> pa.Table:
    """Return HALF_COLUMNS as RUNS: neighbours are one row, and so is a message that is twice."""
    rows = rows.set_column(
        rows.column_names.index("producer_group"),
        "producer_group",
        pc.fill_null(rows["producer_group"], ""),
    )
    owner, sender = (Groups.of(rows[name]).place for name in ("transaction_id", "producer_group"))
    is_payload = pc.is_valid(rows["real_topic"]).to_numpy().astype(np.int64)
    sequence = integers(rows["sequence"], NO_SEQUENCE)
    order = np.lexsort((sequence, is_payload, sender, owner))
    keys = np.stack([owner[order], sender[order], is_payload[order]])
    ordered = sequence[order]
    begins = np.ones(len(order), dtype=bool)
    with np.errstate(over="ignore"):
        is_next = (ordered[1:] == ordered[:-1]) | (ordered[1:] == ordered[:-1] + 1)
    begins[1:] = ~is_next | (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    examples = rows.take(pa.array(order[first]))
    versions = _versions(rows)[order]
    heads = _head_columns(rows.take(pa.array(order)), np.cumsum(begins) - 1, len(first))
    columns = {
        "transaction_id": examples["transaction_id"],
        "producer_group": examples["producer_group"],
        "first_sequence": pa.array(ordered[first]),
        "last_sequence": pa.array(ordered[last]),
        "is_payload": pc.is_valid(examples["real_topic"]),
        "half_version": _earliest(versions, first),
        **{name: heads[name] for name in heads.column_names},
    }
    return pa.table({name: columns[name] for name in RUNS.names}).cast(RUNS)


def _versions(rows: pa.Table) -> Integers:
    """Return the commit that brought each row; the last one of all where it is not known."""
    if COMMIT_VERSION not in rows.column_names:
        return np.full(rows.num_rows, _UNKNOWN_VERSION, dtype=np.int64)
    return integers(rows[COMMIT_VERSION], _UNKNOWN_VERSION)


def _earliest(versions: Integers, first: Integers) -> pa.Array:
    """Return the first commit of each run; null where it is not known."""
    earliest = np.minimum.reduceat(versions, first) if len(first) else versions
    return pa.array(earliest, mask=earliest == _UNKNOWN_VERSION)


def _head_columns(rows: pa.Table, run: Integers, count: int) -> pa.Table:
    """Return what the heads say, for each run; null for a run without the head."""
    is_head = integers(rows["sequence"], NO_SEQUENCE) == HEAD_SEQUENCE
    names = ("message_count", "check_immunity_time_s", "ordinary")
    heads = rows.select(names).append_column("run", pa.array(run)).filter(pa.array(is_head))
    found = heads.group_by("run").aggregate(
        [("message_count", "max"), ("check_immunity_time_s", "max"), ("ordinary", "any")]
    )
    row = np.full(count, -1, dtype=np.int64)
    row[integers(found["run"], 0)] = np.arange(found.num_rows)
    values = found.take(pa.array(row, mask=row < 0))
    suffixes = ("max", "max", "any")
    return pa.table(
        {name: values[f"{name}_{suffix}"] for name, suffix in zip(names, suffixes, strict=True)}
    )
