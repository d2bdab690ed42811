"""Who answers again: groups that get a listener are asked soon, however long their pause was.

A group without a listener is tried again after growing pauses, of up to ten minutes. When a
producer joins, or a service starts that has the listener itself, the pause has lost its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.due import DUE
from txmq.errors import InvalidNameError
from txmq.lifecycle import TransactionState
from txmq.listeners.outcomes import Reason
from txmq.listeners.remote_requests import RemoteRequests, remote_groups, requests_in
from txmq.store.store import Store

# Nobody was reached for one of these reasons.
_NOBODY = pa.array([Reason.NO_LISTENER.value, Reason.BUSY.value])


class ReturningGroups:
    """The groups whose questions are due because somebody has come who may answer.

    It compares what it sees with what it saw before, and no times of others. Not safe for several
    threads.
    """

    def __init__(self, store: Store, groups_here: Iterable[str]) -> None:
        """Read nothing yet; the groups with a listener in this process are due at the start."""
        self._store = store
        self._here = frozenset(groups_here)
        self._due = set(self._here)
        self._awaited: dict[str, RemoteRequests | None] = {}
        self._members: dict[str, frozenset[tuple[str, int]]] = {}

    def due(self) -> frozenset[str]:
        """The groups that are due now; `done` says that they were asked."""
        return frozenset(self._due)

    def done(self, groups: Collection[str]) -> None:
        """These groups were asked; they are due again when somebody new comes."""
        self._due -= frozenset(groups)

    def await_(self, transactions: pa.Table) -> None:
        """Watch the groups of OPEN_TRANSACTIONS, also those that will be asked for the first time.

        So the members that are there when a question is put are not new afterwards.
        """
        groups = set(pc.unique(transactions["producer_group"]).to_pylist()) - self._here
        self._awaited = {group: self._awaited.get(group) for group in groups}
        self.look()

    def look(self) -> bool:
        """Look for members that are new since the last look; whether any group is due."""
        if self._awaited:
            # One listing, and not a look for each group that never had a member.
            for group in self._awaited.keys() & set(remote_groups(self._store)):
                if self._has_new_member(group):
                    self._due.add(group)
        return bool(self._due)

    def _has_new_member(self, group: str) -> bool:
        requests = self._awaited[group] = self._awaited[group] or self._requests(group)
        if requests is None or not requests.exists:
            return False
        if group in self._members and not requests.has_news():
            return False
        before = self._members.get(group, frozenset())
        # A sign of life is news too: the member may have been suspended.
        members = frozenset(requests.read().members.items())
        self._members[group] = members
        return not members <= before

    def _requests(self, group: str) -> RemoteRequests | None:
        try:
            return requests_in(self._store, group)
        except InvalidNameError:
            # A half written by hand may name any group.
            return None


def returned(transactions: pa.Table, groups: Collection[str], clock_ms: int) -> pa.Table:
    """The rows of OPEN_TRANSACTIONS that wait for nothing but one of these groups, as DUE."""
    names = pa.array(list(groups), pa.string())
    is_back = pc.is_in(transactions["producer_group"], value_set=names)
    is_pause = pc.invert(pc.fill_null(transactions["is_due"], False))  # noqa: FBT003
    rows = transactions.filter(pc.and_(pc.and_(is_back, is_pause), _waits(transactions)))
    columns = {
        **{name: rows[name] for name in DUE.names if name in rows.column_names},
        "deadline_ms": pa.array([clock_ms] * rows.num_rows, pa.int64()),
        "has_returned": pa.array([True] * rows.num_rows, pa.bool_()),
    }
    return pa.table({name: columns[name] for name in DUE.names}).cast(DUE)


def _waits(transactions: pa.Table) -> pa.ChunkedArray:
    is_pending = pc.equal(transactions["state"], TransactionState.PENDING.value)
    return pc.and_(is_pending, pc.is_in(transactions["reason"], value_set=_NOBODY))
