"""One run of the checker: the logs, range after range of transactions, all ranges together."""

from __future__ import annotations

import time
from collections.abc import Mapping

from txmq.verify.business_markers import MarkerPlace
from txmq.verify.plain.business import Business
from txmq.verify.plain.findings import Findings
from txmq.verify.plain.id_ranges import IdRange
from txmq.verify.plain.logs import LogChecks
from txmq.verify.plain.picture import Picture
from txmq.verify.plain.queues import QueueChecks
from txmq.verify.plain.range_checks import RangeChecks
from txmq.verify.plain.store import PinnedStore, plain_location
from txmq.verify.plain.totals import COUNTS, Totals
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
    markers = Business(business, pinned) if business else None
    run = _Run(pinned, markers, drained=drained)
    run.check()
    return VerifyReport(
        ENGINE, location, drained, pinned.versions, run.counts(), run.findings.results(),
        pinned.unread, run.notes(), time.monotonic() - started,
        markers.report() if markers else None, run.totals.times.lateness(),
    )  # fmt: skip


class _Run:
    """The checks of one pinned store, and what they add up to."""

    def __init__(self, pinned: PinnedStore, markers: Business | None, *, drained: bool) -> None:
        self._pinned, self._markers, self._drained = pinned, markers, drained
        self.findings, self.totals = Findings(), Totals()

    def check(self) -> None:
        """Every check."""
        LogChecks(self._pinned, self.findings).run()
        for ids in self._pinned.id_ranges():
            self._check_range(ids)
        self.totals.sums.check(self.findings)
        for topic in self._pinned.topics:
            # One topic at a time: its rows leave the log.
            rows = self.totals.queues.pop(topic).merged()
            QueueChecks(self._pinned, self.findings, topic, rows).run()

    def _check_range(self, ids: IdRange) -> None:
        picture = Picture.of(self._pinned.within(ids), self.findings, drained=self._drained)
        if self._markers:
            self._markers.compare(picture)
        RangeChecks(picture, self.totals).run()

    def counts(self) -> dict[str, int]:
        """What was read, and where the transactions stand."""
        counts = self.totals.counts
        counts["topics"] = len(self._pinned.topics)
        counts["overdue"] = self.totals.times.count_overdue()
        return {name: counts[name] for name in COUNTS}

    def notes(self) -> tuple[str, ...]:
        """What could be judged in part only."""
        judged = self.totals.counts["judged_by_settled_alone"]
        notes = []
        if judged:
            notes.append(f"{judged} transactions judged by the settled log alone")
        if not self._pinned.check_limits:
            notes.append("the number of allowed checks is not known")
        return tuple(notes)
