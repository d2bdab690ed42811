"""Each alert has its part in the runbook, whose commands and settings are there."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from tests.kit.pages import options_of
from txmq.ops.cli.app import app

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "runbook.md").read_text("utf-8")
DOCTOR = "What the doctor finds"
ALERTS = (ROOT / "deploy" / "prometheus" / "txmq-alerts.yaml").read_text("utf-8")


def test_each_alert_has_its_part_and_each_part_its_alert() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == re.findall(r"alert: (\w+)", ALERTS)


def test_each_part_says_what_it_means_where_to_look_and_what_to_do() -> None:
    for part in PAGE.split("\n## ")[1:]:
        if part.startswith(DOCTOR):
            continue
        assert re.findall(r"^- \*\*(\w+):\*\*", part, re.MULTILINE) == ["Means", "Look", "Act"]


def test_each_command_and_option_is_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for words in re.findall(r"(?:`|^ *)txmq ([a-z][^`#\n]*)", PAGE, re.MULTILINE):
        name, *rest = words.split()
        if words == "needs":
            # So a finding of the doctor begins.
            continue
        command = commands[name]
        if rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest[0]]
        assert {word for word in rest if word.startswith("--")} <= options_of(command), words
