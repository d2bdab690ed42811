"""A user's Delta table in which an inbox commits the effects of messages with its marks."""

from __future__ import annotations

from txmq.delta.actions import DAMAGES, EMPTY_COMMIT, CommitActions, commit_actions
from txmq.user_data.delta_marker import MarkedTable
from txmq.user_data.effect_names import Place, names


class InboxTable(MarkedTable):
    """The user's table with the marks of the inbox."""

    missing = "{} is no Delta table; pass the table that the messages change"

    def names(self, place: Place) -> bool:
        """Whether a commit since the queue came to this message names it.

        Reads: commits backwards, up to the first one at which the queue was not yet there.
        """
        mark = self.mark(place.mark) or 0
        if mark <= place.offset + 1:
            return mark == place.offset + 1
        for version in range(self.version, -1, -1):
            commit = self._commit(version)
            if commit is None or commit.marks.get(place.mark, mark) <= place.offset:
                return False
            if names(commit.note, place):
                return True
        return False

    def _commit(self, version: int) -> CommitActions | None:
        """What a commit says; nothing where another program wrote it in another shape."""
        content = self.commit_bytes(version)
        try:
            return None if content is None else commit_actions(content)
        except DAMAGES:
            return EMPTY_COMMIT
