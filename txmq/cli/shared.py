"""What the commands share: where the store is, and how results are printed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console, RenderableType

LOCATION_VARIABLE = "TXMQ_LOCATION"
PIPED_WIDTH = 240


class Result(Protocol):
    """What has plain values, for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The plain values."""
        ...


Found = TypeVar("Found", bound=Result)

Location = Annotated[
    str,
    typer.Argument(envvar=LOCATION_VARIABLE, help="Where the store is: a path or a URI."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings as in conf/txmq.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def location_and(location: str, word: str | None, what: str) -> tuple[str, str]:
    """The store and one word more; a word alone is that one, and the environment has the store."""
    return (_location_of_environment(what), location) if word is None else (location, word)


def print_json(values: dict[str, Any], indent: int | None = 2) -> None:
    """One JSON document."""
    typer.echo(json.dumps(values, indent=indent))


def print_result(found: Found, view: Callable[[Found], RenderableType], *, as_json: bool) -> None:
    """What a command found, for a program or for a person."""
    if as_json:
        print_json(found.to_dict())
    else:
        console().print(view(found))


def say(text: str) -> None:
    """One line as it is."""
    console().print(text, markup=False, soft_wrap=True)


def console(*, stderr: bool = False) -> Console:
    """Made for each use, so that it writes to the stream of the moment."""
    return Console(stderr=stderr, highlight=False)


def list_console() -> Console:
    """For tables: what reads a pipe wants each row on one line."""
    made = console()
    if not made.is_terminal:
        made.width = max(made.width, PIPED_WIDTH)
    return made


def _location_of_environment(what: str) -> str:
    location = os.environ.get(LOCATION_VARIABLE)
    if not location:
        problem = f"missing, unless {LOCATION_VARIABLE} names the store"
        raise typer.BadParameter(problem, param_hint=what)
    return location
