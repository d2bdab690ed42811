"""The long stories: `python -m tests.endurance [torture] [race] [mix] [groups] [generator]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.endurance.generator.reverts import HOLES
from tests.endurance.generator.story import GENERATOR, story_without
from tests.endurance.groups.story import GROUPS
from tests.endurance.harness import Options, Result, Scale, Story, keep
from tests.endurance.mix.story import MIX
from tests.endurance.race.story import RACE
from tests.endurance.torture.story import REMOTE_TORTURE, TORTURE
from tests.endurance.writers.story import WRITERS

_STORIES = (TORTURE, RACE, MIX, GROUPS, WRITERS, GENERATOR, REMOTE_TORTURE)
STORIES = {story.name: story for story in _STORIES}
# It needs a server that is built by `make places`.
ALL = [name for name in STORIES if name != REMOTE_TORTURE.name]


def main() -> int:
    """Tell the stories one after the other; 1 where one of them found a fault."""
    given = _arguments()
    begin_s = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - begin_s:6.0f} s  {text}\n")
        sys.stdout.flush()

    options = Options(Scale(given.scale), given.seed, not given.without_spark, given.seconds, say)
    results = [_told(story, options, given) for story in _stories(given)]
    return int(not all(result.is_right for result in results))


def _stories(given: argparse.Namespace) -> list[Story]:
    if given.without:
        return [
            story_without(name) for name in (HOLES if "all" in given.without else given.without)
        ]
    return [STORIES[name] for name in (ALL if "all" in given.stories else given.stories)]


def _told(story: Story, options: Options, given: argparse.Namespace) -> Result:
    options.say(f"{story.name}: {story.sentence}")
    with tempfile.TemporaryDirectory(prefix=f"txmq-{story.name}-") as temporary:
        result = story.tell(given.folder / story.name if given.folder else Path(temporary), options)
    options.say(json.dumps(result.numbers, indent=1))
    options.say(f"{story.name}: {'right' if result.is_right else 'WRONG'}")
    if given.keep and options.scale is Scale.FULL:
        keep(story.name, options, result)
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("stories", nargs="*", default="all", choices=[*STORIES, "all"])
    parser.add_argument("--scale", choices=list(Scale), default=Scale.FULL)
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same kills")
    parser.add_argument("--seconds", type=float, help="how long the generator draws")
    parser.add_argument("--without", nargs="+", default=[], choices=[*HOLES, "all"],
                        help="the generator alone, with the mend of a hole taken out")  # fmt: skip
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--folder", type=Path, help="where everything stays, to be looked at")
    parser.add_argument("--keep", action="store_true", help="keep full results in the repository")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
