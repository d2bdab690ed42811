"""The checker's look at what was committed, version by version, and at the files behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.names import SCHEDULE_TOPIC
from txmq.verify.deliveries import DELIVERED_NUMBER, RECALLED_NUMBER
from txmq.verify.digests import UNSAID, Flags, Integers
from txmq.verify.fold import DISCARDED, EXPIRED, INCOMPLETE, PENDING, ROLLED_BACK
from txmq.verify.history import AddedFile, Commit, History
from txmq.verify.picture import Picture
from txmq.verify.report import Findings
from txmq.verify.store import PinnedStore, RowIds, ids_in, midnight_us
from txmq.verify.tables import PinnedTable
from txmq.verify.topics import TopicChecks
from txmq.verify.totals import PLACES, QueueSums

# --- whole:

_NEVER = int(np.iinfo(np.int64).max)


class WholeChecks:
    """I1, I3, I13 and I15.

    Attributes:
        delivered, recalled, scheduled: what became of the delayed messages that are committed.
        waiting, not_scheduled_yet: messages that the publisher may not have reached yet, on their
            way to their topic and to the schedule.
    """

    def __init__(self, picture: Picture, topics: TopicChecks) -> None:
        """Take what the topics showed; nothing is judged yet."""
        self._picture, self._topics, self._pinned = picture, topics, picture.pinned
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        self._names = picture.topic_names.to_pylist()
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
        """Every check; what is in each queue is added to `sums`."""
        self._check_once()
        self._check_nothing_lost()
        self._check_schedule()
        self._check_shared_fate()
        self._add_sums(sums)

    # --- what is where -------------------------------------------------------------------------

    def _must_show(self) -> Flags:
        """Messages that belong into their topic."""
        flags: Flags = (self._picture.committed & ~self._halves.delayed) | self.delivered
        return flags

    def _of_topics(self, number_of: Callable[[str], int]) -> Integers:
        """A number for the topic of each message."""
        # One more for the rows without a topic, whose place is ABSENT, the last.
        numbers = np.array([*map(number_of, self._names), UNSAID], dtype=np.int64)
        found: Integers = numbers[self._picture.topic_of]
        return found

    def _begin(self, topic: str) -> int:
        return self._pinned.topic_begin.get(topic, UNSAID)

    def _reached(self, topic: str) -> int:
        """The op version up to which a topic must be complete."""
        return _NEVER if self._picture.drained else self._pinned.reached(topic)

    # --- each message --------------------------------------------------------------------------

    def _check_once(self) -> None:
        message_ids = ids_in(self._halves.rows["message_id"])
        self._report("I3", message_ids, self._topics.visible > 1, "is visible more than once")
        twice = self._topics.scheduled > 1
        self._report("I3", message_ids, twice, "is in the schedule more than once")

    def _check_nothing_lost(self) -> None:
        """I1."""
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
        """I1 and I15: what is delayed was in the schedule first."""
        lost = self._unscheduled & ~self._day_taken & ~self.not_scheduled_yet
        message_ids = ids_in(self._halves.rows["message_id"])
        detail = f"committed, but not in topic {SCHEDULE_TOPIC}"
        self._report("I1", message_ids, lost & ~self.delivered, detail)
        detail = "delivered, but it never was in the schedule"
        self._report("I15", message_ids, lost & self.delivered, detail)
        self._check_claims(message_ids)

    def _check_claims(self, message_ids: RowIds) -> None:
        """I15: the delay service alone delivers, and not before the time."""
        ended, due = self._picture.deliveries, self._picture.due_us
        asked = ended.asked_us[:-1]
        delivered = ended.is_(DELIVERED_NUMBER)
        early = delivered & (asked != UNSAID) & (due != UNSAID) & (asked < due)
        self._report("I15", message_ids, early, "was delivered before it was due")
        stranger = delivered & ~ended.by_service[:-1]
        self._report("I15", message_ids, stranger, "was not delivered by the delay service")

    # --- each transaction ----------------------------------------------------------------------

    def _check_shared_fate(self) -> None:
        """I13: a topic shows a transaction as a whole, and if one topic does, all do.

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
        """I23 is judged when the messages of all ranges are counted."""
        sums.add_sent(self._picture)
        for place, messages in zip(PLACES[1:], self._ends(), strict=True):
            sums.add(place, self._picture, messages)

    def _ends(self) -> list[Flags]:
        """The messages in each of PLACES but the first."""
        pending, incomplete, discarded, rolled_back, expired = (
            self._fates.in_state(state)[self._halves.transaction] & self._halves.carries
            for state in (PENDING, INCOMPLETE, DISCARDED, ROLLED_BACK, EXPIRED)
        )
        dead = discarded & self._topics.dead_letters.in_this_life
        open_ = pending | incomplete | self.waiting
        if not self._picture.drained:
            open_ |= discarded & ~dead
        return [rolled_back, dead, expired, open_, self.scheduled, self.recalled, self._taken]


# --- logs:

# None of these changes a row in place; what a commit may remove is judged by its files.
LAWFUL_OPERATIONS = frozenset(
    ["CREATE TABLE", "WRITE", "STREAMING UPDATE", "OPTIMIZE", "VACUUM START", "VACUUM END",
     "SET TBLPROPERTIES", "ADD COLUMN", "DELETE"]
)  # fmt: skip
# How far a table follows the op log, and the next offset of a queue.
RISING_MARKS = ("txmq/", "txmq-offset/")
REBUILD_MARK = "txmq-rebuild"


class LogChecks:
    """I17, I21 and I26: nothing here looks at a message."""

    def __init__(self, pinned: PinnedStore, findings: Findings) -> None:
        """Nothing is read yet."""
        self._pinned, self._findings = pinned, findings

    def run(self) -> None:
        """Every check."""
        for table in (self._pinned.half, self._pinned.op):
            self._check_appended_only(table.name, table.history)
        for name, table in self._pinned.followers.items():
            self._check_marks_rise(name, table.history)
        self._check_marks_agree()
        self._check_readable()
        for name, table in self._pinned.tables.items():
            self._check_files(name, table)

    # --- I17 -----------------------------------------------------------------------------------

    def _check_appended_only(self, name: str, history: History) -> None:
        added = history.added()
        for commit in history.commits.values():
            problem = self._problem(commit, added)
            if problem:
                self._findings.add("I17", 1, [f"{name} version {commit.version}"], problem)

    def _problem(self, commit: Commit, added: Mapping[str, AddedFile]) -> str | None:
        if commit.operation not in LAWFUL_OPERATIONS:
            return f"is {commit.operation}, which txmq never does"
        if not commit.removed:
            return None
        if any(file.is_change for file in commit.added):
            return "altered rows"
        # Of a file whose own commit was cleaned away nothing is known.
        known = [added[path] for path in commit.removed if path in added]
        kept = [file for file in known if not self._may_go(file)]
        return "removed rows that retention has not reached" if kept else None

    def _may_go(self, file: AddedFile) -> bool:
        """By its ids; claims about nothing may name any id, so the day alone is enough too."""
        is_old = file.day is not None and file.day < self._pinned.forgotten_before_date
        return is_old or file.largest_id is None or self._pinned.forgets(file.largest_id)

    # --- I21 -----------------------------------------------------------------------------------

    def _check_marks_rise(self, name: str, history: History) -> None:
        for version, app_id in _falls(history):
            row_id = f"{name} version {version} {app_id}"
            self._findings.add("I21", 1, [row_id], "does not rise above the mark before it")

    def _check_marks_agree(self) -> None:
        """A table that was pinned earlier cannot be ahead of the one that it follows."""
        settled = self._pinned.settled.mark(self._pinned.mark_id)
        for name, table in self._pinned.topics.items():
            self._check_behind(f"topics/{name}", table.mark(self._pinned.mark_id), settled)
        self._check_behind("state/publisher", self._pinned.low_water_version, settled)
        self._check_behind("settled", settled, self._pinned.op.version)

    def _check_behind(self, name: str, mark: int, followed: int) -> None:
        if mark > followed:
            detail = f"its mark {mark} is beyond {followed}, which it follows"
            self._findings.add("I21", 1, [name], detail)

    def _check_readable(self) -> None:
        """Claims that are cleaned away before they were settled would be lost in silence."""
        settled = self._pinned.settled.mark(self._pinned.mark_id)
        first = self._pinned.op.readable_from
        if first > settled + 1:
            detail = f"is readable from version {first}, but settled only up to {settled}"
            self._findings.add("I21", 1, ["op"], detail)

    # --- I26 -----------------------------------------------------------------------------------

    def _check_files(self, name: str, table: PinnedTable) -> None:
        for path, problem in table.file_problems():
            self._findings.add("I26", 1, [f"{name}/{path}"], problem)


def _falls(history: History) -> Iterator[tuple[int, str]]:
    """Commits that set a mark to what it was already, or less; a rebuilt topic begins anew."""
    before: dict[str, int] = {}
    for commit in history.commits.values():
        is_rebuild = REBUILD_MARK in commit.marks
        for app_id, number in commit.marks.items():
            if not app_id.startswith(RISING_MARKS):
                continue
            if number <= before.get(app_id, number - 1) and not is_rebuild:
                yield commit.version, app_id
            before[app_id] = number
