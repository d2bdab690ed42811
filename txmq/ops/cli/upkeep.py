"""`txmq backup`, `restore` and `upgrade`: copy a store, make one of a copy, renew its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from txmq.ground.printable import printable
from txmq.ops.admin.upgrade import UpgradeResult, upgrade
from txmq.ops.backup.backup import BackupResult, OnProgress, Progress, back_up
from txmq.ops.backup.restore import RestoreResult, restore
from txmq.ops.cli.shared import (
    AsJson,
    Column,
    ConfigFile,
    Location,
    console,
    show,
    table,
    titled_pairs,
)
from txmq.ops.cli.verify import verify_after
from txmq.store.store import open_store

SHOWN = 10


def add_upkeep_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("backup")(backup_command)
    app.command("restore")(restore_command)
    app.command("upgrade")(upgrade_command)


# --- backup and restore


def backup_command(
    location: Location,
    target: Annotated[
        str, typer.Argument(help="An empty folder, or that of an earlier backup of this store.")
    ],
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Copy a store while producers, brokers and consumers go on; reads it only.

    Exit code 1 if the store itself lacks files or has tables in a wrong order; the copy has both,
    too. The next backup to the same place copies only what is new. Variables such as AWS_… reach
    both places.
    """
    store = open_store(location, config)
    with _progress_bar("backup") as on_progress:
        result = back_up(store, target, on_progress=on_progress)
    show(result, _backup_view, as_json=as_json)
    _exit_if_lacking(result)


def restore_command(
    backup: Annotated[str, typer.Argument(help="Where txmq backup wrote to: a path or a URI.")],
    target: Annotated[str, typer.Argument(help="An empty folder: a path or a URI.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make a store of a backup; each file is compared with its checksum.

    Exit code 1 if the store that was backed up lacked files, or had tables in a wrong order. What
    was killed is finished by the same command.
    """
    with _progress_bar("restore") as on_progress:
        result = restore(backup, target, on_progress=on_progress)
    show(result, _restore_view, as_json=as_json)
    _exit_if_lacking(result)


@contextmanager
def _progress_bar(title: str) -> Iterator[OnProgress]:
    """Show how far it is, on a terminal; results go to another stream."""
    columns = (
        TextColumn(title), BarColumn(), DownloadColumn(), TextColumn("{task.fields[files]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    errors = console(stderr=True)
    with Bar(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(title, total=None, files="")

        def tell(progress: Progress) -> None:
            files = f"{progress.files:,} of {progress.all_files:,} files"
            bar.update(task, total=progress.all_bytes, completed=progress.size_bytes, files=files)

        yield tell


def _exit_if_lacking(result: BackupResult | RestoreResult) -> None:
    if result.missing or result.faults:
        raise typer.Exit(1)


def _backup_view(result: BackupResult) -> RenderableType:
    lines = {
        "holds all up to": result.begun,
        "ended": result.ended,
        "tables": f"{result.tables:,}",
        "files": f"{result.files:,} of {result.size_bytes:,} bytes",
        "copied now": f"{result.copied_files:,} of {result.copied_bytes:,} bytes",
    }
    title = f"backup at {printable(result.location)}"
    return Group(titled_pairs(title, lines), *_lacking(result))


def _restore_view(result: RestoreResult) -> RenderableType:
    lines = {
        "from": result.source,
        "holds all up to": result.begun,
        "tables": f"{result.tables:,}",
        "files": f"{result.files:,} of {result.size_bytes:,} bytes",
        "next": f"txmq verify {result.location}, then txmq serve {result.location}",
    }
    title = f"store restored to {printable(result.location)}"
    return Group(titled_pairs(title, lines), *_lacking(result))


def _lacking(result: BackupResult | RestoreResult) -> list[RenderableType]:
    lines = [f"not there in the store itself: {path}" for path in result.missing[:SHOWN]]
    lines += [f"and {len(result.missing) - SHOWN:,} more"] if len(result.missing) > SHOWN else []
    lines += [f"in the store itself: {fault}" for fault in result.faults[:SHOWN]]
    return [Text(printable(line), style="red") for line in lines]


# --- upgrade


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
    show(result, _upgrade_view, as_json=as_json)
    if apply and verifies:
        verify_after(store, is_shown=not as_json)


def _upgrade_view(result: UpgradeResult) -> RenderableType:
    if not result.is_needed:
        summary = f"all tables have schema version {result.newest}: nothing is to do"
    elif result.is_written:
        summary = f"all tables have schema version {result.newest} now"
    else:
        summary = "dry run, nothing was written; with --apply it is"
    columns: dict[str, Column] = {
        "table": "path",
        "version": "version",
        "changes": lambda upgraded: "; then ".join(upgraded.changes),
    }
    return table(result.tables, columns, summary)
