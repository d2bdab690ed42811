"""The checks of one range of transactions: the settled log, each topic in turn, all together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.checks import CheckDiscipline
from txmq.verify.deliveries import DELIVERED_NUMBER
from txmq.verify.digests import ABSENT
from txmq.verify.fates import (
    FACT_KEY,
    SETTLED_STATES,
    missing_facts,
    settled_facts,
    unlawful_steps,
    with_sequences,
)
from txmq.verify.fold import STATES
from txmq.verify.picture import Picture
from txmq.verify.promises import PromiseChecks
from txmq.verify.report import SHOWN_ROWS
from txmq.verify.store import ids_in
from txmq.verify.topics import TopicChecks
from txmq.verify.totals import Totals
from txmq.verify.whole import WholeChecks

# --- settled:


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


# --- range_checks:


class RangeChecks:
    """Judges the transactions of a picture and adds what it counted to the totals."""

    def __init__(self, picture: Picture, totals: Totals, newest_us: int) -> None:
        """`newest_us` is the time up to which services worked; nothing is judged yet."""
        self._picture, self._totals = picture, totals
        self._discipline = CheckDiscipline(picture)
        self._topics = TopicChecks(picture, totals)
        self._promises = PromiseChecks(picture, newest_us)

    def run(self) -> None:
        """Every check."""
        SettledChecks(self._picture).run()
        self._discipline.run()
        self._topics.run()
        whole = WholeChecks(self._picture, self._topics)
        whole.run(self._totals.sums)
        self._promises.run(whole.scheduled)
        self._add_times(whole)
        self._totals.counts.update({**self._logs(), **self._messages(whole)})

    def _add_times(self, whole: WholeChecks) -> None:
        times, ended = self._totals.times, self._picture.deliveries
        times.add_ended(ended.asked_us[ended.state == DELIVERED_NUMBER])
        times.add_scheduled(self._picture.due_us[whole.scheduled])

    def _logs(self) -> dict[str, int]:
        """Transactions, claims and facts."""
        picture, fates = self._picture, self._picture.fates
        settled_ids = picture.settled["transaction_id"]
        return {
            "transactions": len(picture.halves.ids),
            **{name.lower(): int(fates.in_state(name).sum()) for name in STATES},
            "claims": picture.claims.num_rows,
            "claims_without_half": fates.claims_without_half,
            "claims_without_effect": fates.claims_without_effect
            + picture.deliveries.claims_without_effect,
            "checks": self._discipline.count,
            "facts": len(settled_ids),
            "judged_by_settled_alone": int(picture.without_claims.sum()),
            "forgotten_facts": int(picture.forgotten(settled_ids).sum()),
        }

    def _messages(self, whole: WholeChecks) -> dict[str, int]:
        """Halves and rows of topics."""
        halves, topics = self._picture.halves, self._topics
        return {
            "messages": int(halves.carries.sum()),
            "doubled_half_rows": halves.doubled_rows,
            "visible_messages": topics.row_count,
            "dead_letters": topics.dead_letters.row_count,
            "scheduled": int(whole.scheduled.sum()),
            "delivered": int(whole.delivered.sum()),
            "recalled": int(whole.recalled.sum()),
            "not_published_yet": int((whole.waiting | whole.not_scheduled_yet).sum()),
            "known_by_schedule_alone": int(halves.by_schedule[halves.transaction].sum()),
            "forgotten_messages": topics.forgotten_count,
        }
