"""Writes kept results of the stories into docs/faults.md: `python -m tests.endurance.report`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.endurance.harness import kept_result

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- stories: begin -->\n", "<!-- stories: end -->"
_HEAD = (
    "| story | what it went through | lost, doubled or wrong | when, and on what |\n"
    "|---|---|---|---|\n"
)


def _torture(numbers: Mapping[str, Any]) -> str:
    return (
        f"{numbers['transactions']:,} transactions in {numbers['rounds']} rounds, "
        f"{numbers['kills']:,} kills at {numbers['points']} places"
    )


def _race(numbers: Mapping[str, Any]) -> str:
    fenced = [one for one in numbers["outcomes"] if one["race"]["fenced"]]
    kinds = " and ".join(one["race"]["kind"] for one in fenced)
    prepared = sum(one["prepared"] for one in fenced)
    kills = sum(sum(one["kills"].values()) for one in fenced)
    return f"{prepared:,} local transactions against their checks, on {kinds}; {kills} kills"


def _mix(numbers: Mapping[str, Any]) -> str:
    return f"{numbers['messages']:,} messages of every kind, {numbers['kills']} kills of brokers"


def _groups(numbers: Mapping[str, Any]) -> str:
    deeds = ", ".join(f"{count} {deed}" for deed, count in numbers["deeds"].items())
    count = len(numbers["groups"])
    return f"{numbers['messages']:,} messages to {count} groups; their members: {deeds}"


def _writers(numbers: Mapping[str, Any]) -> str:
    looks = sum(numbers["looks"].values())
    return (
        f"{numbers['acknowledged']:,} sends of 20 processes beside two brokers, "
        f"{numbers['kills']} kills; {looks:,} reads by delta-rs and Spark meanwhile"
    )


def _object_store(numbers: Mapping[str, Any]) -> str:
    requests = numbers["requests"]
    return (
        f"{_torture(numbers)}; on an S3 server that throttled {requests['throttled']:,} of "
        f"{sum(requests.values()):,} requests and lost {requests['lost']:,} answers"
    )


_WHAT: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "torture": _torture,
    "race": _race,
    "mix": _mix,
    "groups": _groups,
    "writers": _writers,
    "object-store": _object_store,
}


def table() -> str:
    """The rows of all stories that have a kept result."""
    kept = {name: kept_result(name) for name in _WHAT}
    return _HEAD + "".join(_row(name, told) for name, told in kept.items() if told is not None)


def _row(name: str, told: Mapping[str, Any]) -> str:
    outcome = "nothing" if told["is_right"] else "see the result"
    machine = f"{told['cores']} cores of an {told['processor']}, {told['memory_gib']:.0f} GiB"
    when = f"{told['date'][:10]}, {machine}, commit {told['git_commit']}"
    return f"| {name} | {_WHAT[name](told['numbers'])} | {outcome} | {when} |\n"


def page_with(rows: str, page: str) -> str:
    """The page with the rows between its marks."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: BEGIN + rows + END, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page_with(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
