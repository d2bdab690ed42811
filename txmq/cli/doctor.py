"""`txmq doctor`: what a store names that could act, and what else needs a hand."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txmq.admin.doctor import Doctor
from txmq.admin.findings import Diagnosis
from txmq.cli.shared import AsJson, ConfigFile, Location, pairs, print_result
from txmq.printable import printable
from txmq.store.opening import open_store


def add_doctor_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(doctor)


def doctor(
    location: Location,
    config: ConfigFile = None,
    *,
    probes: Annotated[
        bool,
        typer.Option(
            "--probe", help="Also write a small file and remove it: rights, two writers, clock."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what needs a hand; loads nothing that the store names, and reads only.

    Exit code 1 if something was found. For example: txmq doctor /data/txmq --probe
    """
    diagnosis = Doctor(open_store(location, config)).examine(probes=probes)
    print_result(diagnosis, _view, as_json=as_json)
    if diagnosis.findings:
        raise typer.Exit(1)


def _view(diagnosis: Diagnosis) -> RenderableType:
    title = f"{diagnosis.location}, {diagnosis.tables:,} tables: "
    if not diagnosis.findings:
        return Text(f"{title}nothing found")
    parts: list[RenderableType] = [Text(f"{title}{len(diagnosis.findings):,} found", style="red")]
    for finding in diagnosis.findings:
        lines = {"problem": finding.problem, "next step": finding.next_step}
        parts += [Text(printable(finding.where), style="bold"), pairs(lines)]
    if diagnosis.ignored_settings:
        title = "The ignored settings, as lines of a settings file; read them before you use them:"
        parts += [Text(title), Text(diagnosis.ignored_settings)]
    return Group(*parts)
