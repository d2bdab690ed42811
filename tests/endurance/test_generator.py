"""A slice of the generator of faults; `make endurance` draws for twenty minutes."""

from __future__ import annotations

import pytest

from tests.endurance.generator.draw import FAULTS, drawn_plan
from tests.endurance.generator.plan import Plan, drawn_seed
from tests.endurance.generator.play import played
from tests.endurance.generator.series import kept_plans
from tests.kit.fault_vocabulary import OF_PROCESSES, Fault

SEED, RUNS = 17, 6


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(4))
def test_slice_of_the_generator_finds_nothing(part: int) -> None:
    numbers = range(part * RUNS, (part + 1) * RUNS)
    plans = [drawn_plan(drawn_seed(SEED, number)) for number in numbers]

    finds = {plan.seed: [str(find) for find in played(plan)] for plan in plans}

    assert {seed: found for seed, found in finds.items() if found} == {}


@pytest.mark.parametrize("name", kept_plans())
def test_what_was_found_once_is_not_found_again(name: str) -> None:
    assert [str(find) for find in played(kept_plans()[name])] == []


def test_a_plan_is_a_function_of_its_seed_and_a_file_gives_it_back() -> None:
    plan = drawn_plan(5)

    assert drawn_plan(5) == plan
    assert drawn_plan(6) != plan
    assert Plan.from_json(plan.to_json()) == plan


def test_every_fault_of_the_vocabulary_is_drawn() -> None:
    drawn = {fault for number in range(200) for fault in drawn_plan(number).faults}

    assert drawn == set(FAULTS)
    assert set(Fault) == {*FAULTS, *OF_PROCESSES}
