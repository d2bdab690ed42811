"""The links of README.md and docs/ lead to a page, and those into the glossary to a word of it."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
GLOSSARY = REPOSITORY / "docs" / "glossary.md"


def test_every_link_of_the_documents_leads_to_a_file() -> None:
    missing = [
        f"{path.name}: {link}"
        for path in PAGES
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
        if not (path.parent / link).exists()
    ]

    assert missing == []


def test_every_link_into_the_glossary_leads_to_a_word() -> None:
    headings = re.findall(r"^### (.+)$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    words = {heading.lower().replace(" ", "-") for heading in headings}
    linked = {
        word
        for path in PAGES
        for word in re.findall(r"glossary\.md#([\w-]+)", path.read_text("utf-8"))
    }

    assert linked
    assert linked - words == set()


def test_every_module_that_a_page_names_is_there() -> None:
    named = {
        path
        for page in PAGES
        for path in re.findall(r"`(txmq/[\w/]+(?:\.py)?/?)`", page.read_text("utf-8"))
    }

    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
