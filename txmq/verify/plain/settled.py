"""The checker's look at the settled log: it says what the claims say, each thing once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.plain.addresses import ids_in
from txmq.verify.plain.arrays import ABSENT
from txmq.verify.plain.fates import (
    FACT_KEY,
    SETTLED_STATES,
    missing_facts,
    settled_facts,
    unlawful_steps,
    with_sequences,
)
from txmq.verify.plain.fold import STATES
from txmq.verify.plain.picture import Picture
from txmq.verify.report import SHOWN_ROWS


class SettledChecks:
    """I10, and of I4 and I21 what is about the settled log."""

    def __init__(self, picture: Picture) -> None:
        """Nothing is judged yet."""
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report

    def run(self) -> None:
        """Every check."""
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
        """The facts of the settled log beside those of the checker's own fold."""
        folded = self._undisputed(self._folded())
        if not self._drained:
            folded = folded.filter(pc.less_equal(folded["op_version"], mark))
        pairs = with_sequences(settled.select(list(FACT_KEY)), settled["sequences"])
        pairs = self._of_kept_messages(pairs)
        missing = missing_facts(folded, pairs)
        numbers = missing["transaction"].to_numpy()
        waits = pa.array(np.isin(numbers, self._picture.set_aside()))
        self._report_facts(missing.filter(pc.invert(waits)), "took effect but is not settled so")
        if self._drained:
            detail = "took effect but waits: it is set aside, see txmq status"
            self._report_facts(missing.filter(waits), detail)
        self._report_facts(missing_facts(pairs, folded), "settled, but no claim led to it")
        counted = self._judged(settled).group_by(list(FACT_KEY)).aggregate([([], "count_all")])
        self._report_facts(counted.filter(pc.greater(counted["count_all"], 1)), "settled twice")
        unlawful = unlawful_steps(self._undisputed(self._fates.believed))
        self._report_facts(unlawful, "settled, though it cannot follow the fact before it")

    def _folded(self) -> pa.Table:
        """Of transactions and of single messages, each with its `sequence`."""
        facts = self._fates.facts
        none = pa.array(np.full(facts.num_rows, ABSENT))
        return pa.concat_tables(
            [facts.append_column("sequence", none), self._picture.deliveries.facts]
        )

    def _judged(self, facts: pa.Table) -> pa.Table:
        """Where only the schedule knows a transaction, what became of it before is history."""
        by_schedule = self._halves.by_schedule[facts["transaction"].to_numpy()]
        is_delivery = facts["state"].to_numpy() >= len(STATES)
        return facts.filter(pa.array(~by_schedule | is_delivery))

    def _of_kept_messages(self, pairs: pa.Table) -> pa.Table:
        """Of those transactions only the messages that the schedule still holds."""
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
