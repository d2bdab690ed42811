"""A slice of the race: never a message without its row, never a row without its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.harness import kept_result
from tests.endurance.race.race import Race, run
from tests.kit import databases

RACES, SEED = 20, 1


def wanted(kind: str) -> None:
    if kind == "postgresql" and (reason := databases.missing(kind)):
        pytest.skip(reason)


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_local_transactions_and_messages_agree_whoever_is_killed(kind: str, tmp_path: Path) -> None:
    wanted(kind)

    outcome = run(Race(kind, RACES, SEED, kills=3), tmp_path)

    assert outcome.is_right, outcome.to_dict()
    assert outcome.prepared >= RACES
    assert sum(outcome.kills.values()) == 3


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_without_the_fence_the_hole_is_seen(kind: str, tmp_path: Path) -> None:
    wanted(kind)

    outcome = run(Race(kind, RACES, SEED, fenced=False), tmp_path)

    assert outcome.rows_without_message
    assert outcome.messages_without_row == []


def test_kept_race_was_long_enough_and_right() -> None:
    kept = kept_result("race")

    assert kept is not None
    assert kept["is_right"]
    outcomes = kept["numbers"]["outcomes"]
    assert {each["race"]["kind"] for each in outcomes} == {"delta", "postgresql"}
    for each in outcomes:
        if each["race"]["fenced"]:
            assert each["is_right"]
            assert each["prepared"] >= 500
            assert set(each["kills"]) == {"producer", "checker"}
            assert any("ROLLED_BACK by recheck" in key for key in each["ended_by"])
            assert any("COMMITTED by recheck" in key for key in each["ended_by"])
        else:
            assert each["rows_without_message"], "without the fence the hole must be seen"
