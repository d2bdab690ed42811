"""`txmq marker-table` prints what a database needs."""

from __future__ import annotations

import sqlite3

import pytest
from typer.testing import CliRunner

from txmq.ops.cli.app import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["marker-table", *arguments])
    return result.exit_code, result.output


def test_statement_makes_the_table() -> None:
    code, output = run("sqlite", "--table", "markers")

    assert code == 0
    connection = sqlite3.connect(":memory:")
    connection.execute(output)
    assert connection.execute(
        "SELECT tbl_name FROM sqlite_master WHERE type = 'table'"
    ).fetchall() == [("markers",)]
    connection.close()


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb"])
def test_each_database_has_a_statement(dialect: str) -> None:
    code, output = run(dialect)

    assert code == 0
    assert output.startswith("CREATE TABLE IF NOT EXISTS txmq_marker")


def test_unknown_database_is_told_those_that_are_known() -> None:
    code, output = run("oracle")

    assert code == 2
    assert "postgresql, mysql, sqlite" in " ".join(output.split())
