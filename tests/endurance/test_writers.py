"""A slice of the writers: nothing is lost, doubled or unreadable, whoever is killed."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.harness import Options, Scale, kept_result
from tests.endurance.writers.story import tell


def test_slice_of_the_writers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    result = tell(tmp_path / "story", Options(Scale.SLICE, with_spark=False))

    assert result.is_right, result.numbers


def test_kept_story_of_the_writers_was_long_enough_and_right() -> None:
    kept = kept_result("writers")

    assert kept is not None
    assert kept["is_right"]
    assert kept["scale"] == "full"
    assert kept["numbers"]["kills"] >= 100
    assert kept["numbers"]["looks"].keys() == {"half", "topics/numbers"}
