"""The plans that found a hole find it again where its mend is taken out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.generator.play import played
from tests.endurance.generator.reverts import HOLES, without
from tests.endurance.generator.series import kept_plans
from tests.endurance.generator.story import row_of
from tests.endurance.harness import kept_result

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
FOUND_WITHIN_S = 1_200


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found_without_its_mend_and_not_with_it(name: str) -> None:
    hole = HOLES[name]
    plans = [plan for kept, plan in kept_plans().items() if kept.startswith(hole.plan)]
    assert plans

    for plan in plans:
        with without(name):
            kinds_without = {find.kind for find in played(plan)}
        kinds_with = {find.kind for find in played(plan)}

        assert hole.finds in kinds_without
        assert hole.finds not in kinds_with


@pytest.mark.parametrize("name", [name for name in HOLES if kept_result(f"without-{name}")])
def test_the_page_shows_the_kept_time_in_which_a_hole_was_found(name: str) -> None:
    kept = kept_result(f"without-{name}")

    assert kept is not None
    assert kept["is_right"]
    assert kept["numbers"]["seconds"] <= FOUND_WITHIN_S
    assert row_of(name, kept["numbers"]) in PAGE.read_text(encoding="utf-8").splitlines()
