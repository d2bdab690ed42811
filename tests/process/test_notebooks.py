"""The patterns as users find them: each notebook runs as it stands, and says what holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import databases
from tests.kit.pages import block

PROJECT = Path(__file__).parents[2]
ROLLED_BACK = "order-44"
DATABASE_VARIABLE = "ORDERS_DATABASE_URL"
LIMIT_S = 240
JAVA_TRACE = "\tat org.apache.spark"
# What each one must say beside "0 violations".
WITH_SPARK = {
    "quickstart.py": ["order-43", "the check answered: 1 committed, 1 rolled back"],
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


def run(
    *command: str, folder: Path = PROJECT, **variables: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder, env={**inherited, "PYTHONPATH": str(PROJECT), **variables},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def path_of(notebook: str) -> str:
    return str(PROJECT / "notebooks" / notebook)


@pytest.mark.needs_spark
@pytest.mark.timeout(2 * LIMIT_S)
def test_each_notebook_with_spark_runs_as_it_stands(tmp_path: Path) -> None:
    process = "tests.process.notebook_process"

    finished = run("-m", process, str(tmp_path), *map(path_of, WITH_SPARK))

    assert finished.returncode == 0, finished.stderr
    # What a notebook plays is no reason to be frightened.
    assert JAVA_TRACE not in finished.stderr
    assert [path.read_text() for path in tmp_path.glob("*.failed")] == []
    for notebook, lines in WITH_SPARK.items():
        said = tmp_path.joinpath(f"{notebook}.said").read_text()
        assert [line for line in [*lines, "0 violations"] if line not in said] == [], said
        assert ROLLED_BACK not in said


@pytest.mark.needs_spark
@pytest.mark.timeout(2 * LIMIT_S)
def test_notebook_of_the_readme_shows_its_message_and_does_so_again(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(block("README.md", "import os"))

    first, again = (run("first.py", folder=tmp_path) for _ in range(2))

    message = '{"id":42,"status":"paid"}'
    assert [done.returncode for done in (first, again)] == [0, 0], first.stderr + again.stderr
    assert [done.stdout.count(message) for done in (first, again)] == [1, 2]
    assert JAVA_TRACE not in first.stderr + again.stderr


def test_postgres_notebook_runs_as_it_stands() -> None:
    if reason := databases.missing("postgresql"):
        pytest.skip(reason)
    with databases.running_postgres() as server:
        url = server.url().replace("postgresql+psycopg", "postgresql")
        first, again = (
            run(path_of("postgres_orders.py"), **{DATABASE_VARIABLE: url}) for _ in range(2)
        )

    for finished in (first, again):
        assert finished.returncode == 0, finished.stderr
        assert "the check answered: 1 committed, 2 rolled back" in finished.stdout
        assert "the late one was told" in finished.stdout
        assert "0 violations" in finished.stdout


def test_postgres_notebook_without_a_database_says_what_to_set() -> None:
    finished = run(path_of("postgres_orders.py"))

    assert finished.returncode == 1
    assert "Set ORDERS_DATABASE_URL" in finished.stderr
    assert "Traceback" not in finished.stderr
