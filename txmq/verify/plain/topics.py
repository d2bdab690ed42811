"""The checker's look at one topic table after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify.plain.digests import DIGEST
from txmq.verify.plain.fold import (
    COMMITTED,
    DISCARDED,
    EXPIRED,
    INCOMPLETE,
    PENDING,
    ROLLED_BACK,
)
from txmq.verify.plain.halves import ABSENT, Flags, Integers, ranks
from txmq.verify.plain.picture import Picture, RowIds, ids_in, integers
from txmq.verify.plain.tables import TOPIC_COLUMNS, is_dead_letters, microseconds

# A row of a topic whose transaction stands elsewhere than at COMMITTED breaks this.
_BROKEN_BY_STATE = {
    ROLLED_BACK: ("I2", "visible, though its transaction was rolled back"),
    PENDING: ("I5", "visible, though no COMMIT took effect"),
    INCOMPLETE: ("I5", "visible, though halves are missing or contradict each other"),
    DISCARDED: ("I11", "visible and discarded"),
    EXPIRED: ("I11", "visible and expired"),
}
_ADDRESS = ["transaction_id", "sequence", "life"]


class TopicChecks:
    """Checks rows against the picture and remembers what was shown.

    Attributes:
        visible: how often each message stands in a topic.
        published: rows of each (topic, queue), without those whose halves retention took.
        row_count, dead_letter_count, forgotten_count: rows of topics, of the dead letters, and
            those of both whose halves retention took.
        dead_in_this_life: messages with a dead letter of their transaction's last life.
    """

    def __init__(self, picture: Picture) -> None:
        """Nothing is read yet."""
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        count = len(picture.topic_of)
        self.visible = np.zeros(count, dtype=np.int64)
        self.published: dict[tuple[str, int], int] = {}
        self.row_count, self.dead_letter_count, self.forgotten_count = 0, 0, 0
        self.dead_in_this_life = np.zeros(count, dtype=bool)
        self._forgotten: list[pa.Table] = []

    def run(self) -> None:
        """Every topic in turn; memory holds one of them."""
        for name in self._pinned.topics:
            self._check_table(name)
        if TRANS_CHECK_MAX_TIME_TOPIC not in self._pinned.topics:
            nothing = np.empty(0, np.int64)
            self._check_dead_letters_complete(nothing, nothing)
        self._check_forgotten_once()

    def _check_table(self, name: str) -> None:
        rows = self._pinned.topics[name].rows(TOPIC_COLUMNS, content=True)
        rows = rows.take(pa.array(_queue_order(rows)))
        place = self._halves.find(
            self._halves.numbers_of(rows["transaction_id"]),
            pc.fill_null(rows["sequence"], ABSENT).to_numpy(),
        )
        known = place != ABSENT
        known[known] = self._halves.carries[place[known]]
        forgotten = self._picture.forgotten(rows["transaction_id"])
        row_ids = _row_ids(name, rows)
        self._report("I4", row_ids, ~known & ~forgotten, "has no half")
        self._note_forgotten(name, rows.filter(pa.array(forgotten)))
        self._check_content(name, rows, place, known)
        self._check_offsets(name, rows)
        self._check_order(name, rows, place, known=known, forgotten=forgotten)
        self._check_mark(name, rows)
        if is_dead_letters(name):
            self._check_dead_letters(rows, place, known)
        else:
            self._check_topic(name, rows, place, known)
            self._count_queues(name, rows.filter(pa.array(~forgotten)))
            self.row_count += rows.num_rows

    def _check_topic(self, name: str, rows: pa.Table, place: Integers, known: Flags) -> None:
        """I2, I4, I5, I10, I11: every row is there because its COMMIT took effect."""
        row_ids = _row_ids(name, rows)
        topic = self._picture.number_of(name)
        here = known.copy()
        here[known] = self._picture.topic_of[place[known]] == topic
        self._report("I4", row_ids, known & ~here, "was sent to another topic")
        numbers = self._halves.owners(place)
        for state, (invariant, detail) in _BROKEN_BY_STATE.items():
            wrong = known & self._fates.in_state(state)[numbers]
            self._report(invariant, row_ids, wrong, detail)
        committed = known & self._fates.in_state(COMMITTED)[numbers]
        same_end = integers(rows["op_version"]) == self._fates.op_version[numbers]
        same_life = integers(rows["life"]) == self._fates.life[numbers]
        other = committed & ~(same_end & same_life)
        self._report("I10", row_ids, other, "names another COMMIT than the one that took effect")
        # A row in the wrong topic counts too: it is one more than there should be.
        self.visible += np.bincount(place[known], minlength=len(self.visible))

    def _count_queues(self, name: str, rows: pa.Table) -> None:
        queues, counts = np.unique(integers(rows["queue_id"]), return_counts=True)
        for queue, count in zip(queues.tolist(), counts.tolist(), strict=True):
            self.published[name, queue] = count

    def _check_content(self, name: str, rows: pa.Table, place: Integers, known: Flags) -> None:
        """I16: what arrives is what was sent."""
        compared = known.copy()
        # Halves that contradict each other cannot say what was sent.
        compared[known] = self._halves.agreed[place[known]]
        once = self._halves.once[place[compared]]
        sent = self._halves.rows.take(pa.array(place[compared]))
        given = rows.filter(pa.array(compared))
        wrong = _content_differs(given, sent, with_queue=not is_dead_letters(name))
        born = microseconds(given["born_timestamp"]) != microseconds(sent["born_timestamp"])
        # Two appends of one half may have two birth times; either may be shown.
        wrong |= born & once
        self._report("I16", _row_ids(name, given), wrong, "differs from its half")

    # --- queues --------------------------------------------------------------------------------

    def _check_offsets(self, name: str, rows: pa.Table) -> None:
        """I3, I23, I21: offsets of a queue rise by one, and the mark names the next one."""
        queues, offsets = integers(rows["queue_id"]), integers(rows["queue_offset"])
        same_queue, steps = queues[1:] == queues[:-1], offsets[1:] - offsets[:-1]
        row_ids = _row_ids(name, rows.slice(1))
        self._report("I3", row_ids, same_queue & (steps == 0), "has an offset that is taken")
        self._report("I23", row_ids, same_queue & (steps > 1), "comes after a gap of offsets")
        starts, last = _first_and_last(queues)
        for begin, end in zip(starts.tolist(), last.tolist(), strict=True):
            self._check_queue(name, int(queues[begin]), int(offsets[begin]), int(offsets[end]))

    def _check_queue(self, name: str, queue: int, first: int, last: int) -> None:
        row_id = f"{name}/{queue}"
        if first != 0:
            self._findings.add("I23", 1, [row_id], f"begins at offset {first}, not at 0")
        following = self._pinned.topics[name].mark(f"txmq-offset/{queue}")
        if following != last + 1:
            detail = f"next offset is kept as {following}, the last row has {last}"
            self._findings.add("I21", 1, [row_id], detail)

    def _check_mark(self, name: str, rows: pa.Table) -> None:
        """I21: no row is ahead of what the topic says that it has."""
        mark = self._pinned.topics[name].mark(self._pinned.mark_id)
        beyond = integers(rows["op_version"]) > mark
        self._report("I21", _row_ids(name, rows), beyond, f"lies beyond the topic's mark {mark}")

    def _check_order(
        self, name: str, rows: pa.Table, place: Integers, *, known: Flags, forgotten: Flags
    ) -> None:
        """I14: in a queue, messages stand in the order (op_version, ordinal, sequence)."""
        ends = (DISCARDED, EXPIRED) if is_dead_letters(name) else (COMMITTED,)
        ordinals = self._ordinals(ends, self._halves.owners(place), rows)
        # Rows that no claim led to are reported elsewhere and have no place in the order.
        ended = (known & (ordinals != ABSENT)) | forgotten
        kept, ordinals = rows.filter(pa.array(ended)), ordinals[ended]
        queues, offsets = integers(kept["queue_id"]), integers(kept["queue_offset"])
        columns = [integers(kept["op_version"]), ordinals, integers(kept["sequence"])]
        behind = (queues[1:] == queues[:-1]) & (offsets[1:] > offsets[:-1])
        falls = _falls(columns, told=ordinals != ABSENT)
        row_ids = _row_ids(name, kept.slice(1))
        self._report("I14", row_ids, behind & falls, "stands behind one that ended later")

    def _ordinals(self, states: Sequence[str], numbers: Integers, rows: pa.Table) -> Integers:
        """The place in its commit of the claim that each row names; ABSENT if it names none."""
        keys = ["transaction", "op_version", "life"]
        facts = pa.concat_tables([self._fates.facts_in(state) for state in states])
        first = facts.group_by(keys).aggregate([("ordinal", "min")])
        wanted = pa.table([numbers, rows["op_version"], rows["life"]], names=keys)
        wanted = wanted.append_column("row", pa.array(np.arange(len(numbers))))
        found = wanted.join(first, keys, join_type="inner")
        ordinals = np.full(len(numbers), ABSENT, dtype=np.int64)
        ordinals[found["row"].to_numpy()] = found["ordinal_min"].to_numpy()
        return ordinals

    # --- dead letters --------------------------------------------------------------------------

    def _check_dead_letters(self, rows: pa.Table, place: Integers, known: Flags) -> None:
        """I3, I11, I19: one dead letter for each message and life that was discarded."""
        self.dead_letter_count = rows.num_rows
        row_ids = _row_ids(TRANS_CHECK_MAX_TIME_TOPIC, rows)
        numbers, lives = self._halves.owners(place), integers(rows["life"])
        explained = known & (self._ordinals((DISCARDED, EXPIRED), numbers, rows) != ABSENT)
        ended = self._fates.in_state(COMMITTED) | self._fates.in_state(ROLLED_BACK)
        two_fates = known & ~explained & ended[numbers]
        self._report("I11", row_ids, two_fates, "dead letter of a transaction with another end")
        others = known & ~explained & ~two_fates
        self._report("I19", row_ids, others, "dead letter that no DISCARD or EXPIRE led to")
        doubled = known & _repeats(place * (int(lives.max(initial=0)) + 2) + lives)
        self._report("I3", row_ids, doubled, "dead letter that is there already")
        self._check_dead_letters_complete(place[known], lives[known])

    def _check_dead_letters_complete(self, place: Integers, lives: Integers) -> None:
        """I19, I13: each message of a discarded life has its dead letter, or none has yet."""
        found = pa.table({"message": place, "life": lives})
        keys = ["message", "life"]
        wanted = self._messages_with(DISCARDED)
        missing = wanted.join(found, keys=keys, join_type="left anti")
        there = wanted.join(found, keys=keys, join_type="left semi")
        self._note_dead(there)
        self._check_torn(missing, there)
        # What expired may be among the dead letters since an earlier life.
        expired = self._messages_with(EXPIRED)
        self._report_missing(missing)
        self._report_missing(expired.join(found, keys=["message"], join_type="left anti"))

    def _messages_with(self, state: str) -> pa.Table:
        """Each message beside each fact of its transaction that led to a state."""
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
            for row in torn.slice(0, self._findings.room("I13")).to_pylist()
        ]
        self._findings.add("I13", torn.num_rows, ids, "is shown in part")

    def _note_dead(self, there: pa.Table) -> None:
        messages = there["message"].to_numpy()
        numbers = self._halves.transaction[messages]
        in_this_life = self._fates.life[numbers] == there["life"].to_numpy()
        self.dead_in_this_life[messages[in_this_life]] = True

    # --- what retention took -------------------------------------------------------------------

    def _note_forgotten(self, name: str, rows: pa.Table) -> None:
        self.forgotten_count += rows.num_rows
        lives = rows["life"] if is_dead_letters(name) else pa.nulls(rows.num_rows, pa.int64())
        columns = [rows["transaction_id"], rows["sequence"], lives]
        self._forgotten.append(pa.table(columns, names=_ADDRESS))

    def _check_forgotten_once(self) -> None:
        """I3, for rows whose halves are gone: visible once, dead once a life."""
        if not self._forgotten:
            return
        rows = pa.concat_tables(self._forgotten)
        counted = rows.group_by(_ADDRESS).aggregate([([], "count_all")])
        doubled = counted.filter(pc.greater(counted["count_all"], 1))
        shown = doubled.slice(0, self._findings.room("I3")).to_pylist()
        ids = [f"{row['transaction_id']}:{row['sequence']}" for row in shown]
        self._findings.add("I3", doubled.num_rows, ids, "is visible more than once")


def _queue_order(rows: pa.Table) -> Integers:
    """By queue and offset; of equal ones by message, so that every reader names the same one."""
    queues, offsets = integers(rows["queue_id"]), integers(rows["queue_offset"])
    order: Integers = np.lexsort((offsets, queues))
    same = (np.diff(offsets[order]) == 0) & (np.diff(queues[order]) == 0)
    if same.any():
        order = np.lexsort((ranks(rows["message_id"]), offsets, queues))
    return order


def _row_ids(name: str, rows: pa.Table) -> RowIds:
    """Makes topic/queue/offset and the message_id of a row, for the few rows that are shown."""
    return lambda places: _addresses(name, rows.take(pa.array(places)))


def _addresses(name: str, rows: pa.Table) -> list[str]:
    queue, offset = (rows[key].cast(pa.string()) for key in ("queue_id", "queue_offset"))
    address = pc.binary_join_element_wise(
        pa.scalar(name), queue, offset, "/", null_handling="replace", null_replacement="?"
    )
    named = pc.binary_join_element_wise(
        address, rows["message_id"], " ", null_handling="replace", null_replacement="?"
    )
    return [str(row_id) for row_id in named.to_pylist()]


def _content_differs(given: pa.Table, sent: pa.Table, *, with_queue: bool) -> Flags:
    pairs = [("message_id", "message_id"), ("topic", "real_topic")]
    pairs += [("producer_group", "producer_group"), *((name, name) for name in DIGEST)]
    if with_queue:
        pairs.append(("queue_id", "real_queue_id"))
    wrong = np.zeros(given.num_rows, dtype=bool)
    for left, right in pairs:
        equal = pc.fill_null(pc.equal(given[left], sent[right]), False)  # noqa: FBT003
        wrong |= ~equal.to_numpy()
    return wrong


def _falls(columns: Sequence[Integers], told: Flags) -> Flags:
    """Where a row is smaller than the one before it, compared column by column.

    Where one of both has not `told` its place in its commit, the commit alone decides.
    """
    falls = np.zeros(max(0, len(columns[0]) - 1), dtype=bool)
    equal = ~falls
    both = told[1:] & told[:-1]
    for column in columns:
        falls |= equal & (column[1:] < column[:-1])
        equal &= (column[1:] == column[:-1]) & both
    return falls


def _first_and_last(values: Integers) -> tuple[Integers, Integers]:
    """Where each run of equal values begins and ends."""
    if len(values) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return begins, np.append(begins[1:], len(values)) - 1


def _repeats(keys: Integers) -> Flags:
    """Every occurrence of a key but the first."""
    flags = np.ones(len(keys), dtype=bool)
    flags[np.unique(keys, return_index=True)[1]] = False
    return flags
