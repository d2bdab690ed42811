"""What all commands share: their arguments, how results are shown, and the panels of the help."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from txmq.ground.printable import printable
from txmq.ground.results import plain
from txmq.message.names import shown_name
from txmq.ops.cli.examples import name_of

if TYPE_CHECKING:
    from typer import Typer


LOCATION_VARIABLE = "TXMQ_LOCATION"
PIPED_WIDTH = 240
# All that can be used was shown.
EXIT_UNUSABLE = 1
PANELS: Mapping[str, Sequence[str]] = {
    "Begin and run": ("init", "serve", "demo", "recheck", "maintenance", "jobs"),
    "Keep and renew": ("backup", "restore", "upgrade"),
    "Look": ("status", "dashboard", "metrics", "doctor", "verify", "sql-views"),
    "Transactions": ("open", "show", "resolve", "resume", "discarded"),
    "Messages and topics": ("produce", "message", "recall", "erase", "topics", "rebuild-topic"),
    "Consumers": ("consume", "groups", "lag", "offsets", "dead-letters"),
    "Your own tables": ("marker-table", "inbox-table"),
}

Location = Annotated[
    str,
    typer.Argument(envvar=LOCATION_VARIABLE, help="Where the store is: a path or a URI."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings as in conf/txmq.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Result = TypeVar("Result")
# The name of an attribute of a row, or a function of the row.
Column = str | Callable[[Any], object]


# --- arguments


def location_and(location: str, word: str | None, what: str) -> tuple[str, str]:
    """Return the store and one more argument.

    A single argument is the second one; then the environment variable names the store.
    """
    return (_location_of_environment(what), location) if word is None else (location, word)


def _location_of_environment(what: str) -> str:
    location = os.environ.get(LOCATION_VARIABLE)
    if not location:
        problem = f"missing, unless {LOCATION_VARIABLE} names the store"
        raise typer.BadParameter(problem, param_hint=what)
    return location


# --- results


def show(result: Result, view: Callable[[Result], RenderableType], *, as_json: bool) -> None:
    """Print the result of a command: as JSON for a program, by its view for a person.

    Args:
        result: a dataclass, or a mapping of names to values and dataclasses.
        view: makes what a person sees.
        as_json: whether a program reads it.
    """
    if as_json:
        print_json(json_value(result))
    else:
        list_console().print(view(result))


def json_value(result: Any) -> Any:
    """Return a result as JSON can hold it; what has `to_dict` says itself how."""
    if hasattr(result, "to_dict"):
        return result.to_dict()
    match result:
        case Mapping():
            return {name: json_value(value) for name, value in result.items()}
        case list() | tuple():
            return [json_value(value) for value in result]
        case _:
            return plain(result)


def print_json(values: dict[str, Any], indent: int | None = 2) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(values, indent=indent))


def say(text: str) -> None:
    """Print one line as it is."""
    console().print(text, markup=False, soft_wrap=True)


def end_if_unusable(unusable: Mapping[str, str]) -> None:
    """Name each topic that cannot be used, and end the program so that a scheduler sees it."""
    for topic, problem in unusable.items():
        text = f"topic {shown_name(topic)} is left out: {problem}"
        console(stderr=True).print(text, markup=False, soft_wrap=True)
    if unusable:
        raise typer.Exit(EXIT_UNUSABLE)


def table(rows: Iterable[object], columns: Mapping[str, Column], summary: str) -> RenderableType:
    """Make a table of dataclasses, and a line below it unless the summary is empty.

    Args:
        rows: the dataclasses.
        columns: the title of each column, and what of a row it shows.
        summary: the line below.
    """
    getters = [attrgetter(column) if isinstance(column, str) else column
               for column in columns.values()]  # fmt: skip
    return rows_view(tuple(columns), ([get(row) for get in getters] for row in rows), summary)


def rows_view(
    columns: Sequence[str], rows: Iterable[Sequence[object]], summary: str
) -> RenderableType:
    """Make a table, and a line below it unless the summary is empty.

    The first column holds an id or a name, which never wraps. Columns of numbers stand right.
    """
    cells = list(rows)
    view = Table(box=None, header_style="bold")
    for place, column in enumerate(columns):
        is_number = all(isinstance(row[place], int) for row in cells)
        view.add_column(
            column,
            no_wrap=place == 0,
            overflow="fold",
            justify="right" if is_number else "left",
        )
    for row in cells:
        view.add_row(*(Text(printable(_cell(value))) for value in row))
    return Group(*([view] if cells else []), *([Text(summary)] if summary else []))


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case enum.Enum():
            return str(value.value)
        case int():
            return f"{value:,}"
        case datetime():
            return moment(value)
        case _:
            return str(value)


def titled_pairs(title: str, values: Mapping[str, Any]) -> RenderableType:
    """Make a title above a table of names and values."""
    return Group(Text(title), pairs(values)) if values else Text(f"{title}: none")


def pairs(values: Mapping[str, Any]) -> RenderableType:
    """Make a table of names and values; None is shown as nothing."""
    view = Table(show_header=False, box=None)
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={item}" for key, item in value.items())  # noqa: PLW2901
        text = "" if value is None else str(value)
        view.add_row(Text(f"  {printable(name)}"), Text(printable(text)))
    return view


def moment(at: datetime | None) -> str:
    """Write a time in milliseconds, with Z for UTC; nothing for None."""
    if at is None:
        return ""
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def list_console() -> Console:
    """Make a console for results: programs that read a pipe expect each row on one line."""
    wide = console()
    if not wide.is_terminal:
        wide.width = max(wide.width, PIPED_WIDTH)
    return wide


def console(*, stderr: bool = False) -> Console:
    """Make a console on the stream of the moment; make a new one for each use."""
    return _PrintableConsole(stderr=stderr, highlight=False)


class _PrintableConsole(Console):
    """A console that shows what others wrote, and obeys none of it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Escape all text but rich's own line ends; styles are no text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, "\n"), style)


# --- help


def arrange(app: Typer) -> None:
    """Put each command into its panel, in the order of the panels."""
    places = {name: panel for panel, names in PANELS.items() for name in names}
    order = list(places)
    for command in app.registered_commands:
        command.rich_help_panel = places[name_of(command)]
    for group in app.registered_groups:
        group.rich_help_panel = places[str(group.name)]
    app.registered_commands.sort(key=lambda command: order.index(name_of(command)))
