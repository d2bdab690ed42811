"""tests/long.txt names tests that are there; a misspelt line would move a test back silently."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [
    line
    for line in (TESTS / "long.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("line", LINES)
def test_line_names_a_test_that_is_there(line: str) -> None:
    path, _, name = line.partition("::")
    tree = ast.parse((TESTS.parent / path).read_text("utf-8"))

    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    assert not name or name.rpartition("::")[2] in names


def test_lines_are_sorted_and_different() -> None:
    assert sorted(set(LINES)) == LINES
