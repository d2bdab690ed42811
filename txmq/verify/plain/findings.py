"""Collects violations; keeps the number of all and the ids of the first."""

from __future__ import annotations

from collections.abc import Iterable

from txmq.verify.report import PROMISES, SHOWN_ROWS, InvariantResult, Violation


class Findings:
    """Violations by their I-number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts = dict.fromkeys(PROMISES, 0)
        self._shown: dict[str, list[Violation]] = {name: [] for name in PROMISES}

    def room(self, invariant: str) -> int:
        """How many more ids of this invariant are worth making."""
        return SHOWN_ROWS - len(self._shown[invariant])

    def add(self, invariant: str, count: int, row_ids: Iterable[str], detail: str) -> None:
        """Add `count` violations, of which `row_ids` names the first."""
        self._counts[invariant] += count
        shown = self._shown[invariant]
        room = self.room(invariant)
        shown.extend(Violation(invariant, row_id, detail) for row_id in list(row_ids)[:room])

    def results(self) -> tuple[InvariantResult, ...]:
        """One result for each invariant."""
        return tuple(
            InvariantResult(name, promise, self._counts[name], tuple(self._shown[name]))
            for name, promise in PROMISES.items()
        )
