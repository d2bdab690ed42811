"""How much is measured: in full, or a tenth of it to try the scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of one run."""

    rounds: int = 3
    body_bytes: int = 1024
    single_messages: int = 30
    backlog_rows: int = 1_000_000
    commit_rows: int = 10_000
    one_row_commits: int = 3_000
    dataframe_rows: int = 1_000_000
    callers_s: float = 5.0
    idle_s: float = 40.0
    crowd_s: float = 20.0
    days: int = 30
    due_transactions: int = 100_000
    asynchronous: int = 100_000
    pending: int = 1_000_000
    consumed: int = 500_000
    published_rounds: int = 60
    verified: int = 10_000_000
    history_commits: int = 50_000
    history_messages: int = 10_000_000
    gone_processes: int = 100_000
    topics: int = 1_000
    # Ended transactions.
    retained: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 30_000_000)
    # Messages of one transaction; and transactions of a backlog with the messages of each.
    large: tuple[int, ...] = (1_000_000, 10_000_000, 30_000_000)
    large_backlog: tuple[int, int] = (3_000, 10_000)

    def smaller(self, times: int = 10) -> Sizes:
        """The same with less in it."""
        return replace(
            self,
            single_messages=max(3, self.single_messages // times),
            backlog_rows=max(self.commit_rows, self.backlog_rows // times),
            one_row_commits=max(100, self.one_row_commits // times),
            dataframe_rows=max(1, self.dataframe_rows // times),
            callers_s=max(0.5, self.callers_s / times),
            idle_s=max(1.0, self.idle_s / times),
            crowd_s=max(2.0, self.crowd_s / times),
            days=max(2, self.days // times),
            due_transactions=max(1, self.due_transactions // times),
            asynchronous=max(8, self.asynchronous // times),
            pending=max(1000, self.pending // times),
            consumed=max(self.commit_rows, self.consumed // times),
            published_rounds=max(5, self.published_rounds // times),
            verified=max(1_000, self.verified // times),
            history_commits=max(100, self.history_commits // times**2),
            history_messages=max(10_000, self.history_messages // times**2),
            gone_processes=max(1_000, self.gone_processes // times),
            topics=max(10, self.topics // times),
            retained=tuple(count // times**2 for count in self.retained),
            large=tuple(count // times for count in self.large),
            large_backlog=(self.large_backlog[0] // times, self.large_backlog[1]),
        )


FULL = Sizes()
QUICK = replace(FULL.smaller(), rounds=1)
