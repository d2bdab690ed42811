"""What needs an operator, the most urgent first: the alerts of docs/monitoring.md. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from txmq.message.lifecycle import TransactionState
from txmq.message.names import shown_name
from txmq.ops.dashboard.rendering import Command, counted, duration, of_topic, recheck, txmq

if TYPE_CHECKING:
    from txmq.ops.admin.status import Status
    from txmq.ops.dashboard.snapshot import Snapshot


# As in deploy/prometheus/txmq-alerts.yaml.
PUBLISH_LAG_S = 60.0
DELAY_LAG_S = 60.0
OPEN_AGE_S = 3_600.0
FILES_MAX = 10_000
STILL_S = 300.0
SHOWN_MAX = 5


class Urgency(enum.StrEnum):
    """Whether it wakes somebody or can wait for the morning."""

    NOW = "now"
    SOON = "soon"


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs an operator.

    Attributes:
        alert: its part in docs/runbook.md.
        path: where the page shows more.
        command: what to look at first.
    """

    urgency: Urgency
    alert: str
    title: str
    text: str
    path: str
    command: Command


def needs(snapshot: Snapshot) -> list[Need]:
    """All needs, those first that cannot wait."""
    status = snapshot.status
    found = [*_stopped(status), *_parked(status), *_broken(status), *_waiting(status)]
    found += [*_unasked(snapshot), *_damaged(snapshot), *_unread(snapshot), *_still(snapshot)]
    found += _untidy(status)
    return sorted(found, key=lambda need: need.urgency is not Urgency.NOW)


def _stopped(status: Status) -> Iterator[Need]:
    if status.published.seconds > PUBLISH_LAG_S:
        commits = counted(status.published.op_versions, "commit")
        waits = duration(status.published.seconds)
        yield Need(
            Urgency.NOW, "TxmqNothingIsPublished", "Committed messages are not published",
            f"The oldest claim waits for {waits}, {commits} in all. Does a broker run?",
            "/", txmq("Run a broker", "serve", status.location),
        )  # fmt: skip
    if status.delay_lag_s > DELAY_LAG_S:
        yield Need(
            Urgency.NOW, "TxmqDelayedIsLate", "Delayed messages are late",
            f"The one that was due first is overdue by {duration(status.delay_lag_s)}.",
            "/delayed", txmq("Look for what ails it", "doctor", status.location),
        )  # fmt: skip


def _parked(status: Status) -> Iterator[Need]:
    for topic in status.parked[:SHOWN_MAX]:
        name, since_s = shown_name(topic.topic), (status.at - topic.since).total_seconds()
        look = of_topic(status.location, name, parked=topic.reason)[0]
        yield Need(
            Urgency.NOW, "TxmqTopicParked", f"Topic {name} is parked",
            f"It could not be written for {duration(since_s)}, "
            f"{counted(topic.attempts, 'attempt')}: {topic.reason}",
            f"/topics/{topic.topic}", look,
        )  # fmt: skip
    if len(status.parked) > SHOWN_MAX:
        more = len(status.parked) - SHOWN_MAX
        yield Need(
            Urgency.NOW, "TxmqTopicParked", f"{counted(more, 'more topic')} parked", "",
            "/topics?show=parked", txmq("All of them", "status", status.location),
        )  # fmt: skip


def _broken(status: Status) -> Iterator[Need]:
    look = txmq("Which ones, and why", "status", status.location)
    if status.unreadable:
        yield Need(
            Urgency.NOW, "TxmqFileUnreadable",
            f"{counted(len(status.unreadable), 'file')} of half cannot be read",
            f"{status.unreadable[0]}. Put it back from a backup.", "/", look,
        )  # fmt: skip
    if status.set_aside:
        first = status.set_aside[0]
        yield Need(
            Urgency.NOW, "TxmqFileUnreadable",
            f"{counted(len(status.set_aside), 'transaction')} set aside",
            f"They wait for messages that cannot be read: {first.problem}",
            f"/transactions/{first.transaction_id}", look,
        )  # fmt: skip
    if status.incomplete:
        yield Need(
            Urgency.NOW, "TxmqIncomplete",
            f"{counted(status.incomplete, 'transaction')} incomplete",
            "They were committed, but messages are missing or contradict each other.",
            f"/transactions?state={TransactionState.INCOMPLETE}",
            txmq("List them", "open", status.location),
        )  # fmt: skip


def _waiting(status: Status) -> Iterator[Need]:
    oldest_s = status.oldest_open_half_age_s or 0.0
    if oldest_s > OPEN_AGE_S:
        older = counted(status.older_than.get(int(OPEN_AGE_S), 0), "transaction")
        yield Need(
            Urgency.NOW, "TxmqOpenTooLong", f"{older} open for more than an hour",
            f"The oldest is {duration(oldest_s)} old. Its change may be done, its message waits.",
            "/transactions", recheck(status.location),
        )  # fmt: skip
    if status.discarded:
        yield Need(
            Urgency.SOON, "TxmqDiscarded", f"{counted(status.discarded, 'transaction')} discarded",
            "Their listener was asked too often; their messages are dead letters.",
            f"/transactions?state={TransactionState.DISCARDED}",
            txmq("List them", "discarded", "list", status.location),
        )  # fmt: skip


def _unasked(snapshot: Snapshot) -> Iterator[Need]:
    status = snapshot.status
    silent = status.unasked.get("NO_LISTENER", 0)
    if silent:
        rows = snapshot.open_rows
        groups = rows.filter(pc.equal(rows["reason"], "NO_LISTENER"))["producer_group"]
        names = ", ".join(shown_name(one) for one in sorted(set(groups.to_pylist()))[:SHOWN_MAX])
        yield Need(
            Urgency.SOON, "TxmqNobodyToAsk", f"{counted(silent, 'transaction')} without a listener",
            f"Of {names or 'a producer group'}: the broker has no listener for it, and no live "
            "producer answers.",
            "/transactions", txmq("Which ones", "open", status.location),
        )  # fmt: skip


def _damaged(snapshot: Snapshot) -> Iterator[Need]:
    for group, problem in sorted(snapshot.damaged.items())[:SHOWN_MAX]:
        name = shown_name(group)
        yield Need(
            Urgency.SOON, "TxmqGroupUnreadable", f"Group {name} cannot be read",
            f"Its members can neither read nor commit: {problem}", "/groups",
            txmq("What deleting it would do", "groups", "delete", snapshot.status.location, name),
        )  # fmt: skip


def _still(snapshot: Snapshot) -> Iterator[Need]:
    queues: dict[str, list[float]] = {}
    for key, still_s in snapshot.still_s.items():
        if still_s >= STILL_S:
            queues.setdefault(key.group, []).append(still_s)
    for group, times_s in sorted(queues.items())[:SHOWN_MAX]:
        name = shown_name(group)
        yield Need(
            Urgency.SOON, "TxmqGroupFallsBehind", f"{counted(len(times_s), 'queue')} of {name} "
            f"{'stands' if len(times_s) == 1 else 'stand'} still",
            f"A member lives, messages wait, and for {duration(min(times_s))} no offset has moved: "
            "its handler hangs, or takes as long.",
            f"/groups/{group}",
            txmq("Whose queues", "lag", snapshot.status.location, "--group", name),
        )  # fmt: skip


def _unread(snapshot: Snapshot) -> Iterator[Need]:
    ownerless: dict[str, int] = {}
    for queue in snapshot.lags:
        if queue.owner is None and queue.lag:
            ownerless[queue.group] = ownerless.get(queue.group, 0) + queue.lag
    for group, lag in sorted(ownerless.items(), key=lambda item: -item[1])[:SHOWN_MAX]:
        name = shown_name(group)
        yield Need(
            Urgency.SOON, "TxmqNobodyConsumes", f"Nobody consumes for {name}",
            f"{counted(lag, 'message')} in queues that no living member reads.",
            f"/groups/{group}",
            txmq("Its lag by queue", "lag", snapshot.status.location, "--group", name),
        )  # fmt: skip


def _untidy(status: Status) -> Iterator[Need]:
    many = {name: size.files for name, size in status.tables.items() if size.files > FILES_MAX}
    for name, files in sorted(many.items(), key=lambda item: -item[1])[:SHOWN_MAX]:
        yield Need(
            Urgency.SOON, "TxmqManyFiles", f"{name} has {files:,} files",
            "Maintenance merges them; does a broker run?", "/topics",
            txmq("Merge them now", "maintenance", status.location),
        )  # fmt: skip
