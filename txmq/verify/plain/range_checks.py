"""The checks of one range of transactions: the settled log, each topic in turn, all together."""

from __future__ import annotations

from txmq.verify.plain.checks import CheckDiscipline
from txmq.verify.plain.deliveries import DELIVERED_NUMBER
from txmq.verify.plain.fold import STATES
from txmq.verify.plain.picture import Picture
from txmq.verify.plain.promises import PromiseChecks
from txmq.verify.plain.settled import SettledChecks
from txmq.verify.plain.topics import TopicChecks
from txmq.verify.plain.totals import Totals
from txmq.verify.plain.whole import WholeChecks


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
