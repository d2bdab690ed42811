"""Attempts to send one thing once: every process that tries finds earlier attempts by their ids.

An attempt that was rolled back or expired is over, and the next one gets another id. `OnceSender`
and transactions with an idempotency key share this. Both append only if nobody of their scope
appended since they looked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from txmq.lifecycle import TransactionState
from txmq.store.resolution import Resolution

TRIED_AGAIN_AFTER = frozenset([TransactionState.ROLLED_BACK, TransactionState.EXPIRED])
# Of several ids of one attempt the one that readers see already, or may see yet.
_PREFERRED = {TransactionState.COMMITTED: 0, TransactionState.PENDING: 1}
_LAST = len(_PREFERRED)
Key_contra = TypeVar("Key_contra", contravariant=True)


class AttemptIds(Protocol[Key_contra]):
    """The transaction ids of attempts; they follow from what is sent."""

    def candidates(self, key: Key_contra, attempt: int) -> Sequence[str]:
        """All ids under which somebody may have made this attempt."""

    def new(self, key: Key_contra, attempt: int) -> str:
        """The id under which this attempt is made now."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that counts, and where it stands; `end` is None where nobody has made it."""

    transaction_id: str
    end: Resolution | None


def attempts_that_count(
    keys: Sequence[Key_contra],
    ids: AttemptIds[Key_contra],
    ends_of: Callable[[Sequence[str]], Mapping[str, Resolution]],
) -> list[Attempt]:
    """For each key the first attempt that is not over, in the order of `keys`.

    Args:
        keys: what is sent.
        ids: the ids of its attempts.
        ends_of: where transactions stand, without those that nobody has made; called once for each
            number of attempts, for all keys together.
    """
    attempts: dict[int, Attempt] = {}
    for number in itertools.count():
        waiting = {place: key for place, key in enumerate(keys) if place not in attempts}
        if not waiting:
            break
        candidates = {place: ids.candidates(key, number) for place, key in waiting.items()}
        ends = ends_of(list(itertools.chain.from_iterable(candidates.values())))
        for place, key in waiting.items():
            attempt = _made(candidates[place], ends) or Attempt(ids.new(key, number), None)
            if attempt.end is None or attempt.end.state not in TRIED_AGAIN_AFTER:
                attempts[place] = attempt
    return [attempts[place] for place in range(len(keys))]


def _made(candidates: Sequence[str], ends: Mapping[str, Resolution]) -> Attempt | None:
    made = [name for name in candidates if name in ends]
    made.sort(key=lambda name: _PREFERRED.get(ends[name].state, _LAST))
    return Attempt(made[0], ends[made[0]]) if made else None
