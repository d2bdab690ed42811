"""docs/faults.md and docs/delta_writer.md name tests; each of them must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    *("S1", "S2a", "S2b", "S2", "S2 panic", "S2 interrupt", "S2 fork", "S2 typed"),
    *("S3 database", "S3a", "S3b", "S3c", "S3d", "S3d file", "S3d storage", "S4a", "S4b"),
    *("S4 twice", "S4 unknown", "S4 late", "S4 forgotten", "S4 back"),
    *(f"P{number}" for number in range(1, 8)),
    *(f"C{number}" for number in range(1, 9)),
    *(
        "G1",
        "G2",
        "G3",
        "J1",
        "E1",
        "E2",
        "E3",
        "E4",
        "E5",
        "K1",
        "K2",
        "K3",
        "K4",
        "K5",
        "K6",
        "K7",
        "K8",
    ),
    *(f"H{number}" for number in range(1, 27)),
    *("A1", "A2", "A2 sleep", "A3", "A4", "F1", "F2", "F3", "F4", "F5", "F6"),
    *("O1", "O2", "T1", "T2", "T3", "T4", "O5", "O6", "O3", "O4", "R1"),
    *("U1", "U2", "U3", "U4"),
]


def page(name: str = "faults") -> str:
    return (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["faults", "delta_writer"])
def test_every_test_that_a_page_names_is_there(name: str) -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")
    )
    there = set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", page(name)))

    assert named
    assert named - there == set()


def test_every_row_of_the_matrix_is_on_the_page_and_names_a_test() -> None:
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|[^|]*`test_", page(), re.MULTILINE)

    assert [row for row in rows if row != "input"] == ROWS
