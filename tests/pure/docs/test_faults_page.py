"""docs/faults.md names tests; each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    *("S1", "S2a", "S2b", "S2", "S2 panic", "S2 fork", "S2 typed"),
    *("S3 database", "S3a", "S3b", "S3c", "S4a", "S4b"),
    *("S4 twice", "S4 unknown", "S4 late", "S4 forgotten"),
    *(f"P{number}" for number in range(1, 8)),
    *(f"C{number}" for number in range(1, 9)),
    *("G1", "J1", "E1", "E2", "E3", "E4", "K1", "K2", "K3", "K4"),
    *(f"H{number}" for number in range(1, 23)),
    *("O1", "O2", "T1", "T2", "T3", "T4", "O5", "O3", "O4", "R1"),
]


def page() -> str:
    return (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_is_there() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")
    )
    there = set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", page()))

    assert named
    assert named - there == set()


def test_every_row_of_the_matrix_is_on_the_page_and_names_a_test() -> None:
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|[^|]*`test_", page(), re.MULTILINE)

    assert [row for row in rows if row != "input"] == ROWS
