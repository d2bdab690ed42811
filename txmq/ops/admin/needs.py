"""The one list of what ails a store: rules from counted figures to what needs an operator. Pure.

`txmq doctor`, `txmq status` and the dashboard show this list. The thresholds are those of
deploy/prometheus/txmq-alerts.yaml, and each need names its part of docs/runbook.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from txmq.errors import TopicBehindError
from txmq.ground.amounts import counted, duration
from txmq.listeners.protocol import Reason
from txmq.message.lifecycle import TransactionState
from txmq.message.names import SCHEDULE_TOPIC, shown_name
from txmq.ops.admin.status import Lag, ParkedTopicStatus, SetAsideStatus, Status
from txmq.store.settled import NOTHING

# Claims, and delayed messages that are due, may wait for so long.
PUBLISH_LAG_MAX_S = 60.0
DELAY_LAG_MAX_S = 60.0
# A transaction may be open for so long; one of AGE_BOUNDS_S of the status.
OPEN_AGE_MAX_S = 3_600
# A table may have so many files.
FILES_MAX = 10_000
# A queue with messages and a member may stand still for less than this.
STILL_MAX_S = 300.0


class Urgency(enum.StrEnum):
    """How urgent a need is: it wakes somebody, or it can wait for the morning."""

    NOW = "now"
    SOON = "soon"


class Alert(enum.StrEnum):
    """The part of docs/runbook.md, and the alert of Prometheus, that a need belongs to."""

    NOTHING_IS_PUBLISHED = "TxmqNothingIsPublished"
    DELAYED_IS_LATE = "TxmqDelayedIsLate"
    TOPIC_PARKED = "TxmqTopicParked"
    FILE_UNREADABLE = "TxmqFileUnreadable"
    INCOMPLETE = "TxmqIncomplete"
    OPEN_TOO_LONG = "TxmqOpenTooLong"
    DISCARDED = "TxmqDiscarded"
    NOBODY_TO_ASK = "TxmqNobodyToAsk"
    GROUP_UNREADABLE = "TxmqGroupUnreadable"
    NOBODY_CONSUMES = "TxmqNobodyConsumes"
    GROUP_FALLS_BEHIND = "TxmqGroupFallsBehind"
    MANY_FILES = "TxmqManyFiles"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `txmq` and its purpose; the words are not quoted."""

    purpose: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs an operator.

    Attributes:
        where: what it is about: a table, a register, a group, or the things themselves.
        problem: what is wrong there, in a few words that follow `where`.
        next_step: what to do about it.
        title: the same as a heading of a page.
        text: what stands below the heading.
        path: where the dashboard shows more.
        call: what to look at first.
    """

    urgency: Urgency
    alert: Alert
    where: str
    problem: str
    next_step: str
    title: str
    text: str
    path: str
    call: Call


@dataclass(frozen=True, slots=True)
class Figures:
    """What was counted of a store. Without a figure there is no need of its kind.

    Attributes:
        location: the store.
        at: when it was counted.
        published: how far publishing is behind the op log.
        has_broker: whether a broker is known to run.
        delay_lag_s: how long the delayed message that was due first is overdue.
        oldest_open_s: the age of the oldest open transaction.
        open_too_long: how many transactions are open for longer than OPEN_AGE_MAX_S.
        renewed: how many open transactions have a producer that lives and works on them.
        silent: how many open transactions nobody answers for.
        silent_groups: how many of them there are by producer group, as far as that is known.
        files: the number of files by table.
        unusable: why topics cannot be used, by topic.
        damaged: why consumer groups cannot be read, by group.
        unread: messages in queues that no living member reads, by consumer group.
        still_s: how long queues with messages and a member have stood still, by consumer group.
    """

    location: str
    at: datetime
    published: Lag = field(default_factory=lambda: Lag(NOTHING, 0, 0.0))
    has_broker: bool = False
    delay_lag_s: float = 0.0
    parked: Sequence[ParkedTopicStatus] = ()
    unreadable: Sequence[str] = ()
    set_aside: Sequence[SetAsideStatus] = ()
    incomplete: int = 0
    oldest_open_s: float = 0.0
    open_too_long: int = 0
    discarded: int = 0
    renewed: int = 0
    silent: int = 0
    silent_groups: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    still_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Status) -> Figures:
        """Take the figures of a status, which knows nothing of consumer groups."""
        return cls(
            location=status.location,
            at=status.at,
            published=status.published,
            has_broker=any(not broker.is_gone for broker in status.brokers),
            delay_lag_s=status.delay_lag_s,
            parked=status.parked,
            unreadable=status.unreadable,
            set_aside=status.set_aside,
            incomplete=status.incomplete,
            oldest_open_s=status.oldest_open_half_age_s or 0.0,
            open_too_long=status.older_than.get(OPEN_AGE_MAX_S, 0),
            discarded=status.discarded,
            renewed=status.unasked.get(Reason.PRODUCER_LIVES.value, 0),
            silent=status.unasked.get(Reason.NO_LISTENER.value, 0),
            files={name: size.files for name, size in status.tables.items()},
            unusable=status.unusable,
        )


def needs_of(figures: Figures) -> list[Need]:
    """List all needs, first those that cannot wait."""
    rules = (
        _unpublished, _late, _parked, _unusable, _unreadable, _set_aside, _incomplete,
        _open_too_long, _discarded, _unasked, _damaged, _unread, _still, _many_files,
    )  # fmt: skip
    needs = [need for rule in rules for need in rule(figures)]
    return sorted(needs, key=lambda need: need.urgency is not Urgency.NOW)


# --- the broker -----------------------------------------------------------------------------------


def _unpublished(figures: Figures) -> Iterator[Need]:
    waits_s = figures.published.seconds
    if waits_s <= PUBLISH_LAG_MAX_S:
        return
    commits = counted(figures.published.op_versions, "commit")
    waits = f"a claim waits for {waits_s:,.0f} s"
    has_broker = figures.has_broker
    yield Need(
        Urgency.NOW,
        Alert.NOTHING_IS_PUBLISHED,
        where="brokers",
        problem=(
            f"one is known to run, and {waits} to be published"
            if has_broker
            else f"no broker is known to run, and {waits}"
        ),
        next_step=(
            "look at its log, and at txmq status LOCATION"
            if has_broker
            else "start one: txmq serve"
        ),
        title="Committed messages are not published",
        text=f"The oldest claim waits for {duration(waits_s)}, {commits} in all. "
        "Does a broker run?",
        path="/",
        call=Call("Run a broker", ("serve", figures.location)),
    )


def _late(figures: Figures) -> Iterator[Need]:
    late_s = figures.delay_lag_s
    if late_s > DELAY_LAG_MAX_S:
        yield Need(
            Urgency.NOW,
            Alert.DELAYED_IS_LATE,
            where=f"topics/{SCHEDULE_TOPIC}",
            problem=f"a delayed message is overdue for {late_s:,.0f} s",
            next_step="look whether a broker runs, and which file of the schedule is damaged",
            title="Delayed messages are late",
            text=f"The one that was due first is overdue by {duration(late_s)}.",
            path="/delayed",
            call=_doctor(figures),
        )


def _parked(figures: Figures) -> Iterator[Need]:
    for topic in figures.parked:
        name, since_s = shown_name(topic.topic), (figures.at - topic.since).total_seconds()
        is_behind = topic.reason.startswith(TopicBehindError.__name__)
        rebuild = Call(
            "Compare it with half and settled", ("rebuild-topic", figures.location, name)
        )
        yield Need(
            Urgency.NOW,
            Alert.TOPIC_PARKED,
            where=f"topics/{topic.topic}",
            problem=f"is parked: {topic.reason}",
            next_step=(
                f"txmq rebuild-topic LOCATION {name} shows what it lacks"
                if is_behind
                else "mend the cause; the publisher tries again by itself, at once where it is "
                "started anew"
            ),
            title=f"Topic {name} is parked",
            text=f"It could not be written for {duration(since_s)}, "
            f"{counted(topic.attempts, 'attempt')}: {topic.reason}",
            path=f"/topics/{topic.topic}",
            # The rows of another one are all there: what keeps it from being written is elsewhere.
            call=rebuild if is_behind else _doctor(figures),
        )


def _unusable(figures: Figures) -> Iterator[Need]:
    for topic in figures.unusable.keys() - {parked.topic for parked in figures.parked}:
        name, problem = shown_name(topic), figures.unusable[topic]
        yield Need(
            Urgency.NOW,
            Alert.TOPIC_PARKED,
            where=f"topics/{topic}",
            problem=f"cannot be used: {problem}",
            next_step="drop the feature: ALTER TABLE … DROP FEATURE in Spark",
            title=f"Topic {name} cannot be used",
            text=problem,
            path=f"/topics/{topic}",
            call=_doctor(figures),
        )


# --- messages that cannot be read -----------------------------------------------------------------


def _unreadable(figures: Figures) -> Iterator[Need]:
    if figures.unreadable:
        first = figures.unreadable[0]
        files = counted(len(figures.unreadable), "file")
        yield Need(
            Urgency.NOW,
            Alert.FILE_UNREADABLE,
            # The table `half` has findings of its own.
            where="files of half",
            problem=f"{files} of half cannot be read: {first}",
            next_step="put it back from a backup; txmq status LOCATION names all",
            title=f"{files} of half cannot be read",
            text=f"{first}. Put it back from a backup.",
            path="/",
            call=_status(figures),
        )


def _set_aside(figures: Figures) -> Iterator[Need]:
    if figures.set_aside:
        first, count = figures.set_aside[0], len(figures.set_aside)
        yield Need(
            Urgency.NOW,
            Alert.FILE_UNREADABLE,
            where="state/set_aside",
            problem=f"{count:,} transactions wait for what cannot be read: {first.problem}",
            next_step="restore the files, or give the broker the old key and the new one "
            "(claim_keys), or give up: txmq resolve ID --give-up; txmq status names both",
            title=f"{counted(count, 'transaction')} set aside",
            text=f"They wait for what cannot be read: {first.problem}",
            path=f"/transactions/{first.transaction_id}",
            call=_status(figures),
        )


def _incomplete(figures: Figures) -> Iterator[Need]:
    if figures.incomplete:
        transactions = counted(figures.incomplete, "transaction")
        harm = "messages are missing or contradict each other"
        yield Need(
            Urgency.NOW,
            Alert.INCOMPLETE,
            where="transactions",
            problem=f"{transactions} incomplete: committed, but {harm}",
            next_step="txmq open LOCATION lists them; then txmq resume or txmq resolve",
            title=f"{transactions} incomplete",
            text=f"They were committed, but {harm}.",
            path=f"/transactions?state={TransactionState.INCOMPLETE}",
            call=Call("List them", ("open", figures.location)),
        )


# --- transactions without an end ------------------------------------------------------------------


def _open_too_long(figures: Figures) -> Iterator[Need]:
    if figures.oldest_open_s > OPEN_AGE_MAX_S:
        transactions = counted(figures.open_too_long, "transaction")
        oldest = duration(figures.oldest_open_s)
        lives = (
            f"; of all open ones {figures.renewed:,} have a producer that lives and works on them"
        )
        lives = lives if figures.renewed else ""
        yield Need(
            Urgency.NOW,
            Alert.OPEN_TOO_LONG,
            where="transactions",
            problem=f"{transactions} open for more than an hour, the oldest for {oldest}{lives}",
            next_step="txmq open LOCATION says why (PRODUCER_LIVES: end its process if it hangs); "
            "mend the listener, or decide: txmq resolve",
            title=f"{transactions} open for more than an hour",
            text=f"The oldest is {oldest} old. Its change may be done, its message waits.",
            path="/transactions",
            call=Call(
                "Ask all due listeners now; --config FILE names those of a broker's settings file",
                ("recheck", figures.location),
            ),
        )


def _discarded(figures: Figures) -> Iterator[Need]:
    if figures.discarded:
        transactions = counted(figures.discarded, "transaction")
        why = "listener was asked too often; their messages are dead letters"
        yield Need(
            Urgency.SOON,
            Alert.DISCARDED,
            where="transactions",
            problem=f"{transactions} discarded: their {why}",
            next_step="txmq discarded list LOCATION; mend the listener, then txmq resume",
            title=f"{transactions} discarded",
            text=f"Their {why}.",
            path=f"/transactions?state={TransactionState.DISCARDED}",
            call=Call("List them", ("discarded", "list", figures.location)),
        )


def _unasked(figures: Figures) -> Iterator[Need]:
    """Find producer groups that nobody answers for: one need for each that is known by name."""
    next_step = "set its listener in the broker's settings file, or decide: txmq open, txmq resolve"
    silent = dict(sorted(figures.silent_groups.items()))
    if (nameless := figures.silent - sum(silent.values())) > 0:
        silent[""] = nameless
    for group, count in silent.items():
        transactions = counted(count, "transaction")
        owner = f" of {shown_name(group)}" if group else ""
        yield Need(
            Urgency.SOON,
            Alert.NOBODY_TO_ASK,
            where=f"producer group {shown_name(group)}" if group else "producer groups",
            problem=f"{count:,} of its transactions are open, and nobody answers for it"
            if group
            else f"{transactions} open, and nobody answers for their groups",
            next_step=next_step,
            title=f"{transactions}{owner} without a listener",
            text="The broker has no listener for the group, and no live producer answers.",
            path="/transactions",
            call=Call("Which ones", ("open", figures.location)),
        )


# --- consumer groups ------------------------------------------------------------------------------


def _damaged(figures: Figures) -> Iterator[Need]:
    for group, problem in sorted(figures.damaged.items()):
        name = shown_name(group)
        yield Need(
            Urgency.SOON,
            Alert.GROUP_UNREADABLE,
            where=f"group {name}",
            problem=f"cannot be read: {problem}",
            next_step="put its file back, or give its offsets up: "
            f"txmq groups delete LOCATION {name}",
            title=f"Group {name} cannot be read",
            text=f"Its members can neither read nor commit: {problem}",
            path="/groups",
            call=Call("What deleting it would do", ("groups", "delete", figures.location, name)),
        )


def _unread(figures: Figures) -> Iterator[Need]:
    for group, lag in sorted(figures.unread.items(), key=lambda item: -item[1]):
        name, messages = shown_name(group), counted(lag, "message")
        yield Need(
            Urgency.SOON,
            Alert.NOBODY_CONSUMES,
            where=f"group {name}",
            problem=f"{messages} wait in queues that no living member reads",
            next_step="start members",
            title=f"Nobody consumes for {name}",
            text=f"{messages} in queues that no living member reads.",
            path=f"/groups/{group}",
            call=Call("Its lag by queue", ("lag", figures.location, "--group", name)),
        )


def _still(figures: Figures) -> Iterator[Need]:
    for group, ages_s in sorted(figures.still_s.items()):
        still_s = [age_s for age_s in ages_s if age_s >= STILL_MAX_S]
        if not still_s:
            continue
        name, queues = shown_name(group), counted(len(still_s), "queue")
        stand, least = "stands" if len(still_s) == 1 else "stand", duration(min(still_s))
        yield Need(
            Urgency.SOON,
            Alert.GROUP_FALLS_BEHIND,
            where=f"group {name}",
            problem=f"{queues} {stand} still for {least}",
            next_step="end the process of the member whose handler hangs",
            title=f"{queues} of {name} {stand} still",
            text=f"A member lives, messages wait, and for {least} it has moved none of its queues, "
            "or passed these over: its handler hangs or takes as long, or they cannot be read.",
            path=f"/groups/{group}",
            call=Call("Whose queues", ("lag", figures.location, "--group", name)),
        )


# --- tables -----------------------------------------------------------------------------------


def _many_files(figures: Figures) -> Iterator[Need]:
    many = {name: files for name, files in figures.files.items() if files > FILES_MAX}
    for name, files in sorted(many.items(), key=lambda item: -item[1]):
        yield Need(
            Urgency.SOON,
            Alert.MANY_FILES,
            where=name,
            problem=f"has {files:,} files",
            next_step="run a broker or txmq maintenance, and look at why it fails",
            title=f"{name} has {files:,} files",
            text="Maintenance merges them; does a broker run?",
            path="/topics",
            call=Call("Merge them now", ("maintenance", figures.location)),
        )


# --- calls ----------------------------------------------------------------------------------------


def _doctor(figures: Figures) -> Call:
    return Call("Look for what ails it", ("doctor", figures.location))


def _status(figures: Figures) -> Call:
    return Call("Which ones, and why", ("status", figures.location))
