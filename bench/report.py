"""`python -m bench.report`: docs/benchmarks.md from the newest result file."""

from __future__ import annotations

import json
from collections.abc import Mapping
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

Written by `python -m bench.report` from `bench/results/{name}`; measured by `make bench`.

Bodies are 1 KiB of random bytes. All sides are warmed up and measured in turn, in reversed order
every second round; each figure is the median of its samples. The bare stream is Delta to Delta by
Spark alone with trigger 0, in the same run and session. "Visible" means that a reader of the
table's newest version sees the message.
"""


def main() -> None:
    """Write the page."""
    newest = max(RESULTS.glob("*.json"))
    result = json.loads(newest.read_text(encoding="utf-8"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(newest.name, result), encoding="utf-8")
    print(f"wrote docs/{TARGET.name}")


def page(name: str, result: Mapping[str, Any]) -> str:
    """The whole page as Markdown."""
    facts = "\n".join(f"- {key.replace('_', ' ')}: {result[key]}" for key in ("date", *_FACTS))
    head = (
        "| measure | txmq | bare stream | unit | ratio | bar | | commit |\n"
        "|---|--:|--:|---|--:|---|---|---|"
    )
    lines = "\n".join(_line(outcome) for outcome in result["outcomes"])
    return f"{_INTRODUCTION.format(name=name)}\n{head}\n{lines}\n\n{facts}\n"


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
