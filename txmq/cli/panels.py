"""The groups in which `txmq --help` shows the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txmq.cli.examples import name_of

if TYPE_CHECKING:
    from typer import Typer

PANELS: Mapping[str, Sequence[str]] = {
    "Begin and run": ("init", "serve", "demo", "recheck", "maintenance", "jobs"),
    "Keep and renew": ("backup", "restore", "upgrade"),
    "Look": ("status", "dashboard", "metrics", "doctor", "verify", "sql-views"),
    "Transactions": ("open", "show", "resolve", "resume", "discarded"),
    "Messages and topics": ("produce", "message", "recall", "erase", "topics", "rebuild-topic"),
    "Consumers": ("consume", "groups", "lag", "offsets", "dead-letters"),
    "Your own tables": ("marker-table", "inbox-table"),
}


def arrange(app: Typer) -> None:
    """Put each command into its panel, in the order of the panels."""
    places = {name: panel for panel, names in PANELS.items() for name in names}
    order = list(places)
    for command in app.registered_commands:
        command.rich_help_panel = places[name_of(command)]
    for group in app.registered_groups:
        group.rich_help_panel = places[str(group.name)]
    app.registered_commands.sort(key=lambda command: order.index(name_of(command)))
