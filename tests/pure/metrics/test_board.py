"""The board and the alerts name figures that there are, and the board can be drawn."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BOARD = DEPLOY / "grafana" / "txmq-board.json"
ALERTS = DEPLOY / "prometheus" / "txmq-alerts.yaml"
PARTS = ("_bucket", "_sum", "_count")


def known() -> set[str]:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    return set(re.findall(r"^\| `(txmq_\w+)`", page, re.MULTILINE))


def panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(BOARD.read_text("utf-8"))["panels"]
    return made


@pytest.mark.parametrize("path", [BOARD, ALERTS], ids=lambda path: path.name)
def test_each_figure_is_a_known_one(path: Path) -> None:
    named = set(re.findall(r"\btxmq_[a-z_]+", path.read_text("utf-8")))
    histograms = {name + part for name in known() for part in PARTS}

    assert named
    assert named <= known() | histograms


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for one, other in combinations([panel["gridPos"] for panel in panels()], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())


def test_each_panel_says_what_it_shows_and_takes_the_chosen_store() -> None:
    for panel in panels():
        assert panel["title"]
        for target in panel.get("targets", []):
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert 'job=~"$job"' in target["expr"]
            assert target["datasource"]["uid"] == "${source}"
