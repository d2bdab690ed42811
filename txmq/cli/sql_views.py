"""`txmq sql-views`: views over the tables, as statements to copy."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.catalogs.sql_views import SqlEngine, sql_views
from txmq.cli.shared import Location
from txmq.store.opening import open_store


def add_sql_views_command(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("sql-views")(print_sql_views)


def print_sql_views(
    location: Location,
    *,
    engine: Annotated[
        SqlEngine, typer.Option("--engine", help="Who runs the statements.")
    ] = SqlEngine.DUCKDB,
    is_live: Annotated[
        bool,
        typer.Option(
            "--live", help="DuckDB's extension `delta` reads what is newest; else as of now."
        ),
    ] = False,
) -> None:
    """Print statements that make views: txmq_transactions, stuck, topic_lag, dead_letters.

    For example: txmq sql-views /data/txmq > views.sql, then `.read views.sql` in DuckDB.
    """
    statements = sql_views(open_store(location), engine, is_live=is_live)
    typer.echo(";\n\n".join([*statements.values(), ""]), nl=False)
