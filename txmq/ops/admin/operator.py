"""What operators do by hand: list open transactions, end or resume one by an audited claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.open_transactions import open_transactions
from txmq.errors import (
    AlreadyResolvedError,
    ClaimWithoutEffectError,
    IncompleteTransactionError,
    InvalidMessageError,
    TransactionError,
)
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.columns import python_rows, python_values
from txmq.ground.results import Plain, plain
from txmq.message.ids import check_transaction_id, transaction_time_ms
from txmq.message.lifecycle import (
    FINAL_STATES,
    Claim,
    ClaimKind,
    ClaimSource,
    Halves,
    Standing,
    TransactionState,
    end_asked_for,
    fold,
)
from txmq.message.message import LocalTransactionState
from txmq.message.names import check_stored_group
from txmq.message.reasons import GIVE_UP, signed_reason
from txmq.store.brokers import SigningKey
from txmq.store.claim_writer import ClaimWriter
from txmq.store.config import Config
from txmq.store.half import RUN_ROWS
from txmq.store.known import KnownReader, no_transaction
from txmq.store.op import OpRow, end_life
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import last_facts
from txmq.store.store import Store, check_store

_ENDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class OpenTransaction(Plain):
    """A transaction without a final end.

    Attributes:
        age_s: the time since the moment in its id; None where the id has none.
        check_times: how many checks were counted in this life.
        next_check: when its listener is asked next; None where it is not asked, or where that
            time is long past and was not read.
        is_due: whether its listener is asked in the next round.
        reason: why the last check brought no end, such as NO_LISTENER, BUSY or TIMEOUT; None
            before the first check, and where the listener gave UNKNOWN without a reason.
        problem: MISSING or CONFLICT where a COMMIT would not take effect, else None.
    """

    transaction_id: str
    producer_group: str
    state: TransactionState
    life: int
    age_s: float | None
    check_times: int
    next_check: datetime | None
    is_due: bool
    reason: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class DiscardedTransaction(Plain):
    """A transaction that is not checked any more; its messages are dead letters.

    `discarded_at` and `reason` come from the claim that discarded it.
    """

    transaction_id: str
    producer_group: str
    life: int
    check_times: int
    discarded_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """The effect of an operator's claim; without `apply` the effect that it would have.

    Attributes:
        kind: COMMIT, ROLLBACK or RESUME.
        reason: the reason with the name of the OS user, as the row holds it.
        state_before, state_after: the state before and after the claim.
        life: how often the transaction has been resumed after the claim.
        source: who wrote the claim that led to `state_after`.
        messages: how many messages the transaction has in each topic.
        problem: MISSING or CONFLICT where the half messages must be repaired first; of a
            transaction that is given up, the file that cannot be read.
        is_needed: false where the transaction already has this end; then nothing is written.
        op_version: the commit that holds the row; None where none was written.
    """

    transaction_id: str
    producer_group: str
    kind: ClaimKind
    reason: str
    state_before: TransactionState
    state_after: TransactionState
    life: int
    source: str
    messages: Mapping[str, int]
    problem: str | None = None
    is_needed: bool = False
    op_version: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether the row is in the op log."""
        return self.op_version is not None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**plain(self), "is_written": self.is_written}


class Operator:
    """Lists transactions that need a person, and ends or resumes them; needs no Spark.

    Args:
        store: the store of the transactions.
        clock: the time for ages and for the rows that are written.

    Example:
        >>> operator = Operator(store)
        >>> operator.resume(transaction_id, reason="listener repaired").state_after
        <TransactionState.PENDING: 'PENDING'>
        >>> operator.resume(transaction_id, reason="listener repaired", apply=True).is_written
        True
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Open nothing yet."""
        check_store(store)
        self._store = store
        self._clock: Clock = clock or SystemClock()

    def open_transactions(
        self, *, producer_group: str | None = None
    ) -> tuple[OpenTransaction, ...]:
        """List all transactions without a final end: PENDING, DISCARDED, INCOMPLETE.

        Args:
            producer_group: the stored name of a group, to list only its transactions.

        Returns:
            The transactions, oldest first.

        Reads: half, settled, op. Writes: nothing. Commits: 0.

        Raises: InvalidNameError for what names no group; StorageError.
        """
        rows = self._open_rows(producer_group).to_pylist()
        incomplete = TransactionState.INCOMPLETE.value
        ids = [row["transaction_id"] for row in rows if row["state"] == incomplete]
        # Their bodies are compared, which is affordable for the few incomplete ones only.
        halves = self._store.tables.half_log().halves_of(ids) if ids else {}
        now_ms = self._clock.now_ms()
        return tuple(open_row(row, halves.get(row["transaction_id"]), now_ms) for row in rows)

    def discarded(self, *, producer_group: str | None = None) -> tuple[DiscardedTransaction, ...]:
        """List all DISCARDED transactions; `resume` opens one again.

        Args:
            producer_group: the stored name of a group, to list only its transactions.

        Returns:
            The transactions, oldest first.

        Reads: half, settled, op. Writes: nothing. Commits: 0.

        Raises: InvalidNameError for what names no group; StorageError.
        """
        rows = self._open_rows(producer_group)
        rows = rows.filter(pc.equal(rows["state"], TransactionState.DISCARDED.value))
        claims = self._discards(pc.unique(rows["transaction_id"]))
        return tuple(discarded_row(row, claims.get(life_key(row), {})) for row in rows.to_pylist())

    def resolve(
        self,
        transaction_id: str,
        end: LocalTransactionState,
        *,
        reason: str,
        apply: bool = False,
    ) -> OperatorResult:
        """End a transaction by COMMIT or ROLLBACK; a dry run unless `apply`.

        A transaction that already has this end is no error, and nothing is written. So a call
        that failed can be repeated.

        Args:
            transaction_id: the transaction, in any of its lives.
            end: LocalTransactionState.COMMIT or ROLLBACK.
            reason: one line, which is stored with the claim.
            apply: write the claim; without it only the effect is computed.

        Reads: half, op, settled. Writes: op, one row of source operator, with `reason` and the
        name of the OS user. Commits: one to op with `apply`, else 0.

        Returns:
            The state before and after the claim, and the messages that it concerns.

        Raises:
            TransactionNotFoundError: there is no half message of this id, and no end is kept.
            AlreadyResolvedError: the transaction has another end; also where another claim was
                faster than the row that was written.
            IncompleteTransactionError: a COMMIT, while half messages are missing.
            ClaimWithoutEffectError: the transaction was discarded; resume it first.
            InvalidReasonError, InvalidMessageError: a wrong argument.
            CommitConflictError, UnknownCommitError, StorageError: the row could not be written,
                or nobody knows whether it was.
        """
        kind = next((kind for state, kind in _ENDS.items() if state == end), None)
        if kind is None:
            raise InvalidMessageError("end", "must be LocalTransactionState.COMMIT or ROLLBACK")
        return self._claim(transaction_id, kind, reason, apply=apply)

    def give_up(self, transaction_id: str, *, reason: str, apply: bool = False) -> OperatorResult:
        """Give up the messages of a set-aside transaction that cannot be read; dry unless `apply`.

        The publisher tries once more. A COMMITTED transaction stays so, and of its messages those
        are published that can be read by then. Any other one is rolled back, also after a COMMIT
        that could not be settled; only if its files are readable by then, what was claimed before
        counts: a COMMIT publishes it, and a DISCARD leaves it to `resume`.

        Args:
            transaction_id: a transaction that `Admin.status().set_aside` names.
            reason: one line, which is stored with the claim.
            apply: write the claim; without it only the effect is computed.

        Reads: state/set_aside, half, settled. Writes: op, one ROLLBACK of source operator, whose
        reason begins with GIVE_UP. Commits: one to op with `apply`, else 0. A call for a
        transaction that is given up already writes nothing.

        Raises:
            ClaimWithoutEffectError: the transaction is not set aside.
            InvalidReasonError: a wrong argument.
            CommitConflictError, UnknownCommitError, StorageError: as `resolve`.
        """
        signed = GIVE_UP + signed_reason(reason)
        transaction_id = check_transaction_id(transaction_id)
        plan = planned_give_up(self._store, transaction_id, signed)
        if not apply or not plan.is_needed:
            return plan
        source, now_ms = ClaimSource.OPERATOR, self._clock.now_ms()
        group = plan.producer_group
        life = end_life(group, plan.life, self._store.config)
        row = OpRow(transaction_id, ClaimKind.ROLLBACK, group, source, now_ms, life, reason=signed)
        return replace(plan, op_version=self._append(row))

    def resume(self, transaction_id: str, *, reason: str, apply: bool = False) -> OperatorResult:
        """Open a DISCARDED or INCOMPLETE transaction again; a dry run unless `apply`.

        It becomes PENDING in its next life, with no counted check, and its listener is asked at
        once. A repeated call that finds it open raises ClaimWithoutEffectError.

        Args:
            transaction_id: the transaction.
            reason: one line, which is stored with the claim.
            apply: write the claim; without it only the effect is computed.

        Reads, writes, commits, returns: as `resolve`.

        Raises:
            TransactionNotFoundError: there is no half message of this id, and no end is kept.
            AlreadyResolvedError: the transaction has a final end.
            ClaimWithoutEffectError: the transaction is open.
            InvalidReasonError: a wrong argument.
            CommitConflictError, UnknownCommitError, StorageError: as `resolve`.

        Source: RocketMQ R91. Differs: it is a claim like any other, with a reason.
        """
        return self._claim(transaction_id, ClaimKind.RESUME, reason, apply=apply)

    # --- reading -----------------------------------------------------------------------------

    def _open_rows(self, producer_group: str | None) -> pa.Table:
        group = None if producer_group is None else check_stored_group(producer_group)
        rows = open_transactions(self._store, clock=self._clock)
        return rows if group is None else rows.filter(pc.equal(rows["producer_group"], group))

    def _discards(self, transaction_ids: pa.Array) -> dict[tuple[str, str, int], dict[str, Any]]:
        """Read the first DISCARD row of each life; only the first one took effect."""
        rows = self._store.tables.op_log().rows_about(transaction_ids)
        rows = rows.filter(pc.equal(rows["kind"], ClaimKind.DISCARD.value))
        first: dict[tuple[str, str, int], dict[str, Any]] = {}
        for row in rows.sort_by("op_timestamp").to_pylist():
            first.setdefault(life_key(row), row)
        return first

    def _read(self, transaction_id: str) -> _TransactionNow:
        """Read the transaction by all claims that are durable now, settled or not."""
        logs = self._store.tables.logs()
        known = KnownReader(logs).of(transaction_id)
        if known.state is None or known.producer_group is None or known.source is None:
            raise no_transaction(self._store, transaction_id)
        standing = Standing(known.state, known.life)
        # Without halves it has a final end, so that no claim can have an effect.
        halves = known.halves or Halves(known.producer_group, None, 0)
        return _TransactionNow(transaction_id, standing, halves, known.source)

    # --- claims ------------------------------------------------------------------------------

    def _claim(
        self, transaction_id: str, kind: ClaimKind, reason: str, *, apply: bool
    ) -> OperatorResult:
        signed = signed_reason(reason)
        before = self._read(check_transaction_id(transaction_id))
        ids = pa.array([before.transaction_id], pa.string())
        messages = messages_by_topic(self._store.tables.half_log().summaries(ids))
        unchanged = before.result(kind, signed, messages)
        if kind is not ClaimKind.RESUME and before.standing.state is end_asked_for(kind):
            return unchanged
        row = before.row(kind, signed, self._clock.now_ms(), self._store.config)
        after = before.after(row)
        plan = replace(
            unchanged,
            state_after=after.state,
            life=after.life,
            source=ClaimSource.OPERATOR.value,
            is_needed=True,
        )
        return self._apply(plan, row) if apply else plan

    def _apply(self, plan: OperatorResult, row: OpRow) -> OperatorResult:
        """Write the row, and read what it led to. Raises: as `resolve`."""
        op_version = self._append(row)
        after = self._read(row.transaction_id)
        after.check_took_effect(row)
        return replace(
            plan,
            state_after=after.standing.state,
            life=after.standing.life,
            source=after.source,
            op_version=op_version,
        )

    def _append(self, row: OpRow) -> int | None:
        """Append a claim of an operator to op: one commit. Return its version."""
        SigningKey(self._store.tables, row.producer_group, self._clock).check()
        op, queues = self._store.tables.op_log(), self._store.config.half_queues
        claims = ClaimWriter(op, "operator", queues)
        claims.append([row])
        return claims.last_version()


# --- lists ----------------------------------------------------------------------------------------


def open_row(row: Mapping[str, Any], halves: Halves | None, now_ms: int) -> OpenTransaction:
    """Make a value of a row of `open_transactions`."""
    state = TransactionState(row["state"])
    is_pending = state is TransactionState.PENDING
    return OpenTransaction(
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        state=state,
        life=row["life"],
        age_s=_age_s(row["transaction_id"], now_ms),
        check_times=row["check_times"],
        next_check=row["deadline"] if is_pending else None,
        is_due=row["is_due"],
        reason=row["reason"],
        problem=row["problem"] if halves is None else halves.problem,
    )


def discarded_row(row: Mapping[str, Any], claim: Mapping[str, Any]) -> DiscardedTransaction:
    """Make a value of a row of `open_transactions` and the claim that discarded it."""
    return DiscardedTransaction(
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        life=row["life"],
        check_times=row["check_times"],
        discarded_at=claim.get("op_timestamp"),
        reason=claim.get("reason"),
    )


def life_key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the key of one life of one transaction."""
    return row["transaction_id"], row["producer_group"], row["life"]


def _age_s(transaction_id: str, now_ms: int) -> float | None:
    try:
        return max(0.0, (now_ms - transaction_time_ms(transaction_id)) / 1000)
    except ValueError:
        # A program other than txmq may have written a half with any id.
        return None


# --- claims ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TransactionNow:
    """A transaction as the logs show it, and the effect that a claim would have on it."""

    transaction_id: str
    standing: Standing
    halves: Halves
    source: str

    def result(self, kind: ClaimKind, reason: str, messages: Mapping[str, int]) -> OperatorResult:
        """Return the result of a claim that is not needed: nothing changes."""
        return OperatorResult(
            transaction_id=self.transaction_id,
            producer_group=self.halves.producer_group,
            kind=kind,
            reason=reason,
            state_before=self.standing.state,
            state_after=self.standing.state,
            life=self.standing.life,
            source=self.source,
            messages=messages,
            problem=None if self.standing.state in FINAL_STATES else self.halves.problem,
        )

    def row(self, kind: ClaimKind, reason: str, now_ms: int, config: Config) -> OpRow:
        """Make the row of the claim, for the group that prepared the transaction."""
        group = self.halves.producer_group
        life = end_life(group, self.standing.life, config)
        if kind is ClaimKind.RESUME:
            life = self.standing.life + 1
        source = ClaimSource.OPERATOR
        return OpRow(self.transaction_id, kind, group, source, now_ms, life=life, reason=reason)

    def after(self, row: OpRow) -> Standing:
        """Return the standing after the row.

        Raises: AlreadyResolvedError, IncompleteTransactionError, ClaimWithoutEffectError.
        """
        claim = Claim(
            row.transaction_id, row.kind, row.producer_group, op_version=0, ordinal=0, life=row.life
        )
        standing, facts = fold([claim], self.halves, self.standing)
        if not facts or standing.state is not _state_asked_for(row.kind):
            raise self._refusal(row.kind)
        return standing

    def check_took_effect(self, row: OpRow) -> None:
        """Raise as `after` unless this row, or another row with the same end, took effect."""
        if row.kind is ClaimKind.RESUME:
            # The new life may have ended since; a RESUME only asks that it began.
            took_effect = self.standing.life >= (row.life or 0)
        else:
            took_effect = self.standing.state is _state_asked_for(row.kind)
        if not took_effect:
            raise self._refusal(row.kind)

    def _refusal(self, kind: ClaimKind) -> TransactionError:
        state = self.standing.state
        if state in FINAL_STATES:
            return AlreadyResolvedError(self.transaction_id, state.value, self.source)
        if kind is ClaimKind.COMMIT and self.halves.problem:
            halves = self.halves
            return IncompleteTransactionError(
                self.transaction_id, halves.message_count, halves.found
            )
        return ClaimWithoutEffectError(
            self.transaction_id, kind.value, state.value, _next_step(kind, state)
        )


def _state_asked_for(kind: ClaimKind) -> TransactionState:
    return TransactionState.PENDING if kind is ClaimKind.RESUME else end_asked_for(kind)


def _next_step(kind: ClaimKind, state: TransactionState) -> str:
    if kind is ClaimKind.RESUME:
        return "only a DISCARDED or INCOMPLETE transaction can be resumed"
    if state is TransactionState.PENDING:
        return "it was resumed meanwhile, so try again"
    return "resume it first"


def planned_give_up(store: Store, transaction_id: str, reason: str) -> OperatorResult:
    """Tell what giving up the messages that cannot be read would lead to; 0 commits.

    Raises: ClaimWithoutEffectError, StorageError.
    """
    entry = read_set_aside(store.tables).transactions.get(transaction_id)
    if entry is None:
        next_step = "only what txmq status shows as set aside can be given up"
        raise ClaimWithoutEffectError(transaction_id, "a give-up", "not set aside", next_step)
    logs, ids = store.tables.logs(), pa.array([transaction_id], pa.string())
    logs.refresh()
    rows, _ = logs.half.readable_summaries(ids)
    facts = last_facts(logs.settled.facts_of(ids)).to_pylist()
    before = TransactionState(facts[0]["state"]) if facts else TransactionState.PENDING
    groups = python_values(pc.unique(rows["producer_group"]).drop_null())
    owners = [*sorted(groups), entry.producer_group, logs.settled.group_of(transaction_id)]
    return OperatorResult(
        transaction_id=transaction_id,
        producer_group=next(group for group in [*owners, ""] if group is not None),
        kind=ClaimKind.ROLLBACK,
        reason=reason,
        state_before=before,
        state_after=before if before in FINAL_STATES else TransactionState.ROLLED_BACK,
        life=max(facts[0]["life"] if facts else 0, entry.life),
        source=ClaimSource.OPERATOR.value,
        messages=messages_by_topic(rows),
        problem=entry.problem,
        is_needed=entry.giver_up is None,
    )


def messages_by_topic(rows: pa.Table) -> dict[str, int]:
    """Count the messages that the summaries of one transaction name for each topic."""
    rows = rows.filter(pc.is_valid(rows["real_topic"]))
    counts, ends = Counter[str](), dict[str, int]()
    for row in python_rows(rows.sort_by("sequence")):
        # A retried append wrote its rows twice; they count once.
        topic, begin = row["real_topic"], max(row["sequence"] or 0, ends.get(row["real_topic"], 0))
        ends[topic] = max(begin, (row["sequence"] or 0) + row[RUN_ROWS])
        counts[topic] += ends[topic] - begin
    return dict(sorted(counts.items()))
