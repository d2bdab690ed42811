"""A slice of the mix of all kinds of messages; `make mix` runs it in full and keeps its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.endurance.mix.__main__ import RESULT
from tests.endurance.mix.mix import Plan, run


@pytest.mark.timeout(240)
def test_each_message_comes_once_whatever_its_kind_and_whoever_is_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path, Plan(3_000, seconds=10.0, kills=4, seed=7, spark="without"))

    found = outcome.to_dict()
    assert outcome.messages >= 3_000
    assert outcome.kills >= 4
    assert outcome.delivered >= 100
    assert [found[name] for name in ("lost", "doubled", "wrong", "early", "disordered")] == [[]] * 5
    assert outcome.verify_violations == 0
    assert len(outcome.kinds) == 4


@pytest.mark.skipif(not RESULT.exists(), reason="no kept result: run make mix")
def test_kept_result_of_the_whole_mix_is_what_was_promised() -> None:
    kept = json.loads(RESULT.read_text(encoding="utf-8"))

    assert kept["messages"] >= 50_000
    assert kept["kills"] >= 10
    assert kept["lateness_p99_s"] <= kept["lateness_bar_s"]
    assert kept["is_right"]
