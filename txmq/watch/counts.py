"""What the services of a broker have done, as numbers and as a line of text."""

from __future__ import annotations

from dataclasses import dataclass, fields

from txmq.results import Plain, Sum

NOTHING = "nothing was to do"


@dataclass(frozen=True, slots=True)
class BrokerCounts(Plain, Sum):
    """The counts of all services; their names are the words of the log.

    Attributes:
        settled: claims that became facts.
        published: messages that became visible, scheduled or dead letters.
        delivered: delayed messages that came due.
        asked: questions to listeners.
        committed, rolled_back, unknown: what listeners answered.
        discarded: transactions that were asked too often.
        set_aside: transactions with messages that cannot be read.
        refused: commits that another broker was faster with.
        files_merged: small files that became large ones.
        commits_cleaned: old commits that left the logs.
        failures: tables and steps of maintenance that failed.
    """

    settled: int = 0
    published: int = 0
    delivered: int = 0
    asked: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    discarded: int = 0
    set_aside: int = 0
    refused: int = 0
    files_merged: int = 0
    commits_cleaned: int = 0
    failures: int = 0

    def since(self, before: BrokerCounts) -> BrokerCounts:
        """What was done after `before`."""
        names = [spec.name for spec in fields(self)]
        return BrokerCounts(**{name: getattr(self, name) - getattr(before, name) for name in names})

    def __str__(self) -> str:
        """All that is not zero, such as `settled 3, published 5`."""
        counts = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        words = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count]
        return ", ".join(words) or NOTHING
