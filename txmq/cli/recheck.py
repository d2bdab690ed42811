"""`txmq recheck`: ask about all due transactions, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.cli.shared import AsJson, ConfigFile, Location, moment, print_result, titled_pairs
from txmq.message.names import shown_name
from txmq.store.opening import open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_UNHEARD = 1
SHOWN_INCOMPLETE = 5


def add_recheck_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(recheck)


def recheck(location: Location, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Ask the configured listeners about all due transactions, once; for schedulers.

    Exit code 1 if the last check of a group with open transactions found no listener.
    """
    result = RecheckJob(open_store(location, config)).run_once()
    print_result(result, _view, as_json=as_json)
    if result.unheard_groups:
        raise typer.Exit(EXIT_UNHEARD)


def _view(result: RecheckResult) -> RenderableType:
    checks = result.checks
    lines = {
        "asked": f"{checks.asked:,}",
        "committed": f"{checks.committed:,}",
        "rolled back": f"{checks.rolled_back:,}",
        "unknown, asked again later": f"{checks.unknown:,}",
        "not asked yet": f"{checks.unasked:,}",
        "discarded": f"{checks.discarded:,}",
        "still open": f"{result.open_transactions:,}",
    }
    if result.next_check is not None:
        lines["asked again"] = f"the next one at {moment(result.next_check)}; each: txmq open"
    if result.unheard_groups:
        lines["groups without a listener"] = ", ".join(map(shown_name, result.unheard_groups))
    if result.incomplete:
        lines["with messages missing"] = ", ".join(result.incomplete[:SHOWN_INCOMPLETE])
    if not result.is_complete:
        lines["not finished"] = "another service asks now; nothing is lost"
    return titled_pairs("recheck", lines)
