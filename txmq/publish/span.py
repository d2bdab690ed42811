"""How many commits of the op log a publisher looks at in one range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from txmq.columns import Integers

FIRST_SPAN_VERSIONS = 64
MAX_SPAN_VERSIONS = 4096


@dataclass(slots=True)
class Span:
    """The number of commits of the next range; it follows how many make a full one."""

    versions: int = FIRST_SPAN_VERSIONS

    def adapt(self, versions: int, *, is_full: bool) -> None:
        """After a range of so many commits, which was full or not."""
        if is_full:
            self.versions = versions
        elif versions >= self.versions:
            self.versions = min(self.versions * 2, MAX_SPAN_VERSIONS)


def step_ends(versions: Integers, through: int, rows: int) -> list[int]:
    """Op versions up to `through`, with about so many of the facts between two."""
    ends = np.unique(np.sort(versions)[rows - 1 :: rows])
    return [*ends[ends < through].tolist(), through]
