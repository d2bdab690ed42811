"""The groups in which `txmq --help` shows the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from txmq.ground.printable import printable
from txmq.ops.cli.examples import name_of

if TYPE_CHECKING:
    from typer import Typer


# --- shared:

LOCATION_VARIABLE = "TXMQ_LOCATION"
PIPED_WIDTH = 240


class Result(Protocol):
    """A result that can be printed as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ...


Shown = TypeVar("Shown", bound=Result)

Location = Annotated[
    str,
    typer.Argument(envvar=LOCATION_VARIABLE, help="Where the store is: a path or a URI."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings as in conf/txmq.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def location_and(location: str, word: str | None, what: str) -> tuple[str, str]:
    """The store and one more argument.

    A single argument is the second one; then the environment variable names the store.
    """
    return (_location_of_environment(what), location) if word is None else (location, word)


def _location_of_environment(what: str) -> str:
    location = os.environ.get(LOCATION_VARIABLE)
    if not location:
        problem = f"missing, unless {LOCATION_VARIABLE} names the store"
        raise typer.BadParameter(problem, param_hint=what)
    return location


# --- printing -------------------------------------------------------------------------------------


def print_json(values: dict[str, Any], indent: int | None = 2) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(values, indent=indent))


def print_result(result: Shown, view: Callable[[Shown], RenderableType], *, as_json: bool) -> None:
    """Print the result of a command, for a program or for a person."""
    if as_json:
        print_json(result.to_dict())
    else:
        list_console().print(view(result))


def say(text: str) -> None:
    """Print one line as it is."""
    console().print(text, markup=False, soft_wrap=True)


class _PrintableConsole(Console):
    """A console that shows what others wrote, and obeys none of it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Escape all text but rich's own line ends; styles are no text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, "\n"), style)


def console(*, stderr: bool = False) -> Console:
    """A console on the stream of the moment; make a new one for each use."""
    return _PrintableConsole(stderr=stderr, highlight=False)


def list_console() -> Console:
    """A console for results: programs that read a pipe expect each row on one line."""
    wide = console()
    if not wide.is_terminal:
        wide.width = max(wide.width, PIPED_WIDTH)
    return wide


# --- parts of views -------------------------------------------------------------------------------


def pairs(values: Mapping[str, Any]) -> RenderableType:
    """A table of names and values; None is shown as nothing."""
    table = Table(show_header=False, box=None)
    for name, value in values.items():
        table.add_row(Text(f"  {printable(name)}"), Text(printable(_text(value))))
    return table


def titled_pairs(title: str, values: Mapping[str, Any]) -> RenderableType:
    """A title above a table of names and values."""
    return Group(Text(title), pairs(values)) if values else Text(f"{title}: none")


def rows_view(
    columns: Sequence[str], rows: Iterable[Sequence[str]], summary: str
) -> RenderableType:
    """A table and a line below it. The first column holds an id or a name, which never wraps."""
    table = Table(box=None, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return Group(*([table] if table.row_count else []), Text(summary))


def moment(at: datetime | None) -> str:
    """A time in milliseconds, with Z for UTC; nothing for None."""
    if at is None:
        return ""
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return "" if value is None else str(value)


# --- panels:

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
