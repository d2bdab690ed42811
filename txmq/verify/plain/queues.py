"""The checker's look at the queues of one topic: offsets, marks and order (I3, I14, I21, I23)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.plain.deliveries import DELIVERED_NUMBER
from txmq.verify.plain.fold import COMMITTED, DISCARDED, EXPIRED
from txmq.verify.plain.halves import ABSENT, Flags, Integers, changes, ranks
from txmq.verify.plain.picture import Picture
from txmq.verify.plain.placed import PlacedRows, row_ids
from txmq.verify.plain.store import is_dead_letters, is_schedule


class QueueChecks:
    """Judges how the rows of one table follow one another."""

    def __init__(self, picture: Picture, placed: PlacedRows) -> None:
        """Nothing is judged yet."""
        self._picture, self._pinned = picture, picture.pinned
        self._placed, self._name = placed, placed.name
        self._findings, self._report = picture.findings, picture.report
        # Whole due dates leave holes everywhere.
        dates_gone = is_schedule(self._name) and self._pinned.schedule_forgotten_before_date
        self._has_holes = bool(dates_gone)

    def run(self) -> None:
        """Every check."""
        self._check_offsets()
        self._check_mark()
        ordinals = self.ordinals()
        self._check_order(ordinals)
        if not (is_dead_letters(self._name) or is_schedule(self._name)):
            self._check_keys(ordinals)

    # --- offsets -------------------------------------------------------------------------------

    def _check_offsets(self) -> None:
        """I3, I23, I21: offsets of a queue rise by one, and the mark names the next one."""
        rows = self._placed.rows
        queues, offsets = self._placed.column("queue_id"), self._placed.column("queue_offset")
        same_queue, steps = queues[1:] == queues[:-1], offsets[1:] - offsets[:-1]
        gap = same_queue & (steps > 1) & ~self._may_end(self._placed.column("op_version"))[:-1]
        ids = row_ids(self._name, rows.slice(1))
        self._report("I3", ids, same_queue & (steps == 0), "has an offset that is taken")
        self._report("I23", ids, gap, "comes after a gap of offsets")
        starts, last = _first_and_last(queues)
        for begin, end in zip(starts.tolist(), last.tolist(), strict=True):
            self._check_queue(begin, end)

    def _may_end(self, op_versions: Integers) -> Flags:
        """Whether retention may have taken the rows that followed."""
        return self._pinned.may_lack(self._name, op_versions) | self._has_holes

    def _check_queue(self, begin: int, end: int) -> None:
        placed = self._placed
        queue = int(placed.column("queue_id")[begin])
        first, last = (int(placed.column("queue_offset")[place]) for place in (begin, end))
        row_id = f"{self._name}/{queue}"
        if first != 0 and not (self._has_holes or self._name in self._pinned.topic_begin):
            self._findings.add("I23", 1, [row_id], f"begins at offset {first}, not at 0")
        following = self._pinned.topics[self._name].mark(f"txmq-offset/{queue}")
        more_is_gone = self._may_end(placed.column("op_version")[end : end + 1])[0]
        if following != last + 1 and not (more_is_gone and following > last):
            detail = f"next offset is kept as {following}, the last row has {last}"
            self._findings.add("I21", 1, [row_id], detail)

    def _check_mark(self) -> None:
        """I21: no row is ahead of what the topic says that it has."""
        mark = self._pinned.topics[self._name].mark(self._pinned.mark_id)
        beyond = self._placed.column("op_version") > mark
        self._report("I21", self._placed.row_ids, beyond, f"lies beyond the topic's mark {mark}")

    # --- order ---------------------------------------------------------------------------------

    def _check_order(self, ordinals: Integers) -> None:
        """I14: in a queue, messages stand in the order (op_version, ordinal, sequence)."""
        placed = self._placed
        # Rows that no claim led to are reported elsewhere and have no place in the order.
        ended = (placed.known & (ordinals != ABSENT)) | placed.forgotten | placed.by_schedule
        queues, offsets = placed.column("queue_id")[ended], placed.column("queue_offset")[ended]
        columns = [
            placed.column("op_version")[ended], ordinals[ended], placed.column("sequence")[ended]
        ]  # fmt: skip
        behind = (queues[1:] == queues[:-1]) & (offsets[1:] > offsets[:-1])
        falls = _falls(columns, told=ordinals[ended] != ABSENT)
        ids = row_ids(self._name, placed.rows.filter(pa.array(ended)).slice(1))
        self._report("I14", ids, behind & falls, "stands behind one that ended later")

    def _check_keys(self, ordinals: Integers) -> None:
        """I14: messages of one sharding key do not come back to a queue that they have left."""
        placed = self._placed
        has_key = pc.is_valid(placed.rows["sharding_key"]).to_numpy()
        rows = np.flatnonzero(placed.known & (ordinals != ABSENT) & has_key)
        keys = ranks(placed.rows["sharding_key"].take(pa.array(rows)))
        queues = placed.column("queue_id")[rows]
        names = ("queue_offset", "queue_id", "sequence")
        columns = [placed.column(name)[rows] for name in names]
        # By COMMIT, for the queue of a delayed message was chosen before that too.
        fates, numbers = self._picture.fates, placed.numbers[rows]
        commit = (fates.ordinal[numbers], fates.op_version[numbers])
        order = np.lexsort((*columns, *commit, keys))
        rows, keys, queues = rows[order], keys[order], queues[order]
        moved = changes(keys) | changes(queues)
        rows, keys, queues = rows[moved], keys[moved], queues[moved]
        places = keys * (int(queues.max(initial=0)) + 2) + queues + 1
        back = np.zeros(len(placed.place), dtype=bool)
        back[rows[repeats(places)]] = True
        self._report("I14", placed.row_ids, back, "its key came back to a queue that it had left")

    def ordinals(self) -> Integers:
        """The place in its commit of the claim that each row names; ABSENT if it names none."""
        if is_dead_letters(self._name):
            return self._of_transactions((DISCARDED, EXPIRED))
        found = self._of_transactions((COMMITTED,))
        if is_schedule(self._name):
            return found
        return np.where(self._picture.halves.waits(self._placed.place), self._of_messages(), found)

    def _of_transactions(self, states: Sequence[str]) -> Integers:
        keys, fates = ["transaction", "op_version", "life"], self._picture.fates
        facts = pa.concat_tables([fates.facts_in(state) for state in states])
        first = facts.group_by(keys).aggregate([("ordinal", "min")])
        numbers, rows = self._placed.numbers, self._placed.rows
        wanted = pa.table([numbers, rows["op_version"], rows["life"]], names=keys)
        wanted = wanted.append_column("row", pa.array(np.arange(len(numbers))))
        found = wanted.join(first, keys, join_type="inner")
        ordinals = np.full(len(numbers), ABSENT, dtype=np.int64)
        ordinals[found["row"].to_numpy()] = found["ordinal_min"].to_numpy()
        return ordinals

    def _of_messages(self) -> Integers:
        """Those of the DELIVER claims."""
        placed, ended = self._placed, self._picture.deliveries
        same = ended.state[placed.place] == DELIVERED_NUMBER
        same &= placed.column("op_version") == ended.op_version[placed.place]
        same &= placed.column("life") == self._picture.fates.life[placed.numbers]
        return np.where(same & placed.known, ended.ordinal[placed.place], ABSENT)


def repeats(keys: Integers) -> Flags:
    """Every occurrence of a key but the first."""
    flags = np.ones(len(keys), dtype=bool)
    flags[np.unique(keys, return_index=True)[1]] = False
    return flags


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
    begins = np.flatnonzero(changes(values))
    return begins, np.append(begins[1:], len(values)) - 1
