"""The checker's look at one topic table after the other, the schedule and dead letters included."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify.arrays import (
    ABSENT,
    DIGEST,
    ERASED_DIGEST,
    UNSAID,
    Flags,
    Integers,
    microseconds,
    repeats,
)
from txmq.verify.deliveries import DELIVERED_NUMBER, RECALLED_NUMBER
from txmq.verify.fold import COMMITTED, DISCARDED, EXPIRED, INCOMPLETE, PENDING, ROLLED_BACK
from txmq.verify.picture import Picture, addresses_in, ids_in
from txmq.verify.queues import ADDRESS, PlacedRows, ordinals_of
from txmq.verify.report import SHOWN_ROWS
from txmq.verify.store import is_dead_letters, is_schedule
from txmq.verify.totals import Totals

# A row of a topic whose transaction stands elsewhere than at COMMITTED breaks this.
_BROKEN_BY_STATE = {
    ROLLED_BACK: ("I2", "visible, though its transaction was rolled back"),
    PENDING: ("I5", "visible, though no COMMIT took effect"),
    INCOMPLETE: ("I5", "visible, though halves are missing or contradict each other"),
    DISCARDED: ("I11", "visible and discarded"),
    EXPIRED: ("I11", "visible and expired"),
}
_DAY_US = 86_400_000_000


class TopicChecks:
    """Checks rows against the picture and remembers what was shown.

    Attributes:
        visible, scheduled: how often each message stands in a topic, and in the schedule.
        row_count, forgotten_count: rows of topics, and those of any whose halves retention took.
        dead_letters: what was seen of those.
    """

    def __init__(self, picture: Picture, totals: Totals) -> None:
        """Take the picture; nothing is read yet."""
        self._picture, self._pinned, self._totals = picture, picture.pinned, totals
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        count = len(picture.topic_of)
        self.visible = np.zeros(count, dtype=np.int64)
        self.scheduled = np.zeros(count, dtype=np.int64)
        self.row_count, self.forgotten_count = 0, 0
        self.dead_letters = DeadLetterChecks(picture)
        self._forgotten: list[pa.Table] = []

    def run(self) -> None:
        """Check every topic in turn; memory holds one of them."""
        for name in self._pinned.topics:
            self._check_table(name)
        if TRANS_CHECK_MAX_TIME_TOPIC not in self._pinned.topics:
            self.dead_letters.check_none()
        self._check_forgotten_once()

    def _check_table(self, name: str) -> None:
        placed = PlacedRows.of(name, self._picture)
        nowhere = ~placed.known & ~placed.forgotten
        self._report("I4", placed.row_ids, nowhere, "has no half")
        self._note_forgotten(placed)
        self._check_content(placed)
        self._check_mark(placed)
        ordinals = ordinals_of(placed, self._picture)
        self._totals.queues[name].add(placed, ordinals, self._picture)
        if is_dead_letters(name):
            self.dead_letters.check(placed, ordinals)
        elif is_schedule(name):
            self._check_schedule(placed)
        else:
            self._check_topic(placed)

    def _check_mark(self, placed: PlacedRows) -> None:
        """Report rows ahead of what the topic says that it has (I21)."""
        mark = self._pinned.topics[placed.name].mark(self._pinned.mark_id)
        beyond = placed.column("op_version") > mark
        self._report("I21", placed.row_ids, beyond, f"lies beyond the topic's mark {mark}")

    # --- what is shown -------------------------------------------------------------------------

    def _check_topic(self, placed: PlacedRows) -> None:
        """Report rows that no counting COMMIT or DELIVER led to (I2, I4, I5, I10, I11, I15)."""
        topic = self._picture.number_of(placed.name)
        elsewhere = placed.known & (
            np.append(self._picture.topic_of, ABSENT)[placed.place] != topic
        )
        self._report("I4", placed.row_ids, elsewhere, "was sent to another topic")
        committed = self._check_state(placed)
        delayed = self._halves.waits(placed.place)
        self._check_commit(placed, committed & ~delayed)
        self._check_delivery(placed, committed & delayed)
        # A row in the wrong topic counts too: it is one more than there should be.
        self.visible += self._times(placed)
        self.row_count += len(placed.place)
        # What retention took was sent, but nothing says it any more.
        queues = placed.column("queue_id")[~placed.forgotten]
        self._totals.sums.add_published(placed.name, queues)

    def _check_schedule(self, placed: PlacedRows) -> None:
        """Report rows that wait without a COMMIT, or for another time (the same promises)."""
        at_once = placed.known & ~self._halves.waits(placed.place)
        self._report("I4", placed.row_ids, at_once, "was sent without a delay")
        self._check_commit(placed, self._check_state(placed))
        due = microseconds(placed.rows["deliver_timestamp"])
        asked_due = np.append(self._picture.asked_due_us, UNSAID)[placed.place]
        other = placed.known & (asked_due != UNSAID) & (due != asked_due)
        self._report("I15", placed.row_ids, other, "is due at another time than was asked for")
        days = np.where(due == UNSAID, 0, due // _DAY_US)
        dates = pa.array(days.astype(np.int32)).cast(pa.date32()).cast(pa.string())
        same_day = pc.fill_null(pc.equal(placed.rows["due_date"], dates), False)  # noqa: FBT003
        wrong_day = ~(same_day.to_numpy() & (due != UNSAID))
        self._report(
            "I15", placed.row_ids, wrong_day, "lies under another day than that of its time"
        )
        self.scheduled += self._times(placed)

    def _check_state(self, placed: PlacedRows) -> Flags:
        """Flag rows of committed transactions; report the others."""
        for state, (invariant, detail) in _BROKEN_BY_STATE.items():
            wrong = placed.known & self._fates.in_state(state)[placed.numbers]
            self._report(invariant, placed.row_ids, wrong, detail)
        flags: Flags = placed.known & self._fates.in_state(COMMITTED)[placed.numbers]
        return flags

    def _check_commit(self, placed: PlacedRows, rows: Flags) -> None:
        same = placed.column("op_version") == self._fates.op_version[placed.numbers]
        other = rows & ~(same & self._is_same_life(placed))
        detail = "names another COMMIT than the one that took effect"
        self._report("I10", placed.row_ids, other, detail)

    def _check_delivery(self, placed: PlacedRows, rows: Flags) -> None:
        """Report delayed rows that their DELIVER does not explain, or that were shown early."""
        ended, op_version = self._picture.deliveries, placed.column("op_version")
        state = ended.state[placed.place]
        delivered = rows & (state == DELIVERED_NUMBER)
        same = (op_version == ended.op_version[placed.place]) & self._is_same_life(placed)
        detail = "names another DELIVER than the one that took effect"
        self._report("I10", placed.row_ids, delivered & ~same, detail)
        recalled = rows & (state == RECALLED_NUMBER)
        self._report("I11", placed.row_ids, recalled, "visible, though it was recalled")
        early = rows & (state == ABSENT)
        self._report("I15", placed.row_ids, early, "visible, though no DELIVER took effect")
        self._check_time(placed, delivered)

    def _check_time(self, placed: PlacedRows, delivered: Flags) -> None:
        due = np.append(self._picture.due_us, UNSAID)[placed.place]
        shown = microseconds(placed.rows["store_timestamp"])
        is_comparable = delivered & (due != UNSAID) & (shown != UNSAID)
        self._report(
            "I15", placed.row_ids, is_comparable & (shown < due), "was shown before it was due"
        )
        # What was due before its COMMIT could not be shown before that.
        possible = np.maximum(due, self._picture.committed_us[placed.numbers])
        self._totals.times.add_shown((shown - possible)[is_comparable])

    def _is_same_life(self, placed: PlacedRows) -> Flags:
        flags: Flags = placed.column("life") == self._fates.life[placed.numbers]
        return flags

    def _times(self, placed: PlacedRows) -> Integers:
        return np.bincount(placed.place[placed.known], minlength=len(self.visible))

    def _check_content(self, placed: PlacedRows) -> None:
        """Report rows that are not what was sent (I16)."""
        # Halves that contradict each other cannot say what was sent.
        compared = placed.known & np.append(self._halves.agreed, [False])[placed.place]
        place, halves = placed.place[compared], self._halves
        rows = placed.rows.filter(pa.array(compared))
        wrong = np.zeros(rows.num_rows, dtype=bool)
        # Column by column, so that memory holds one of them twice and not all.
        erased = np.append(_are_erased(halves.rows), [False])[place]
        for shown, sent in _compared_columns(placed.name):
            differs = _differs(rows[shown], halves.rows[sent].take(pa.array(place)))
            # A copy is erased after its half.
            wrong |= differs & ~erased if shown in DIGEST else differs
        born = halves.rows["born_timestamp"].take(pa.array(place))
        # Two appends of one half may have two birth times; either may be shown.
        is_born_later = microseconds(rows["born_timestamp"]) != microseconds(born)
        wrong |= is_born_later & halves.once[place]
        self._report("I16", addresses_in(placed.name, rows), wrong, "differs from its half")

    # --- what retention took -------------------------------------------------------------------

    def _note_forgotten(self, placed: PlacedRows) -> None:
        rows = placed.forgotten_rows
        self.forgotten_count += rows.num_rows
        if is_schedule(placed.name) or not rows.num_rows:
            return
        if not is_dead_letters(placed.name):
            # Visible once in all its lives.
            rows = rows.set_column(2, "life", pa.nulls(rows.num_rows, pa.int64()))
        self._forgotten.append(rows)

    def _check_forgotten_once(self) -> None:
        """Report doubled rows whose halves are gone: visible once, dead once a life (I3)."""
        if not self._forgotten:
            return
        rows = pa.concat_tables(self._forgotten)
        counted = rows.group_by(list(ADDRESS)).aggregate([([], "count_all")])
        doubled = counted.filter(pc.greater(counted["count_all"], 1))
        shown = doubled.slice(0, SHOWN_ROWS).to_pylist()
        ids = [f"{row['transaction_id']}:{row['sequence']}" for row in shown]
        self._findings.add("I3", doubled.num_rows, ids, "is visible more than once")


def _compared_columns(topic: str) -> list[tuple[str, str]]:
    """Pair columns of a topic with the columns of the half log that they repeat."""
    pairs = [("message_id", "message_id"), ("topic", "real_topic")]
    pairs += [("producer_group", "producer_group"), *((name, name) for name in DIGEST)]
    # Dead letters have queues of their own.
    return pairs if is_dead_letters(topic) else [*pairs, ("queue_id", "real_queue_id")]


def _are_erased(rows: pa.Table) -> Flags:
    numbers = [rows[name].to_numpy() == ERASED_DIGEST for name in DIGEST]
    flags: Flags = np.logical_and.reduce(numbers)
    return flags


def _differs(shown: pa.ChunkedArray, sent: pa.ChunkedArray) -> Flags:
    equal = pc.fill_null(pc.equal(shown, sent), False)  # noqa: FBT003
    flags: Flags = ~equal.to_numpy()
    return flags


class DeadLetterChecks:
    """I3, I11, I13 and I19 of the topic of dead letters.

    Attributes:
        row_count: of the topic.
        in_this_life: messages with a dead letter of their transaction's last life, or whose dead
            letter retention may have taken.
    """

    def __init__(self, picture: Picture) -> None:
        """Take the picture; nothing is seen yet."""
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        self.row_count = 0
        self.in_this_life = np.zeros(len(picture.topic_of), dtype=bool)

    def check_none(self) -> None:
        """Judge a store that has no such topic."""
        nothing = np.empty(0, np.int64)
        self._check_complete(nothing, nothing)

    def check(self, placed: PlacedRows, ordinals: Integers) -> None:
        """Judge its rows; `ordinals` are ABSENT where no DISCARD or EXPIRE explains a row."""
        self.row_count = len(placed.place)
        lives, known = placed.column("life"), placed.known
        explained = known & (ordinals != ABSENT)
        ended = self._fates.in_state(COMMITTED) | self._fates.in_state(ROLLED_BACK)
        two_fates = known & ~explained & ended[placed.numbers]
        detail = "dead letter of a transaction with another end"
        self._report("I11", placed.row_ids, two_fates, detail)
        others = known & ~explained & ~two_fates
        detail = "dead letter that no DISCARD or EXPIRE led to"
        self._report("I19", placed.row_ids, others, detail)
        doubled = known & repeats(placed.place, lives)
        self._report("I3", placed.row_ids, doubled, "dead letter that is there already")
        self._check_complete(placed.place[known], lives[known])

    def _check_complete(self, place: Integers, lives: Integers) -> None:
        """Report messages of discarded lives without a dead letter, and torn lives (I13, I19)."""
        letters = pa.table({"message": place, "life": lives})
        keys = ["message", "life"]
        wanted = self._messages_with(DISCARDED)
        missing = wanted.join(letters, keys=keys, join_type="left anti")
        there = wanted.join(letters, keys=keys, join_type="left semi")
        taken = self._may_lack(missing)
        self._note_dead(pa.concat_tables([there, missing.filter(pa.array(taken))]))
        missing = missing.filter(pa.array(~taken))
        self._check_torn(missing, there)
        # What expired may be among the dead letters since an earlier life.
        expired = self._messages_with(EXPIRED)
        expired = expired.join(letters, keys=["message"], join_type="left anti")
        self._report_missing(missing)
        self._report_missing(expired.filter(pa.array(~self._may_lack(expired))))

    def _may_lack(self, missing: pa.Table) -> Flags:
        op_versions = missing["op_version"].to_numpy()
        return self._pinned.may_lack(TRANS_CHECK_MAX_TIME_TOPIC, op_versions)

    def _messages_with(self, state: str) -> pa.Table:
        """Pair each message with each fact of its transaction that led to a state."""
        messages = {
            "transaction": self._halves.transaction[self._halves.carries],
            "message": np.flatnonzero(self._halves.carries),
        }
        facts = self._fates.facts_in(state).select(["transaction", "life", "op_version"])
        return pa.table(messages).join(facts, "transaction", join_type="inner")

    def _report_missing(self, missing: pa.Table) -> None:
        if not self._drained:
            reached = self._pinned.reached(TRANS_CHECK_MAX_TIME_TOPIC)
            missing = missing.filter(pc.less_equal(missing["op_version"], reached))
        row_ids = ids_in(self._halves.rows["message_id"].take(missing["message"]))
        self._report("I19", row_ids, np.ones(missing.num_rows, dtype=bool), "has no dead letter")

    def _check_torn(self, missing: pa.Table, there: pa.Table) -> None:
        keys = ["transaction", "life"]
        torn = missing.join(there.select(keys), keys=keys, join_type="left semi")
        torn = torn.group_by(keys).aggregate([])
        ids = [
            f"{self._halves.ids[row['transaction']]} in {TRANS_CHECK_MAX_TIME_TOPIC} "
            f"life {row['life']}"
            for row in torn.slice(0, SHOWN_ROWS).to_pylist()
        ]
        self._findings.add("I13", torn.num_rows, ids, "is shown in part")

    def _note_dead(self, there: pa.Table) -> None:
        messages = there["message"].to_numpy()
        numbers = self._halves.transaction[messages]
        in_this_life = self._fates.life[numbers] == there["life"].to_numpy()
        self.in_this_life[messages[in_this_life]] = True
