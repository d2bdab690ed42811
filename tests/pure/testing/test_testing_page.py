"""docs/testing.md lists each fixture, and the names of txmq.testing are those that it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import txmq.testing
from txmq.testing import fixtures

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "testing.md"


def test_each_fixture_is_in_the_table() -> None:
    source = Path(fixtures.__file__).read_text("utf-8")
    made = set(re.findall(r"@pytest\.fixture\ndef (\w+)", source))
    table = [
        line.split("|")[1] for line in PAGE.read_text("utf-8").splitlines() if line[:3] == "| `"
    ]
    listed = {name for cell in table for name in re.findall(r"`(\w+)", cell)}

    assert made
    assert made == listed
    assert all(name.startswith("txmq_") for name in made)


def test_every_name_can_be_had_and_no_other() -> None:
    assert all(getattr(txmq.testing, name) is not None for name in txmq.testing.__all__)
    assert set(txmq.testing._MODULES) == set(txmq.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'ManuelClock'"):
        _ = txmq.testing.ManuelClock


def test_entry_point_has_the_name_of_its_module() -> None:
    settings = (REPOSITORY / "setup.cfg").read_text("utf-8")

    assert f"pytest11 =\n    {fixtures.__name__} = {fixtures.__name__}\n" in settings
