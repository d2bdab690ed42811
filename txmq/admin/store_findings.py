"""What ails the settings, the progress and the readers of a store. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow.compute as pc

from txmq.admin.counting import lag_of
from txmq.admin.findings import Finding, told
from txmq.backup.order import order_faults
from txmq.backup.sight import sight_of
from txmq.check.open_transactions import open_transactions
from txmq.clock import Clock, timestamp
from txmq.consumer.group import group_names
from txmq.consumer.lag import ConsumerLag, QueueLag
from txmq.consumer.offsets import TopicOffsets
from txmq.errors import TopicBehindError, TxmqError
from txmq.listeners.outcomes import Reason
from txmq.message.names import shown_name
from txmq.printable import printable
from txmq.store.config import Config
from txmq.store.kept_settings import HOW_TO_MOVE, ignored_names
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import NOTHING
from txmq.store.store import Store
from txmq.store.tables import CONSUMER_GROUP
from txmq.watch.brokers import BrokerEntry, read_brokers

# So long a scheduler may pause between two calls of `serve --once`.
UNPUBLISHED_S = 300.0


def findings_of_settings(store: Store) -> Iterator[Finding]:
    """Settings that nobody loads, and pairs that do not fit each other."""
    for name in ignored_names(store.ignored):
        problem = "stands in the store's own settings and could act, so nobody loads it"
        yield Finding(name, problem, f"if you trust it, {HOW_TO_MOVE}")
    yield from _misfits(store.config)


def _misfits(config: Config) -> Iterator[Finding]:
    look_s, timeout_s = config.check_trigger_interval_s, config.transaction_timeout_s
    if look_s > timeout_s:
        problem = f"is {look_s:g} s, longer than transaction_timeout_s ({timeout_s:g} s)"
        step = "make it shorter: transactions are asked about that much too late"
        yield Finding("check_trigger_interval_s", problem, step)
    recheck_s, log_s = config.recheck_interval_s, config.log_reserved_time_s
    if recheck_s > log_s:
        problem = f"is {recheck_s:g} s, longer than log_reserved_time_s ({log_s:g} s)"
        step = "make it shorter: else each recheck reads the whole logs"
        yield Finding("recheck_interval_s", problem, step)


def findings_of_strange_paths(store: Store) -> Iterator[Finding]:
    """Folders that look like a topic or a group, and can be none."""
    for path in store.tables.strange_paths():
        problem = "has a name that no topic and no group can have, so nothing reads it"
        yield Finding(path, problem, "find out who made it, and move it out of the store")


def findings_of_order(store: Store) -> Iterator[Finding]:
    """Tables that are newer than others that they refer to, as in a copy that was made by hand."""
    try:
        faults = order_faults(sight_of(store.tables))
    except TxmqError:
        # A table that cannot be read is a finding of its own.
        return
    for fault in faults:
        problem = f"is newer than {fault.older}: {fault.problem}"
        yield Finding(fault.newer, problem, fault.next_step)


def findings_of_progress(store: Store, now_ms: int) -> Iterator[Finding]:
    """Parked topics, what is set aside, and claims that nobody publishes."""
    yield from told("state/publisher", partial(_of_publisher, store, now_ms))
    yield from told("state/set_aside", partial(_of_set_aside, store))


def _of_publisher(store: Store, now_ms: int) -> Iterator[Finding]:
    value = store.tables.register("publisher").read().value
    parked = value.get("parked")
    for topic, entry in sorted(parked.items()) if isinstance(parked, dict) else ():
        reason = _reason(entry)
        yield Finding(f"topics/{topic}", f"is parked: {reason}", _unparked(topic, reason))
    yield from told("op", partial(_of_lag, store, value.get("low_water_version", NOTHING), now_ms))


def _of_set_aside(store: Store) -> Iterator[Finding]:
    if waiting := read_set_aside(store.tables).transactions:
        problem = f"{len(waiting):,} transactions wait for files of half that cannot be read"
        step = "restore the files, or give up: txmq resolve ID --give-up; txmq status names both"
        yield Finding("state/set_aside", problem, step)


def _of_lag(store: Store, published_version: int, now_ms: int) -> Iterator[Finding]:
    lag = lag_of(store.tables.op_log(), published_version, now_ms)
    if lag.seconds > UNPUBLISHED_S and not _living(store, now_ms):
        problem = f"no broker is known to run, and a claim waits for {lag.seconds:,.0f} s"
        yield Finding("brokers", problem, "start one: txmq serve")


def findings_of_brokers(store: Store, now_ms: int) -> Iterator[Finding]:
    """Brokers that did not stop in order, and brokers of two versions."""
    entries = read_brokers(store.tables).entries.values()
    for entry in sorted(entries, key=lambda one: one.seen_ms):
        if entry.is_gone(now_ms):
            seen = timestamp(entry.seen_ms).isoformat(sep=" ", timespec="seconds")
            said = "says that it was seen at" if entry.is_to_come(now_ms) else "was seen last at"
            problem = f"{printable(entry.name)} {said} {seen} and did not stop in order"
            step = "look at its log, and whether it must run; its entry goes after a day"
            yield Finding("brokers", problem, step)
    versions = sorted({entry.version for entry in _living(store, now_ms)})
    if len(versions) > 1:
        problem = f"run with different versions of txmq: {', '.join(versions)}"
        yield Finding("brokers", problem, "bring the older ones to the newest version")


def _living(store: Store, now_ms: int) -> list[BrokerEntry]:
    try:
        entries = read_brokers(store.tables).entries.values()
    except TxmqError:
        # This is a finding of its own.
        return []
    return [entry for entry in entries if not entry.is_gone(now_ms)]


def findings_of_readers(store: Store) -> Iterator[Finding]:
    """Consumer groups behind what retention has left."""
    lags = ConsumerLag(store)
    for group in group_names(store):
        path = f"state/{CONSUMER_GROUP}{group}"
        yield from told(path, partial(_of_group, store, lags, group))


def _of_group(store: Store, lags: ConsumerLag, group: str) -> Iterator[Finding]:
    behind: dict[str, list[QueueLag]] = {}
    for queue in lags.of_group(group):
        if queue.lag:
            behind.setdefault(queue.topic, []).append(queue)
    lost = {topic: _lost(store, topic, queues) for topic, queues in sorted(behind.items())}
    for topic, count in lost.items():
        if count:
            problem = f"retention removed {count:,} messages of {shown_name(topic)} unread"
            step = "let the group read more often, or keep the topic longer: txmq topics alter"
            yield Finding(f"group {shown_name(group)}", problem, step)


def _lost(store: Store, topic: str, queues: list[QueueLag]) -> int:
    """How many messages retention removed unread; one look at the topic."""
    first = TopicOffsets(store, topic).first({queue.queue_id for queue in queues})
    return sum(max(0, first[queue.queue_id] - queue.next_offset) for queue in queues)


def findings_of_listeners(store: Store, clock: Clock) -> Iterator[Finding]:
    """Producer groups with open transactions that nobody answers for."""
    try:
        rows = open_transactions(store, clock=clock)
    except TxmqError:
        # A log that cannot be read is a finding of its own.
        return
    silent = rows.filter(pc.equal(rows["reason"], Reason.NO_LISTENER.value))
    for group, count in sorted(Counter(silent["producer_group"].to_pylist()).items()):
        problem = f"{count:,} of its transactions are open, and nobody answers for it"
        step = "set its listener in the broker's settings file, or decide: txmq open, txmq resolve"
        yield Finding(f"producer group {shown_name(group)}", problem, step)


def _unparked(topic: str, reason: str) -> str:
    if reason.startswith(TopicBehindError.__name__):
        return f"txmq rebuild-topic LOCATION {shown_name(topic)} shows what it lacks"
    return "mend the cause; the publisher tries again by itself, at once where it is started anew"


def _reason(entry: Any) -> str:
    return str(entry.get("reason")) if isinstance(entry, dict) else "no reason is kept"
