"""One run of the checker: the logs, range after range of transactions, then all together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from txmq.errors import StorageError
from txmq.verify.business import Business
from txmq.verify.check_discipline import CheckDiscipline
from txmq.verify.declared_markers import MarkerPlace
from txmq.verify.deliveries import DELIVERED_NUMBER
from txmq.verify.fold import STATES
from txmq.verify.logs import LogChecks, check_open_set
from txmq.verify.messages import MessageChecks, StalledChecks, newest_us
from txmq.verify.picture import Picture
from txmq.verify.queues import QueueChecks
from txmq.verify.report import BusinessReport, Findings, VerifyReport
from txmq.verify.settled import SettledChecks
from txmq.verify.store import PinnedStore, checked_keys, checked_location, plain_location
from txmq.verify.tables import GoneFileError, IdRange
from txmq.verify.topics import TopicChecks
from txmq.verify.totals import COUNTS, Totals

# Beside a running store a clean-up may take a file that the pinned version has.
LOOKS_MAX = 5
# Findings that depend on the settings of services, not on the tables alone.
_BY_CHECK_MAX = ("is one more than are allowed", "was discarded after ")


def check_store(  # noqa: PLR0913 - those of verify
    location: str | os.PathLike[str],
    *,
    drained: bool,
    check_limits: Mapping[str, int] | None,
    storage_options: Mapping[str, str],
    business: Mapping[str, MarkerPlace],
    claim_keys: Mapping[str, Sequence[str]],
) -> VerifyReport:
    """Run every check of a store; see `txmq.verify.verify`.

    Pins the store anew if a clean-up takes a file of a pinned version, LOOKS_MAX times.
    """
    start_s = time.monotonic()
    place = checked_location(location)
    keys = checked_keys(claim_keys)

    def look() -> _Run:
        pinned = PinnedStore.open(plain_location(place), storage_options, check_limits, keys)
        # After the store, so that what it shows as ended has its marker.
        run = _Run(pinned, Business(business, pinned) if business else None, drained=drained)
        run.check()
        return run

    run = _looked(look)
    pinned, markers = run.pinned, run.markers
    return VerifyReport(
        place, drained, pinned.versions, run.counts(), run.findings.results(), pinned.unread,
        run.notes(), time.monotonic() - start_s, markers.report() if markers else None,
        run.totals.times.lateness(),
    )  # fmt: skip


def _looked(look: Callable[[], _Run]) -> _Run:
    """Look again where a clean-up took a file meanwhile. Raises: StorageError after LOOKS_MAX."""
    start_s = time.monotonic()
    for _ in range(LOOKS_MAX):
        try:
            return look()
        except GoneFileError as error:
            gone = error
    look_s = (time.monotonic() - start_s) / LOOKS_MAX
    problem = f"a clean-up took a file during each of {LOOKS_MAX} looks of {look_s:,.1f} s"
    next_step = "set log_reserved_time_s to more than a look takes, or verify a backup"
    raise StorageError(gone.table, f"{problem}; {next_step}") from gone


def compare_business(
    location: str | os.PathLike[str],
    business: Mapping[str, MarkerPlace],
    *,
    storage_options: Mapping[str, str],
) -> BusinessReport:
    """Compare local transactions alone; see `txmq.verify.verify_business`."""
    pinned = PinnedStore.open(plain_location(checked_location(location)), storage_options)
    markers, findings = Business(business, pinned), Findings()
    for ids in pinned.id_ranges():
        markers.compare(Picture.of(pinned.within(ids), findings, drained=False))
    return markers.report()


class _Run:
    """The checks of one pinned store, and what they add up to."""

    def __init__(self, pinned: PinnedStore, markers: Business | None, *, drained: bool) -> None:
        self.pinned, self.markers, self._drained = pinned, markers, drained
        self.findings, self.totals = Findings(), Totals()
        self._newest_us = newest_us(pinned)

    def check(self) -> None:
        """Run every check."""
        LogChecks(self.pinned, self.findings).run()
        for ids in self.pinned.id_ranges():
            self._check_range(ids)
        self.totals.sums.check(self.findings)
        check_open_set(self.pinned, self.totals.open_ids, self.findings)
        for topic in self.pinned.topics:
            # One topic at a time: its rows leave the log.
            rows = self.totals.queues.pop(topic).merged()
            QueueChecks(self.pinned, self.findings, topic, rows).run()

    def _check_range(self, ids: IdRange) -> None:
        picture = Picture.of(self.pinned.within(ids), self.findings, drained=self._drained)
        if self.markers:
            self.markers.compare(picture)
        RangeChecks(picture, self.totals, self._newest_us).run()

    def counts(self) -> dict[str, int]:
        """Count what was read, and where the transactions stand."""
        counts = self.totals.counts
        counts["topics"] = len(self.pinned.topics)
        counts["overdue"] = self.totals.times.count_overdue()
        return {name: counts[name] for name in COUNTS}

    def notes(self) -> tuple[str, ...]:
        """Say what could be judged in part only."""
        judged = self.totals.counts["judged_by_settled_alone"]
        notes = []
        if judged:
            notes.append(f"{judged} transactions judged by the settled log alone")
        limits = self.pinned.check_limits
        if not limits:
            notes.append("the number of allowed checks is not known")
        elif self.findings.has(_BY_CHECK_MAX):
            by_group = ", ".join(f"{limits[group]} {_of_group(group)}" for group in sorted(limits))
            notes.append(
                f"judged by transaction_check_max = {by_group}; if services run with another one, "
                "pass their settings by --config, or check_limits"
            )
        return tuple(notes)


def _of_group(group: str) -> str:
    return f"for {group}" if group else "for all groups without their own"


class RangeChecks:
    """Judges the transactions of a picture and adds what it counted to the totals."""

    def __init__(self, picture: Picture, totals: Totals, newest_us: int) -> None:
        """`newest_us` is the time up to which services worked; nothing is judged yet."""
        self._picture, self._totals = picture, totals
        self._discipline = CheckDiscipline(picture)
        self._topics = TopicChecks(picture, totals)
        self._stalled = StalledChecks(picture, newest_us)

    def run(self) -> None:
        """Run every check."""
        SettledChecks(self._picture).run()
        self._discipline.run()
        self._topics.run()
        messages = MessageChecks(self._picture, self._topics)
        messages.run(self._totals.sums)
        self._stalled.run(messages.scheduled)
        self._add_times(messages)
        self._totals.add_open(self._picture)
        self._totals.counts.update({**self._logs(), **self._messages(messages)})

    def _add_times(self, messages: MessageChecks) -> None:
        times, ended = self._totals.times, self._picture.deliveries
        times.add_ended(ended.asked_us[ended.state == DELIVERED_NUMBER])
        times.add_scheduled(self._picture.due_us[messages.scheduled])

    def _logs(self) -> dict[str, int]:
        """Count transactions, claims and facts."""
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

    def _messages(self, messages: MessageChecks) -> dict[str, int]:
        """Count halves and rows of topics."""
        halves, topics = self._picture.halves, self._topics
        return {
            "messages": int(halves.carries.sum()),
            "doubled_half_rows": halves.doubled_rows,
            "visible_messages": topics.row_count,
            "dead_letters": topics.dead_letters.row_count,
            "scheduled": int(messages.scheduled.sum()),
            "delivered": int(messages.delivered.sum()),
            "recalled": int(messages.recalled.sum()),
            "not_published_yet": int((messages.waiting | messages.not_scheduled_yet).sum()),
            "known_by_schedule_alone": int(halves.by_schedule[halves.transaction].sum()),
            "forgotten_messages": topics.forgotten_count,
        }
