"""`txmq marker-table` and `inbox-table`: statements that make tables in a user's database."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.user_data.database_inbox import INBOX_TABLE, inbox_table_ddl
from txmq.user_data.database_marker import MARKER_TABLE, marker_table_ddl

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
