"""Pages that name tests name those that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["rocketmq_tests.md", "messages.md", "comparison.md", "why.md"])
def test_every_test_that_the_page_names_is_there(page: str) -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")
    )
    there = set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / page).read_text("utf-8")))

    assert named
    assert named - there == set()
