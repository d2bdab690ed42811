"""A slice of the story of consumer groups; `make endurance` tells the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.groups.story import tell
from tests.endurance.harness import Options, Scale, kept_result


@pytest.mark.timeout(240)
def test_each_message_has_one_effect_in_each_group_though_members_die_and_sleep(
    tmp_path: Path,
) -> None:
    result = tell(tmp_path, Options(Scale.SLICE, seed=3))

    numbers = result.numbers
    assert numbers["faults"] == {}
    assert numbers["verify_violations"] == 0
    assert result.is_right
    assert numbers["messages"] == 2_000
    assert numbers["deeds"]["kills"] >= 3
    assert numbers["deeds"]["stops"] >= 1
    assert all(group["retries"] > 20 for group in numbers["groups"].values())
    poisoned = numbers["poisoned"]
    assert all(group["dead_letters"] >= poisoned > 0 for group in numbers["groups"].values())


def test_kept_result_of_the_whole_story_is_what_was_promised() -> None:
    kept = kept_result("groups")

    assert kept is not None
    assert kept["is_right"]
    assert kept["numbers"]["messages"] >= 50_000
    assert kept["numbers"]["deeds"]["kills"] >= 40
    assert len(kept["numbers"]["groups"]) == 4
    assert kept["numbers"]["faults"] == {}
