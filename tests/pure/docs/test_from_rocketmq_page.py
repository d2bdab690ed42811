"""docs/from_rocketmq.md names calls, settings and commands of txmq that are there."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from typer.main import get_command

import txmq
from tests.kit.pages import REPOSITORY
from txmq.ops.cli.app import app

PAGE = (REPOSITORY / "docs" / "from_rocketmq.md").read_text("utf-8")
CALL = re.compile(r"`([A-Z]\w+(?:\.\w+)?)[`(]")


def cells(part: str) -> list[list[str]]:
    section = PAGE.partition(f"## {part}")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if "|" in line]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("part", ["Producers", "Messages", "Consumers", "Errors"])
def test_each_call_is_there(part: str) -> None:
    column = 0 if part == "Errors" else 1
    named = {
        name
        for row in cells(part)
        for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?)[`(]", row[column])
    }

    assert named
    for name in named:
        first, _, attribute = name.partition(".")
        if first.startswith(("RETRY_", "DLQ_")):
            continue
        assert first in txmq.__all__, name
        assert not attribute or hasattr(getattr(txmq, first), attribute), name


def test_each_argument_is_there() -> None:
    calls = (
        txmq.TransactionProducer, txmq.TransactionProducer.send, txmq.Message, txmq.PullConsumer,
    )  # fmt: skip
    known = {name for call in calls for name in inspect.signature(call).parameters}

    assert set(re.findall(r"`(\w+)=`", PAGE)) <= known


def test_each_setting_is_there_with_its_default() -> None:
    fields = {field.name for field in dataclasses.fields(txmq.Config)}
    named = {name for row in cells("Settings") for name in re.findall(r"`([a-z]\w+)`", row[2])}

    assert named
    assert named <= fields


def test_each_command_is_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for words in re.findall(r"`txmq ([a-z -]+)`", PAGE):
        first, *rest = words.split()
        assert first in commands
        assert not rest or rest[0] in commands[first].commands
