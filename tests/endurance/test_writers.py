"""A slice of the writers: nothing is lost, doubled or unreadable, whoever is killed."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.harness import Options, Scale
from tests.endurance.writers.story import tell


def test_slice_of_the_writers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    result = tell(tmp_path / "story", Options(Scale.SLICE, with_spark=False))

    assert result.is_right, result.numbers
