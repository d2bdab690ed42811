"""What operators do with consumer groups: list them, reset their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from txmq.clock import Clock, SystemClock
from txmq.consumer.group import group_in, group_names
from txmq.consumer.lag import ConsumerLag
from txmq.consumer.offsets import StartPoint
from txmq.consumer.rules import SHARED, ConsumeFromWhere, ConsumeMode, GroupState, TopicQueue
from txmq.errors import ConfigError, ConsumerGroupInUseError, ConsumerGroupNotFoundError, shown
from txmq.message.names import (
    stored_group,
    stored_topic,
)
from txmq.results import Plain
from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class GroupSummary(Plain):
    """A consumer group in a list; names are the stored ones, `members` those that live."""

    group: str
    mode: ConsumeMode
    subscription: Mapping[str, str]
    members: tuple[str, ...]
    lag: int


@dataclass(frozen=True, slots=True)
class OffsetsReset(Plain):
    """What a reset changes, or has changed, by queue; `is_written` is false in a dry run."""

    group: str
    topic: str
    before: Mapping[int, int]
    after: Mapping[int, int]
    is_written: bool = False


class ConsumerGroups:
    """Consumer groups as things of their own; needs no Spark.

    Example:
        >>> [summary.group for summary in ConsumerGroups(store).list()]
        ['billing']
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet; the clock says whose lease is over."""
        self._store = store
        self._clock: Clock = clock or SystemClock()

    def list(self) -> list[GroupSummary]:
        """All groups that a member has ever joined; 0 commits."""
        lags = ConsumerLag(self._store, self._clock)
        found = []
        for name in group_names(self._store):
            group = group_in(self._store, name)
            if group.exists:
                state = group.read()
                lag = sum(each.lag for each in lags.of_group(name))
                found.append(self._summary(name, state, lag))
        return found

    def _summary(self, name: str, state: GroupState, lag: int) -> GroupSummary:
        members = tuple(state.living(self._clock.now_ms()))
        own = state.settings
        return GroupSummary(name, own.mode, dict(own.subscription), members, lag)

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
        """Let a group go on elsewhere in a topic; dry unless `apply`.

        Args:
            consumer_group, topic: stored names, or as RocketMQ shows them.
            to: the first or the last offset, a moment, or an offset for each queue.
            moment: for ConsumeFromWhere.TIMESTAMP.
            queue_id: one queue alone.
            apply: write it.
            force: also while members live; they forget what they have read ahead and join again,
                and what is in the hands of a handler is handled beside what comes next.

        Commits: with `apply` one to `state/group_<group>`, else 0.

        Raises: ConsumerGroupNotFoundError, ConsumerGroupInUseError, OffsetOutOfRangeError,
            ConfigError, InvalidNameError, StorageError.
        """
        name = stored_group(consumer_group)
        stored = stored_topic(topic)
        group = group_in(self._store, name)
        if not group.exists:
            raise ConsumerGroupNotFoundError(name)
        state = group.read()
        queues = _chosen(state, stored, to, queue_id)
        where = {stored: to} if isinstance(to, Mapping) else to
        offsets = StartPoint.of(where, moment).offsets_in(self._store, stored, queues)
        after = {TopicQueue(stored, queue): offset for queue, offset in offsets.items()}
        if apply:
            group.change(
                lambda now: self._reset(name, now, after, force=force), self._clock.now_ms()
            )
        return OffsetsReset(name, stored, _before(state, stored, queues), offsets, apply)

    def _reset(
        self, name: str, state: GroupState, offsets: Mapping[TopicQueue, int], *, force: bool
    ) -> GroupState:
        living = state.living(self._clock.now_ms())
        if living and not force:
            raise ConsumerGroupInUseError(name, living)
        return state.reset(offsets)


def _chosen(
    state: GroupState, topic: str, to: ConsumeFromWhere | Mapping[int, int], queue_id: int | None
) -> list[int]:
    """The queues to reset."""
    known = range(state.queues.get(topic, 0))
    if not known:
        raise ConfigError([f"topic {shown(topic)} is not among those that the group reads"])
    if queue_id is not None and queue_id not in known:
        raise ConfigError([f"queue_id must be below {len(known)}, not {shown(queue_id)}"])
    wanted = list(known) if queue_id is None else [queue_id]
    if not isinstance(to, Mapping):
        return wanted
    strange = [queue for queue in to if queue not in wanted]
    if strange:
        raise ConfigError(
            [f"offsets are given for the queues {shown(strange)}, which are not reset"]
        )
    return [queue for queue in wanted if queue in to]


def _before(state: GroupState, topic: str, queues: list[int]) -> dict[int, int]:
    """In BROADCASTING the smallest of all members."""
    readers = [reader for reader in state.offsets if (reader == SHARED) != state.is_broadcasting]
    found: dict[int, int] = {}
    for queue in queues:
        own = [state.offsets[reader].get(TopicQueue(topic, queue)) for reader in readers]
        known = [offset for offset in own if offset is not None]
        if known:
            found[queue] = min(known)
    return found
