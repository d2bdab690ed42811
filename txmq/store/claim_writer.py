"""Appends claims to the op log, and follows the claims that others append there meanwhile."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from txmq.delta.actions import session_mark
from txmq.delta.commit_writer import Passed
from txmq.delta.failures import process_id
from txmq.delta.table import Table
from txmq.message.lifecycle import ClaimKind
from txmq.store.op import OpLog, OpRow, op_table

if TYPE_CHECKING:
    import pyarrow as pa

# The note of a commit whose claims all end transactions that its writer began.
OWN_ENDS = "own-ends"
CLAIMED_MAX = 100_000
_COLUMNS = ("transaction_id", "kind")


class ClaimWriter:
    """Appends claims, one commit for each call. Not safe for several threads.

    All of its commits go to one queue, so that each commit is one file.
    """

    def __init__(self, op: OpLog, kind: str, half_queues: int) -> None:
        """Open nothing yet.

        Args:
            op: the log to append to; after each append its handle shows the claims.
            kind: the kind of writer, such as "producer" or "check".
            half_queues: the number of partitions of the half and op logs.
        """
        self.op = op
        self._commits = NumberedCommits(op.table, kind)
        self.session = self._commits.session
        self.queue_id = self.session.int % half_queues

    def append(self, rows: Sequence[OpRow]) -> None:
        """Append claims in one commit. A second call makes a second commit.

        Raises: as `append_table`.
        """
        self.append_table(op_table(rows, self.queue_id))

    def append_table(self, rows: pa.Table, note: str = "") -> None:
        """Append claims, given as columns of OP, in one commit; this sets queue and ordinals.

        `note` is as in `TableWriter.append`.

        Retry: after an error the claims may be in the log. Pass the same table object again, and
        they are written once.

        Raises: CommitConflictError, UnknownCommitError, StoreFullError, ReadOnlyStoreError,
            StorageError.
        """
        self._commits.commit(
            rows,
            lambda app_id, number: self.op.append_table(
                rows, self.queue_id, app_id=app_id, number=number, note=note
            ),
        )

    def last_version(self) -> int:
        """Return the version of the op log that holds the last append; 0 commits."""
        return self._commits.last_version()


class NumberedCommits:
    """The commits of one writer to one table. Not safe for several threads."""

    def __init__(self, table: Table, kind: str) -> None:
        """Open nothing yet; `kind` names the kind of writer in Delta's log."""
        self._table, self._kind = table, kind
        self._begin()

    def _begin(self) -> None:
        self.session = uuid.uuid4()
        self._app_id = session_mark(self._kind, self.session)
        self._last, self._process_id, self._version = _Commit(0), process_id(), 0

    def commit(self, rows: object, write: Callable[[str, int], int]) -> None:
        """Make one commit of `rows` with `write(app_id, number)`.

        Retry: after an error of any kind the commit may have landed. A second call with the same
        object keeps the number, looks for it, and writes only if it is not there. Other rows get
        the next number, so they are never taken for the rows that failed.

        Raises: StorageError, also if the table cannot be read; then nothing was written.
        """
        if self._process_id != process_id():
            # After a fork both processes would count under one name.
            self._begin()
        is_retry = rows is self._last.unanswered
        if not is_retry:
            self._last = _Commit(self._last.number + 1, rows)
        if is_retry and self._has_landed():
            self._version = self._table.log.version_of(self._app_id, self._last.number)
        else:
            self._version = write(self._app_id, self._last.number)
        self._last = _Commit(self._last.number)

    def _has_landed(self) -> bool:
        return (self._table.reopen().log.mark(self._app_id) or 0) >= self._last.number

    def last_version(self) -> int:
        """Return the version of the last commit, which need not be the newest; 0 commits."""
        return self._version


class _Commit(NamedTuple):
    """The number of the last commit, and its rows while it has no answer."""

    number: int
    unanswered: object = None


class PassingClaims:
    """The claims of others since a version of the op log. One thread changes it, others read.

    A producer that ends its own transactions must know whether somebody else claimed another end
    before. It sees the commits of others pass by, between its own. Most of them are of producers
    that end what they began themselves, and say so in a note; they are passed over. The others are
    read. So no end needs a look at the whole log.

    Attributes:
        followed: the version up to which all commits are known; None before the first own commit.
            A transaction that begins now can only be claimed in later ones.
    """

    def __init__(self, table: Table) -> None:
        """Follow the commits that are made through `table`."""
        self._table = table
        self._claimed: set[str] = set()
        # Claims about transactions that began before this version may have been missed.
        self._since = -1
        self.followed: int | None = None
        table.writer.watch = self._passed

    def claimed(self, ends: Iterable[tuple[str, ClaimKind]], since: int | None) -> list[str]:
        """Return the transactions whose end others may have claimed, if they began at `since`.

        Returns all of them if commits after `since` were not seen, and for None.
        """
        if not self.is_followed(since):
            return [transaction_id for transaction_id, _ in ends]
        if not self._claimed:
            return []
        return [transaction_id for transaction_id, _ in ends if transaction_id in self._claimed]

    def is_followed(self, since: int | None) -> bool:
        """Tell whether all commits after `since` were seen, so that the log did not go back."""
        return since is not None and since >= self._since

    def note(self, transaction_ids: Sequence[str]) -> None:
        """Count own claims among those of others: another end may be asked for later."""
        self._claimed.update(transaction_ids)

    def _passed(self, since: int | None, passed: Sequence[Passed] | None, version: int) -> None:
        """Note the claims of the commits between two own ones."""
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
        """Forget all claims, and know nothing of what began so far.

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
