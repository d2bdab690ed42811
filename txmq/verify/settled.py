"""The checker's look at the settled log: its facts beside those of the checker's own fold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.arrays import ABSENT
from txmq.verify.fates import FACT_KEY, SETTLED_STATES, STATE_NUMBERS, settled_facts
from txmq.verify.fold import LAWFUL_STEPS, PENDING, STATES
from txmq.verify.picture import Picture, ids_in
from txmq.verify.report import SHOWN_ROWS


class SettledChecks:
    """I10, and what I4 and I21 promise of the settled log."""

    def __init__(self, picture: Picture) -> None:
        """Take the picture; nothing is judged yet."""
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report

    def run(self) -> None:
        """Run every check."""
        settled, facts = self._picture.settled, settled_facts(self._picture.settled, self._halves)
        numbers = facts["transaction"].to_numpy()
        ids = ids_in(settled["transaction_id"])
        unknown = (numbers == ABSENT) & ~self._picture.forgotten(settled["transaction_id"])
        self._report("I4", ids, unknown, "settled without a half")
        mark = self._pinned.settled.mark(self._pinned.mark_id)
        beyond = facts["op_version"].to_numpy() > mark
        self._report("I21", ids, beyond, f"settled beyond its own mark {mark}")
        facts = facts.append_column("sequences", settled["sequences"])
        self._compare(self._undisputed(facts.filter(pa.array(numbers != ABSENT))), mark)

    def _compare(self, settled: pa.Table, mark: int) -> None:
        """Compare the facts of the settled log with those of the checker's own fold."""
        folded = self._undisputed(self._folded())
        if not self._drained:
            folded = folded.filter(pc.less_equal(folded["op_version"], mark))
        pairs = _with_sequences(settled.select(list(FACT_KEY)), settled["sequences"])
        pairs = self._of_kept_messages(pairs)
        missing = _missing_facts(folded, pairs)
        numbers = missing["transaction"].to_numpy()
        waits = pa.array(np.isin(numbers, self._picture.set_aside()))
        self._report_facts(missing.filter(pc.invert(waits)), "took effect but is not settled so")
        if self._drained:
            detail = "took effect but waits: it is set aside, see txmq status"
            self._report_facts(missing.filter(waits), detail)
        self._report_facts(_missing_facts(pairs, folded), "settled, but no claim led to it")
        counted = self._judged(settled).group_by(list(FACT_KEY)).aggregate([([], "count_all")])
        self._report_facts(counted.filter(pc.greater(counted["count_all"], 1)), "settled twice")
        unlawful = _unlawful_steps(self._undisputed(self._fates.believed))
        self._report_facts(unlawful, "settled, though it cannot follow the fact before it")

    def _folded(self) -> pa.Table:
        """Return facts of transactions and of single messages, each with its `sequence`."""
        facts = self._fates.facts
        none = pa.array(np.full(facts.num_rows, ABSENT))
        return pa.concat_tables(
            [facts.append_column("sequence", none), self._picture.deliveries.facts]
        )

    def _judged(self, facts: pa.Table) -> pa.Table:
        """Leave out what became earlier of transactions that only the schedule still knows."""
        by_schedule = self._halves.by_schedule[facts["transaction"].to_numpy()]
        is_delivery = facts["state"].to_numpy() >= len(STATES)
        return facts.filter(pa.array(~by_schedule | is_delivery))

    def _of_kept_messages(self, pairs: pa.Table) -> pa.Table:
        """Keep, of such transactions, the messages that the schedule still holds."""
        pairs = self._judged(pairs)
        numbers = pairs["transaction"].to_numpy()
        is_kept = self._halves.find(numbers, pairs["sequence"].to_numpy()) != ABSENT
        return pairs.filter(pa.array(~self._halves.by_schedule[numbers] | is_kept))

    def _undisputed(self, facts: pa.Table) -> pa.Table:
        # Of halves that name several groups none decides who may end them.
        return facts.filter(pa.array(~self._halves.disputed[facts["transaction"].to_numpy()]))

    def _report_facts(self, facts: pa.Table, detail: str) -> None:
        shown = facts.slice(0, SHOWN_ROWS).to_pylist()
        row_ids = [
            f"{self._halves.ids[row['transaction']]} "
            f"{SETTLED_STATES[row['state']] if row['state'] != ABSENT else '?'} "
            f"op {row['op_version']}/{row['ordinal']} life {row['life']}"
            for row in shown
        ]
        self._findings.add("I10", facts.num_rows, row_ids, detail)


def _with_sequences(facts: pa.Table, sequences: pa.ChunkedArray) -> pa.Table:
    """Repeat each fact for each `sequence` that it names; ABSENT if it names none."""
    lists = sequences.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    places = np.maximum(counts, 1)
    named = np.full(int(places.sum()), ABSENT)
    values = pc.fill_null(pc.list_flatten(lists), ABSENT).to_numpy()
    named[np.repeat(counts > 0, places)] = values
    repeated = facts.take(pa.array(np.repeat(np.arange(len(counts)), places)))
    return repeated.append_column("sequence", pa.array(named))


def _missing_facts(wanted: pa.Table, others: pa.Table) -> pa.Table:
    """Return facts of `wanted`, each with its `sequence`, that are not in `others`; each once."""
    keys = [*FACT_KEY, "sequence"]
    missing = wanted.select(keys).join(others.select(keys), keys=keys, join_type="left anti")
    return missing.group_by(list(FACT_KEY)).aggregate([])


def _unlawful_steps(facts: pa.Table) -> pa.Table:
    """Return facts to which no claim can lead from the fact before; `facts` are sorted."""
    numbers, states, lives = (facts[name].to_numpy() for name in ("transaction", "state", "life"))
    is_first = np.append(np.ones(len(numbers[:1]), dtype=bool), numbers[1:] != numbers[:-1])
    before = np.where(is_first, STATE_NUMBERS[PENDING], np.roll(states, 1))
    grown = lives - np.where(is_first, 0, np.roll(lives, 1))
    lawful = np.zeros(len(numbers), dtype=bool)
    for (earlier, later), ahead in LAWFUL_STEPS.items():
        same = (before == STATE_NUMBERS[earlier]) & (states == STATE_NUMBERS[later])
        lawful |= same & (grown == ahead)
    return facts.filter(pa.array(~lawful))
