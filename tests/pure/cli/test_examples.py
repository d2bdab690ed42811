"""Help and docs/commands.md have examples of each command, and their options are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.kit.pages import REPOSITORY, options_of
from txmq.ops.cli.app import app
from txmq.ops.cli.examples import EXAMPLES

PAGE = (REPOSITORY / "docs" / "commands.md").read_text("utf-8")


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_ends_with_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"})

    assert f"txmq {name}" in shown.stdout.partition("Example")[2]


def test_examples_are_of_commands_that_are_there() -> None:
    assert set(EXAMPLES) - set(COMMANDS) == set()


@pytest.mark.parametrize(("name", "line"), [(n, line) for n in EXAMPLES for line in EXAMPLES[n]])
def test_each_example_can_be_parsed(name: str, line: str) -> None:
    words = shlex.split(line)[1 + len(name.split()) :]

    COMMANDS[name].make_context(name, words, resilient_parsing=False).close()


def test_page_of_commands_names_each_command_or_its_group() -> None:
    named = set(re.findall(r"^txmq +([\w-]+)", PAGE, re.MULTILINE))

    assert named | {"demo"} == {name.split()[0] for name in COMMANDS}


def test_each_line_of_the_page_names_options_that_are_there() -> None:
    for line in re.findall(r"^(txmq .*)$", PAGE, re.MULTILINE):
        words = shlex.split(line, comments=True)[1:]
        name = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
        assert {word for word in words if word.startswith("--")} <= options_of(COMMANDS[name]), line
