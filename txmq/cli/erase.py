"""`txmq erase`: erase the messages of one key, and prove it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txmq.admin.erasure import ErasedTable, Erasure, ErasureReport
from txmq.cli.shared import AsJson, Location, list_console, moment, pairs, print_json, rows_view
from txmq.store.opening import open_store

EXIT_LEFT = 1


def add_erase_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(erase)


def erase(  # noqa: PLR0913 - the options of a command
    location: Location,
    *,
    key: Annotated[str, typer.Option("--key", help="One key of the messages, as a customer's id.")],
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only messages to this topic, their retries included."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Erase; without this it is shown only.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; it is kept, with your user name.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 while any file holds the key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase the bodies, keys and properties of all messages with a key, in every table.

    Without --apply it searches every file of half, schedule and topics and shows what it finds: run
    it again afterwards as the proof. Old files go with log clean-up; the time is shown.

    Exit code 1 after --apply: a publisher was writing one of the messages, so run it again.
    """
    _check_options(reason, apply=apply, check=check)
    erasure = Erasure(open_store(location), key, topic=topic)
    report = erasure.look() if reason is None else erasure.apply(reason=reason)
    if as_json:
        print_json(report.to_dict())
    else:
        list_console().print(_view(report))
    if report.on_their_way or (check and not report.is_gone):
        raise typer.Exit(EXIT_LEFT)


def _check_options(reason: str | None, *, apply: bool, check: bool) -> None:
    if apply and check:
        raise typer.BadParameter("give one of the two", param_hint="--apply / --check")
    if apply != (reason is not None):
        problem = "--apply needs --reason, and --reason is for --apply"
        raise typer.BadParameter(problem, param_hint="--reason")


# --- views ----------------------------------------------------------------------------------------


def _view(report: ErasureReport) -> RenderableType:
    if report.is_gone:
        return Text("0 messages, 0 old files: no file of the store's tables holds this key")
    columns = ("table", "messages", "commit", "old files", "unreadable", "gone after")
    done = "erased" if report.is_written else "found"
    total = f"{report.messages:,} rows {done}, {report.old_files:,} old files hold them"
    rows = [_cells(table) for table in report.tables]
    return Group(rows_view(columns, rows, total), *_hints(report))


def _cells(table: ErasedTable) -> tuple[str, ...]:
    version = "" if table.version is None else str(table.version)
    unreadable = str(table.unreadable or "")
    return (
        table.table, f"{table.messages:,}", version, f"{table.old_files:,}", unreadable,
        moment(table.gone_after),
    )  # fmt: skip


def _hints(report: ErasureReport) -> list[RenderableType]:
    hints: list[RenderableType] = []
    if report.reason is not None:
        hints.append(pairs({"reason": report.reason}))
    if report.on_their_way:
        ids = ", ".join(report.on_their_way)
        hints.append(Text(f"a publisher was writing these: run it again: {ids}", style="bold"))
    if not report.is_written:
        dry = "nothing was written; with --apply --reason they are erased"
        hints.append(Text(dry if report.messages else _waiting(report), style="bold"))
    return hints


def _waiting(report: ErasureReport) -> str:
    """What is left to wait for, or to do."""
    if any(table.old_files and table.gone_after is None for table in report.tables):
        return "the log is not closed after the old files: run it with --apply --reason"
    if report.old_files:
        return "a broker or txmq maintenance removes the old files after the time shown"
    return "nobody can tell what unreadable files hold; maintenance removes them when they are old"
