"""Collects violations; keeps the number of all and the ids of the first."""

from __future__ import annotations

from collections.abc import Sequence

from txmq.verify.report import PROMISES, SHOWN_ROWS, InvariantResult, Violation


class Findings:
    """Violations by their I-number; those that are shown are sorted by their text and their row."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts = dict.fromkeys(PROMISES, 0)
        self._shown: dict[str, list[Violation]] = {name: [] for name in PROMISES}

    def add(self, invariant: str, count: int, row_ids: Sequence[str], detail: str) -> None:
        """Add `count` violations; `row_ids` names at least the first SHOWN_ROWS of them."""
        self._counts[invariant] += count
        shown = [Violation(invariant, row_id, detail) for row_id in row_ids[:SHOWN_ROWS]]
        # Sorted, so that the ranges in which a store is read do not show.
        together = sorted([*self._shown[invariant], *shown], key=_order)
        self._shown[invariant] = together[:SHOWN_ROWS]

    def results(self) -> tuple[InvariantResult, ...]:
        """One result for each invariant."""
        return tuple(
            InvariantResult(name, promise, self._counts[name], tuple(self._shown[name]))
            for name, promise in PROMISES.items()
        )


def _order(violation: Violation) -> tuple[str, str]:
    return violation.detail, violation.row_id
