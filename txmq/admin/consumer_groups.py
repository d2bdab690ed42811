"""Consumer groups for operators: list them, reset their offsets, delete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from txmq.admin.group_deletion import GroupDeletion, delete_group
from txmq.admin.living_members import LivingMembers
from txmq.clock import Clock, SystemClock
from txmq.consumer.group import ConsumerGroup, group_in
from txmq.consumer.lag import GroupLag, Unreadable, readable_groups
from txmq.consumer.modes import ConsumeFromWhere, ConsumeMode
from txmq.consumer.offsets import StartPoint
from txmq.consumer.rules import SHARED, GroupState, TopicQueue
from txmq.errors import ConfigError, ConsumerGroupNotFoundError, shown
from txmq.message.names import (
    stored_group,
    stored_topic,
)
from txmq.results import Plain
from txmq.store.store import Store, check_store


@dataclass(frozen=True, slots=True)
class GroupSummary(Plain):
    """A consumer group; names are stored names, `members` are the living members."""

    group: str
    mode: ConsumeMode
    subscription: Mapping[str, str]
    members: tuple[str, ...]
    lag: int


@dataclass(frozen=True, slots=True)
class OffsetsReset(Plain):
    """The offsets by queue before and after a reset; `is_written` is false in a dry run."""

    group: str
    topic: str
    before: Mapping[int, int]
    after: Mapping[int, int]
    is_written: bool = False


class ConsumerGroups:
    """Lists consumer groups, resets their offsets and deletes them; needs no Spark.

    Args:
        store: the store of the groups.
        clock: measures leases of members; to delete or reset a group rests on the storage's time.

    Example:
        >>> [summary.group for summary in ConsumerGroups(store).list()]
        ['billing']
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._living = LivingMembers(store, self._clock)

    def list(self, unreadable: Unreadable | None = None) -> list[GroupSummary]:
        """All groups that a member has ever joined, with their lag.

        Args:
            unreadable: is told of each group that is damaged, and of its error; the others are
                listed. Without it, such an error is raised.

        Reads: state/group_<group> of each group, the topics that it reads. Commits: 0. Raises:
        StorageError.
        """
        found = readable_groups(self._store, self._clock, unreadable)
        return [summary_of(group, self._clock) for group in found]

    def reset_offsets(  # noqa: PLR0913 - an operator's options
        self,
        consumer_group: str,
        topic: str,
        to: ConsumeFromWhere | Mapping[int, int],
        *,
        moment: datetime | None = None,
        queue_id: int | None = None,
        apply: bool = False,
        force: bool = False,
    ) -> OffsetsReset:
        """Move a group to another place in a topic; a dry run unless `apply`.

        Args:
            consumer_group, topic: stored names, or as RocketMQ shows them.
            to: the first or the last offset, a time, or an offset for each queue.
            moment: the time for ConsumeFromWhere.TIMESTAMP.
            queue_id: reset this queue only.
            apply: write the offsets; without it they are only computed.
            force: reset also while members live. They drop what they have read ahead and join
                again; a handler may still work on an old message beside the next ones.

        Reads: state/group_<group>, the topic. Commits: with `apply` one to `state/group_<group>`,
        else 0. A call that failed can be repeated.

        Returns:
            The offsets before and after, by queue.

        Raises:
            ConsumerGroupNotFoundError: no member has ever joined the group.
            ConsumerGroupInUseError: members live, and `force` is not given.
            OffsetOutOfRangeError, ConfigError, InvalidNameError: a wrong argument.
            StorageError: a table cannot be read or written, or members won every try.
        """
        name = stored_group(consumer_group)
        stored = stored_topic(topic)
        group = group_in(self._store, name)
        if not group.exists:
            raise ConsumerGroupNotFoundError(name)
        state = group.read()
        if state.is_gone:
            raise ConsumerGroupNotFoundError(name)
        queues = _chosen(state, stored, to, queue_id)
        where = {stored: to} if isinstance(to, Mapping) else to
        offsets = StartPoint.of(where, moment).offsets_in(self._store, stored, queues)
        after = {TopicQueue(stored, queue): offset for queue, offset in offsets.items()}
        if apply:
            group.change(
                lambda now: self._reset(group, now, after, force=force), self._clock.now_ms()
            )
        return OffsetsReset(name, stored, _before(state, stored, queues), offsets, apply)

    def delete(self, consumer_group: str, *, apply: bool = False) -> GroupDeletion:
        """Remove the offsets and the retries of a group; a dry run unless `apply`.

        Its dead letters stay, because nobody has handled them: `DeadLetters.purge` hides them. A
        member that joins a group of this name later begins where a new group does.

        Where its state cannot be read, a new one takes its place, above all that old members know:
        those that live are refused and join again. Then its retries stay.

        Args:
            consumer_group: the stored name, or as RocketMQ shows it.
            apply: delete it; without it only the counts are read.

        Reads: state/group_<group>, half, settled, state/publisher, its retry topic and its dead
        letters. Writes: state/group_<group>; where there are retries state/maintenance,
        state/topics and the retry topic. Commits: with `apply` one to each, else 0. A deletion that
        failed or was killed can be repeated.

        Raises:
            ConsumerGroupNotFoundError: there is no such group.
            ConsumerGroupInUseError: members live.
            CommitConflictError: another process wrote a state that could not be read; look again.
            TopicInUseError: retries of the group wait for their time, or are not published.
            InvalidNameError: the name is not allowed.
            StorageError: a table cannot be read or written.
        """
        name = stored_group(consumer_group)
        return delete_group(self._store, name, self._clock, self._living, apply=apply)

    def _reset(
        self,
        group: ConsumerGroup,
        state: GroupState,
        offsets: Mapping[TopicQueue, int],
        *,
        force: bool,
    ) -> GroupState:
        if not force:
            self._living.check_none(group, state)
        return state.reset(offsets)


def _chosen(
    state: GroupState, topic: str, to: ConsumeFromWhere | Mapping[int, int], queue_id: int | None
) -> list[int]:
    """The queues to reset."""
    queues = range(state.queues.get(topic, 0))
    if not queues:
        raise ConfigError([f"topic {shown(topic)} is not among those that the group reads"])
    if queue_id is not None and queue_id not in queues:
        raise ConfigError([f"queue_id must be below {len(queues)}, not {shown(queue_id)}"])
    chosen = list(queues) if queue_id is None else [queue_id]
    if not isinstance(to, Mapping):
        return chosen
    others = [queue for queue in to if queue not in chosen]
    if others:
        raise ConfigError(
            [f"offsets are given for the queues {shown(others)}, which are not reset"]
        )
    return [queue for queue in chosen if queue in to]


def _before(state: GroupState, topic: str, queues: list[int]) -> dict[int, int]:
    """The offset of each queue; in BROADCASTING the smallest offset of all members."""
    readers = [reader for reader in state.offsets if (reader == SHARED) != state.is_broadcasting]
    before: dict[int, int] = {}
    for queue in queues:
        offsets = [state.offsets[reader].get(TopicQueue(topic, queue)) for reader in readers]
        stored = [offset for offset in offsets if offset is not None]
        if stored:
            before[queue] = min(stored)
    return before


def summary_of(group: GroupLag, clock: Clock) -> GroupSummary:
    """A group that was looked at."""
    settings, lag = group.state.settings, sum(queue.lag for queue in group.queues)
    members = tuple(group.state.living(clock.now_ms()))
    return GroupSummary(group.name, settings.mode, dict(settings.subscription), members, lag)
