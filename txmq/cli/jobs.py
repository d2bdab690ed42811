"""`txmq jobs`: the scripts for spark-submit and the settings files, which come with the package."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txmq.cli.shared import AsJson, list_console, print_json, rows_view, say
from txmq.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

# In a clone these are links to the folders at its top.
_FILES = Path(__file__).parent / "files"
_FOLDERS = {"jobs": "*.py", "conf": "*.*"}

jobs_app = typer.Typer(no_args_is_help=True, help="The scripts for spark-submit, and settings.")


def add_jobs_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(jobs_app, name="jobs")


@jobs_app.command("list")
def list_jobs(*, as_json: AsJson = False) -> None:
    """List the scripts and settings files, each with what it is for."""
    described = {name: _purpose(path) for name, path in _paths().items()}
    if as_json:
        print_json(described)
        return
    summary = f"{len(described)} files; txmq jobs path NAME says where one is"
    list_console().print(rows_view(("name", "for"), described.items(), summary))


@jobs_app.command("path")
def path_of_job(
    name: Annotated[str, typer.Argument(help="Such as broker, or spark-defaults.conf.")],
) -> None:
    """Print where a script or a settings file is."""
    paths = _paths()
    if name.removesuffix(".py") not in paths:
        raise typer.BadParameter(f"{name!r} is not there; there are {', '.join(paths)}")
    say(str(paths[name.removesuffix(".py")].resolve()))


@jobs_app.command("copy")
def copy_jobs(
    folder: Annotated[Path, typer.Argument(help="Gets jobs/ and conf/; made where it is missing.")],
) -> None:
    """Copy all scripts and settings files into a folder; files that are there are not touched."""
    copied = 0
    for source in _paths().values():
        target = folder / source.parent.name / source.name
        if target.exists():
            say(f"kept    {target}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied += 1
    say(f"{copied} files copied to {folder}")


def _paths() -> Mapping[str, Path]:
    """By name: scripts without their ending."""
    found = {
        path.name.removesuffix(".py"): path
        for folder, pattern in _FOLDERS.items()
        for path in sorted((_FILES / folder).glob(pattern))
    }
    if not found:
        problem = "this copy of txmq has no jobs and no settings files"
        raise EnvironmentProblemError(problem, "Install it from a wheel, or work in a whole clone")
    return found


def _purpose(path: Path) -> str:
    """The first line of a script's docstring, or of a settings file's comment."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return text.partition("\n")[0].lstrip("# ")
