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
from txmq.verify.plain.fates import FACT_KEY, missing_facts, settled_facts, unlawful_steps
from txmq.verify.plain.fold import (
    DISCARDED,
    EXPIRED,
    INCOMPLETE,
    PENDING,
    ROLLED_BACK,
    STATES,
)
from txmq.verify.plain.halves import ABSENT, Flags
from txmq.verify.plain.logs import LogChecks
from txmq.verify.plain.picture import Picture, ids_in
from txmq.verify.plain.tables import PinnedStore, plain_location
from txmq.verify.plain.topics import TopicChecks
from txmq.verify.report import VerifyReport

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

    Reads: state/publisher, state/config, state/maintenance, all topics, settled, op, half, each at
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
        pinned.unread, checks.notes(), time.monotonic() - started, compared,
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
        self._check_visible_once()
        self._check_nothing_lost()
        self._check_shared_fate()
        self._check_sums()

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
            "claims_without_effect": self._fates.claims_without_effect,
            "checks": self._discipline.count,
            "facts": settled.num_rows,
            "topics": len(self._pinned.topics),
            "visible_messages": self._topics.row_count,
            "dead_letters": self._topics.dead_letter_count,
            "not_published_yet": int(self._waiting().sum()),
            "judged_by_settled_alone": int(self._picture.without_claims.sum()),
            "forgotten_facts": int(self._picture.forgotten(settled["transaction_id"]).sum()),
            "forgotten_messages": self._topics.forgotten_count,
        }

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
        self._compare_facts(found.filter(pa.array(numbers != ABSENT)), mark)

    def _compare_facts(self, found: pa.Table, mark: int) -> None:
        own = self._undisputed(self._fates.facts)
        if not self._drained:
            own = own.filter(pc.less_equal(own["op_version"], mark))
        found = self._undisputed(found)
        self._report_facts(missing_facts(own, found), "took effect but is not settled so")
        self._report_facts(missing_facts(found, own), "settled, but no claim led to it")
        counted = found.group_by(list(FACT_KEY)).aggregate([([], "count_all")])
        self._report_facts(counted.filter(pc.greater(counted["count_all"], 1)), "settled twice")
        unlawful = unlawful_steps(self._undisputed(self._fates.believed))
        self._report_facts(unlawful, "settled, though it cannot follow the fact before it")

    def _undisputed(self, facts: pa.Table) -> pa.Table:
        # Of halves that name several groups none decides who may end them.
        return facts.filter(pa.array(~self._halves.disputed[facts["transaction"].to_numpy()]))

    def _report_facts(self, facts: pa.Table, detail: str) -> None:
        shown = facts.slice(0, self._findings.room("I10")).to_pylist()
        row_ids = [
            f"{self._halves.ids[row['transaction']]} "
            f"{STATES[row['state']] if row['state'] != ABSENT else '?'} "
            f"op {row['op_version']}/{row['ordinal']} life {row['life']}"
            for row in shown
        ]
        self._findings.add("I10", facts.num_rows, row_ids, detail)

    # --- all topics together ---------------------------------------------------------------------

    def _check_visible_once(self) -> None:
        message_ids = ids_in(self._halves.rows["message_id"])
        self._report("I3", message_ids, self._topics.visible > 1, "is visible more than once")

    def _waiting(self) -> Flags:
        """Committed messages that the publisher may not have reached yet."""
        hidden = self._picture.committed & (self._topics.visible == 0)
        if self._drained:
            return np.zeros(len(hidden), dtype=bool)
        names = self._picture.topic_names.to_pylist()
        # One more for the rows without a topic, whose place is ABSENT, the last.
        reached = np.array([*(self._pinned.reached(name) for name in names), ABSENT])
        end = self._fates.op_version[self._halves.transaction]
        flags: Flags = hidden & (end > reached[self._picture.topic_of])
        return flags

    def _check_nothing_lost(self) -> None:
        """I1."""
        lost = self._picture.committed & (self._topics.visible == 0) & ~self._waiting()
        message_ids = ids_in(self._halves.rows["message_id"])
        for name in self._picture.topic_names.to_pylist():
            here = self._picture.topic_of == self._picture.number_of(name)
            parked = ", which is parked" if name in self._pinned.parked else ""
            detail = f"committed, but not in topic {name}{parked}"
            self._report("I1", message_ids, lost & here, detail)

    def _check_shared_fate(self) -> None:
        """I13: a topic shows a transaction as a whole, and if one topic does, all do."""
        committed, waiting = self._picture.committed, self._waiting()
        numbers, width = self._halves.transaction, len(self._picture.topic_names) + 1
        pairs, pair_of = np.unique(
            (numbers * width + self._picture.topic_of)[committed], return_inverse=True
        )
        shown = (self._topics.visible > 0)[committed]
        expected = np.bincount(pair_of, minlength=len(pairs))
        found = np.bincount(pair_of, weights=shown, minlength=len(pairs))
        due = np.bincount(pair_of, weights=~waiting[committed], minlength=len(pairs)) > 0
        owner = pairs // width
        shown_somewhere = np.zeros(len(self._halves.ids), dtype=bool)
        shown_somewhere[owner[found > 0]] = True
        torn = (found > 0) & (found < expected)
        behind = (found == 0) & due & shown_somewhere[owner]
        ids = ids_in(
            pc.binary_join_element_wise(
                self._halves.ids.take(pa.array(owner)),
                self._picture.topic_names.take(pa.array(pairs % width)),
                " in ",
            )
        )
        self._report("I13", ids, torn, "is shown in part")
        self._report("I13", ids, behind, "is not shown, though another topic shows it")

    def _check_sums(self) -> None:
        """I23: what was sent to a queue is published, rolled back, dead, expired or open."""
        numbers, carries = self._halves.transaction, self._halves.carries
        fates = self._fates
        dead = fates.in_state(DISCARDED)[numbers] & self._topics.dead_in_this_life
        open_ = (fates.in_state(PENDING) | fates.in_state(INCOMPLETE))[numbers] | self._waiting()
        if not self._drained:
            open_ |= fates.in_state(DISCARDED)[numbers] & ~dead
        rolled_back, expired = (fates.in_state(s)[numbers] for s in (ROLLED_BACK, EXPIRED))
        sent = self._per_queue(carries)
        parts = [self._per_queue(carries & part) for part in (rolled_back, dead, expired, open_)]
        for key in sorted({*sent, *self._topics.published}):
            total = sent.get(key, 0)
            ended = [part.get(key, 0) for part in parts]
            self._check_sum(key, total, [self._topics.published.get(key, 0), *ended])

    def _check_sum(self, key: tuple[str, int], sent: int, parts: list[int]) -> None:
        if sent == sum(parts):
            return
        names = ("published", "rolled back", "dead", "expired", "open")
        told = " + ".join(f"{count} {name}" for count, name in zip(parts, names, strict=True))
        self._findings.add("I23", 1, [f"{key[0]}/{key[1]}"], f"{sent} sent, but {told}")

    def _per_queue(self, chosen: Flags) -> dict[tuple[str, int], int]:
        # A queue may be ABSENT, which is below 0.
        queues = self._picture.queue_of[chosen] - ABSENT
        width = int(queues.max(initial=0)) + 1
        pairs, counts = np.unique(
            self._picture.topic_of[chosen] * width + queues, return_counts=True
        )
        names = self._picture.topic_names.to_pylist()
        return {
            (names[pair // width], pair % width + ABSENT): count
            for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
        }
