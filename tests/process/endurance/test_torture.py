"""A short slice of the torture; `make torture` runs it in full and keeps its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.endurance.torture.__main__ import KEPT, SEED
from tests.endurance.torture.plan import POINTS, kills, round_of
from tests.endurance.torture.run import Torture
from txmq.fail_points import FailPoint


@pytest.mark.timeout(600)
def test_slice_of_the_torture_loses_and_doubles_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    torture = Torture(tmp_path / "torture", SEED, 1, with_spark=False, say=said.append)
    result = torture.run()

    assert result["problems"] == []
    assert result["kills"] >= 8
    assert result["transactions"] >= 300
    assert {"committed", "rolled_back", "discarded"} <= {
        name for name, count in result["counts"].items() if count
    }


def test_every_fail_point_is_in_the_plan() -> None:
    planned = {point for points in POINTS.values() for point in points}

    assert planned == set(FailPoint)


def test_plan_depends_on_the_seed_alone() -> None:
    assert kills(1, "producer") == kills(1, "producer")
    assert kills(1, "producer") != kills(2, "producer")


def test_two_brokers_run_for_a_third_of_the_rounds() -> None:
    assert [round_of(number, 30).brokers for number in range(30)].count(2) == 10


@pytest.mark.skipif(not KEPT.exists(), reason="make torture has kept no result yet")
def test_kept_result_of_the_whole_torture_is_what_was_promised() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))

    assert (kept["problems"], kept["points_not_hit"]) == ([], [])
    assert kept["transactions"] >= 20_000
    assert kept["kills"] >= 200
    assert kept["points"] >= 20
    assert min(kept["checkpoints_deleted"], kept["checkpoints_restored"]) >= 20
    assert 3 * kept["rounds_with_two_brokers"] >= kept["rounds"]
