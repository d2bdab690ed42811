"""tests/kit/README.md has a line for each module, and names none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

KIT = Path(__file__).parents[2] / "kit"


def test_each_module_has_a_line() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (KIT / "README.md").read_text("utf-8"), re.MULTILINE)

    assert sorted(named) == sorted(path.stem for path in KIT.glob("*.py") if path.stem[0] != "_")
