"""`txmq upgrade`: the tables of a store that an earlier txmq made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txmq.admin.upgrade import TableUpgrade, UpgradeResult, upgrade
from txmq.cli.shared import AsJson, Location, print_result, rows_view
from txmq.cli.verify import verify_after
from txmq.store.opening import open_store

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_upgrade_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("upgrade")(upgrade_command)


def upgrade_command(
    location: Location,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Write it; without it a dry run.")] = False,
    verifies: Annotated[
        bool, typer.Option("--verify/--no-verify", help="After --apply, read everything again.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show the schema version of each table; with --apply take them to that of this txmq.

    Stop the brokers of the older txmq first, and bring its producers and consumers to this one:
    it refuses the tables from then on. Make a backup before: there is no other way back. Killed,
    it is finished by the same command.
    """
    store = open_store(location)
    result = upgrade(store, apply=apply)
    print_result(result, _view, as_json=as_json)
    if apply and verifies:
        verify_after(store, is_shown=not as_json)


def _view(result: UpgradeResult) -> RenderableType:
    rows = [(table.path, str(table.version), _changes(table)) for table in result.tables]
    if not result.is_needed:
        summary = f"all tables have schema version {result.newest}: nothing is to do"
    elif result.is_written:
        summary = f"all tables have schema version {result.newest} now"
    else:
        summary = "dry run, nothing was written; with --apply it is"
    return rows_view(("table", "version", "changes"), rows, summary)


def _changes(table: TableUpgrade) -> str:
    return "; then ".join(table.changes)
