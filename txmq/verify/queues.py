"""The checker's look at the queues of one topic: offsets, marks and order (I3, I14, I21, I23)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from txmq.verify.digests import ABSENT, Flags, Integers, changes, repeats
from txmq.verify.queue_rows import QueueRows
from txmq.verify.report import SHOWN_ROWS, Findings
from txmq.verify.store import PinnedStore, TopicAddresses, is_dead_letters, is_schedule


class QueueChecks:
    """Judges how the rows of one topic follow one another."""

    def __init__(self, pinned: PinnedStore, findings: Findings, name: str, rows: QueueRows) -> None:
        """Nothing is judged yet."""
        self._pinned, self._findings = pinned, findings
        self._name, self._rows = name, rows
        self._addresses = TopicAddresses(name, pinned.topics[name], rows.queue, rows.offset)
        # Whole due dates leave holes everywhere.
        dates_gone = is_schedule(name) and pinned.schedule_forgotten_before_date
        self._has_holes = bool(dates_gone)

    def run(self) -> None:
        """Every check."""
        self._check_offsets()
        self._check_order()
        if not (is_dead_letters(self._name) or is_schedule(self._name)):
            self._check_keys()

    # --- offsets -------------------------------------------------------------------------------

    def _check_offsets(self) -> None:
        """I3, I23, I21: offsets of a queue rise by one, and the mark names the next one."""
        queue, offset = self._rows.queue, self._rows.offset
        same_queue, steps = queue[1:] == queue[:-1], offset[1:] - offset[:-1]
        gap = same_queue & (steps > 1) & ~self._may_end(self._rows.op_version[:-1])
        later = np.arange(1, max(1, len(queue)))
        self._report("I3", later[same_queue & (steps == 0)], "has an offset that is taken")
        self._report("I23", later[gap], "comes after a gap of offsets")
        starts, last = _first_and_last(queue)
        for begin, end in zip(starts.tolist(), last.tolist(), strict=True):
            self._check_queue(begin, end)

    def _may_end(self, op_versions: Integers) -> Flags:
        """Whether retention may have taken the rows that followed."""
        return self._pinned.may_lack(self._name, op_versions) | self._has_holes

    def _check_queue(self, begin: int, end: int) -> None:
        queue, (first, last) = int(self._rows.queue[begin]), self._rows.offset[[begin, end]]
        row_id = f"{self._name}/{queue}"
        if first != 0 and not (self._has_holes or self._name in self._pinned.topic_begin):
            self._findings.add("I23", 1, [row_id], f"begins at offset {first}, not at 0")
        following = self._pinned.topics[self._name].mark(f"txmq-offset/{queue}")
        more_is_gone = self._may_end(self._rows.op_version[end : end + 1])[0]
        if following != last + 1 and not (more_is_gone and following > last):
            detail = f"next offset is kept as {following}, the last row has {last}"
            self._findings.add("I21", 1, [row_id], detail)

    # --- order ---------------------------------------------------------------------------------

    def _check_order(self) -> None:
        """I14: in a queue, messages stand in the order (op_version, ordinal, sequence)."""
        rows, places = self._rows, np.flatnonzero(self._rows.has_place)
        queue, offset, ordinal = (c[places] for c in (rows.queue, rows.offset, rows.ordinal))
        columns = [rows.op_version[places], ordinal, rows.sequence[places]]
        behind = (queue[1:] == queue[:-1]) & (offset[1:] > offset[:-1])
        falls = _falls(columns, known=ordinal != ABSENT)
        self._report("I14", places[1:][behind & falls], "stands behind one that ended later")

    def _check_keys(self) -> None:
        """I14: messages of one sharding key do not come back to a queue that they have left."""
        rows = self._rows
        queue = rows.queue[rows.keyed]
        several = np.flatnonzero(_has_several(rows.key, queue))
        places, key, queue = rows.keyed[several], rows.key[several], queue[several]
        # By COMMIT, for the queue of a delayed message was chosen before that too.
        commit = (rows.commit_ordinal[several], rows.commit_version[several])
        order = np.lexsort((rows.offset[places], queue, rows.sequence[places], *commit, key))
        places, key, queue = places[order], key[order], queue[order]
        moved = changes(key) | changes(queue)
        back = repeats(key[moved], queue[moved])
        detail = "its key came back to a queue that it had left"
        self._report("I14", np.sort(places[moved][back]), detail)

    def _report(self, invariant: str, places: Integers, detail: str) -> None:
        """The rows in these places break a promise."""
        if len(places):
            shown = self._addresses.row_ids(places[:SHOWN_ROWS])
            self._findings.add(invariant, len(places), shown, detail)


def _has_several(keys: Integers, queues: Integers) -> Flags:
    """Rows whose key lies in more than one queue."""
    order = np.lexsort((queues, keys))
    key, queue = keys[order], queues[order]
    is_first = changes(key)
    is_other = changes(queue) & ~is_first
    number = np.cumsum(is_first) - 1
    flags = np.empty(len(order), dtype=bool)
    flags[order] = np.bincount(number, weights=is_other, minlength=1)[number] > 0
    return flags


def _falls(columns: Sequence[Integers], known: Flags) -> Flags:
    """Where a row is smaller than the one before it, compared column by column.

    Where the place in its commit is not `known` of one of both, the commit alone decides.
    """
    falls = np.zeros(max(0, len(columns[0]) - 1), dtype=bool)
    equal = ~falls
    both = known[1:] & known[:-1]
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
