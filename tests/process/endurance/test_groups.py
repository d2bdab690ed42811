"""A slice of the story of consumer groups; `make groups` runs it in full and keeps its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.endurance.groups.__main__ import RESULT
from tests.endurance.groups.run import Plan, run


@pytest.mark.timeout(240)
def test_each_message_has_one_effect_in_each_group_though_members_die_and_sleep(
    tmp_path: Path,
) -> None:
    outcome = run(tmp_path, Plan(2_000, seconds=8.0, kills=4, seed=3, groups=2, with_spark=False))

    assert outcome.faults.found == {}
    assert outcome.verify_violations == 0
    assert outcome.messages == 2_000
    assert outcome.deeds["kills"] >= 3
    assert outcome.deeds["stops"] >= 1
    assert all(own.retries > 20 for own in outcome.groups.values())
    assert all(own.dead_letters >= outcome.poisoned > 0 for own in outcome.groups.values())


@pytest.mark.skipif(not RESULT.exists(), reason="no kept result: run make groups")
def test_kept_result_of_the_whole_story_is_what_was_promised() -> None:
    kept = json.loads(RESULT.read_text(encoding="utf-8"))

    assert kept["messages"] >= 50_000
    assert kept["deeds"]["kills"] >= 40
    assert len(kept["groups"]) == 4
    assert kept["faults"] == {}
    assert kept["is_right"]
