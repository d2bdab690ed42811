"""The plans that found a hole find it again where its mend is taken out."""

from __future__ import annotations

import pytest

from tests.endurance.generator.play import played
from tests.endurance.generator.reverts import HOLES, without
from tests.endurance.generator.series import kept_plans


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
