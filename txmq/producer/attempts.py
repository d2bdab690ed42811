"""Attempts to send a message once: the ids of the attempts follow from a key.

Every process that retries computes the same ids and finds earlier attempts by them. An attempt that
was rolled back or expired is over; the next attempt gets another id. `OnceSender` and transactions
with an idempotency key share this. They differ in the append: `OnceSender` appends only if no
sender of its scope appended since its read; a transaction with a key always appends, so two
concurrent tries may both write its halves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from txmq.lifecycle import TransactionState
from txmq.store.resolution import Resolution

TRIED_AGAIN_AFTER = frozenset([TransactionState.ROLLED_BACK, TransactionState.EXPIRED])
# If one attempt has several ids: prefer the committed one, then the pending one.
_PREFERRED = {TransactionState.COMMITTED: 0, TransactionState.PENDING: 1}
_LAST = len(_PREFERRED)
Key_contra = TypeVar("Key_contra", contravariant=True)


class AttemptIds(Protocol[Key_contra]):
    """Computes the ids of attempts from the key of what is sent."""

    def known(self, key: Key_contra, attempt: int) -> Sequence[str]:
        """All ids under which any process may have made this attempt."""

    def new(self, key: Key_contra, attempt: int) -> str:
        """The id under which this process makes the attempt now."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that counts, and its state; `end` is None if no process has made it."""

    transaction_id: str
    end: Resolution | None


def attempts_that_count(
    keys: Sequence[Key_contra],
    ids: AttemptIds[Key_contra],
    ends_of: Callable[[Sequence[str]], Mapping[str, Resolution]],
) -> list[Attempt]:
    """For each key, the first attempt that is not over, in the order of `keys`.

    Args:
        keys: one for each message or transaction to send.
        ids: computes the ids of attempts.
        ends_of: reads the states of transactions; it is called once for each attempt number, for
            all keys together, and leaves out transactions that nobody has made.
    """
    counting: dict[int, Attempt] = {}
    for number in itertools.count():
        undecided = {place: key for place, key in enumerate(keys) if place not in counting}
        if not undecided:
            break
        candidates = {place: ids.known(key, number) for place, key in undecided.items()}
        ends = ends_of([candidate for group in candidates.values() for candidate in group])
        for place, key in undecided.items():
            attempt = _made(candidates[place], ends) or Attempt(ids.new(key, number), None)
            if attempt.end is None or attempt.end.state not in TRIED_AGAIN_AFTER:
                counting[place] = attempt
    return [counting[place] for place in range(len(keys))]


def _made(transaction_ids: Sequence[str], ends: Mapping[str, Resolution]) -> Attempt | None:
    attempts = [Attempt(key, ends[key]) for key in transaction_ids if key in ends]
    attempts.sort(key=lambda attempt: _PREFERRED.get(ends[attempt.transaction_id].state, _LAST))
    return attempts[0] if attempts else None
