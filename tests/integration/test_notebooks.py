"""The patterns as users find them: each notebook runs as it stands, and says what holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import databases

PROJECT = Path(__file__).parents[2]
DATABASE_VARIABLE = "ORDERS_DATABASE_URL"
LIMIT_S = 240
# What each one must say beside "0 violations".
WITH_SPARK = {
    "merge_and_publish.py": [
        "the check answered: 1 committed, 0 rolled back",
        "the check answered: 0 committed, 1 rolled back",
        "commit() said: transaction",
        "nothing was changed",
    ],
    "publish_from_foreach_batch.py": [
        "start 0: died; the check answered: 0 committed, 1 rolled back",
        "start 1: died; the check answered: 1 committed, 0 rolled back",
        "start 2: all is booked",
        "published: ['1', '2', '3', '4', '5']",
        "3 micro-batches",
    ],
    "consume_change_publish.py": ["the job died after the MERGE", '{"customer":"Ada","added":15}'],
}


def run(notebook: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}
    return subprocess.run(
        [sys.executable, str(PROJECT / "notebooks" / notebook)],
        env={**inherited, "PYTHONPATH": str(PROJECT), **variables},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("notebook", WITH_SPARK)
def test_notebook_runs_as_it_stands(notebook: str) -> None:
    finished = run(notebook)

    assert finished.returncode == 0, finished.stderr
    for said in [*WITH_SPARK[notebook], "0 violations"]:
        assert said in finished.stdout


def test_postgres_notebook_runs_as_it_stands() -> None:
    if reason := databases.missing("postgresql"):
        pytest.skip(reason)
    with databases.running_postgres() as server:
        url = server.url().replace("postgresql+psycopg", "postgresql")
        first, again = (run("postgres_orders.py", **{DATABASE_VARIABLE: url}) for _ in range(2))

    for finished in (first, again):
        assert finished.returncode == 0, finished.stderr
        assert "the check answered: 1 committed, 2 rolled back" in finished.stdout
        assert "the late one was told" in finished.stdout
        assert "0 violations" in finished.stdout


def test_postgres_notebook_without_a_database_says_what_to_set() -> None:
    finished = run("postgres_orders.py")

    assert finished.returncode == 1
    assert "Set ORDERS_DATABASE_URL" in finished.stderr
    assert "Traceback" not in finished.stderr
