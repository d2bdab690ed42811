"""Computes again what lost a race: the loop for commits that were computed from the table itself.

The rule for their base stands here too: a commit goes on top of the version that was read. Plain
appends need no loop, for `commit_writer` puts them behind what others appended. Work that may
follow appends of others, as a rebuild, compares `TableWriter.base` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from txmq.delta.failures import pause
from txmq.errors import CommitConflictError, CommitRefusedError

COMMIT_ATTEMPTS = 20
# A writer that lost waits no longer than for this attempt: the winner is done long before.
LONGEST_WAIT_ATTEMPT = 3
Result = TypeVar("Result")


class Pinned(Protocol):
    """A table that is pinned to a version, as `Table` and `PinnedTable` are."""

    @property
    def name(self) -> str:
        """What errors call the table."""

    def refresh(self) -> object:
        """Pin the newest version."""


def until_committed(
    table: Pinned, compute: Callable[[], Result], attempts: int = COMMIT_ATTEMPTS
) -> Result:
    """Compute from the newest version and commit; do both again after a lost race.

    The promise: the base of a compare-and-swap is what the work was computed from, nowhere a
    refreshed one. So the table is refreshed here, before each attempt, and nowhere after it:
    `compute` reads the pinned version, commits on top of it, and never refreshes the table in
    between. A commit on top of a version that nobody has read would undo what others did.

    Args:
        table: the table that is committed to.
        compute: reads, decides and makes one commit at most; what it returns is returned. It is
            called again from the beginning, so what it does beside the commit must bear that.
        attempts: so many lost races end the call.

    Raises: CommitConflictError after the last lost race, nothing was written; StorageError where
        the table cannot be read; what `compute` raises, but for CommitRefusedError.
    """
    for attempt in range(attempts):
        table.refresh()
        try:
            return compute()
        except CommitRefusedError as error:
            refusal = error
            pause(min(attempt, LONGEST_WAIT_ATTEMPT))
    problem = f"other writers were faster {attempts} times; try again"
    raise CommitConflictError(table.name, problem) from refusal
