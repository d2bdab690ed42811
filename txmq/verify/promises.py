"""The checker's look at what was promised and did not come: delayed messages, COMMITs, offsets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.digests import ABSENT, UNSAID, Flags, Integers, microseconds
from txmq.verify.fold import COMMITTED, INCOMPLETE, KINDS
from txmq.verify.picture import Picture
from txmq.verify.report import OVERDUE_LIMIT_S, Findings
from txmq.verify.store import PinnedStore, ids_in

_PRODUCER = "producer"
_LIMIT_US = round(OVERDUE_LIMIT_S * 1e6)


def newest_us(pinned: PinnedStore) -> int:
    """Up to which time services worked, as both claims and facts say; UNSAID where one is silent.

    Of a single clock that is ahead nothing follows.
    """
    claimed = _newest(pinned.op.rows(["op_timestamp"])["op_timestamp"])
    return min(claimed, _newest(pinned.settled.rows(["settled_timestamp"])["settled_timestamp"]))


def check_groups(pinned: PinnedStore, findings: Findings) -> None:
    """I29: what a group has read was in the topic."""
    for group, offsets in pinned.group_offsets.items():
        for topic, queue, offset in offsets:
            table = pinned.topics.get(topic)
            end = 0 if table is None else max(table.mark(f"txmq-offset/{queue}"), 0)
            if offset > end and topic not in pinned.unread:
                detail = f"its next offset {offset} is beyond {end}, where the queue ends"
                findings.add("I29", 1, [f"{group} {topic}/{queue}"], detail)


class PromiseChecks:
    """I27 and I28 of one range of transactions."""

    def __init__(self, picture: Picture, newest: int) -> None:
        """`newest` is that of `newest_us`; nothing is judged yet."""
        self._picture, self._pinned, self._newest = picture, picture.pinned, newest
        self._halves, self._fates, self._report = picture.halves, picture.fates, picture.report

    def run(self, scheduled: Flags) -> None:
        """Every check; `scheduled` are the messages that wait for their delivery."""
        self._check_overdue(scheduled)
        self._check_claimed(scheduled)
        self._check_incomplete()
        self._check_late_commits()

    # --- I27 -----------------------------------------------------------------------------------

    def _check_overdue(self, scheduled: Flags) -> None:
        due = self._picture.due_us
        since = np.maximum(due, self._picture.committed_us[self._halves.transaction])
        known = (due != UNSAID) & (self._newest != UNSAID)
        overdue = scheduled & known & (since < self._newest - _LIMIT_US)
        detail = f"still waits, more than {OVERDUE_LIMIT_S:,.0f} s after its time"
        self._report("I27", ids_in(self._halves.rows["message_id"]), overdue, detail)

    def _check_claimed(self, scheduled: Flags) -> None:
        """The delay service leaves out what it says that it has claimed, for ever."""
        claimed = self._pinned.claimed
        if claimed.op_table_id != self._pinned.op.table_id:
            return
        due = self._picture.due_us
        op_version = self._fates.op_version[self._halves.transaction]
        missed = scheduled & (due != UNSAID) & (due <= claimed.due_us)
        missed &= op_version <= claimed.op_version
        # What was published late is read whatever it says.
        missed &= ~np.isin(self._halves.transaction, self._picture.late())
        detail = "is claimed, says state/delay, but nobody claimed it"
        self._report("I27", ids_in(self._halves.rows["message_id"]), missed, detail)

    # --- I28 -----------------------------------------------------------------------------------

    def _check_incomplete(self) -> None:
        """A producer asked for COMMIT, and halves are missing or contradict each other."""
        claims = self._commits(self._picture.claims)
        numbers = self._halves.numbers_of(claims["transaction_id"])
        is_end = numbers != ABSENT
        for name, last in (
            ("_commit_version", self._fates.op_version), ("ordinal", self._fates.ordinal)
        ):  # fmt: skip
            is_end &= pc.fill_null(claims[name], ABSENT).to_numpy() == last[numbers]
        ended = np.zeros(len(self._halves.ids) + 1, dtype=bool)
        ended[numbers[is_end]] = True
        ended &= self._fates.in_state(INCOMPLETE) & ~np.append(self._halves.disputed, [True])
        ids = ids_in(pa.chunked_array([self._halves.ids]))
        detail = "its COMMIT found halves that are missing or contradict each other"
        self._report("I28", ids, ended[:-1], detail)

    def _check_late_commits(self) -> None:
        """A COMMIT of what retention has taken: nobody can tell any more how it ended."""
        claims = self._pinned.op.rows(["transaction_id", "kind", "source"])
        changing = claims.filter(pc.is_in(claims["kind"], value_set=pa.array(KINDS)))
        others = changing.filter(pc.not_equal(changing["kind"], "COMMIT"))["transaction_id"]
        settled = self._picture.settled
        committed = settled.filter(pc.equal(settled["state"], COMMITTED))["transaction_id"]
        commits = pc.unique(self._commits(changing)["transaction_id"].drop_null())
        ids = pa.chunked_array([commits])
        late = self._halves.numbers_of(ids) == ABSENT
        late &= self._pinned.forgotten(ids).to_numpy()
        for known in (others, committed):
            late &= ~_are_in(ids, known)
        detail = "its COMMIT came when retention had taken its halves"
        self._report("I28", ids_in(ids), late, detail)

    def _commits(self, claims: pa.Table) -> pa.Table:
        is_commit = pc.and_(
            pc.equal(claims["kind"], "COMMIT"), pc.equal(claims["source"], _PRODUCER)
        )
        return claims.filter(is_commit)


def _newest(times: pa.ChunkedArray) -> int:
    moments: Integers = microseconds(times)
    return int(moments.max(initial=UNSAID))


def _are_in(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> Flags:
    flags: Flags = pc.is_in(ids, value_set=pc.unique(known)).to_numpy()
    return flags
