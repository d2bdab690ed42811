"""The messages that a commit of an inbox names: offsets by the mark of their queue.

A mark says how far a queue is. Which messages before it took effect, and which were sent back, only
the commits say. They keep it as long as Delta keeps its log (30 days, if nobody sets it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from txmq.delta.actions import DAMAGES


class Place(NamedTuple):
    """Where a message was first: the mark of its queue, and its offset there."""

    mark: str
    offset: int


def names_of(places: Iterable[Place]) -> str:
    """The text that names these messages in a commit, as JSON: `{"mark": [[first, last], …]}`."""
    by_mark = groupby(sorted(set(places)), lambda place: place.mark)
    return json.dumps(
        {mark: _ranges(place.offset for place in group) for mark, group in by_mark},
        separators=(",", ":"),
    )


def names(text: str, place: Place) -> bool:
    """Whether the text of a commit names a message; false for a text that others wrote."""
    try:
        ranges = json.loads(text).get(place.mark, ())
        return any(first <= place.offset <= last for first, last in ranges)
    except DAMAGES:
        return False


def _ranges(offsets: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return ranges
