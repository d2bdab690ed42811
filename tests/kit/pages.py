"""The blocks of code on the pages, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r'^( *)```(\w*)(?: title="[^"]*")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block: its page, its language, its text."""

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """What a test and the list of blocks call it by."""
        return self.text.splitlines()[0].strip()


def pages() -> list[Path]:
    """README and all pages of docs/, but not the decisions: those are history."""
    found = (REPOSITORY / "docs").rglob("*.md")
    kept = [path for path in found if "decisions" not in path.parts]
    return [REPOSITORY / "README.md", *sorted(kept)]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in their order, without what they are indented by."""
    name = page.relative_to(REPOSITORY).as_posix()
    return [
        Block(name, language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in _BLOCK.findall(page.read_text("utf-8"))
    ]


def options_of(command: Any) -> set[str]:
    """The options that a command of the command line takes."""
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def block(page: str, begins_with: str) -> str:
    """The only block of a page that begins so."""
    (one,) = [
        found.text for found in blocks(REPOSITORY / page) if found.text.startswith(begins_with)
    ]
    return one
