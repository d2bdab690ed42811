"""A slice of the mix of all kinds of messages; `make endurance` tells the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.harness import Options, Scale, kept_result
from tests.endurance.mix.story import tell


@pytest.mark.timeout(240)
def test_each_message_comes_once_whatever_its_kind_and_whoever_is_killed(tmp_path: Path) -> None:
    result = tell(tmp_path, Options(Scale.SLICE, seed=7))

    numbers = result.numbers
    assert numbers["messages"] >= 3_000
    assert numbers["kills"] >= 4
    assert numbers["delivered"] >= 100
    faults = ("lost", "doubled", "wrong", "early", "disordered")
    assert [numbers[name] for name in faults] == [[]] * 5
    assert numbers["verify_violations"] == 0
    assert len(numbers["kinds"]) == 4
    assert result.is_right


def test_kept_result_of_the_whole_mix_is_what_was_promised() -> None:
    kept = kept_result("mix")

    assert kept is not None
    assert kept["is_right"]
    assert kept["numbers"]["messages"] >= 50_000
    assert kept["numbers"]["kills"] >= 10
    assert kept["numbers"]["lateness_p99_s"] <= kept["numbers"]["lateness_bar_s"]
