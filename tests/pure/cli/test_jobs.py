"""`txmq jobs`: the scripts and settings files of the package."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.kit.pages import REPOSITORY
from txmq.ops.cli.app import app

NAMES = {
    path.name.removesuffix(".py"): path
    for path in (*(REPOSITORY / "jobs").glob("*.py"), *(REPOSITORY / "conf").iterdir())
}


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["jobs", *words])
    return done.exit_code, done.output


def test_each_job_and_each_settings_file_is_listed_with_what_it_is_for() -> None:
    code, text = run("list", "--json")
    described = json.loads(text)

    assert code == 0
    assert set(described) == set(NAMES)
    assert all(described.values())


def test_path_leads_to_the_file() -> None:
    assert run("path", "broker") == (0, f"{NAMES['broker']}\n")
    assert run("path", "broker.py") == (0, f"{NAMES['broker']}\n")
    assert run("path", "spark-defaults.conf") == (0, f"{NAMES['spark-defaults.conf']}\n")


def test_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    code, text = run("path", "borker")

    assert code == 2
    assert "borker" in text
    assert "broker" in text.replace("borker", "")


def test_copies_are_whole_and_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "txmq.yaml"
    own.parent.mkdir()
    own.write_text("half_queues: 2\n")

    assert run("copy", str(tmp_path))[0] == 0

    assert own.read_text() == "half_queues: 2\n"
    copied = {path.name.removesuffix(".py"): path for path in tmp_path.rglob("*.*")}
    assert set(copied) == set(NAMES)
    assert copied["broker"].read_bytes() == NAMES["broker"].read_bytes()
