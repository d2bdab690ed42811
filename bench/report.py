"""`python -m bench.report`: docs/benchmarks.md, each part from the newest result that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.table import shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
TARGET = ROOT / "docs" / "benchmarks.md"
_FACTS = ("cores", "memory_gib", "processor", "system", "python", "java", "pyspark",
          "delta-spark", "deltalake", "pyarrow")  # fmt: skip
_COUNTS = ("statements", "commits", "commits_per_1000_messages")
_MARKS = {True: "pass", False: "FAIL", None: ""}
_INTRODUCTION = """\
# Benchmarks

Written by `python -m bench.report` from `bench/results`; measured by `make bench`, on the machine
that each section names. Figures of two sections are not to be compared.

Bodies are 1 KiB of random bytes. All sides are warmed up and measured in turn, in reversed order
every second round; each figure is the median of its samples. The bare stream is Delta to Delta by
Spark alone with trigger 0, in the same run and session; beside callers it is a raw loop of Parquet
and put-if-absent. "Visible" means that a reader of the table's newest version sees the message.
"""
_HEAD = (
    "| measure | txmq | bare stream | unit | ratio | bar | | commit |\n"
    "|---|--:|--:|---|--:|---|---|---|"
)


def main() -> None:
    """Write the page."""
    paths = sorted(RESULTS.glob("*.json"), reverse=True)
    results = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(results), encoding="utf-8")
    print(f"wrote docs/{TARGET.name}")


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page as Markdown, from the result files by name, the newest first."""
    sections, shown_parts = [_INTRODUCTION], set[str]()
    for name, result in results.items():
        outcomes = [one for one in result["outcomes"] if one["part"] not in shown_parts]
        shown_parts |= {one["part"] for one in outcomes}
        if outcomes:
            sections.append(_section(name, result, outcomes))
    return "\n".join(sections)


def _section(name: str, result: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]]) -> str:
    facts = "\n".join(f"- {key.replace('_', ' ')}: {result[key]}" for key in ("date", *_FACTS))
    lines = "\n".join(_line(outcome) for outcome in outcomes)
    return f"## {name.removesuffix('.json')}\n\n{_HEAD}\n{lines}\n\n{facts}\n"


def _line(outcome: Mapping[str, Any]) -> str:
    counted = [f"{outcome['facts'][name]:,} {name}" for name in _COUNTS if name in outcome["facts"]]
    cells = [
        ", ".join([f"{outcome['part']}: {outcome['measure']}", *counted]),
        shown(outcome["median"]),
        "" if outcome["bare_median"] is None else shown(outcome["bare_median"]),
        outcome["unit"],
        "" if outcome["ratio"] is None else f"{outcome['ratio']:.2f}",
        outcome["bar"] or "",
        _MARKS[outcome["passed"]],
        outcome["git_commit"],
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
