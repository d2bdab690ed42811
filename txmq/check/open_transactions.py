"""Finds transactions without an end, in the open set of `open_set`. Read-only.

Due is one that is PENDING and whose deadline has passed: its immunity after the store received its
head, or the next check that an earlier answer has put off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.open_set import OpenSetReader
from txmq.check.standing import DUE, IMMUNITY_MAX_S, StandingReader
from txmq.delta.files import may_hold
from txmq.delta.log_files import commit_news
from txmq.ground.clock import Clock, SystemClock, affine
from txmq.ground.columns import DistinctRows, Groups, Integers, flags, integers
from txmq.message.ids import HEAD_SEQUENCE, transaction_time_ms
from txmq.message.lifecycle import FINAL_STATES, MISSING, ClaimKind, TransactionState
from txmq.store.config import Config
from txmq.store.half import NO_SEQUENCE
from txmq.store.op import is_of_first_life
from txmq.store.schemas import MICROSECONDS_UTC
from txmq.store.settled import last_facts
from txmq.store.store import Store

OPEN_TRANSACTIONS = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("state", pa.string()),
        pa.field("life", pa.int32()),
        pa.field("check_times", pa.int32()),
        # Null: it passed so long ago that its commit was not looked up.
        pa.field("deadline", MICROSECONDS_UTC),
        pa.field("is_due", pa.bool_()),
        pa.field("message_count", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("ordinary", pa.bool_()),
        # Why the last check brought no end; null: there was no check yet.
        pa.field("reason", pa.string()),
    ]
)
_FINAL = pa.array([state.value for state in FINAL_STATES])
_ENDS = pa.array([ClaimKind.COMMIT.value, ClaimKind.ROLLBACK.value, ClaimKind.EXPIRE.value])
# 9999-12-31: the last day that Python can represent.
_LATEST_MS = 253_402_214_400_000
_NOT_LOOKED_UP_MS = np.iinfo(np.int64).min
_NO_VERSION = -1
_TIME_CHARACTERS = 13
_VERSION = "_commit_version"
_RECENT = pa.schema([("transaction_id", pa.string()), (_VERSION, pa.int64())])
_HALVES = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("message_count", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("immunity_s", pa.float64()),
        pa.field("ordinary", pa.bool_()),
        pa.field("half_version", pa.int64()),
    ]
)


def open_transactions(store: Store, *, clock: Clock | None = None) -> pa.Table:
    """Find all transactions without a final end, as OPEN_TRANSACTIONS, oldest first.

    Reads: state/open_transactions, what half, op and settled appended since, and half's commits
    that are younger than the longest immunity. Writes: nothing. Commits: 0. Raises: StorageError.
    """
    return OpenTransactions(store, clock or SystemClock()).read()


def dues_of(transactions: pa.Table, clock_ms: int) -> pa.Table:
    """Select the rows of OPEN_TRANSACTIONS that are due, as DUE."""
    due = transactions.filter(transactions["is_due"])
    deadline_ms = pc.divide(due["deadline"].cast(pa.int64()), 1000)
    # Without a deadline the time in the id orders the oldest first.
    born_ms = pc.min_element_wise(_id_times_ms(due["transaction_id"]), clock_ms)
    columns = {
        **{name: due[name] for name in DUE.names if name in due.column_names},
        "deadline_ms": pc.coalesce(deadline_ms, born_ms),
        "has_returned": pa.array(np.zeros(due.num_rows, dtype=bool)),
    }
    return pa.table({name: columns[name] for name in DUE.names}).cast(DUE)


class OpenTransactions:
    """Reads OPEN_TRANSACTIONS repeatedly, with its own handles. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Open nothing yet. The store's times are converted to `clock` if it is affine."""
        self._config = store.config
        self._clock = clock
        # Nobody is asked about what may have ended.
        self._logs = store.tables.logs(believes_unknown=True)
        self._half = self._logs.half.table
        self.open_set = OpenSetReader(self._logs, store.tables)
        self._standings = StandingReader(self._logs, store.config)

    def read(self, clock_ms: int | None = None) -> pa.Table:
        """Read OPEN_TRANSACTIONS as of now; `is_due` goes by `clock_ms`, or by now without it."""
        now_ms = self._clock.now_ms()
        halves, standings = self._logs.consistent(lambda: self._open(now_ms))
        due_ms = now_ms if clock_ms is None else clock_ms
        deadlines_ms = self._deadlines_ms(halves, standings, due_ms)
        return _as_table(halves, standings, deadlines_ms, due_ms)

    def has_news(self) -> bool:
        """Tell whether half or op has a newer version than was read; checks one file name each."""
        return self._half.log.has_news() or self._logs.op.table.log.has_news()

    # --- the anti-join -----------------------------------------------------------------------

    def _open(self, now_ms: int) -> tuple[pa.Table, pa.Table]:
        """Read _HALVES and their STANDINGS."""
        of = self.open_set.read()
        # A transaction that is settled but open, such as INCOMPLETE, goes through the fold.
        open_ids = pc.unique(of.facts["transaction_id"])
        is_end = pc.and_(pc.is_in(of.claims["kind"], value_set=_ENDS), is_of_first_life(of.claims))
        ends = _without(of.claims.filter(is_end), open_ids)
        runs = _without_ended(of.runs, self._standings.unsettled(ends), of.claims)
        halves = _halves(runs, self._config)
        owners = halves.select(["transaction_id", "producer_group"])
        is_there = pc.is_in(of.facts["transaction_id"], value_set=halves["transaction_id"])
        last = last_facts(of.facts.filter(is_there))
        return halves, self._standings.folded(owners, last, of.claims, now_ms)

    # --- deadlines ---------------------------------------------------------------------------

    def _deadlines_ms(self, halves: pa.Table, standings: pa.Table, now_ms: int) -> Integers:
        """Find each transaction's deadline; _NOT_LOOKED_UP_MS if it passed long ago."""
        next_ms = integers(standings["next_check_ms"], _NOT_LOOKED_UP_MS)
        is_first = (next_ms == _NOT_LOOKED_UP_MS) & (integers(standings["life"], 0) == 0)
        heads = halves.filter(pa.array(is_first))
        immunity_ms = np.rint(heads["immunity_s"].to_numpy() * 1000).astype(np.int64)
        committed_ms = self._commit_times_ms(heads, immunity_ms, now_ms)
        has_time = committed_ms != _NOT_LOOKED_UP_MS
        due_ms = np.where(has_time, committed_ms + immunity_ms, _NOT_LOOKED_UP_MS)
        deadlines_ms = next_ms.copy()
        deadlines_ms[is_first] = due_ms
        return np.minimum(deadlines_ms, _LATEST_MS)

    def _commit_times_ms(self, heads: pa.Table, immunity_ms: Integers, now_ms: int) -> Integers:
        """Find when the store received the heads that may still be immune."""
        since_ms = now_ms - int(immunity_ms.max(initial=0))
        kept_ms = self._kept_commits_ms()
        recent_ms = {at: time_ms for at, time_ms in kept_ms.items() if time_ms > since_ms}
        found_ms = self._times_ms(heads, recent_ms)
        oldest_ms = min(kept_ms.values(), default=0)
        if oldest_ms <= since_ms:
            return found_ms
        # A commit younger than `since_ms` may have been removed. Then use the time in the id,
        # unless the kept commits show that this time was in the future.
        born_ms = integers(_id_times_ms(heads["transaction_id"]), 0)
        is_gone = (found_ms == _NOT_LOOKED_UP_MS) & (born_ms <= oldest_ms)
        return np.where(is_gone, born_ms, found_ms)

    def _times_ms(self, heads: pa.Table, recent_ms: Mapping[int, int]) -> Integers:
        """Return the times of the commits of heads, where these are among the recent ones."""
        versions = integers(heads["half_version"], _NO_VERSION)
        is_unknown = versions == _NO_VERSION
        if is_unknown.any() and recent_ms:
            # They were found among the files, which do not say when they came.
            ids = heads["transaction_id"].filter(pa.array(is_unknown))
            versions = versions.copy()
            versions[is_unknown] = self._looked_up(ids, recent_ms)
        distinct, of_version = np.unique(versions, return_inverse=True)
        times_ms = [recent_ms.get(version, _NOT_LOOKED_UP_MS) for version in distinct.tolist()]
        return np.array(times_ms, dtype=np.int64)[of_version]

    def _looked_up(self, ids: pa.ChunkedArray, versions: Iterable[int]) -> Integers:
        """Find which of these commits brought each transaction first; _NO_VERSION for none."""
        rows = self._recent_rows(sorted(ids.unique().to_pylist()), versions)
        place = pc.index_in(rows["transaction_id"], value_set=ids.combine_chunks())
        rows = rows.append_column("place", place).filter(pc.is_valid(place))
        first = np.full(len(ids), np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(first, integers(rows["place"], 0), integers(rows[_VERSION], 0))
        return np.where(first == np.iinfo(np.int64).max, _NO_VERSION, first)

    def _recent_rows(self, ordered_ids: list[str], versions: Iterable[int]) -> pa.Table:
        """Read the ids that these commits added, with `_commit_version`, from files with one."""
        column, parts = "transaction_id", [_RECENT.empty_table()]
        for version in versions:
            news = commit_news(self._half.folder, version)
            files = [
                part.file
                for part in (() if news is None else news.added)
                if may_hold(part.low.get(column), part.high.get(column), ordered_ids)
            ]
            for file in files:
                read = partial(self._half.rows.read, [file], (column,))
                # Without its commit a transaction is as old as its id says.
                rows, _ = self._half.search.readable(file, read)
                if rows is not None:
                    numbers = pa.array([version] * rows.num_rows, pa.int64())
                    parts.append(rows.append_column(_VERSION, numbers))
        return pa.concat_tables(parts)

    def _kept_commits_ms(self) -> dict[int, int]:
        """Return the commits of half whose files exist, and when the store received them."""
        clock, version = affine(self._clock), self._half.version
        return {
            at: clock.at(wall_ms)
            for at, wall_ms in self._half.folder.commit_times_ms().items()
            if at <= version
        }


def _without_ended(rows: pa.Table, ends: pa.Table, claims: pa.Table) -> pa.Table:
    """Drop rows with an end of their own group (R37); a RESUME may cancel an end."""
    resumed = claims.filter(pc.equal(claims["kind"], ClaimKind.RESUME.value))["transaction_id"]
    return rows.filter(pc.invert(pc.is_in(_key(rows), value_set=_key(_without(ends, resumed)))))


def _without(rows: pa.Table, transaction_ids: pa.ChunkedArray) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=transaction_ids)))


def _key(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows["transaction_id"], rows["producer_group"], "/")


# --- halves ---------------------------------------------------------------------------------------


def _halves(runs: pa.Table, config: Config) -> pa.Table:
    """Build _HALVES of RUNS: a row for each transaction, also for one without its head."""
    of_transaction = Groups.of(runs["transaction_id"])
    heads = _head_of_each(runs, of_transaction)
    groups = pc.coalesce(heads["producer_group_min"], _lowest_groups(runs, of_transaction))
    columns = [
        of_transaction.keys,
        groups,
        heads["message_count_max"],
        pa.array(_messages(runs, of_transaction)),
        _immunities_s(groups, heads["check_immunity_time_s_max"], config),
        pc.fill_null(heads["ordinary_any"], False),  # noqa: FBT003
        _first_versions(runs, of_transaction),
    ]
    return pa.table(columns, _HALVES.names).cast(_HALVES)


def _first_versions(runs: pa.Table, of_transaction: Groups) -> pa.Array:
    """Return the commit that brought each transaction; null if one of its runs does not say."""
    has_version = flags(pc.is_valid(runs["half_version"]))
    first = of_transaction.smallest(integers(runs["half_version"], 0), np.iinfo(np.int64).max)
    return pa.array(first, mask=of_transaction.count(~has_version) > 0)


def _messages(runs: pa.Table, of_transaction: Groups) -> Integers:
    """Count the messages of each transaction, each once, however often it was appended."""
    is_payload = flags(runs["is_payload"])
    place = of_transaction.place[is_payload]
    first = integers(runs["first_sequence"], NO_SEQUENCE)[is_payload]
    end = integers(runs["last_sequence"], NO_SEQUENCE)[is_payload] + 1
    counts = np.zeros(len(of_transaction.keys), dtype=np.int64)
    order = np.lexsort((first, place))
    is_alone = np.bincount(place, minlength=len(counts))[place] == 1
    counts[place[is_alone]] = (end - first)[is_alone]
    reached_of = dict[int, int]()
    for row in order[~is_alone[order]].tolist():
        of, begin = int(place[row]), int(first[row])
        begin = max(begin, reached_of.get(of, begin))
        counts[of] += max(int(end[row]) - begin, 0)
        reached_of[of] = max(int(end[row]), begin)
    return counts


def _head_of_each(runs: pa.Table, of_transaction: Groups) -> pa.Table:
    """Return the heads in the order of the transactions; nulls where a head is missing."""
    has_head = pc.and_(
        pc.less_equal(runs["first_sequence"], HEAD_SEQUENCE),
        pc.greater_equal(runs["last_sequence"], HEAD_SEQUENCE),
    )
    heads = runs.append_column("place", pa.array(of_transaction.place)).filter(has_head)
    heads = heads.group_by("place").aggregate(
        [
            ("producer_group", "min"),
            ("message_count", "max"),
            ("check_immunity_time_s", "max"),
            ("ordinary", "any"),
        ]
    )
    row = np.full(len(of_transaction.keys), -1, dtype=np.int64)
    row[integers(heads["place"], 0)] = np.arange(heads.num_rows)
    return heads.take(pa.array(row, mask=row < 0))


def _lowest_groups(runs: pa.Table, of_transaction: Groups) -> pa.Array:
    """Choose the lowest group of each transaction, so that all readers choose the same."""
    of_group = Groups.of(runs["producer_group"])
    order = np.argsort(np.array(of_group.keys.to_pylist(), dtype=object))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    lowest = of_transaction.smallest(rank[of_group.place], len(order))
    return of_group.keys.take(pa.array(order)).take(pa.array(lowest))


def _immunities_s(
    groups: pa.ChunkedArray, immunities_s: pa.ChunkedArray, config: Config
) -> pa.ChunkedArray:
    """Return the immunities, with the timeout of the group in place of an invalid one."""
    distinct = DistinctRows.of(pa.table({"group": groups}))
    timeouts_s = distinct.values(
        (
            config.of_group(name).transaction_timeout_s
            for name in distinct.rows["group"].to_pylist()
        ),
        pa.float64(),
    )
    is_valid = pc.and_(pc.greater(immunities_s, 0), pc.less(immunities_s, IMMUNITY_MAX_S))
    return pc.if_else(pc.fill_null(is_valid, False), immunities_s, timeouts_s)  # noqa: FBT003


# --- the result -----------------------------------------------------------------------------------


def _as_table(
    halves: pa.Table, standings: pa.Table, deadlines_ms: Integers, now_ms: int
) -> pa.Table:
    is_past = pa.array(deadlines_ms <= now_ms)
    is_pending = pc.equal(standings["state"], TransactionState.PENDING.value)
    is_whole = pc.fill_null(pc.equal(halves["found"], halves["message_count"]), False)  # noqa: FBT003
    has_time = deadlines_ms != _NOT_LOOKED_UP_MS
    deadline_us = pa.array(np.where(has_time, deadlines_ms, 0) * 1000, mask=~has_time)
    columns = {
        **{name: halves[name] for name in halves.column_names},
        **{name: standings[name] for name in ("state", "life", "check_times", "reason")},
        "deadline": deadline_us.cast(MICROSECONDS_UTC),
        "is_due": pc.and_(is_pending, is_past),
        "problem": pc.if_else(is_whole, pa.scalar(None, pa.string()), MISSING),
    }
    rows = pa.table({name: columns[name] for name in OPEN_TRANSACTIONS.names})
    is_open = pc.invert(pc.is_in(rows["state"], value_set=_FINAL))
    return rows.filter(is_open).sort_by("transaction_id").cast(OPEN_TRANSACTIONS)


def _id_times_ms(transaction_ids: pa.ChunkedArray) -> pa.Array:
    """Read the times in ids; 0 for an id without one. Ids of a millisecond begin alike."""
    begin = pc.utf8_slice_codeunits(transaction_ids, 0, _TIME_CHARACTERS)
    distinct = DistinctRows.of(pa.table({"begin": begin}))
    _, first = np.unique(distinct.place, return_index=True)
    examples = transaction_ids.take(pa.array(first)).to_pylist()
    return distinct.values(map(_id_time_ms, examples), pa.int64())


def _id_time_ms(transaction_id: str) -> int:
    try:
        return transaction_time_ms(transaction_id)
    except ValueError:
        return 0
