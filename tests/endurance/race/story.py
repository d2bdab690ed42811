"""The race as a story: in full with the fence and kills, and a part without it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.race.race import Outcome, Race, run
from tests.kit import databases

RACES = {Scale.FULL: 500, Scale.SLICE: 20}
KILLS = {Scale.FULL: 40, Scale.SLICE: 3}
RACES_WITHOUT_FENCE = {Scale.FULL: 50, Scale.SLICE: 20}
KINDS = ("delta", "postgresql")


def tell(folder: Path, options: Options) -> Result:
    """Each kind of local transaction with its fence, and without it, to see that the race looks."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [_outcome(race, folder, options) for race in races(options)]
    is_right = all(is_as_expected(outcome) for outcome in outcomes)
    return Result(is_right, {"outcomes": [outcome.to_dict() for outcome in outcomes]})


def races(options: Options) -> list[Race]:
    """Two for each kind of local transaction that can run here."""
    scale = options.scale
    return [
        Race(kind, count, options.seed, fenced=fenced, kills=kills)
        for kind in _kinds(options)
        for count, kills, fenced in (
            (RACES[scale], KILLS[scale], True),
            (RACES_WITHOUT_FENCE[scale], 0, False),
        )
    ]


def is_as_expected(outcome: Outcome) -> bool:
    """Right with the fence; without it the hole must be seen."""
    return outcome.is_right if outcome.race.fenced else bool(outcome.rows_without_message)


def _kinds(options: Options) -> list[str]:
    reason = databases.missing("postgresql")
    if not reason:
        return list(KINDS)
    options.say(f"race: without PostgreSQL ({reason})")
    return ["delta"]


def _outcome(race: Race, folder: Path, options: Options) -> Outcome:
    outcome = run(race, Path(tempfile.mkdtemp(dir=folder)))
    options.say(f"{race.kind}, {'with' if race.fenced else 'without'} fence: {outcome.is_right=}")
    return outcome


RACE = Story("race", "local transactions against their checks, with kills on both sides", tell)
