"""One run of the checker: the logs, the settled log, each topic in turn, all topics together."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.marker_places import MarkerPlace
from txmq.verify.plain.business import Business
from txmq.verify.plain.checks import CheckDiscipline
from txmq.verify.plain.deliveries import DELIVERED_NUMBER
from txmq.verify.plain.fates import (
    FACT_KEY,
    SETTLED_STATES,
    missing_facts,
    settled_facts,
    unlawful_steps,
    with_sequences,
)
from txmq.verify.plain.fold import STATES
from txmq.verify.plain.halves import ABSENT
from txmq.verify.plain.logs import LogChecks
from txmq.verify.plain.picture import Picture, ids_in
from txmq.verify.plain.store import PinnedStore, plain_location
from txmq.verify.plain.tables import UNSAID
from txmq.verify.plain.topics import TopicChecks
from txmq.verify.plain.whole import WholeChecks
from txmq.verify.report import Lateness, VerifyReport

ENGINE = "plain"


def verify(
    location: str,
    *,
    drained: bool = True,
    check_limits: Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
    business: Mapping[str, MarkerPlace] | None = None,
) -> VerifyReport:
    """Check every promise that the tables of a store can show by themselves.

    Args:
        location: of the store; a path or a URI.
        drained: nothing runs and nothing is left to publish, so all that is committed must be
            visible. False: what the publisher has not reached yet is open, not lost.
        check_limits: checks before a DISCARD by producer group, "" for all others, where services
            run with another `transaction_check_max` than the one that the store keeps.
        storage_options: for delta-rs; of the store only.
        business: where the markers of local transactions are, by producer group (I12):
            DeltaMarkers or DatabaseMarkers.

    Reads: state/publisher, state/config, all topics, settled, op, half, state/maintenance, each at
    one version, pinned in this order, and their logs; then the markers. Writes: nothing. Memory:
    about 300 bytes a message, bodies excluded.

    Raises: StoreNotFoundError, StorageError; with `business` also EnvironmentProblemError, and
        ConfigError for a group that the store does not know.

    Example:
        >>> verify(store.location).is_clean
        True
        >>> verify(store.location, business={"orders": DeltaMarkers("/data/orders")}).is_clean
        True
    """
    started = time.monotonic()
    pinned = PinnedStore.open(plain_location(location), storage_options or {}, check_limits)
    # After the store, so that what it shows as ended has its marker.
    markers = Business(business) if business else None
    picture = Picture.of(pinned, drained=drained)
    compared = markers.report(picture) if markers else None
    checks = _Checks(picture)
    checks.run()
    return VerifyReport(
        ENGINE, location, drained, pinned.versions, checks.counts(), picture.findings.results(),
        pinned.unread, checks.notes(), time.monotonic() - started, compared, checks.lateness(),
    )  # fmt: skip


class _Checks:
    """What a run knows; the order of the checks is that of `run`."""

    def __init__(self, picture: Picture) -> None:
        self._picture, self._pinned, self._drained = picture, picture.pinned, picture.drained
        self._halves, self._fates = picture.halves, picture.fates
        self._findings, self._report = picture.findings, picture.report
        self._topics = TopicChecks(picture)
        self._discipline = CheckDiscipline(picture)

    def run(self) -> None:
        """Every check."""
        LogChecks(self._pinned, self._findings).run()
        self._check_settled()
        self._discipline.run()
        self._topics.run()
        self._whole = WholeChecks(self._picture, self._topics)
        self._whole.run()

    def counts(self) -> dict[str, int]:
        """What was read, and where the transactions stand."""
        states = {name.lower(): int(self._fates.in_state(name).sum()) for name in STATES}
        settled = self._picture.settled
        return {
            "transactions": len(self._halves.ids),
            **states,
            "messages": int(self._halves.carries.sum()),
            "doubled_half_rows": self._halves.doubled_rows,
            "claims": self._picture.claims.num_rows,
            "claims_without_half": self._fates.claims_without_half,
            "claims_without_effect": self._fates.claims_without_effect
            + self._picture.deliveries.claims_without_effect,
            "checks": self._discipline.count,
            "facts": settled.num_rows,
            "topics": len(self._pinned.topics),
            "visible_messages": self._topics.row_count,
            "dead_letters": self._topics.dead_letters.row_count,
            "scheduled": int(self._whole.scheduled.sum()),
            "delivered": int(self._whole.delivered.sum()),
            "recalled": int(self._whole.recalled.sum()),
            "overdue": self._count_overdue(),
            "not_published_yet": int((self._whole.waiting | self._whole.not_scheduled_yet).sum()),
            "known_by_schedule_alone": self._count_stand_ins(),
            "judged_by_settled_alone": int(self._picture.without_claims.sum()),
            "forgotten_facts": int(self._picture.forgotten(settled["transaction_id"]).sum()),
            "forgotten_messages": self._topics.forgotten_count,
        }

    def _count_overdue(self) -> int:
        """What still waits though the delay service has delivered what was due later."""
        due, ended = self._picture.due_us, self._picture.deliveries
        newest_us = ended.asked_us[ended.state == DELIVERED_NUMBER].max(initial=UNSAID)
        late = self._whole.scheduled & (due != UNSAID) & (due <= newest_us)
        return int(late.sum())

    def _count_stand_ins(self) -> int:
        return int(self._halves.by_schedule[self._halves.transaction].sum())

    def lateness(self) -> Lateness:
        """How long after their time delayed messages were shown."""
        late_us = np.sort(np.concatenate([np.empty(0, np.int64), *self._topics.late_us]))
        count = len(late_us)
        if not count:
            return Lateness()
        # The smallest that 99 of 100 do not exceed.
        p99_us, max_us = late_us[[(99 * count + 99) // 100 - 1, -1]].tolist()
        return Lateness(count, p99_us / 1e6, max_us / 1e6)

    def notes(self) -> tuple[str, ...]:
        """What could be judged in part only."""
        judged = int(self._picture.without_claims.sum())
        notes = []
        if judged:
            notes.append(f"{judged} transactions judged by the settled log alone")
        if not self._pinned.check_limits:
            notes.append("the number of allowed checks is not known")
        return tuple(notes)

    # --- settled log ---------------------------------------------------------------------------

    def _check_settled(self) -> None:
        """I10: the settled log says what the claims say, each thing once; I4; I21."""
        halves, settled = self._halves, self._picture.settled
        found = settled_facts(settled, halves)
        numbers = found["transaction"].to_numpy()
        ids = ids_in(settled["transaction_id"])
        unknown = (numbers == ABSENT) & ~self._picture.forgotten(settled["transaction_id"])
        self._report("I4", ids, unknown, "settled without a half")
        mark = self._pinned.settled.mark(self._pinned.mark_id)
        beyond = found["op_version"].to_numpy() > mark
        self._report("I21", ids, beyond, f"settled beyond its own mark {mark}")
        found = found.append_column("sequences", settled["sequences"])
        self._compare_facts(found.filter(pa.array(numbers != ABSENT)), mark)

    def _compare_facts(self, found: pa.Table, mark: int) -> None:
        own = self._undisputed(self._own_facts())
        if not self._drained:
            own = own.filter(pc.less_equal(own["op_version"], mark))
        found = self._undisputed(found)
        pairs = self._known_pairs(with_sequences(found.select(list(FACT_KEY)), found["sequences"]))
        self._report_facts(missing_facts(own, pairs), "took effect but is not settled so")
        self._report_facts(missing_facts(pairs, own), "settled, but no claim led to it")
        counted = self._judged(found).group_by(list(FACT_KEY)).aggregate([([], "count_all")])
        self._report_facts(counted.filter(pc.greater(counted["count_all"], 1)), "settled twice")
        unlawful = unlawful_steps(self._undisputed(self._fates.believed))
        self._report_facts(unlawful, "settled, though it cannot follow the fact before it")

    def _own_facts(self) -> pa.Table:
        """Of transactions and of single messages, each with its `sequence`."""
        facts = self._fates.facts
        none = pa.array(np.full(facts.num_rows, ABSENT))
        return pa.concat_tables(
            [facts.append_column("sequence", none), self._picture.deliveries.facts]
        )

    def _judged(self, found: pa.Table) -> pa.Table:
        """Where only the schedule knows a transaction, what became of it before is history."""
        by_schedule = self._halves.by_schedule[found["transaction"].to_numpy()]
        is_delivery = found["state"].to_numpy() >= len(STATES)
        return found.filter(pa.array(~by_schedule | is_delivery))

    def _known_pairs(self, found: pa.Table) -> pa.Table:
        """Of those transactions, the messages that the schedule still holds."""
        found = self._judged(found)
        numbers = found["transaction"].to_numpy()
        known = self._halves.find(numbers, found["sequence"].to_numpy()) != ABSENT
        return found.filter(pa.array(~self._halves.by_schedule[numbers] | known))

    def _undisputed(self, facts: pa.Table) -> pa.Table:
        # Of halves that name several groups none decides who may end them.
        return facts.filter(pa.array(~self._halves.disputed[facts["transaction"].to_numpy()]))

    def _report_facts(self, facts: pa.Table, detail: str) -> None:
        shown = facts.slice(0, self._findings.room("I10")).to_pylist()
        row_ids = [
            f"{self._halves.ids[row['transaction']]} "
            f"{SETTLED_STATES[row['state']] if row['state'] != ABSENT else '?'} "
            f"op {row['op_version']}/{row['ordinal']} life {row['life']}"
            for row in shown
        ]
        self._findings.add("I10", facts.num_rows, row_ids, detail)
