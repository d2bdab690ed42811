"""docs/faults.md has the figures of the long stories that are kept."""

from __future__ import annotations

from tests.endurance.report import PAGE, page_with, table


def test_page_has_the_kept_results() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert table() in page
    assert page_with(table(), page) == page
