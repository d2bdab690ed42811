"""Which transactions have no end yet: an anti-join of the logs in Arrow, no Spark. Reads only."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.affine_clock import affine
from txmq.check_rules import CheckStanding, DueRow
from txmq.check_standing import CheckStandings
from txmq.clock import Clock, SystemClock, milliseconds, timestamp
from txmq.half_heads import UNREADABLE_ERRORS
from txmq.lifecycle import FINAL_STATES, MISSING, ClaimKind, TransactionState
from txmq.message import transaction_time_ms
from txmq.schemas import HEAD_SEQUENCE, MICROSECONDS_UTC
from txmq.storage import Table
from txmq.store import Store

logger = logging.getLogger(__name__)

OPEN_TRANSACTIONS = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("state", pa.string()),
        pa.field("life", pa.int32()),
        pa.field("check_times", pa.int32()),
        # Null: so long past that its commit was not looked up.
        pa.field("deadline", MICROSECONDS_UTC),
        pa.field("is_due", pa.bool_()),
        pa.field("message_count", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("ordinary", pa.bool_()),
    ]
)
_COLUMNS = (
    "transaction_id", "sequence", "producer_group", "real_topic", "message_count",
    "check_immunity_time_s", "ordinary",
)  # fmt: skip
_FINAL = pa.array([state.value for state in FINAL_STATES])
_ENDS = pa.array([ClaimKind.COMMIT.value, ClaimKind.ROLLBACK.value, ClaimKind.EXPIRE.value])


@dataclass(frozen=True, slots=True)
class _Half:
    """What the half log holds of one transaction that may be open."""

    producer_group: str
    message_count: int | None
    found: int
    immunity_s: float
    ordinary: bool

    @property
    def problem(self) -> str | None:
        return None if self.found == self.message_count else MISSING


def open_transactions(store: Store, *, clock: Clock | None = None) -> pa.Table:
    """All transactions without a final end, as OPEN_TRANSACTIONS, oldest first.

    Reads: half, settled, op: few columns of each, and half's change feed for commits younger than
    the longest immunity. Writes: nothing. Commits: 0. Raises: StorageError.
    """
    return OpenTransactions(store, clock or SystemClock()).read()


def due_rows(found: pa.Table, clock_ms: int) -> list[DueRow]:
    """The rows of OPEN_TRANSACTIONS that are due, as the check wants them."""
    return [
        DueRow(
            row["transaction_id"],
            row["producer_group"],
            _order_ms(row["transaction_id"], row["deadline"], clock_ms),
            row["check_times"],
            row["life"],
            ordinary=row["ordinary"],
        )
        for row in found.filter(found["is_due"]).to_pylist()
    ]


class OpenTransactions:
    """Reads with handles of its own, again and again. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Deadlines are times of the store; an AffineClock shows them as its own."""
        self._config = store.config
        self._clock = clock
        self._half = store.half_log().table
        self._standings = CheckStandings(store)

    def read(self, clock_ms: int | None = None) -> pa.Table:
        """OPEN_TRANSACTIONS as of now; due by `clock_ms`."""
        now_ms = self._clock.now_ms()
        halves, standings = self._open(now_ms)
        due_ms = now_ms if clock_ms is None else clock_ms
        return _as_table(halves, standings, self._deadlines(halves, standings, due_ms), due_ms)

    # --- the anti-join -----------------------------------------------------------------------

    def _open(self, now_ms: int) -> tuple[dict[str, _Half], dict[str, CheckStanding]]:
        """The half log is read first: what is ended while this reads is then seen as ended."""
        rows = _readable_rows(self._half.refresh())
        self._standings.refresh()
        settled, op = self._standings.settled, self._standings.op
        facts = settled.table.read(settled.table.files(), ("transaction_id", "state"))
        is_final = pc.is_in(facts["state"], value_set=_FINAL)
        rows = _without(rows, facts.filter(is_final)["transaction_id"])
        claims = op.rows_about(pc.unique(rows["transaction_id"]))
        # One that is settled but open, such as INCOMPLETE, is left to the fold.
        open_facts = facts.filter(pc.invert(is_final))["transaction_id"]
        rows = _without_ended(rows, _without(claims, open_facts))
        halves = _halves(rows, self._config.transaction_timeout_s)
        claims = _only(claims, rows["transaction_id"])
        standings = settled.standings(
            open_facts.filter(pc.is_in(open_facts, rows["transaction_id"]))
        )
        groups = {key: half.producer_group for key, half in halves.items()}
        return halves, self._standings.folded(groups, standings, claims, now_ms)

    # --- deadlines ---------------------------------------------------------------------------

    def _deadlines(
        self,
        halves: Mapping[str, _Half],
        standings: Mapping[str, CheckStanding],
        now_ms: int,
    ) -> dict[str, int | None]:
        """When each is or was due; None for what is past so long that nobody looked it up."""
        heads = {
            key: half
            for key, half in halves.items()
            if standings[key].standing.next_check_timestamp_ms is None
            and standings[key].standing.life == 0
        }
        committed_ms = self._commit_times_ms(heads, now_ms)
        deadlines = {key: at.standing.next_check_timestamp_ms for key, at in standings.items()}
        for key, at_ms in committed_ms.items():
            deadlines[key] = at_ms + round(heads[key].immunity_s * 1000)
        return deadlines

    def _commit_times_ms(self, heads: Mapping[str, _Half], now_ms: int) -> dict[str, int]:
        """When the store received those heads that may still be immune."""
        longest_s = max((half.immunity_s for half in heads.values()), default=0.0)
        clock, version = affine(self._clock), self._half.version
        recent = {
            at: clock.at(wall_ms)
            for at, wall_ms in self._half.commit_times_ms().items()
            if at <= version and clock.at(wall_ms) > now_ms - longest_s * 1000
        }
        if not heads or not recent:
            return {}
        rows = self._half.changes(min(recent), version, ("transaction_id",))
        rows = rows.filter(pc.is_in(rows["transaction_id"], value_set=pa.array(heads)))
        first = rows.group_by("transaction_id").aggregate([("_commit_version", "min")])
        versions = first["_commit_version_min"].to_pylist()
        found = dict(zip(first["transaction_id"].to_pylist(), versions, strict=True))
        return {key: recent[at] for key, at in found.items() if at in recent}


def _readable_rows(half: Table) -> pa.Table:
    """All rows, narrow; a file that cannot be read is set aside and named in the log."""
    parts = [half.read([], _COLUMNS)]
    for file in half.files():
        try:
            parts.append(half.read([file], _COLUMNS))
        except UNREADABLE_ERRORS as error:
            logger.warning("half file %s cannot be read (%s)", file.path, type(error).__name__)
    return pa.concat_tables(parts)


def _without_ended(rows: pa.Table, claims: pa.Table) -> pa.Table:
    """Rows without a COMMIT, ROLLBACK or EXPIRE of their own group (R37); a RESUME may lift one."""
    resumed = claims.filter(pc.equal(claims["kind"], ClaimKind.RESUME.value))["transaction_id"]
    ends = _without(claims.filter(pc.is_in(claims["kind"], value_set=_ENDS)), resumed)
    return rows.filter(pc.invert(pc.is_in(_key(rows), value_set=_key(ends))))


def _without(rows: pa.Table, transaction_ids: pa.ChunkedArray) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=transaction_ids)))


def _only(rows: pa.Table, transaction_ids: pa.ChunkedArray) -> pa.Table:
    return rows.filter(pc.is_in(rows["transaction_id"], value_set=transaction_ids))


def _key(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows["transaction_id"], rows["producer_group"], "/")


def _halves(rows: pa.Table, transaction_timeout_s: float) -> dict[str, _Half]:
    """By transaction, so that one without its head is seen too; it is due after the timeout."""
    messages = rows.group_by(["transaction_id", "sequence"]).aggregate(
        [
            ("producer_group", "min"),
            ("real_topic", "count"),
            ("message_count", "max"),
            ("check_immunity_time_s", "max"),
            ("ordinary", "any"),
        ]
    )
    found = _found(messages)
    heads = messages.filter(pc.equal(messages["sequence"], HEAD_SEQUENCE)).to_pylist()
    known = {row["transaction_id"]: row for row in heads}
    some = messages.group_by("transaction_id").aggregate([("producer_group_min", "min")])
    return {
        row["transaction_id"]: _half(
            known.get(row["transaction_id"], {}),
            str(row["producer_group_min_min"]),
            found.get(row["transaction_id"], 0),
            transaction_timeout_s,
        )
        for row in some.to_pylist()
    }


def _found(messages: pa.Table) -> dict[str, int]:
    """How many messages of each transaction are there; a head without payload is none."""
    payload = messages.filter(pc.greater(messages["real_topic_count"], 0))
    counts = payload.group_by("transaction_id").aggregate([("sequence", "count")])
    ids, numbers = counts["transaction_id"].to_pylist(), counts["sequence_count"].to_pylist()
    return dict(zip(ids, numbers, strict=True))


def _half(
    head: Mapping[str, Any], producer_group: str, found: int, transaction_timeout_s: float
) -> _Half:
    written = head.get("check_immunity_time_s_max")
    immunity_s = math.nan if written is None else float(written)
    believable = math.isfinite(immunity_s) and immunity_s > 0
    return _Half(
        str(head.get("producer_group_min", producer_group)),
        head.get("message_count_max"),
        found,
        immunity_s if believable else transaction_timeout_s,
        bool(head.get("ordinary_any")),
    )


def _as_table(
    halves: Mapping[str, _Half],
    standings: Mapping[str, CheckStanding],
    deadlines: Mapping[str, int | None],
    now_ms: int,
) -> pa.Table:
    rows = []
    for key in sorted(halves):
        half, standing, deadline_ms = halves[key], standings[key].standing, deadlines[key]
        if standing.state in FINAL_STATES:
            continue
        is_past = deadline_ms is None or deadline_ms <= now_ms
        row = (
            key,
            half.producer_group,
            standing.state.value,
            standing.life,
            standing.check_times,
            None if deadline_ms is None else timestamp(deadline_ms),
            standing.state is TransactionState.PENDING and is_past,
            half.message_count,
            half.found,
            half.problem,
            half.ordinary,
        )
        rows.append(row)
    columns = zip(*rows, strict=True) if rows else [[] for _ in OPEN_TRANSACTIONS]
    return pa.table(list(map(pa.array, columns, OPEN_TRANSACTIONS.types)), OPEN_TRANSACTIONS)


def _order_ms(transaction_id: str, deadline: datetime | None, clock_ms: int) -> int:
    """The deadline, or what orders the oldest first where it is not known."""
    if deadline is not None:
        return milliseconds(deadline)
    return min(_id_time_ms(transaction_id), clock_ms)


def _id_time_ms(transaction_id: str) -> int:
    try:
        return transaction_time_ms(transaction_id)
    except ValueError:
        return 0
