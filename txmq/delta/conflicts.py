"""Whether a commit may follow another one that its writer had not seen: one pure function."""

from __future__ import annotations

import enum
from typing import NamedTuple

from txmq.delta.actions import CommitActions, NewCommit


class Conflict(enum.Enum):
    """Why a commit may not follow a winner."""

    MARK = "another writer moved the mark {}"
    PROTOCOL = "the protocol of the table changed"
    METADATA = "the columns or properties of the table changed"
    FILE = "another writer removed {}"
    UNKNOWN = "another writer committed an action that txmq does not know: {}"


class Clash(NamedTuple):
    """A conflict, and the mark, file or action that it is about."""

    conflict: Conflict
    subject: str = ""

    @property
    def problem(self) -> str:
        """For an error text."""
        return self.conflict.value.format(self.subject)


# They say something of the files of a table: how far row ids are given out, how files lie.
_ABOUT_FILES = frozenset({"domainMetadata"})


def clash(commit: NewCommit, winner: CommitActions) -> Clash | None:
    """Why `commit` may not follow `winner`; None where both can stand, as two appends.

    It asks for more than Delta does: a winner that did something unknown is looked at anew.
    """
    if "protocol" in winner.kinds:
        return Clash(Conflict.PROTOCOL)
    if "metaData" in winner.kinds:
        return Clash(Conflict.METADATA)
    unknown = winner.kinds - _ABOUT_FILES if commit.is_without_files else winner.kinds
    if unknown:
        return Clash(Conflict.UNKNOWN, ", ".join(sorted(unknown)))
    moved = commit.marks.keys() & winner.marks.keys()
    if moved:
        return Clash(Conflict.MARK, min(moved))
    if commit.removed and winner.removed:
        removed_twice = {file.path for file in commit.removed} & winner.removed_paths
        if removed_twice:
            return Clash(Conflict.FILE, min(removed_twice))
    return None
