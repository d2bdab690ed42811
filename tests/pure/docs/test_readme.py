"""README.md and docs/install.md say what the code and the kept measurements have."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser

from tests.kit.pages import REPOSITORY
from txmq.spark.jars import RELEASES

README = (REPOSITORY / "README.md").read_text("utf-8")
INSTALL = (REPOSITORY / "docs" / "install.md").read_text("utf-8")
MEASURES = {
    "commit to visible, single messages, p50": "commit to visible, p50",
    "backlog of 1,000,000 transactions, inside the streaming query": "inside the streaming query",
    "the same, `run_once()`": "run_once()",
}


def shown(value: float) -> str:
    """A time with two digits, a rate in whole thousands."""
    return f"{value:.2g} s" if value < 1_000 else f"{round(value, -3):,.0f}/s"


def test_figures_are_those_that_are_kept() -> None:
    (date,) = re.findall(r"AMD EPYC, 23\.5 GiB, ([\d-]+)", README)
    kept = json.loads((REPOSITORY / "bench" / "results" / f"{date}.json").read_text("utf-8"))
    by_name = {outcome["measure"]: outcome for outcome in kept["outcomes"]}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| ([\d.]+) \|$", README, re.MULTILINE)

    assert {row[0] for row in rows} == set(MEASURES)
    for name, own, bare, ratio in rows:
        outcome = by_name[MEASURES[name]]
        assert (own, bare) == (shown(outcome["median"]), shown(outcome["bare_median"])), name
        assert ratio == f"{outcome['ratio']:.2f}"


def test_readme_is_short() -> None:
    assert len(README.split()) < 1_000


def test_each_extra_has_its_line() -> None:
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    table = INSTALL.partition("## Extras")[2].partition("\n## ")[0]

    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == set(settings["options.extras_require"]) - {"dev"}


def test_each_spark_and_delta_with_jars_has_its_line() -> None:
    rows = re.findall(r"^\| (4\.\d) \| ([\d.]+) \| `([^`]+)` \|", INSTALL, re.MULTILINE)

    assert sorted(rows) == sorted((each.spark, each.delta, each.coordinate) for each in RELEASES)
