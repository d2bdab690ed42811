"""Named places where a test may let this process die, fail or wait; in production they do nothing.

Nothing is looked up here: only `txmq.testing`, which services never import, arms them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class FailPoint(enum.StrEnum):
    """A place between two steps; the name says what has just happened."""

    STORE_TABLE_CREATED = "store.table_created"
    FILES_WRITTEN = "storage.files_written"
    REGISTER_SWAPPED = "register.swapped"
    HALF_READY = "producer.half_ready"
    HALF_COMMITTED = "producer.half_committed"
    FRAMES_WRITTEN = "producer.frames_written"
    FRAMES_COMMITTED = "producer.frames_committed"
    END_READY = "producer.end_ready"
    END_COMMITTED = "producer.end_committed"
    END_CONFIRMED = "producer.end_confirmed"
    TIMER_FIRED = "publisher.timer_fired"
    CLAIMS_READ = "settle.claims_read"
    FACTS_DECIDED = "settle.facts_decided"
    FACTS_COMMITTED = "settle.facts_committed"
    PLAN_MADE = "publish.plan_made"
    TOPIC_CREATED = "publish.topic_created"
    PAYLOAD_WRITTEN = "publish.payload_written"
    TOPIC_COMMITTED = "publish.topic_committed"
    TOPICS_DONE = "publish.topics_done"
    TOPIC_PARKED = "publish.topic_parked"
    PROGRESS_KEPT = "publish.progress_kept"
    DUE_FOUND = "check.due_found"
    LEASE_TAKEN = "check.lease_taken"
    CHECKS_DECIDED = "check.decided"
    FENCE_COMMITTED = "listener.fence_committed"
    FENCE_RAISED = "listener.fence_raised"
    CHECKS_ANSWERED = "check.answered"
    CHECKS_COMMITTED = "check.committed"
    LEASE_RETURNED = "check.lease_returned"
    DUE_MESSAGES_FOUND = "delay.due_messages_found"
    DELIVERIES_CLAIMED = "delay.deliveries_claimed"
    DELAY_PROGRESS_KEPT = "delay.progress_kept"
    FILES_MERGED = "maintenance.files_merged"
    FILES_REPLACED = "maintenance.files_replaced"
    LOG_CLEANED = "maintenance.log_cleaned"
    EXPIRY_CLAIMED = "maintenance.expiry_claimed"
    DAYS_FORGOTTEN = "maintenance.days_forgotten"
    HALF_DAYS_REMOVED = "maintenance.half_days_removed"
    DUE_DAYS_REMOVED = "maintenance.due_days_removed"


_hooks: list[Callable[[FailPoint], None]] = []


def reached(point: FailPoint) -> None:
    """Call what a test has armed; nothing is armed in production."""
    for hook in _hooks:
        hook(point)


def arm(hook: Callable[[FailPoint], None]) -> Callable[[], None]:
    """Call `hook` at every point from now on; returns what ends that."""
    _hooks.append(hook)
    return lambda: _hooks.remove(hook)
