"""Attempts to send one thing once: every process that tries finds earlier attempts by their ids.

An attempt that was rolled back or expired is over, and the next one gets another id. `OnceSender`
and transactions with an idempotency key share this. They differ in the append: `OnceSender` appends
only if nobody of its scope appended since it looked; a transaction with a key appends in any case,
so two tries at the same moment may both write its halves.
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
    """The ids of attempts, which follow from what is sent."""

    def known(self, key: Key_contra, attempt: int) -> Sequence[str]:
        """All ids under which somebody may have made this attempt."""

    def new(self, key: Key_contra, attempt: int) -> str:
        """The id under which it is made now."""


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
        ids: of its attempts.
        ends_of: where transactions stand; called once for each number of attempts, for all keys
            together. It leaves out those that nobody has made.
    """
    found: dict[int, Attempt] = {}
    for attempt in itertools.count():
        waiting = {place: key for place, key in enumerate(keys) if place not in found}
        if not waiting:
            break
        known = {place: ids.known(key, attempt) for place, key in waiting.items()}
        ends = ends_of([own_id for several in known.values() for own_id in several])
        for place, key in waiting.items():
            made = _made(known[place], ends) or Attempt(ids.new(key, attempt), None)
            if made.end is None or made.end.state not in TRIED_AGAIN_AFTER:
                found[place] = made
    return [found[place] for place in range(len(keys))]


def _made(known: Sequence[str], ends: Mapping[str, Resolution]) -> Attempt | None:
    made = [Attempt(own_id, ends[own_id]) for own_id in known if own_id in ends]
    made.sort(key=lambda attempt: _PREFERRED.get(ends[attempt.transaction_id].state, _LAST))
    return made[0] if made else None
