"""One run of the checker: the logs, range after range of transactions, all ranges together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from txmq.verify.business import BusinessReport, MarkerPlace
from txmq.verify.business_check import Business
from txmq.verify.picture import Picture
from txmq.verify.promises import check_groups, newest_us
from txmq.verify.queues import QueueChecks
from txmq.verify.report import Findings, VerifyReport
from txmq.verify.settled import RangeChecks
from txmq.verify.store import PinnedStore, checked_keys, checked_location, plain_location
from txmq.verify.tables import IdRange
from txmq.verify.totals import COUNTS, Totals
from txmq.verify.whole import LogChecks


def check_store(  # noqa: PLR0913 - those of verify
    given: str | os.PathLike[str],
    *,
    drained: bool,
    check_limits: Mapping[str, int] | None,
    storage_options: Mapping[str, str],
    business: Mapping[str, MarkerPlace],
    claim_keys: Mapping[str, Sequence[str]],
) -> VerifyReport:
    """Every check of a store; see `txmq.verify.verify`."""
    start_s = time.monotonic()
    location = checked_location(given)
    place = plain_location(location)
    pinned = PinnedStore.open(place, storage_options, check_limits, checked_keys(claim_keys))
    # After the store, so that what it shows as ended has its marker.
    markers = Business(business, pinned) if business else None
    run = _Run(pinned, markers, drained=drained)
    run.check()
    return VerifyReport(
        location, drained, pinned.versions, run.counts(), run.findings.results(), pinned.unread,
        run.notes(), time.monotonic() - start_s, markers.report() if markers else None,
        run.totals.times.lateness(),
    )  # fmt: skip


def compare_business(
    given: str | os.PathLike[str],
    business: Mapping[str, MarkerPlace],
    *,
    storage_options: Mapping[str, str],
) -> BusinessReport:
    """Local transactions alone; see `txmq.verify.verify_business`."""
    pinned = PinnedStore.open(plain_location(checked_location(given)), storage_options)
    markers, findings = Business(business, pinned), Findings()
    for ids in pinned.id_ranges():
        markers.compare(Picture.of(pinned.within(ids), findings, drained=False))
    return markers.report()


class _Run:
    """The checks of one pinned store, and what they add up to."""

    def __init__(self, pinned: PinnedStore, markers: Business | None, *, drained: bool) -> None:
        self._pinned, self._markers, self._drained = pinned, markers, drained
        self.findings, self.totals = Findings(), Totals()
        self._newest_us = newest_us(pinned)

    def check(self) -> None:
        """Every check."""
        LogChecks(self._pinned, self.findings).run()
        check_groups(self._pinned, self.findings)
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
        RangeChecks(picture, self.totals, self._newest_us).run()

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
