"""The checker's own reading of claims; it shares nothing with `lifecycle`, on purpose.

Two people who read the same page should come to the same state machine: a property test compares
this one with the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

PENDING, COMMITTED, ROLLED_BACK = "PENDING", "COMMITTED", "ROLLED_BACK"
DISCARDED, INCOMPLETE, EXPIRED = "DISCARDED", "INCOMPLETE", "EXPIRED"
DELIVERED, RECALLED = "DELIVERED", "RECALLED"
STATES = (PENDING, COMMITTED, ROLLED_BACK, DISCARDED, INCOMPLETE, EXPIRED)
NOT_FINAL = (PENDING, DISCARDED, INCOMPLETE)
DELIVERIES = {"DELIVER": DELIVERED, "RECALL": RECALLED}
# UNKNOWN changes nothing, DELIVER and RECALL single messages (see deliveries).
KINDS = ("COMMIT", "ROLLBACK", "DISCARD", "RESUME", "EXPIRE")
SOURCES = ("producer", "check", "recheck", "delay", "operator", "maintenance")

_STEPS = {
    ("COMMIT", PENDING): COMMITTED,
    ("ROLLBACK", PENDING): ROLLED_BACK,
    ("ROLLBACK", INCOMPLETE): ROLLED_BACK,
    ("DISCARD", PENDING): DISCARDED,
    ("RESUME", DISCARDED): PENDING,
    ("RESUME", INCOMPLETE): PENDING,
    ("EXPIRE", PENDING): EXPIRED,
    ("EXPIRE", DISCARDED): EXPIRED,
    ("EXPIRE", INCOMPLETE): EXPIRED,
}
# What may follow what by some claim, and by how much the life grows.
LAWFUL_STEPS = {
    **{(PENDING, later): 0 for later in (COMMITTED, ROLLED_BACK, DISCARDED, INCOMPLETE, EXPIRED)},
    (DISCARDED, PENDING): 1,
    (DISCARDED, EXPIRED): 0,
    (INCOMPLETE, PENDING): 1,
    (INCOMPLETE, ROLLED_BACK): 0,
    (INCOMPLETE, EXPIRED): 0,
}
# The life that a claim must name, counted from the current one.
_LIVES_AHEAD = {"DISCARD": 0, "EXPIRE": 0, "RESUME": 1}


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A row of the op log: its place (op_version, ordinal), what it asks for, in which life."""

    op_version: int
    ordinal: int
    kind: str
    producer_group: str
    source: str = ""
    life: int | None = None
    rest: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order of all claims."""
        return self.op_version, self.ordinal


@dataclass(frozen=True, slots=True)
class SeenFact:
    """A claim that took effect: the state after it and the life it belongs to."""

    op_version: int
    ordinal: int
    state: str
    life: int


def facts_of(
    claims: Iterable[SeenClaim],
    producer_group: str,
    *,
    complete: bool,
    incomplete_at: Container[tuple[int, int]] = (),
    start: tuple[str, int] = (PENDING, 0),
) -> list[SeenFact]:
    """Return what took effect, in order.

    Args:
        claims: of one transaction, in any order.
        producer_group: of its halves; claims of others count for nothing.
        complete: whether its halves are all there and agree.
        incomplete_at: places at which they were not, though they are now.
        start: the state and the life before the first of these claims.
    """
    state, life = start
    facts: list[SeenFact] = []
    for claim in sorted(claims, key=_order):
        reached = _STEPS.get((claim.kind, state))
        ahead = _LIVES_AHEAD.get(claim.kind)
        # COMMIT and ROLLBACK need not name a life; what they name they must be right about.
        wrong_life = claim.life != life + (ahead or 0) and (
            ahead is not None or claim.life is not None
        )
        if reached is None or wrong_life or claim.producer_group != producer_group:
            continue
        if reached == COMMITTED and (not complete or claim.place in incomplete_at):
            reached = INCOMPLETE
        state, life = reached, life + (ahead or 0)
        facts.append(SeenFact(claim.op_version, claim.ordinal, state, life))
    return facts


def _order(claim: SeenClaim) -> tuple[object, ...]:
    # Two claims in one place are a writer's fault; every column makes their order the same.
    text = (claim.kind, claim.producer_group, claim.source, str(claim.life), *claim.rest)
    return (*claim.place, *text)
