"""The logs of one reader, and the end that they give each transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.table import Table
from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    StorageError,
    TransactionForgottenError,
)
from txmq.ground.columns import only
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
from txmq.store.half import HalfLog
from txmq.store.op import (
    CLAIMS,
    Judged,
    OpLog,
    claims_of_table,
    is_after_unknown,
    unknown_keys,
)
from txmq.store.settled import ScheduleLog, SettledLog, last_facts

# How often settle and clean-up may pass one reader before it gives up.
PASSED_ATTEMPTS = 3
NONE_WAIT = Judged(CLAIMS.empty_table(), CLAIMS.empty_table())
Result = TypeVar("Result")


class Logs:
    """The handles of one reader on half, op, settled and schedule. Not safe for several threads.

    They move in the order settled, op, half, schedule, for two reasons. First, a row refers to
    rows in the next log: a fact to its claim, a claim to its halves. In this order those rows are
    visible. In the reverse order settle may run in between, so that facts refer to claims that the
    reader does not see (mark > op.version): a resumed transaction shows no check of its new life,
    and the op log looks as if it had been restored. Second, retention removes a delayed message
    from half before it removes it from the schedule, so that at least one of the two shows it.

    A reader folds the claims after `settled.mark` itself. Settle may process them at the same time;
    their commits stay for `log_reserved_time_s`. Who may sleep for longer reads by `consistent`.
    """

    def __init__(
        self,
        half: HalfLog,
        op: OpLog,
        settled_table: Table,
        schedule: ScheduleLog,
        set_aside: Callable[[int], Judged] | None = None,
    ) -> None:
        """Open nothing yet; each log is opened at its first use.

        `set_aside` reads the claims of transactions that are set aside; it gets the count that the
        settled log has seen.
        """
        self._set_aside = set_aside
        self.half, self.op, self.schedule = half, op, schedule
        self._settled_table = settled_table

    @cached_property
    def settled(self) -> SettledLog:
        """The settled log with its mark for this op log."""
        return SettledLog(self._settled_table, self.op.table_id)

    def unsettled_claims(
        self, transaction_ids: Iterable[str]
    ) -> tuple[dict[str, list[Claim]], dict[str, str]]:
        """Read the claims about these transactions that settle has not folded; 0 commits.

        They are beyond the settled mark, or wait because their transaction is set aside.

        Returns: the claims of each transaction, up to the first one of a key that this process does
            not know; and by transaction which key that is.
        """
        settled, op = self.settled, self.op
        claims: dict[str, list[Claim]] = {transaction_id: [] for transaction_id in transaction_ids}
        parts = [self.set_aside(), op.judged_between(settled.mark, op.table.version, claims)]
        unknown = pa.concat_tables([part.unknown.select(CLAIMS.names) for part in parts])
        for part in parts:
            before = only(part.counted, ~is_after_unknown(part.counted, unknown))
            for claim in claims_of_table(before):
                claims.get(claim.transaction_id, []).append(claim)
        problems = unknown_keys(unknown)
        return claims, {name: problems[name] for name in claims.keys() & problems.keys()}

    def consistent(self, read: Callable[[], Result]) -> Result:
        """Return what `read` gives; call it again if settle and clean-up passed it meanwhile.

        Args:
            read: begins with a refresh of these logs.

        Raises: StorageError if the settled log has not moved, or keeps passing the reader.
        """
        for _ in range(PASSED_ATTEMPTS):
            try:
                return read()
            except StorageError:
                mark = self.settled.mark
                self.refresh_claims()
                if self.settled.mark == mark:
                    raise
        return read()

    def set_aside(self) -> Judged:
        """Read the claims that wait because their transaction is set aside; 0 commits."""
        count = self.settled.set_aside_count
        if self._set_aside is None or not count:
            return NONE_WAIT
        return self.op.judge(pa.concat_tables(self._set_aside(count)))

    def refresh(self) -> None:
        """Move to the newest versions, to read the states of given transactions.

        The schedule has its own `refresh`; call it after half was read.
        """
        self.refresh_claims()
        self.half.table.refresh()

    def refresh_claims(self) -> None:
        """Move settled and op, but not half.

        The publisher calls it to fix the range of claims to settle; it moves half after it has read
        each part of the range. Readers that need no halves call it too.
        """
        self.settled.table.refresh()
        self.op.refresh()

    def refresh_after_half(self) -> None:
        """Move half first, then settled and op, to list all transactions without an end.

        Each half is then read with its end. A half that is read after the claims would look open
        although it may have an end already.
        """
        self.half.table.refresh()
        self.refresh_claims()


@dataclass(frozen=True, slots=True)
class Resolution:
    """The state of a transaction, who caused it, and how often the transaction was resumed.

    Attributes:
        is_kept: whether any log still has a row that proves the state; false of a transaction that
            nobody has prepared, and of one whose rows retention has removed.
        halves: those that are durable, if they were looked up.
        doubt: why nobody can tell here: a claim that comes next is signed by an unknown key, and
            the state is that before it; or the store went back.
    """

    state: TransactionState
    source: str
    life: int = 0
    is_kept: bool = field(default=True, compare=False)
    halves: Halves | None = field(default=None, compare=False)
    doubt: StorageError | None = field(default=None, compare=False)

    def confirm(self, transaction_id: str, asked: ClaimKind) -> None:
        """Check that this is the requested end.

        Raises:
            AlreadyResolvedError: with the real end.
            IncompleteTransactionError: a COMMIT found halves missing or contradicting each other.
            TransactionForgottenError: nothing of the transaction is kept any more.
            StorageError: nobody can tell here.
        """
        if self.doubt is not None:
            raise self.doubt
        if self.state is end_asked_for(asked):
            return
        if self.state is TransactionState.INCOMPLETE and self.halves is not None:
            count = self.halves.message_count
            raise IncompleteTransactionError(transaction_id, count, self.halves.found)
        if not self.is_kept:
            raise TransactionForgottenError(transaction_id)
        raise AlreadyResolvedError(transaction_id, self.state.value, self.source)


_UNKNOWN_KEY_CURE = (
    "give this process the old key and the new one (claim_keys, docs/security.md), then try again"
)
_UNCONTESTED = {
    kind: Resolution(end_asked_for(kind), ClaimSource.PRODUCER.value)
    for kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
}
_COMMITTED = _UNCONTESTED[ClaimKind.COMMIT]


def unknown_key(transaction_id: str, problem: str) -> StorageError:
    """Return the error where a claim about a transaction is signed by an unknown key."""
    text = f"cannot tell where transaction {transaction_id} stands: {problem}"
    return StorageError("op", f"{text}; {_UNKNOWN_KEY_CURE}")


class EndReader:
    """Reads which end transactions have, settled or not. Not safe for several threads."""

    def __init__(self, logs: Logs) -> None:
        """Open nothing yet."""
        self._logs = logs

    def end_of(self, transaction_id: str) -> Resolution:
        """Read the state of one transaction now; 0 commits."""
        return self.ends_of([transaction_id])[transaction_id]

    def ends_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Read the states of transactions now; 0 commits, and 0 reads without transactions.

        Raises: StorageError, also for a claim of a key that this process does not know.
        """
        ends = self.ends_as_far_as_known(transaction_ids)
        for end in ends.values():
            if end.doubt is not None:
                raise end.doubt
        return ends

    def ends_as_far_as_known(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Read as `ends_of`; a claim of an unknown key leaves its transaction in doubt."""
        if not transaction_ids:
            return {}
        return self._logs.consistent(lambda: self._decided(transaction_ids))

    def kept_ends_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Read as `ends_of`, without transactions of which no log keeps anything."""
        ends = self.ends_of(transaction_ids)
        return {transaction_id: end for transaction_id, end in ends.items() if end.is_kept}

    def ends_after_claims(
        self,
        ends: Sequence[tuple[str, ClaimKind]],
        doubtful: Collection[str] = (),
    ) -> list[Resolution]:
        """Find the end of each transaction for which these claims were just appended; 0 commits.

        If all claims about a transaction name the same end, that is its end. If they differ, the
        fact decides, or the order of the claims that are not settled yet.

        Args:
            ends: the claims.
            doubtful: transactions that are contested, whose other claims may be gone, or whose
                halves may not be all there; facts, claims and halves are read for these.
        """
        # A doubt is that of its own caller.
        decided = self.ends_as_far_as_known(list({*doubtful}))
        return [
            decided.get(transaction_id)
            # An enum computes its hash in Python, at each look into a dict.
            or (_COMMITTED if kind is ClaimKind.COMMIT else _UNCONTESTED[kind])
            for transaction_id, kind in ends
        ]

    def contested(self, transaction_ids: Sequence[str]) -> list[str]:
        """Find those whose claims in the op log name different ends; 0 reads without any.

        A claim of an unknown key may name any.
        """
        if not transaction_ids:
            return []
        self._logs.op.refresh()
        rows, unknown = self._logs.op.judged_about(pa.array(transaction_ids, pa.string()))
        rows = rows.filter(pc.not_equal(rows["kind"], ClaimKind.UNKNOWN.value))
        kinds = rows.group_by("transaction_id").aggregate([("kind", "count_distinct")])
        several = kinds.filter(pc.greater(kinds["kind_count_distinct"], 1))
        return [*several["transaction_id"].to_pylist(), *unknown["transaction_id"].to_pylist()]

    def without_halves(self, transaction_ids: Sequence[str]) -> list[str]:
        """Find the transactions of which no half is there now."""
        half = self._logs.half
        half.table.refresh()
        there = half.halves_of(transaction_ids)
        return [transaction_id for transaction_id in transaction_ids if transaction_id not in there]

    def _decided(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        logs = self._logs
        logs.refresh()
        facts = logs.settled.facts_of(pa.array(transaction_ids, pa.string()))
        settled = _settled(last_facts(facts))
        claims, doubts = logs.unsettled_claims(transaction_ids)
        halves = logs.half.halves_of(transaction_ids)
        return {
            transaction_id: _resolution(
                transaction_id,
                settled.get(transaction_id),
                claims[transaction_id],
                halves.get(transaction_id),
                doubts.get(transaction_id),
            )
            for transaction_id in transaction_ids
        }


def _settled(facts: pa.Table) -> dict[str, tuple[Standing, str]]:
    return {
        row["transaction_id"]: (
            Standing(TransactionState(row["state"]), row["life"]),
            row["source"],
        )
        for row in facts.to_pylist()
    }


def _resolution(
    transaction_id: str,
    settled: tuple[Standing, str] | None,
    claims: Iterable[Claim],
    halves: Halves | None,
    problem: str | None,
) -> Resolution:
    standing, source = settled or (Standing(), ClaimSource.PRODUCER.value)
    if halves is None:
        is_kept = settled is not None
        return Resolution(standing.state, source, standing.life, is_kept)
    standing, facts = fold(claims, halves, standing)
    source = facts[-1].claim.source.value if facts else source
    if problem is None or standing.state in FINAL_STATES:
        # No claim changes a final state.
        return Resolution(standing.state, source, standing.life, halves=halves)
    doubt = unknown_key(transaction_id, problem)
    return Resolution(standing.state, source, standing.life, halves=halves, doubt=doubt)
