"""The `txmq` command: makes a store, serves it, shows it, decides by hand, verifies it.

Only `serve` and `demo` import Spark, so the other commands start at once and run anywhere.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from txmq import __version__
from txmq.errors import TxmqError
from txmq.maintenance.service import Maintenance, MaintenanceResult
from txmq.ops.broker_log import LogFormat, LogLevel, log_to_stderr
from txmq.ops.cli.dead_letters import add_dead_letter_commands
from txmq.ops.cli.examples import add_examples, add_user_table_commands
from txmq.ops.cli.groups import add_group_commands
from txmq.ops.cli.messages import add_message_commands
from txmq.ops.cli.serve import add_serve_commands
from txmq.ops.cli.shared import (
    AsJson,
    ConfigFile,
    Location,
    arrange,
    console,
    say,
    show,
    titled_pairs,
)
from txmq.ops.cli.status import add_look_commands
from txmq.ops.cli.topics import add_topic_commands
from txmq.ops.cli.transactions import add_transaction_commands
from txmq.ops.cli.upkeep import add_upkeep_commands
from txmq.ops.cli.verify import add_verify_command
from txmq.store.store import create_store, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType


EXIT_ERROR = 2


class _CleanErrors(TyperGroup):
    """Shows every TxmqError, and an output that cannot be written, as one line.

    With --debug as its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit code 2 for an error."""
        try:
            return super().invoke(ctx)
        except TxmqError as error:
            self._end(ctx, error, str(error))
        except BrokenPipeError:
            # Its reader has seen enough; click ends then without a word.
            raise
        except OSError as error:
            _forget_output()
            self._end(ctx, error, f"the output cannot be written, or a file: {error}")

    def _end(self, ctx: Any, error: Exception, text: str) -> NoReturn:
        if ctx.params.get("debug"):
            raise error
        _say_problem(text)
        raise typer.Exit(EXIT_ERROR) from error


def _say_problem(text: str) -> None:
    line = " ".join(text.split())
    console(stderr=True).print(line, style="red", markup=False, soft_wrap=True)


def _forget_output() -> None:
    """Drop what could not be written: Python would try again at its end, and fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


app = typer.Typer(
    cls=_CleanErrors,
    no_args_is_help=True,
    # Typer's own tracebacks show local variables, which may hold message bodies.
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the `txmq` command; exit code 2 for an argument that is no text for this terminal."""
    sys.stdout, sys.stderr = _whole(sys.stdout), _whole(sys.stderr)
    try:
        " ".join(sys.argv).encode()
    except UnicodeEncodeError:
        _say_problem(_NO_TEXT.format(sys.getfilesystemencoding()))
        sys.exit(EXIT_ERROR)
    app(prog_name="txmq")


def _whole(stream: Any) -> Any:
    """Return a stream that escapes what a terminal has no character for, and drops no half line.

    With PYTHONUNBUFFERED, Python forgets what did not fit on a disk that gets full.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    if not isinstance(stream.buffer, io.RawIOBase):
        return stream
    buffer = io.BufferedWriter(stream.buffer)
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=True)


_NO_TEXT = (
    "an argument is no text in the encoding of this terminal ({}). "
    "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
)


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        say(f"txmq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show errors with their traceback.")
    ] = False,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="From where on logs are shown.")
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="For people, or an object of JSON a line.")
    ] = LogFormat.TEXT,
    version: Annotated[  # noqa: ARG001 - it ends the program by itself
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Transactional messages for the lakehouse: visible if and only if the change took place."""
    level = LogLevel.DEBUG if debug else log_level
    context.obj = level
    log_to_stderr((level or LogLevel.WARNING).number, log_format)


@app.command()
def init(location: Location, config: ConfigFile = None) -> None:
    """Make a new store."""
    store = create_store(location, config)
    say(f"Store made at {store.location}. Next: txmq serve {store.location}")


@app.command()
def maintenance(location: Location, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Compact, clean and retire, once; for schedulers. `serve` does it too."""
    store = open_store(location, config)
    result = Maintenance(store).run_once()
    show(result, _maintenance_view, as_json=as_json)
    if result.failed:
        raise typer.Exit(1)


def _maintenance_view(result: MaintenanceResult) -> RenderableType:
    retained = result.retained
    lines = {
        "small files merged": f"{result.compacted.files_before:,} into "
        f"{result.compacted.files_after:,}",
        "checkpoints made": f"{result.checkpoints:,}",
        "log entries cleaned": f"{result.commits_cleaned:,}",
        "data files removed": f"{result.data_files_removed:,}",
        "leftovers removed": f"{result.leftovers_removed:,}",
        "files of topics removed": f"{result.topic_files_removed:,}",
        "transactions expired": f"{retained.expired:,}",
        "days retired": f"half {len(retained.half_days)}, op {len(retained.op_days)}, "
        f"settled {len(retained.settled_days)}",
    }
    failures = {f"failed: {table}": problem for table, problem in result.failed.items()}
    return titled_pairs("maintenance", {**lines, **failures})


@app.command()
def demo(  # noqa: PLR0913 - the options of a command
    location: Annotated[
        str | None, typer.Argument(help="A new folder; one below ./demo-store if left out.")
    ] = None,
    *,
    flights: Annotated[int, typer.Option(min=1, help="Departures.")] = 6_000,
    seed: Annotated[int, typer.Option(help="The same one gives the same story.")] = 13,
    dispatchers: Annotated[int, typer.Option(min=1, help="Processes that send.")] = 3,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the day.")] = 60.0,
    kills: Annotated[int, typer.Option(min=0, help="Dispatchers that get kill -9.")] = 12,
    broker_kills: Annotated[int, typer.Option(min=0, help="Times the broker gets it.")] = 1,
    lose_checkpoints: Annotated[
        bool, typer.Option("--lose-checkpoints", help="Delete all checkpoints in between.")
    ] = False,
) -> None:
    """Run a day of departures with kill -9 in between, and check the books at its end."""
    from txmq.ops.demo.run import main as run_demo

    code = run_demo(
        location,
        flights=flights,
        seed=seed,
        dispatchers=dispatchers,
        seconds=seconds,
        kills=kills,
        broker_kills=broker_kills,
        lose_checkpoints=lose_checkpoints,
    )
    raise typer.Exit(code)


add_serve_commands(app)
add_look_commands(app)
add_transaction_commands(app)
add_message_commands(app)
add_topic_commands(app)
add_group_commands(app)
add_dead_letter_commands(app)
add_verify_command(app)
add_user_table_commands(app)
add_upkeep_commands(app)
arrange(app)
add_examples(app)
