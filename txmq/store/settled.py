"""The settled log: one fact for each change of a transaction's state that took effect.

Beside it the schedule, which says with the half log which messages are delayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import commit_path
from txmq.delta.files import DataFile, UnreadableFile
from txmq.delta.table import Table
from txmq.errors import StorageError
from txmq.ground.clock import timestamp
from txmq.ground.columns import flags, integers, python_values, sound_rows
from txmq.message.lifecycle import FINAL_STATES, DeliveryState, Fact, Standing, TransactionState
from txmq.store.half import DELAYED_COLUMNS, HalfLog, once_each
from txmq.store.schemas import PLACE_LIMITS, SCHEDULE, SETTLED

NOTHING = -1
SET_ASIDE_MARK = "txmq-set-aside"
# Up to which version of the half log claims were settled, and what its commit is.
HALF_MARK, HALF_FINGERPRINT = "txmq-half", "txmq-half-fingerprint"
# The newest commit of half that removed rows which cannot be put back.
HALF_LOST = "txmq-half-lost"
# Up to which version of the settled log all facts are there that other programs removed.
WHOLE_MARK = "txmq-whole"
_FORGOTTEN = "txmq-forgotten/"
FACT_COLUMNS = ("transaction_id", "state", "op_version", "ordinal", "source", "life", "reason")
SHOWN_COLUMNS = (*FACT_COLUMNS, "sequences", "settled_timestamp", "op_timestamp")
DELIVERY_COLUMNS = ("transaction_id", "state", "sequences", "op_version", "ordinal", "source")
_REQUIRED = ("transaction_id", "op_version", "ordinal", "life")
_REQUIRED_OF_MESSAGES = ("transaction_id", "sequence", "op_version", "deliver_timestamp")
_STATES = pa.array([state.value for state in (*TransactionState, *DeliveryState)])
_DELIVERY_STATES = pa.array([state.value for state in DeliveryState])
# How often files are listed again that another process, such as retention, takes away meanwhile.
REPLACED_ATTEMPTS = 5
_NO_MESSAGES = pa.schema([SCHEDULE.columns.field(name) for name in DELAYED_COLUMNS]).empty_table()


class HalfSeen(NamedTuple):
    """A version of the half log by which claims were settled.

    Attributes:
        fingerprint: of its commit; a half log that was restored is older, or has another one there.
        lost: the newest commit up to there by which another program removed rows whose file is gone
            too, or NOTHING.
    """

    version: int = NOTHING
    fingerprint: int | None = None
    lost: int = NOTHING


class SettledLog:
    """Reads facts and appends them exactly once."""

    def __init__(self, table: Table, op_table_id: str) -> None:
        """Open nothing yet; `op_table_id` names the op log whose versions the mark counts."""
        self.table = table
        self.mark_id = mark_id(op_table_id)
        self._fingerprint_id = fingerprint_id(op_table_id)

    @property
    def mark(self) -> int:
        """The op version up to which this handle's facts are complete; NOTHING without a mark."""
        version = self.table.log.mark(self.mark_id)
        return NOTHING if version is None else version

    @property
    def fingerprint(self) -> int | None:
        """The fingerprint of the op log's commit at the mark; a restored op log has another."""
        return self.table.log.mark(self._fingerprint_id)

    @property
    def set_aside_count(self) -> int:
        """How often transactions were set aside or settled late; see `store.set_aside`."""
        return self.table.log.mark(SET_ASIDE_MARK) or 0

    @property
    def half_seen(self) -> HalfSeen:
        """What the newest settled commit says of the half log."""
        names = (HALF_MARK, HALF_FINGERPRINT, HALF_LOST)
        version, fingerprint, lost = (self.table.log.mark(name) for name in names)
        return HalfSeen(
            NOTHING if version is None else version, fingerprint, NOTHING if lost is None else lost
        )

    @property
    def whole_through(self) -> int:
        """The version up to which no fact is missing; the pinned one if none says so yet."""
        version = self.table.log.mark(WHOLE_MARK)
        return self.table.version if version is None else version

    @property
    def is_looked_at(self) -> bool:
        """Whether a commit says up to where it is whole; an earlier txmq wrote none that does."""
        return self.mark == NOTHING or self.table.log.mark(WHOLE_MARK) is not None

    @property
    def forgotten(self) -> dict[str, int]:
        """How many transactions of each final state retention has taken so far."""
        return {
            state.value: self.table.log.mark(f"{_FORGOTTEN}{state.value}") or 0
            for state in sorted(FINAL_STATES)
        }

    def forget(self, files: Sequence[DataFile]) -> None:
        """Remove whole files, and count their final facts in the same commit.

        A transaction has one final fact. Raises: CommitRefusedError if another removal was
        first; StorageError.
        """
        before = self.forgotten
        counts = Counter(python_values(self.table.rows.read(files, ("state",))["state"]))
        marks = {
            f"{_FORGOTTEN}{state}": number + counts[state]
            for state, number in before.items()
            if counts[state]
        }
        self.table.writer.remove(files, marks)

    def facts_of(self, transaction_ids: pa.Array) -> pa.Table:
        """Read FACT_COLUMNS of the facts about these transactions, without facts of deliveries."""
        rows = self.table.search.rows_of("transaction_id", transaction_ids, FACT_COLUMNS)
        return without_deliveries(facts_among(rows))

    def deliveries_of(self, transaction_ids: pa.Array) -> pa.Table:
        """Read DELIVERY_COLUMNS of all facts about delayed messages of these transactions."""
        rows = self.table.search.rows_of("transaction_id", transaction_ids, DELIVERY_COLUMNS)
        return sound_rows(facts_among(rows.filter(_is_delivery(rows))), ("sequences",))

    def standings(self, transaction_ids: pa.Array) -> dict[str, Standing]:
        """Read the last settled state of each transaction that has facts."""
        newest = last_facts(self.facts_of(transaction_ids))
        return {
            row["transaction_id"]: Standing(TransactionState(row["state"]), row["life"])
            for row in newest.to_pylist()
        }

    def group_of(self, transaction_id: str) -> str | None:
        """Read the producer group in the facts about a transaction; None without any."""
        ids = pa.array([transaction_id], pa.string())
        rows = self.table.search.rows_of(
            "transaction_id", ids, ("transaction_id", "producer_group")
        )
        groups = rows["producer_group"].to_pylist()
        return str(groups[0]) if groups else None

    def between(self, after: int, through: int, columns: Sequence[str] = FACT_COLUMNS) -> pa.Table:
        """Read the facts whose claims are in the commits after `after` up to `through`."""
        spans = self.table.files.ranges_between("op_version", after, through)
        rows = self.table.rows.read([span.file for span in spans], columns)
        version = rows["op_version"]
        is_between = pc.and_(pc.greater(version, after), pc.less_equal(version, through))
        return facts_among(rows.filter(is_between))

    def step(self, after: int, through: int, rows: int) -> int:
        """Find a version up to `through` with which there are about so many facts after `after`.

        Reads: one column of the files with the first of them. Commits: 0.
        """
        spans = self.table.files.ranges_between("op_version", after, through)
        spans.sort(key=lambda span: NOTHING if span.low is None else span.low)
        files, count = [], 0
        for span in spans:
            if count >= rows and span.low is not None and span.low > after + 1:
                through = min(through, span.low - 1)
                break
            files.append(span.file)
            count += span.file.num_records
        versions = integers(self.table.rows.read(files, ("op_version",))["op_version"], after)
        versions = np.sort(versions[(versions > after) & (versions <= through)])
        return int(versions[rows - 1]) if len(versions) >= rows else through

    def to_show(self, after: int, through: int) -> pa.Table:
        """Read SHOWN_COLUMNS of the facts to publish: `between` without some EXPIRED lives.

        A life that was DISCARDED before it EXPIRED is left out: its messages are dead letters.

        Raises: StorageError if a commit lost its content that may have held some of them.
        """
        self.check_whole(after)
        return self._to_show(self.between(after, through, SHOWN_COLUMNS))

    def check_whole(self, after: int) -> None:
        """Check that no commit lost its content that may hold facts after an op version.

        Settling again what it held would show it twice once the file is restored. Commits: 0.

        Raises: StorageError; it names the file, or the commit by which another program removed
            facts meanwhile.
        """
        self._check_removals()
        for version in self.table.log.snapshot.empty:
            if self._may_hold(version, after):
                cure = "restore this file; until then nothing is published and nothing skipped"
                raise StorageError("settled", f"{commit_path(version)} lost its content: {cure}")

    def removals(self) -> list[int]:
        """List the commits by which other programs removed facts that nobody has put back yet."""
        return self.table.log.removals_after(self.whole_through)

    def half_removals(self, half: Table) -> list[int]:
        """List the commits of the half log by which other programs removed rows, likewise."""
        return half.log.removals_after(self.half_seen.version)

    def _check_removals(self) -> None:
        for version in self.removals():
            problem = f"another program removed facts in {commit_path(version)}"
            raise StorageError("settled", f"{problem}; the next round puts them back")

    def _may_hold(self, lost: int, after: int) -> bool:
        """Tell whether a commit that lost its content may have held facts after this op version.

        What it held is at most its own mark, which lies between those of its neighbours.
        """
        later = self._mark_in(range(lost + 1, self.table.version + 1))
        if later is not None and later <= after:
            return False
        # `after` was the mark of a commit once: of this one, if it is of neither neighbour.
        earlier = self._mark_in(range(lost - 1, -1, -1))
        return earlier is None or earlier >= after

    def _mark_in(self, versions: range) -> int | None:
        """Return the mark of the first of these commits that has one; None if nobody knows."""
        for version in versions:
            marks = self.table.folder.marks_of(version)
            if marks is None or version in self.table.log.snapshot.empty:
                return None
            if self.mark_id in marks:
                return marks[self.mark_id]
        # The first commit of the table has none.
        return NOTHING if versions.step < 0 else None

    def to_show_of(self, transaction_ids: pa.Array, through: int) -> pa.Table:
        """Read as `to_show`, of some transactions, however old their facts are."""
        self._check_removals()
        rows = self.table.search.rows_of("transaction_id", transaction_ids, SHOWN_COLUMNS)
        return self._to_show(facts_among(rows.filter(pc.less_equal(rows["op_version"], through))))

    def _to_show(self, facts: pa.Table) -> pa.Table:
        expired = facts.filter(pc.equal(facts["state"], TransactionState.EXPIRED.value))
        if not expired.num_rows:
            return facts
        earlier = self.facts_of(pc.unique(expired["transaction_id"]))
        discarded = earlier.filter(pc.equal(earlier["state"], TransactionState.DISCARDED.value))
        shown_before = pc.is_in(_life_key(facts), value_set=_life_key(discarded))
        is_expired = pc.equal(facts["state"], TransactionState.EXPIRED.value)
        return facts.filter(pc.invert(pc.and_(is_expired, shown_before)))

    def swap(
        self,
        rows: pa.Table,
        mark: int,
        fingerprint: int | None = None,
        set_aside_count: int | None = None,
        half_seen: HalfSeen | None = None,
    ) -> None:
        """Append facts and set the mark, in one commit, also without rows.

        `set_aside_count` is given if claims of the range wait (decision 0027); `half_seen` is as
        the property.

        Raises: CommitRefusedError if another publisher was faster.
        """
        marks = {
            self._fingerprint_id: fingerprint,
            SET_ASIDE_MARK: set_aside_count,
        }
        more = {name: number for name, number in marks.items() if number is not None}
        half = {} if half_seen is None else _marks_of(half_seen)
        self._append(rows, {self.mark_id: mark, **more, **half})

    def add(self, rows: pa.Table, set_aside_count: int) -> None:
        """Append the facts of transactions that waited, in one commit; the mark stays.

        Raises: CommitRefusedError if another publisher set transactions aside or settled them.
        """
        self._append(rows, {SET_ASIDE_MARK: set_aside_count})

    def see_half(self, half_seen: HalfSeen) -> None:
        """Say up to where the half log was looked at, in one commit without facts.

        Raises: CommitRefusedError if another publisher was faster.
        """
        self._append(SETTLED.columns.empty_table(), _marks_of(half_seen))

    def put_back(self, rows: pa.Table, whole_through: int) -> None:
        """Append facts that another program removed, in one commit.

        `whole_through` is as the property, for the commit. Raises: CommitRefusedError if another
        publisher was faster.
        """
        self.table.writer.swap(rows, {WHOLE_MARK: whole_through})

    def _append(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        self._check_removals()
        self.table.writer.swap(rows, {**marks, WHOLE_MARK: self.table.version})


def _marks_of(half_seen: HalfSeen) -> dict[str, int]:
    marks = {HALF_MARK: half_seen.version, HALF_FINGERPRINT: half_seen.fingerprint}
    lost = {} if half_seen.lost == NOTHING else {HALF_LOST: half_seen.lost}
    return {name: number for name, number in marks.items() if number is not None} | lost


def _life_key(facts: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(
        facts["transaction_id"], facts["life"].cast(pa.string()), "/"
    )


def facts_among(rows: pa.Table) -> pa.Table:
    """Return the rows that are facts; other programs may append anything.

    With the column `state` only those in a state that there is.
    """
    if "state" in rows.column_names:
        rows = rows.filter(pc.is_in(rows["state"], value_set=_STATES))
    return sound_rows(rows, _REQUIRED, PLACE_LIMITS)


def without_deliveries(facts: pa.Table) -> pa.Table:
    """Return the facts about transactions, without those about deliveries of single messages."""
    return facts.filter(pc.invert(_is_delivery(facts)))


def _is_delivery(facts: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(facts["state"], value_set=_DELIVERY_STATES)


def last_facts(facts: pa.Table) -> pa.Table:
    """Return the newest fact of each transaction."""
    ordered = facts.sort_by([("op_version", "descending"), ("ordinal", "descending")])
    rows = pa.array(range(ordered.num_rows), pa.int64())
    first = (
        ordered.select(["transaction_id"])
        .append_column("row", rows)
        .group_by("transaction_id")
        .aggregate([("row", "min")])
    )
    return ordered.take(first["row_min"])


def mark_id(op_table_id: str) -> str:
    """Name the mark up to which version of one op log a table is complete.

    A new op log has another id, so its versions are never compared with the old ones.
    """
    return f"txmq/{op_table_id}"


def fingerprint_id(op_table_id: str) -> str:
    """Name the mark that holds the fingerprint of the op log's commit at `mark_id`."""
    return f"txmq-fingerprint/{op_table_id}"


def settled_table(facts: Sequence[Fact], now_ms: int, op_timestamps: Sequence[object]) -> pa.Table:
    """Return facts as rows of the settled log."""
    now = timestamp(now_ms)
    claims = [fact.claim for fact in facts]
    columns = {
        "transaction_id": [claim.transaction_id for claim in claims],
        "state": [fact.state.value for fact in facts],
        "sequences": [None] * len(facts),
        "op_version": [claim.op_version for claim in claims],
        "ordinal": [claim.ordinal for claim in claims],
        "settled_timestamp": [now] * len(facts),
        "source": [claim.source.value for claim in claims],
        "producer_group": [claim.producer_group for claim in claims],
        "life": [fact.life for fact in facts],
        "reason": [fact.reason for fact in facts],
        "op_timestamp": list(op_timestamps),
        "store_date": [now.date()] * len(facts),
    }
    return pa.table(columns, schema=SETTLED.columns)


# --- delayed messages -----------------------------------------------------------------------------


class ScheduleLog:
    """Reads the schedule; the publisher appends to it as to any topic.

    The first delayed message makes its table; until then the schedule is empty.
    """

    def __init__(self, table: Table) -> None:
        """Open nothing yet; `table` is not shared."""
        self.table = table
        self.is_there = False
        # To list files costs milliseconds, and the files of a version never change.
        self._files: dict[int, list[DataFile]] = {}

    def refresh(self) -> ScheduleLog:
        """Move to the newest version and return this object."""
        self.is_there = self.is_there or self.table.exists()
        if self.is_there:
            self.table.refresh()
        return self

    def has_news(self) -> bool:
        """Tell whether the table has a newer version than this object shows."""
        return self.table.log.has_news() if self.is_there else self.table.exists()

    def messages_of(self, transaction_ids: pa.Array) -> pa.Table:
        """Read DELAYED_COLUMNS of all messages of these transactions; 0 commits."""
        if not self.is_there:
            return _NO_MESSAGES
        rows = self.table.search.rows_of("transaction_id", transaction_ids, DELAYED_COLUMNS)
        return scheduled_among(rows)

    def readable_messages_of(
        self, transaction_ids: pa.Array
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Read DELAYED_COLUMNS of all messages of these transactions; 0 commits.

        Files that cannot be read are left out, and returned.
        """
        if not self.is_there:
            return _NO_MESSAGES, ()
        rows, unreadable = self.table.search.readable_rows_of(
            "transaction_id", transaction_ids, DELAYED_COLUMNS
        )
        return scheduled_among(rows), unreadable

    def due_dates(self) -> set[date]:
        """List the due dates of all messages in the schedule; reads no rows."""
        if not self.is_there:
            return set()
        days = {file.partition["due_date"] for file in self._all_files()}
        # Another program wrote it.
        return days - {None}

    def readable(
        self, day: date, after: int, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Read columns of the messages of one due date whose claims are beyond op version `after`.

        Rows of earlier claims may be among them, because whole files are read. Files that cannot be
        read are left out, and returned; a file that another process has replaced is none of them.
        """
        for _ in range(REPLACED_ATTEMPTS):
            rows, unreadable = self._readable(day, after, columns)
            if not unreadable or not self.table.search.has_replaced(unreadable):
                break
        return rows, unreadable

    def _readable(
        self, day: date, after: int, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        is_all = not self.is_there or after < 0
        files = self._all_files() if is_all else self.table.files.beyond("op_version", after)
        parts, unreadable = [self.table.rows.read([], columns)], []
        for file in files:
            if file.partition["due_date"] != day:
                continue
            rows, problem = self.table.search.readable(
                file, partial(self.table.rows.read, [file], columns)
            )
            if rows is None:
                unreadable.append(UnreadableFile(file, None, None, problem))
            else:
                parts.append(rows)
        return scheduled_among(pa.concat_tables(parts)), tuple(unreadable)

    def _all_files(self) -> list[DataFile]:
        if not self.is_there:
            return []
        version = self.table.version
        if version not in self._files:
            self._files = {version: self.table.files.all()}
        return self._files[version]


def scheduled_among(rows: pa.Table) -> pa.Table:
    """Return the rows that are messages of the schedule; other programs may append anything."""
    return sound_rows(rows, _REQUIRED_OF_MESSAGES, PLACE_LIMITS)


def delayed_messages(
    half: HalfLog, schedule: ScheduleLog | None, transaction_ids: pa.Array
) -> pa.Table:
    """Read DELAYED_COLUMNS of the delayed messages of these transactions, once each.

    Retention removes halves before the rows of the schedule, so a message that is in neither
    cannot be delivered any more.

    Raises: StorageError if a file that may hold them cannot be read.
    """
    messages, unreadable = readable_delayed_messages(half, schedule, transaction_ids)
    if unreadable:
        raise StorageError("half", f"{unreadable[0].problem}; restore this file, then try again")
    return messages


def readable_delayed_messages(
    half: HalfLog, schedule: ScheduleLog | None, transaction_ids: pa.Array
) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
    """Read as `delayed_messages`, without the files that cannot be read, which are returned."""
    of_half, unreadable = half.readable_delayed_of(transaction_ids)
    if schedule is None:
        return of_half, unreadable
    is_in_half = pc.is_in(transaction_ids, value_set=pc.unique(of_half["transaction_id"]))
    is_whole = flags(is_in_half)
    for file in unreadable:
        is_whole = is_whole & ~file.covers(transaction_ids)
    remaining = transaction_ids.filter(pa.array(~is_whole))
    if not len(remaining):
        return of_half, unreadable
    of_schedule, also_unreadable = schedule.refresh().readable_messages_of(remaining)
    messages = pa.concat_tables([of_half, of_schedule])
    return once_each(messages), (*unreadable, *also_unreadable)
