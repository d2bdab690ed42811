"""Claims of others that a producer sees pass by in the op log, commit by commit.

A producer that ends its own transactions must know whether somebody else claimed another end
before. Most commits are of producers that end what they began themselves, and say so in a note;
they are passed over. The others are read. So no end needs a look at the whole log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from txmq.delta.commit_writer import Passed
from txmq.delta.table import Table
from txmq.message.lifecycle import ClaimKind

# The note of a commit whose claims all end transactions that its writer began.
OWN_ENDS = "own-ends"
CLAIMED_MAX = 100_000
_COLUMNS = ("transaction_id", "kind")


class PassingClaims:
    """The claims of others since a version of the op log. One thread changes it, others read.

    Attributes:
        followed: the version up to which all commits are known; None before the first own commit.
            A transaction that begins now can only be claimed in later ones.
    """

    def __init__(self, table: Table) -> None:
        """Follow the commits that are made through `table`."""
        self._table = table
        self._claimed: set[str] = set()
        # Of transactions that began before this version claims may have been missed.
        self._since = -1
        self.followed: int | None = None
        table.writer.watch = self._passed

    def claimed(self, ends: Iterable[tuple[str, ClaimKind]], since: int | None) -> list[str]:
        """Those of which others may have claimed an end, if they began at `since`.

        All of them where commits after `since` were not seen, and for None.
        """
        if since is None or since < self._since:
            return [transaction_id for transaction_id, _ in ends]
        if not self._claimed:
            return []
        return [transaction_id for transaction_id, _ in ends if transaction_id in self._claimed]

    def note(self, transaction_ids: Sequence[str]) -> None:
        """Count own claims among those of others: another end may be asked for later."""
        self._claimed.update(transaction_ids)

    def _passed(self, since: int | None, passed: Sequence[Passed] | None, version: int) -> None:
        if since is None or since != self.followed:
            self._begin(since or 0)
        elif len(self._claimed) > CLAIMED_MAX:
            self._claimed, self._since = set(), since
        if passed is None:
            self._begin(version)
        try:
            for commit in passed or ():
                if commit.actions.note != OWN_ENDS:
                    self._claimed.update(self._claims_of(commit))
        except Exception:  # noqa: BLE001 - the own commit stands, whatever the others are
            # What could not be read may be about anything.
            self._begin(version)
        self.followed = version

    def _begin(self, since: int) -> None:
        """Forget all claims; of what began so far nothing is known.

        A log that was restored may have fewer versions than those that transactions began at.
        """
        next_version = 0 if self.followed is None else self.followed + 1
        self._claimed, self._since = set(), max(since, next_version)

    def _claims_of(self, commit: Passed) -> list[str]:
        # A compaction adds rows that were there before, and may add very many.
        news = [action for action in commit.actions.added if action.get("dataChange", True)]
        actions = replace(commit.actions, added=news)
        rows = self._table.rows.added_rows(actions, _COLUMNS).to_pylist()
        return [row["transaction_id"] for row in rows if row["kind"] != ClaimKind.UNKNOWN.value]
