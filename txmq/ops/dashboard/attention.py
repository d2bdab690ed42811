"""What needs an operator, as the overview shows it: the needs of a count, with their commands."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from txmq.ground.amounts import counted
from txmq.listeners.protocol import Reason
from txmq.ops.admin.needs import Alert, Call, Figures, Need, needs_of
from txmq.ops.dashboard.rendering import Command, txmq

if TYPE_CHECKING:
    from txmq.ops.dashboard.snapshot import Snapshot

# Of one alert; status and doctor list all.
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class ShownNeed:
    """A need, and the command to copy.

    Attributes:
        alert: its part in docs/runbook.md.
        path: where the page shows more.
        command: what to look at first.
    """

    urgency: str
    alert: str
    title: str
    text: str
    path: str
    command: Command


def needs(snapshot: Snapshot) -> list[ShownNeed]:
    """List what needs an operator, first what cannot wait; of each alert SHOWN_MAX at most."""
    by_alert: defaultdict[Alert, list[Need]] = defaultdict(list)
    for need in needs_of(figures_of(snapshot)):
        by_alert[need.alert].append(need)
    location = snapshot.status.location
    return [_shown(need) for alike in by_alert.values() for need in _first(alike, location)]


def figures_of(snapshot: Snapshot) -> Figures:
    """Take the figures of the status, and of consumer and producer groups."""
    rows = snapshot.open_rows
    silent = rows.filter(pc.equal(rows["reason"], Reason.NO_LISTENER.value))["producer_group"]
    unread: Counter[str] = Counter()
    for queue in snapshot.lags:
        if queue.owner is None and queue.lag:
            unread[queue.group] += queue.lag
    still_s: defaultdict[str, list[float]] = defaultdict(list)
    for key, age_s in snapshot.still_s.items():
        still_s[key.group].append(age_s)
    return replace(
        Figures.of(snapshot.status),
        silent_groups=Counter(silent.to_pylist()),
        damaged=snapshot.damaged,
        unread=unread,
        still_s=still_s,
    )


def _first(alike: list[Need], location: str) -> list[Need]:
    """Return the first needs of one alert; of parked topics also how many more there are."""
    more = len(alike) - SHOWN_MAX
    if more <= 0 or alike[0].alert is not Alert.TOPIC_PARKED:
        return alike[:SHOWN_MAX]
    title = f"{counted(more, 'more topic')} parked"
    call = Call("All of them", ("status", location))
    rest = replace(alike[0], title=title, text="", path="/topics?show=parked", call=call)
    return [*alike[:SHOWN_MAX], rest]


def _shown(need: Need) -> ShownNeed:
    command = txmq(need.call.purpose, *need.call.words)
    return ShownNeed(need.urgency, need.alert, need.title, need.text, need.path, command)
