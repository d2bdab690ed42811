"""`txmq marker-table` and `inbox-table`, and the examples in the help of each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txmq.user_data.database_inbox import INBOX_TABLE, inbox_table_ddl
from txmq.user_data.database_marker import MARKER_TABLE, marker_table_ddl

if TYPE_CHECKING:
    from typer import Typer
    from typer.models import CommandInfo


EXAMPLES: Mapping[str, Sequence[str]] = {
    "init": ("txmq init /data/txmq", "txmq init s3://lake/txmq --config txmq.yaml"),
    "serve": (
        "txmq serve /data/txmq --no-spark --metrics 127.0.0.1:9464",
        "txmq serve /data/txmq --once",
    ),
    "demo": ("txmq demo", "txmq demo /tmp/demo --seconds 20 --kills 4"),
    "recheck": ("txmq recheck /data/txmq --config listeners.yaml",),
    "maintenance": ("txmq maintenance /data/txmq --json",),
    "jobs list": ("txmq jobs list",),
    "jobs path": ("txmq jobs path broker", "txmq jobs path spark-defaults.conf"),
    "jobs copy": ("txmq jobs copy ./deploy",),
    "backup": ("txmq backup /data/txmq s3://backups/txmq",),
    "restore": ("txmq restore s3://backups/txmq /data/restored",),
    "upgrade": ("txmq upgrade /data/txmq --apply",),
    "status": ("txmq status /data/txmq --watch",),
    "dashboard": ("txmq dashboard /data/txmq --listen 127.0.0.1:8320",),
    "metrics": ("txmq metrics /data/txmq",),
    "doctor": ("txmq doctor /data/txmq --probe",),
    "verify": (
        "txmq verify /data/txmq",
        "txmq verify /data/txmq --business orders=delta:/lake/orders",
    ),
    "sql-views": ("txmq sql-views /data/txmq --engine duckdb",),
    "open": ("txmq open /data/txmq --group orders --limit 20",),
    "show": ("txmq show /data/txmq 01a2043f-6b92-7b74-a97c-03303dda9301",),
    "resolve": (
        (
            "txmq resolve /data/txmq 01a2043f-6b92-7b74-a97c-03303dda9301 --rollback"
            ' --reason "order cancelled"'
        ),
    ),
    "resume": (
        (
            "txmq resume /data/txmq 01a2043f-6b92-7b74-a97c-03303dda9301"
            ' --reason "listener repaired" --apply'
        ),
    ),
    "discarded list": ("txmq discarded list /data/txmq --group orders",),
    "produce": (
        'txmq produce /data/txmq order-paid --body "order 42" --key order-42',
        "txmq produce /data/txmq reminder --body hello --delay-s 90",
    ),
    "message": ("txmq message /data/txmq --key order-42 --topic order-paid",),
    "recall": (
        "txmq recall /data/txmq 01a2043f-6b92-7b74-a97c-03303dda9301:0 --group orders --dry-run",
    ),
    "erase": (
        ('txmq erase /data/txmq --key customer-42 --reason "request of the customer" --apply'),
    ),
    "topics create": ("txmq topics create /data/txmq order-paid --kind TRANSACTION --queues 16",),
    "topics list": ("txmq topics list /data/txmq",),
    "topics describe": ("txmq topics describe /data/txmq order-paid",),
    "topics alter": ("txmq topics alter /data/txmq order-paid --queues 32 --for-ever",),
    "topics delete": ("txmq topics delete /data/txmq order-paid",),
    "rebuild-topic": ("txmq rebuild-topic /data/txmq order-paid --apply",),
    "consume": (
        "txmq consume /data/txmq order-paid --from first --max-count 10",
        "txmq consume /data/txmq order-paid --group billing --follow",
    ),
    "groups list": ("txmq groups list /data/txmq",),
    "groups alter": (
        "txmq groups alter /data/txmq billing --set max_reconsume_times=3 --apply",
        "txmq groups alter /data/txmq billing --unset max_reconsume_times --apply",
    ),
    "groups delete": ("txmq groups delete /data/txmq billing --apply",),
    "lag": ("txmq lag /data/txmq --group billing",),
    "offsets reset": (
        "txmq offsets reset /data/txmq billing --topic order-paid --to first",
        (
            "txmq offsets reset /data/txmq billing --topic order-paid --to 2027-01-01T00:00:00Z"
            " --apply"
        ),
    ),
    "dead-letters list": ("txmq dead-letters list /data/txmq --group billing",),
    "dead-letters show": (
        "txmq dead-letters show /data/txmq 01a2043f-6b92-7b74-a97c-03303dda9301:0 --group billing",
    ),
    "dead-letters replay": (
        (
            "txmq dead-letters replay /data/txmq --group billing --all"
            ' --reason "handler repaired" --apply'
        ),
    ),
    "dead-letters purge": (
        (
            "txmq dead-letters purge /data/txmq --group billing --older-than-h 720"
            ' --reason "too old" --apply'
        ),
    ),
    "marker-table": ("txmq marker-table postgresql",),
    "inbox-table": ("txmq inbox-table sqlite",),
}

Dialect = Annotated[
    str, typer.Argument(help="postgresql, mysql (MariaDB too) or sqlite.", show_default=False)
]
TableName = Annotated[str, typer.Option("--table", help="Its name.")]


def add_user_table_commands(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("marker-table")(marker_table)
    app.command("inbox-table")(inbox_table)


def marker_table(dialect: Dialect, table: TableName = MARKER_TABLE) -> None:
    """Print the statement that makes the marker table of a DatabaseListener."""
    typer.echo(f"{marker_table_ddl(dialect, table)};")


def inbox_table(dialect: Dialect, table: TableName = INBOX_TABLE) -> None:
    """Print the statement that makes the table of a DatabaseInbox."""
    typer.echo(f"{inbox_table_ddl(dialect, table)};")


def add_examples(app: Typer, group: str = "") -> None:
    """Show the examples below the help of each command."""
    for command in app.registered_commands:
        lines = EXAMPLES.get(f"{group}{name_of(command)}", ())
        if lines:
            # A blank line keeps what follows on a line of its own.
            command.epilog = "\n\n".join(["Examples:", *lines])
    for nested in app.registered_groups:
        if nested.typer_instance is not None:
            add_examples(nested.typer_instance, f"{nested.name} ")


def name_of(command: CommandInfo) -> str:
    """Return the name of a command as it is typed."""
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")
