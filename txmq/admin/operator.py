"""What operators do by hand: see what is open, end or resume it by an audited claim, dry first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.open import DiscardedTransaction, OpenTransaction, discarded_row, life_key, open_row
from txmq.check.open_transactions import open_transactions
from txmq.clock import Clock, SystemClock
from txmq.errors import (
    AlreadyResolvedError,
    ClaimWithoutEffectError,
    IncompleteTransactionError,
    InvalidMessageError,
    TransactionError,
    TransactionNotFoundError,
)
from txmq.lifecycle import (
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
from txmq.message.ids import check_transaction_id
from txmq.message.message import LocalTransactionState
from txmq.message.reasons import signed_reason
from txmq.results import plain
from txmq.store.claim_writer import ClaimWriter
from txmq.store.half import HalfLog
from txmq.store.op import OpRow
from txmq.store.resolution import EndReader
from txmq.store.store import Store

_ENDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """What an operator's claim leads to, or has led to.

    Attributes:
        kind: COMMIT, ROLLBACK or RESUME.
        reason: as it stands in the row, with who wrote it.
        state_before, state_after: without `apply`, what would follow.
        life: how often the transaction was resumed, then.
        source: who brought `state_after` about.
        messages: their number by topic.
        problem: MISSING or CONFLICT, in a transaction that is resumed before it is repaired.
        is_needed: false where the transaction has this end already; nothing is written then.
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
        """Plain values, for JSON."""
        return {**plain(self), "is_written": self.is_written}


class Operator:
    """Looks at transactions that need a person, and ends or resumes them; needs no Spark.

    Args:
        store: whose transactions.
        clock: what ages and the times of rows are told by.

    Example:
        >>> operator = Operator(store)
        >>> operator.resume(transaction_id, reason="listener repaired").state_after
        <TransactionState.PENDING: 'PENDING'>
        >>> operator.resume(transaction_id, reason="listener repaired", apply=True).is_written
        True
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Open nothing yet."""
        self._store = store
        self._clock: Clock = clock or SystemClock()

    def open_transactions(
        self, *, producer_group: str | None = None
    ) -> tuple[OpenTransaction, ...]:
        """All transactions without a final end, oldest first: PENDING, DISCARDED, INCOMPLETE.

        Reads: half, settled, op. Writes: nothing. Commits: 0. Raises: StorageError.
        """
        rows = self._open_rows(producer_group).to_pylist()
        incomplete = TransactionState.INCOMPLETE.value
        settled_so = [row["transaction_id"] for row in rows if row["state"] == incomplete]
        # Only these are known to be few enough to compare their bodies.
        halves = self._store.tables.half_log().halves_of(settled_so) if settled_so else {}
        now_ms = self._clock.now_ms()
        return tuple(open_row(row, halves.get(row["transaction_id"]), now_ms) for row in rows)

    def discarded(self, *, producer_group: str | None = None) -> tuple[DiscardedTransaction, ...]:
        """All DISCARDED transactions, oldest first; `resume` opens one again.

        Reads: half, settled, op. Writes: nothing. Commits: 0. Raises: StorageError.
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
        """End a transaction by COMMIT or ROLLBACK, from whichever life; dry unless `apply`.

        Where it has this end already, nothing is written and that is no error.

        Reads: half, op, settled. Writes: op, one row of source operator, with `reason` and the
        name of the OS user. Commits: one to op with `apply`, else 0.

        Raises: TransactionNotFoundError, IncompleteTransactionError (a COMMIT), InvalidReasonError,
            InvalidMessageError, ClaimWithoutEffectError (resume it first), StorageError;
            AlreadyResolvedError, also after the row was written where another end was first.
        """
        if end not in _ENDS:
            raise InvalidMessageError("end", "must be LocalTransactionState.COMMIT or ROLLBACK")
        return self._claim(transaction_id, _ENDS[end], reason, apply=apply)

    def resume(self, transaction_id: str, *, reason: str, apply: bool = False) -> OperatorResult:
        """Open a DISCARDED or INCOMPLETE transaction again: PENDING in its next life, unchecked.

        It is due at once. Reads, writes, commits: as `resolve`.

        Raises: TransactionNotFoundError, AlreadyResolvedError, InvalidReasonError,
            ClaimWithoutEffectError (it is open), StorageError.
        Source: RocketMQ R91; differs: a claim like any other, with its reason.
        """
        return self._claim(transaction_id, ClaimKind.RESUME, reason, apply=apply)

    # --- looks -------------------------------------------------------------------------------

    def _open_rows(self, producer_group: str | None) -> pa.Table:
        rows = open_transactions(self._store, clock=self._clock)
        if producer_group is None:
            return rows
        return rows.filter(pc.equal(rows["producer_group"], producer_group))

    def _discards(self, transaction_ids: pa.Array) -> dict[tuple[str, str, int], dict[str, Any]]:
        """The first DISCARD row of each life: of two, only the first took effect."""
        rows = self._store.tables.op_log().rows_about(transaction_ids)
        rows = rows.filter(pc.equal(rows["kind"], ClaimKind.DISCARD.value))
        first: dict[tuple[str, str, int], dict[str, Any]] = {}
        for row in rows.sort_by("op_timestamp").to_pylist():
            first.setdefault(life_key(row), row)
        return first

    def _look(self, transaction_id: str) -> _Look:
        """Where it stands by everything that is durable now, settled or not."""
        logs = self._store.tables.logs()
        resolution = EndReader(logs).end_of(transaction_id)
        halves = logs.half.halves(transaction_id)
        if halves is None:
            raise TransactionNotFoundError(transaction_id)
        standing = Standing(resolution.state, resolution.life)
        return _Look(transaction_id, standing, halves, resolution.source)

    # --- claims ------------------------------------------------------------------------------

    def _claim(
        self, transaction_id: str, kind: ClaimKind, reason: str, *, apply: bool
    ) -> OperatorResult:
        signed = signed_reason(reason)
        look = self._look(check_transaction_id(transaction_id))
        messages = _messages_by_topic(self._store.tables.half_log(), look.transaction_id)
        seen = look.result(kind, signed, messages)
        if kind is not ClaimKind.RESUME and look.standing.state is end_asked_for(kind):
            return seen
        row = look.row(kind, signed, self._clock.now_ms())
        after = look.after(row)
        planned = replace(
            seen,
            state_after=after.state,
            life=after.life,
            source=ClaimSource.OPERATOR.value,
            is_needed=True,
        )
        return self._applied(planned, row) if apply else planned

    def _applied(self, planned: OperatorResult, row: OpRow) -> OperatorResult:
        claims = ClaimWriter(
            self._store.tables.op_log(), "operator", self._store.config.half_queues
        )
        claims.append([row])
        look = self._look(row.transaction_id)
        look.check_took_effect(row)
        return replace(
            planned,
            state_after=look.standing.state,
            life=look.standing.life,
            source=look.source,
            op_version=claims.last_version(),
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """One transaction at one moment, and what a claim would come to."""

    transaction_id: str
    standing: Standing
    halves: Halves
    source: str

    def result(self, kind: ClaimKind, reason: str, messages: Mapping[str, int]) -> OperatorResult:
        """What is there now; nothing is needed and nothing written."""
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
            problem=self.halves.problem,
        )

    def row(self, kind: ClaimKind, reason: str, now_ms: int) -> OpRow:
        """The claim, in the name of the group that prepared the transaction."""
        group, life = self.halves.producer_group, None
        if kind is ClaimKind.RESUME:
            life = self.standing.life + 1
        source = ClaimSource.OPERATOR
        return OpRow(self.transaction_id, kind, group, source, now_ms, life=life, reason=reason)

    def after(self, row: OpRow) -> Standing:
        """The standing that the row would lead to.

        Raises: AlreadyResolvedError, IncompleteTransactionError, ClaimWithoutEffectError.
        """
        claim = Claim(
            row.transaction_id, row.kind, row.producer_group, op_version=0, ordinal=0, life=row.life
        )
        standing, facts = fold([claim], self.halves, self.standing)
        if not facts or standing.state is not _wanted(row.kind):
            raise self._refusal(row.kind)
        return standing

    def check_took_effect(self, row: OpRow) -> None:
        """Raise as `after`, unless the row, or another one to the same end, took effect."""
        if row.life is not None:
            # The new life may have ended since; that it began is what was asked for.
            took_effect = self.standing.life >= row.life
        else:
            took_effect = self.standing.state is _wanted(row.kind)
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


def _wanted(kind: ClaimKind) -> TransactionState:
    return TransactionState.PENDING if kind is ClaimKind.RESUME else end_asked_for(kind)


def _next_step(kind: ClaimKind, state: TransactionState) -> str:
    if kind is ClaimKind.RESUME:
        return "only a DISCARDED or INCOMPLETE transaction can be resumed"
    if state is TransactionState.PENDING:
        return "it was resumed meanwhile, so try again"
    return "resume it first"


def _messages_by_topic(half: HalfLog, transaction_id: str) -> dict[str, int]:
    rows = half.summaries(pa.array([transaction_id], pa.string()))
    rows = rows.filter(pc.is_valid(rows["real_topic"]))
    # A retried append wrote its rows twice; they count once.
    messages = rows.group_by(["sequence", "real_topic"]).aggregate([])
    counts = messages["real_topic"].value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in sorted(counts, key=lambda c: c["values"])}


# --- values --------------------------------------------------------------------------------------
