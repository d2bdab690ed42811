"""The life of a transaction: one fold over its claims. Pure, without Spark.

A claim is a request in the op log; a fact is a change of state that took effect. The states and
the claims that lead from one to the next are a table in docs/architecture.md. Producer, settle,
check and status all decide by `fold`. `verify` has a fold of its own, so that a mistake in this
one cannot hide there.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

CONFLICT = "CONFLICT"
MISSING = "MISSING"


class ClaimKind(enum.StrEnum):
    """The request in a row of the op log."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    DISCARD = "DISCARD"
    RESUME = "RESUME"
    EXPIRE = "EXPIRE"
    DELIVER = "DELIVER"
    RECALL = "RECALL"


class ClaimSource(enum.StrEnum):
    """Who wrote a row of the op log."""

    PRODUCER = "producer"
    CHECK = "check"
    RECHECK = "recheck"
    DELAY = "delay"
    OPERATOR = "operator"
    MAINTENANCE = "maintenance"


class TransactionState(enum.StrEnum):
    """The state of a transaction; COMMITTED, ROLLED_BACK and EXPIRED are final."""

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    DISCARDED = "DISCARDED"
    INCOMPLETE = "INCOMPLETE"
    EXPIRED = "EXPIRED"


class DeliveryState(enum.StrEnum):
    """The state of a delayed message after its COMMIT; DELIVERED and RECALLED are final."""

    SCHEDULED = "SCHEDULED"
    DELIVERED = "DELIVERED"
    RECALLED = "RECALLED"


FINAL_STATES = frozenset(
    {TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.EXPIRED}
)
DELIVERY_STATES = {
    ClaimKind.DELIVER: DeliveryState.DELIVERED,
    ClaimKind.RECALL: DeliveryState.RECALLED,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the op log, with its place in the order of all claims.

    Attributes:
        life: how many RESUMEs its writer had seen; of a RESUME the life that it opens. A COMMIT or
            ROLLBACK that names none fits any life; those of groups with keys name theirs.
        sequences: the messages that a DELIVER or RECALL is about; None means all of them.
    """

    transaction_id: str
    kind: ClaimKind
    producer_group: str
    op_version: int
    ordinal: int
    source: ClaimSource = ClaimSource.PRODUCER
    life: int | None = None
    check_times: int | None = None
    next_check_timestamp_ms: int | None = None
    reason: str | None = None
    sequences: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Halves:
    """The half messages of one transaction; `message_count` is None where its head is missing."""

    producer_group: str
    message_count: int | None
    found: int
    conflicting: bool = False

    @property
    def problem(self) -> str | None:
        """Why a COMMIT cannot take effect: MISSING or CONFLICT; None where it can."""
        if self.conflicting:
            return CONFLICT
        return None if self.found == self.message_count else MISSING


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a transaction, the number of its life and its counted checks in that life."""

    state: TransactionState = TransactionState.PENDING
    life: int = 0
    check_times: int = 0
    next_check_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A change of state that took effect: one row of the settled log."""

    claim: Claim
    state: TransactionState
    life: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class DeliveryFact:
    """A claim about delayed messages, and the messages for which it took effect."""

    claim: Claim
    state: DeliveryState
    sequences: tuple[int, ...]


PENDING = Standing()


def fold(
    claims: Iterable[Claim], halves: Halves, standing: Standing = PENDING
) -> tuple[Standing, tuple[Fact, ...]]:
    """Return the standing of a transaction after `claims`, and the facts: claims that took effect.

    A claim of another group and a claim that does not fit the state have no effect (R37, R38).
    """
    facts = []
    for claim in sorted(claims, key=order_of):
        if claim.producer_group != halves.producer_group:
            continue
        standing, fact = step(standing, claim, halves)
        if fact is not None:
            facts.append(fact)
    return standing, tuple(facts)


def step(standing: Standing, claim: Claim, halves: Halves) -> tuple[Standing, Fact | None]:
    """Return the standing after a claim of the right group, and its fact if it took effect."""
    if claim.kind is ClaimKind.UNKNOWN:
        return _count_check(standing, claim), None
    state = next_state(standing, claim, halves)
    if state is None:
        return standing, None
    reason = halves.problem if state is TransactionState.INCOMPLETE else claim.reason
    if claim.kind is ClaimKind.RESUME:
        after = Standing(state, standing.life + 1)
    else:
        after = replace(standing, state=state)
    return after, Fact(claim, state, after.life, reason)


def next_state(standing: Standing, claim: Claim, halves: Halves) -> TransactionState | None:
    """Return the state that a claim leads to, or None if it does not fit: the state machine."""
    states = TransactionState
    this_life, next_life = claim.life == standing.life, claim.life == standing.life + 1
    no_other_life = this_life or claim.life is None
    match standing.state, claim.kind:
        case states.PENDING, ClaimKind.COMMIT if no_other_life:
            return states.INCOMPLETE if halves.problem else states.COMMITTED
        case states.PENDING | states.INCOMPLETE, ClaimKind.ROLLBACK if no_other_life:
            return states.ROLLED_BACK
        case states.PENDING, ClaimKind.DISCARD if this_life:
            return states.DISCARDED
        case states.DISCARDED | states.INCOMPLETE, ClaimKind.RESUME if next_life:
            return states.PENDING
        case states.PENDING | states.DISCARDED | states.INCOMPLETE, ClaimKind.EXPIRE if this_life:
            return states.EXPIRED
    return None


def _count_check(standing: Standing, claim: Claim) -> Standing:
    """Count a check by its number, so a row that was written twice counts once."""
    times, due_ms = claim.check_times or 0, claim.next_check_timestamp_ms
    if standing.state is not TransactionState.PENDING or claim.life != standing.life:
        return standing
    if times < standing.check_times:
        return standing
    if times == standing.check_times and standing.next_check_timestamp_ms is not None:
        # An older row may have been written again; it must not bring the check forward.
        due_ms = max(due_ms or 0, standing.next_check_timestamp_ms)
    return replace(standing, check_times=times, next_check_timestamp_ms=due_ms)


def fold_deliveries(
    claims: Iterable[Claim],
    committed: Claim,
    scheduled: Collection[int],
    ended: Mapping[int, DeliveryState],
) -> tuple[dict[int, DeliveryState], tuple[DeliveryFact, ...]]:
    """Return the states of the delayed messages of one committed transaction after `claims`.

    For each message the first claim about it counts.

    Args:
        claims: claims about this transaction; only DELIVER and RECALL matter.
        committed: the COMMIT that took effect; claims before it and of other groups are ignored.
        scheduled: the sequences of the delayed messages.
        ended: the messages that are DELIVERED or RECALLED already.

    Returns:
        The state of each ended message, and the claims that took effect.
    """
    standing, facts = dict(ended), []
    for claim in sorted(claims, key=order_of):
        state = DELIVERY_STATES.get(claim.kind)
        fits = claim.producer_group == committed.producer_group and _is_after(claim, committed)
        if state is None or not fits:
            continue
        named = scheduled if claim.sequences is None else {*scheduled} & {*claim.sequences}
        newly_ended = tuple(sorted({*named} - standing.keys()))
        if newly_ended:
            standing.update(dict.fromkeys(newly_ended, state))
            facts.append(DeliveryFact(claim, state, newly_ended))
    return standing, tuple(facts)


def _is_after(claim: Claim, committed: Claim) -> bool:
    return (claim.op_version, claim.ordinal) > (committed.op_version, committed.ordinal)


def order_of(claim: Claim) -> tuple[int, int, str]:
    """Return a sort key of claims: commit, place in it, then all fields, so that readers agree."""
    return claim.op_version, claim.ordinal, repr(claim)


def end_asked_for(kind: ClaimKind) -> TransactionState:
    """Return the state that a caller of commit or rollback asks for."""
    if kind is ClaimKind.COMMIT:
        return TransactionState.COMMITTED
    if kind is ClaimKind.ROLLBACK:
        return TransactionState.ROLLED_BACK
    message = f"{kind} does not end a transaction"
    raise ValueError(message)
