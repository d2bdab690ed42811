"""The result as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from bench.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {True: "[green]pass[/]", False: "[red]FAIL[/]", None: ""}
_COLUMNS = ("measure", "txmq", "bare stream", "unit", "ratio", "bar", "")


def print_table(outcomes: Sequence[Outcome], console: Console) -> None:
    """One line for each outcome, medians only."""
    table = Table(title="txmq beside a bare Delta-to-Delta stream", title_justify="left")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("measure", "unit", "bar") else "right")
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    console.print(table)


def _cells(outcome: Outcome) -> list[str]:
    return [
        f"{outcome.part}: {outcome.measure}",
        shown(median(outcome.ours)),
        shown(median(outcome.bare)) if outcome.bare else "",
        outcome.unit,
        "" if outcome.ratio is None else f"{outcome.ratio:.2f}",
        "" if outcome.bar is None else str(outcome.bar),
        _MARKS[outcome.passed],
    ]


def shown(value: float) -> str:
    """Three digits that count, in full for large numbers."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 3  # noqa: PLR2004
    return f"{value:,.{digits}f}"
