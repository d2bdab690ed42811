"""A slice of the torture; `make endurance` tells the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.harness import Options, Scale, kept_result
from tests.endurance.torture.plan import POINTS, kills, round_of
from tests.endurance.torture.story import tell
from tests.endurance.torture.strikes import ROLES, STRIKING, Strike, strikes_of
from txmq.ground.fail_points import FailPoint

SEED = 20261121


@pytest.mark.timeout(600)
def test_slice_of_the_torture_loses_and_doubles_nothing(tmp_path: Path) -> None:
    result = tell(tmp_path / "torture", Options(Scale.SLICE, SEED))

    numbers = result.numbers
    assert numbers["problems"] == []
    assert result.is_right
    assert numbers["kills"] >= 8
    assert numbers["struck"]
    assert numbers["transactions"] >= 300
    assert {"committed", "rolled_back", "discarded"} <= {
        name for name, count in numbers["counts"].items() if count
    }


def test_every_fail_point_is_in_the_plan() -> None:
    planned = {point for points in POINTS.values() for point in points}
    # Their processes die beside a Spark that lives: tests/places/test_fences_over_connect.py.
    fences_of_spark = {FailPoint.FENCE_COMMITTED, FailPoint.FENCE_RAISED}

    assert planned | fences_of_spark == set(FailPoint)


def test_each_round_draws_two_or_three_faults_of_the_vocabulary() -> None:
    rounds = [strikes_of(1, number, [*ROLES]) for number in range(42)]
    drawn = [[strike for of_actor in this.values() for strike in of_actor] for this in rounds]

    assert {len(strikes) for strikes in drawn} == {2, 3}
    assert {strike.fault for strikes in drawn for strike in strikes} == {*STRIKING}
    assert all(Strike.of(str(strike)) == strike for strikes in drawn for strike in strikes)


def test_plan_depends_on_the_seed_alone() -> None:
    assert strikes_of(1, 3, [*ROLES]) == strikes_of(1, 3, [*ROLES])
    assert kills(1, "producer") == kills(1, "producer")
    assert kills(1, "producer") != kills(2, "producer")


def test_two_brokers_run_for_a_third_of_the_rounds() -> None:
    assert [round_of(number, 30).brokers for number in range(30)].count(2) == 10


def test_kept_result_of_the_whole_torture_is_what_was_promised() -> None:
    kept = kept_result("torture")

    assert kept is not None
    assert kept["is_right"]
    numbers = kept["numbers"]
    assert (numbers["problems"], numbers["points_not_hit"]) == ([], [])
    assert numbers["transactions"] >= 20_000
    assert numbers["kills"] >= 200
    assert numbers["points"] >= 20
    assert min(numbers["checkpoints_deleted"], numbers["checkpoints_restored"]) >= 20
    assert 3 * numbers["rounds_with_two_brokers"] >= numbers["rounds"]
