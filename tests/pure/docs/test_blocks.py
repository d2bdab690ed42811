"""Each block of code on the pages is run by a test, or said not to be; blocks.txt lists them."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from tests.kit.pages import REPOSITORY, Block, block, blocks, options_of, pages
from txmq.ops.cli.app import app

LIST = REPOSITORY / "tests" / "pure" / "docs" / "blocks.txt"
ROWS = [
    tuple(part.strip() for part in line.split(" | "))
    for line in LIST.read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
# `make recipes` runs each block of a recipe.
PAGES = [page for page in pages() if page.parent.name != "recipes"]
BLOCKS = [found for page in PAGES for found in blocks(page)]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def row_of(found: Block) -> list[tuple[str, ...]]:
    return [row for row in ROWS if row[0] == found.page and found.first_line.startswith(row[1])]


def test_each_block_stands_in_the_list_once() -> None:
    missing = [f"{b.page} | {b.first_line} | " for b in BLOCKS if len(row_of(b)) != 1]

    assert missing == [], "add a line for each to tests/pure/docs/blocks.txt"


def test_each_line_of_the_list_is_of_one_block() -> None:
    named = [row for found in BLOCKS for row in row_of(found)]

    assert [row for row in ROWS if named.count(row) != 1] == []


@pytest.mark.parametrize("where", sorted({row[2] for row in ROWS if "::" in row[2]}))
def test_where_a_block_is_run_is_there(where: str) -> None:
    path, name = where.split("::")
    tree = ast.parse((REPOSITORY / path).read_text("utf-8"))

    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_is_not_run_says_why() -> None:
    for row in ROWS:
        kind = row[2].partition(":")[0]
        assert "::" in row[2] or kind in ("commands", "figure", "no")
        assert kind != "no" or len(row[2]) > len("no: ")


def command_lines() -> list[tuple[str, str]]:
    """Each command of txmq in a block that is not run as a whole."""
    wanted = [found for found in BLOCKS for row in row_of(found) if row[2] == "commands"]
    return [
        (found.page, line)
        for found in wanted
        for line in re.sub(r"\\\n", " ", found.text).splitlines()
        if line.startswith("txmq ")
    ]


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_each_command_on_a_page_has_the_options_that_it_is_called_with(
    page: str, line: str
) -> None:
    words = _words(line)
    command: Any = COMMANDS[words[0]]
    if hasattr(command, "commands"):
        command = command.commands[words[1]]

    assert {word for word in words if word.startswith("--")} <= options_of(command), page


def _words(line: str) -> list[str]:
    """Without the explanation that follows a wide gap, and without what follows a pipe."""
    call = re.split(r"\s{2,}(?=[a-z(])| > | \| ", line.removeprefix("txmq ").strip())[0]
    return shlex.split(call.replace("'", ""), comments=True)


def test_session_of_the_page_has_the_settings_of_the_file() -> None:
    lines = (REPOSITORY / "conf" / "spark-defaults.conf").read_text("utf-8").splitlines()
    of_file = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    of_page = dict(
        re.findall(r'config\("([^"]+)", "([^"]+)"\)', block("docs/install.md", "spark ="))
    )

    assert len(of_page) == 4
    assert of_page.items() <= of_file.items()
