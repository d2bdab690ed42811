"""Deletes a consumer group: its offsets and its retries; its dead letters stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txmq.admin.topic_deletion import delete_topic
from txmq.clock import Clock
from txmq.consumer.group import ConsumerGroup, group_in
from txmq.consumer.rules import GroupState
from txmq.errors import ConsumerGroupInUseError, ConsumerGroupNotFoundError
from txmq.message.names import dead_letter_topic, retry_topic
from txmq.results import Plain
from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class GroupDeletion(Plain):
    """What a deletion of a consumer group removes, or has removed.

    Attributes:
        group: the stored name.
        subscription: the topics that it read, with their filters.
        retries: messages in its retry topic, which go.
        dead_letters: its dead letters, which stay: nobody has handled them.
        is_written: false in a dry run.
    """

    group: str
    subscription: Mapping[str, str]
    retries: int
    dead_letters: int
    is_written: bool = False


def delete_group(store: Store, name: str, clock: Clock, *, apply: bool) -> GroupDeletion:
    """Remove the offsets and the retries of a group; see `ConsumerGroups.delete`."""
    group = group_in(store, name)
    state = group.read() if group.exists else GroupState()
    if state.is_gone and not _rows(store, retry_topic(name)):
        raise ConsumerGroupNotFoundError(name)
    _check_without_members(name, state, clock)
    # Refused before anything is written, where retries wait for their time.
    retries = delete_topic(store, retry_topic(name), clock, apply=False).rows
    if apply:
        _apply(store, group, clock)
    letters = _rows(store, dead_letter_topic(name))
    return GroupDeletion(name, dict(state.settings.subscription), retries, letters, apply)


def _apply(store: Store, group: ConsumerGroup, clock: Clock) -> None:
    """The group first: a member that joins meanwhile is refused or begins anew."""
    if group.exists:
        group.change(lambda now: _emptied(group.name, now, clock), clock.now_ms())
    if store.tables.table_at(f"topics/{group.retry_topic}").exists():
        delete_topic(store, group.retry_topic, clock, apply=True)


def _emptied(name: str, state: GroupState, clock: Clock) -> GroupState:
    _check_without_members(name, state, clock)
    return state if state.is_gone else emptied(state)


def emptied(state: GroupState) -> GroupState:
    """The state of a deleted group; pure.

    The epoch stays above that of every old member. Who joins later reads again on purpose, so what
    fails again is sent back again.
    """
    queues = {queue for offsets in state.offsets.values() for queue in offsets}
    more = {queue: state.replays.get(queue, 0) + 1 for queue in queues}
    return GroupState(replays={**state.replays, **more}, epoch=state.epoch + 1)


def _check_without_members(name: str, state: GroupState, clock: Clock) -> None:
    if living := state.living(clock.now_ms()):
        raise ConsumerGroupInUseError(name, living, can_be_forced=False)


def _rows(store: Store, topic: str) -> int:
    table = store.tables.table_at(f"topics/{topic}")
    return sum(file.num_records for file in table.files()) if table.exists() else 0
