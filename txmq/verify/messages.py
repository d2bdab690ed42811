"""The checker's look at messages over all topics: shown once, not lost, with one fate, in time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.names import SCHEDULE_TOPIC
from txmq.verify.arrays import ABSENT, UNSAID, Flags, Integers, as_texts, microseconds
from txmq.verify.deliveries import DELIVERED_NUMBER, RECALLED_NUMBER
from txmq.verify.fold import COMMITTED, DISCARDED, EXPIRED, INCOMPLETE, KINDS, PENDING, ROLLED_BACK
from txmq.verify.picture import Picture, RowIds, ids_in
from txmq.verify.report import OVERDUE_LIMIT_S
from txmq.verify.store import PinnedStore, midnight_us
from txmq.verify.topics import TopicChecks
from txmq.verify.totals import PLACES, QueueSums

_NEVER = int(np.iinfo(np.int64).max)
_PRODUCER = "producer"
_LIMIT_US = round(OVERDUE_LIMIT_S * 1e6)


class MessageChecks:
    """I1, I3, I13 and I15: every message is where it belongs, with all of its transaction.

    Attributes:
        delivered, recalled, scheduled: what became of the delayed messages that are committed.
        waiting, not_scheduled_yet: messages that the publisher may not have reached yet, on their
            way to their topic and to the schedule.
    """

    def __init__(self, picture: Picture, topics: TopicChecks) -> None:
        """Take what the topics showed; nothing is judged yet."""
        self._picture, self._topics, self._pinned = picture, topics, picture.pinned
        self._halves, self._fates = picture.halves, picture.fates
        self._report = picture.report
        self._names = as_texts(picture.topic_names)
        self._waits = picture.committed & self._halves.delayed
        self._end = self._fates.op_version[self._halves.transaction]
        ended = picture.deliveries
        self.delivered = self._waits & ended.is_(DELIVERED_NUMBER)
        self.recalled = self._waits & ended.is_(RECALLED_NUMBER)
        self.scheduled = self._waits & ~self.delivered & ~self.recalled
        self._hidden = self._must_show() & (topics.visible == 0)
        shown_by = np.where(self._halves.delayed, ended.op_version[:-1], self._end)
        self._taken = self._hidden & (shown_by <= self._of_topics(self._begin))
        self.waiting = self._hidden & ~self._taken & (shown_by > self._of_topics(self._reached))
        self._is_set_aside = np.isin(self._halves.transaction, picture.set_aside())
        if not picture.drained:
            self.waiting |= self._hidden & ~self._taken & self._is_set_aside
        self._unscheduled = self._waits & (topics.scheduled == 0)
        limit_us = midnight_us(self._pinned.schedule_forgotten_before_date)
        is_over = (picture.due_us != UNSAID) & (picture.due_us < limit_us)
        self._day_taken = self._unscheduled & ~self.scheduled & is_over
        open_ = self._end > self._reached(SCHEDULE_TOPIC)
        if not picture.drained:
            open_ |= self._is_set_aside
        self.not_scheduled_yet = self._unscheduled & ~self._day_taken & open_

    def run(self, sums: QueueSums) -> None:
        """Run every check and add to `sums` what is in each queue."""
        self._check_once()
        self._check_nothing_lost()
        self._check_schedule()
        self._check_shared_fate()
        self._add_sums(sums)

    # --- what is where -------------------------------------------------------------------------

    def _must_show(self) -> Flags:
        """Flag messages that belong into their topic."""
        flags: Flags = (self._picture.committed & ~self._halves.delayed) | self.delivered
        return flags

    def _of_topics(self, number_of: Callable[[str], int]) -> Integers:
        """Return a number for the topic of each message."""
        # One more for the rows without a topic, whose place is ABSENT, the last.
        numbers = np.array([*map(number_of, self._names), UNSAID], dtype=np.int64)
        of_messages: Integers = numbers[self._picture.topic_of]
        return of_messages

    def _begin(self, topic: str) -> int:
        return self._pinned.topic_begin.get(topic, UNSAID)

    def _reached(self, topic: str) -> int:
        """Return the op version up to which a topic must be complete."""
        return _NEVER if self._picture.drained else self._pinned.reached(topic)

    # --- each message --------------------------------------------------------------------------

    def _check_once(self) -> None:
        message_ids = ids_in(self._halves.rows["message_id"])
        self._report("I3", message_ids, self._topics.visible > 1, "is visible more than once")
        twice = self._topics.scheduled > 1
        self._report("I3", message_ids, twice, "is in the schedule more than once")

    def _check_nothing_lost(self) -> None:
        """Report committed messages that no topic shows (I1)."""
        lost = self._hidden & ~self._taken & ~self.waiting
        message_ids = ids_in(self._halves.rows["message_id"])
        for name in self._names:
            here = self._picture.topic_of == self._picture.number_of(name)
            parked = ", which is parked" if name in self._pinned.parked else ""
            detail = f"committed, but not in topic {name}"
            waits = lost & here & self._is_set_aside
            self._report("I1", message_ids, lost & here & ~waits, f"{detail}{parked}")
            self._report("I1", message_ids, waits, f"{detail}: it is set aside, see txmq status")

    def _check_schedule(self) -> None:
        """Report delayed messages that never were in the schedule (I1, I15)."""
        lost = self._unscheduled & ~self._day_taken & ~self.not_scheduled_yet
        message_ids = ids_in(self._halves.rows["message_id"])
        detail = f"committed, but not in topic {SCHEDULE_TOPIC}"
        self._report("I1", message_ids, lost & ~self.delivered, detail)
        detail = "delivered, but it never was in the schedule"
        self._report("I15", message_ids, lost & self.delivered, detail)
        self._check_claims(message_ids)

    def _check_claims(self, message_ids: RowIds) -> None:
        """Report what another than the delay service delivered, or before the time (I15)."""
        ended, due = self._picture.deliveries, self._picture.due_us
        asked_us = ended.asked_us[:-1]
        delivered = ended.is_(DELIVERED_NUMBER)
        early = delivered & (asked_us != UNSAID) & (due != UNSAID) & (asked_us < due)
        self._report("I15", message_ids, early, "was delivered before it was due")
        stranger = delivered & ~ended.by_service[:-1]
        self._report("I15", message_ids, stranger, "was not delivered by the delay service")

    # --- each transaction ----------------------------------------------------------------------

    def _check_shared_fate(self) -> None:
        """Report transactions that a topic shows in part, or one of several not at all (I13).

        The schedule is the topic of all that is delayed.
        """
        delayed, schedule = self._halves.delayed, len(self._names)
        names = pa.concat_arrays([self._picture.topic_names, pa.array([SCHEDULE_TOPIC])])
        home = np.where(delayed, schedule, self._picture.topic_of)
        taken = np.where(delayed, self._day_taken, self._taken)
        judged = self._picture.committed & ~taken
        numbers, width = self._halves.transaction, len(names) + 1
        pairs, pair_of = np.unique((numbers * width + home)[judged], return_inverse=True)
        shown = np.where(delayed, self._topics.scheduled > 0, self._topics.visible > 0)[judged]
        waiting = np.where(delayed, self.not_scheduled_yet, self.waiting)[judged]
        expected = np.bincount(pair_of, minlength=len(pairs))
        shown_counts = np.bincount(pair_of, weights=shown, minlength=len(pairs))
        due = np.bincount(pair_of, weights=~waiting, minlength=len(pairs)) > 0
        owner = pairs // width
        shown_somewhere = np.zeros(len(self._halves.ids), dtype=bool)
        shown_somewhere[owner[shown_counts > 0]] = True
        torn = (shown_counts > 0) & (shown_counts < expected)
        behind = (shown_counts == 0) & due & shown_somewhere[owner]
        ids = ids_in(
            pc.binary_join_element_wise(
                self._halves.ids.take(pa.array(owner)), names.take(pa.array(pairs % width)), " in "
            )
        )
        self._report("I13", ids, torn, "is shown in part")
        self._report("I13", ids, behind, "is not shown, though another topic shows it")

    # --- each queue ----------------------------------------------------------------------------

    def _add_sums(self, sums: QueueSums) -> None:
        """Count where the messages are; I23 is judged when all ranges are counted."""
        sums.add_sent(self._picture)
        for place, messages in zip(PLACES[1:], self._ends(), strict=True):
            sums.add(place, self._picture, messages)

    def _ends(self) -> list[Flags]:
        """Return the messages in each of PLACES but the first."""
        pending, incomplete, discarded, rolled_back, expired = (
            self._fates.in_state(state)[self._halves.transaction] & self._halves.carries
            for state in (PENDING, INCOMPLETE, DISCARDED, ROLLED_BACK, EXPIRED)
        )
        dead = discarded & self._topics.dead_letters.in_this_life
        open_ = pending | incomplete | self.waiting
        if not self._picture.drained:
            open_ |= discarded & ~dead
        return [rolled_back, dead, expired, open_, self.scheduled, self.recalled, self._taken]


class StalledChecks:
    """I27 and I28 of one range of transactions: what was promised and does not come."""

    def __init__(self, picture: Picture, newest: int) -> None:
        """Take the picture and the time of `newest_us`; nothing is judged yet."""
        self._picture, self._pinned, self._newest = picture, picture.pinned, newest
        self._halves, self._fates, self._report = picture.halves, picture.fates, picture.report

    def run(self, scheduled: Flags) -> None:
        """Run every check; `scheduled` are the messages that wait for their delivery."""
        self._check_overdue(scheduled)
        self._check_claimed(scheduled)
        self._check_incomplete()
        self._check_late_commits()

    # --- I27 -----------------------------------------------------------------------------------

    def _check_overdue(self, scheduled: Flags) -> None:
        due = self._picture.due_us
        since = np.maximum(due, self._picture.committed_us[self._halves.transaction])
        are_said = (due != UNSAID) & (self._newest != UNSAID)
        overdue = scheduled & are_said & (since < self._newest - _LIMIT_US)
        detail = f"still waits, more than {OVERDUE_LIMIT_S:,.0f} s after its time"
        self._report("I27", ids_in(self._halves.rows["message_id"]), overdue, detail)

    def _check_claimed(self, scheduled: Flags) -> None:
        """Report unclaimed messages that the delay service calls claimed: it never reads them."""
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
        """Report COMMITs of producers that found halves missing or contradicting each other."""
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
        """Report COMMITs of what retention has taken: nobody can tell any more how it ended."""
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


def newest_us(pinned: PinnedStore) -> int:
    """Return up to which time services worked, by both claims and facts; UNSAID if one is silent.

    Of a single clock that is ahead nothing follows.
    """
    claimed = _newest(pinned.op.rows(["op_timestamp"])["op_timestamp"])
    return min(claimed, _newest(pinned.settled.rows(["settled_timestamp"])["settled_timestamp"]))


def _newest(times: pa.ChunkedArray) -> int:
    moments: Integers = microseconds(times)
    return int(moments.max(initial=UNSAID))


def _are_in(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> Flags:
    flags: Flags = pc.is_in(ids, value_set=pc.unique(known)).to_numpy()
    return flags
