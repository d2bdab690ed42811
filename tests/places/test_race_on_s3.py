"""Spark writes a user's table in a bucket, with features that delta-rs does not write."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.race.race import Race, run

RACES, KILLS, SEED = 12, 2, 1


def test_local_transactions_by_spark_and_messages_agree_whoever_is_killed(tmp_path: Path) -> None:
    outcome = run(Race("spark", RACES, SEED, kills=KILLS), tmp_path)

    assert outcome.is_right, outcome.to_dict()
    assert outcome.prepared >= RACES
    assert sum(outcome.kills.values()) == KILLS
