"""Deletes a consumer group: its offsets and its retries; its dead letters stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txmq.admin.living_members import LivingMembers
from txmq.admin.topic_deletion import delete_topic
from txmq.clock import Clock
from txmq.consumer.group import ConsumerGroup, group_in
from txmq.consumer.rules import EVERY_QUEUE, GroupState, replay_of
from txmq.errors import (
    CommitConflictError,
    ConsumerGroupNotFoundError,
    StorageError,
    StoreFormatError,
    UnreadableFileError,
)
from txmq.message.names import dead_letter_topic, retry_topic
from txmq.results import Plain
from txmq.store.store import Store
from txmq.store.tables import CONSUMER_GROUP

# What damage raises; all other errors of a storage have a type of their own, and may pass.
_DAMAGE = (StorageError, StoreFormatError, UnreadableFileError)


@dataclass(frozen=True, slots=True)
class GroupDeletion(Plain):
    """What a deletion of a consumer group removes, or has removed.

    Attributes:
        group: the stored name.
        subscription: the topics that it read, with their filters.
        retries: messages in its retry topic, which go; with a `problem` they stay.
        dead_letters: its dead letters, which stay: nobody has handled them.
        is_written: false in a dry run.
        problem: why the offsets cannot be read, and so what it reads and whether members live is
            not known; None where they can.
    """

    group: str
    subscription: Mapping[str, str]
    retries: int
    dead_letters: int
    is_written: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A group as it is, or why it cannot be read; the version is that of its table before."""

    state: GroupState
    version: int
    problem: str | None = None


def delete_group(
    store: Store, name: str, clock: Clock, living: LivingMembers, *, apply: bool
) -> GroupDeletion:
    """Remove the offsets and the retries of a group; see `ConsumerGroups.delete`."""
    group = group_in(store, name)
    seen, letters = _seen(group), _rows(store, dead_letter_topic(name))
    if seen.problem is not None:
        if apply:
            _begin_anew(store, group, seen.version, clock.now_ms())
        retries = _rows(store, retry_topic(name))
        return GroupDeletion(name, {}, retries, letters, apply, seen.problem)
    if seen.state.is_gone and not _rows(store, retry_topic(name)):
        raise ConsumerGroupNotFoundError(name)
    living.check_none(group, seen.state, can_be_forced=False)
    # Refused before anything is written, where retries wait for their time.
    retries = delete_topic(store, retry_topic(name), clock, apply=False).rows
    if apply:
        _apply(store, group, clock, living)
    return GroupDeletion(name, dict(seen.state.settings.subscription), retries, letters, apply)


def _seen(group: ConsumerGroup) -> _Seen:
    # Looked at first: damage of this version is what a new beginning is put behind.
    version = group.newest_version()
    try:
        return _Seen(group.read() if group.exists else GroupState(), version)
    except StorageError as error:
        if type(error) not in _DAMAGE:
            raise
        return _Seen(GroupState(), version, str(error))


def _apply(store: Store, group: ConsumerGroup, clock: Clock, living: LivingMembers) -> None:
    """The group first: a member that joins meanwhile is refused or begins anew."""
    if group.exists:
        group.change(lambda now: _emptied(group, now, living), clock.now_ms())
    if store.tables.table_at(f"topics/{group.retry_topic}").exists():
        delete_topic(store, group.retry_topic, clock, apply=True)


def _begin_anew(store: Store, group: ConsumerGroup, version: int, now_ms: int) -> None:
    """Its retries stay: no member could read them, and nobody may wait for those to come."""
    state, interval = anew(version, now_ms), store.config.checkpoint_interval
    if not group.begin_anew(state, version, now_ms, interval):
        problem = "was written by another process meanwhile, and may be whole; look again"
        raise CommitConflictError(f"state/{CONSUMER_GROUP}{group.name}", problem)


def _emptied(group: ConsumerGroup, state: GroupState, living: LivingMembers) -> GroupState:
    living.check_none(group, state, can_be_forced=False)
    return state if state.is_gone else emptied(state)


def emptied(state: GroupState) -> GroupState:
    """The state of a deleted group; pure.

    The epoch stays above that of every old member. Who joins later reads again on purpose, so what
    fails again is sent back again.
    """
    queues = {queue for offsets in state.offsets.values() for queue in offsets}
    more = {queue: replay_of(state.replays, queue) + 1 for queue in queues}
    return GroupState(replays={**state.replays, **more}, epoch=state.epoch + 1)


def anew(version: int, now_ms: int) -> GroupState:
    """The state of a deleted group whose state before cannot be read.

    Epochs and replays count changes of the group, each a commit; so milliseconds since 1970 are
    above those of every old member. Where this clock is wrong, a multiple of the version is: one
    commit raises an epoch by a few.

    Args:
        version: the newest version of its table.
        now_ms: the time.
    """
    above = max(now_ms, 1_000 * (version + 1))
    return GroupState(replays={EVERY_QUEUE: above}, epoch=above)


def _rows(store: Store, topic: str) -> int:
    table = store.tables.table_at(f"topics/{topic}")
    return sum(file.num_records for file in table.files()) if table.exists() else 0
