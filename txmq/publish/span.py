"""How many commits of the op log a publisher looks at in one range."""

from __future__ import annotations

from dataclasses import dataclass

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
