"""The page of the model names every search of the models, with what it breaks."""

from __future__ import annotations

import pytest

from tests.kit.model import HOLDS, MODELS, Search, searches

PAGE = (MODELS / "README.md").read_text("utf-8")


def test_the_page_links_every_model() -> None:
    missing = [path.name for path in MODELS.glob("*.pml") if f"({path.name})" not in PAGE]

    assert missing == []


@pytest.mark.parametrize("search", searches(), ids=lambda search: search.name)
def test_the_page_names_every_switch_and_what_it_breaks(search: Search) -> None:
    *_, switch = search.switches
    word = switch.removeprefix("WITHOUT_").removeprefix("TRIED_")
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and word in line]

    assert rows
    assert search.outcome == HOLDS or any(search.outcome in row for row in rows)
