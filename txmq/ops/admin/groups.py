"""Consumer groups for operators: list them, reset their offsets, delete them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from txmq.consumer.group import ConsumerGroup, group_in, own_settings, settings_in, usable_settings
from txmq.consumer.group_rules import (
    EVERY_QUEUE,
    SHARED,
    ConsumeMode,
    GroupState,
    TopicCommit,
    TopicQueue,
    replay_of,
)
from txmq.consumer.lag import GroupLag, Unreadable, readable_groups
from txmq.consumer.leases import LeaseWatch, sightings
from txmq.consumer.offsets import ConsumeFromWhere, StartPoint
from txmq.consumer.reader import topic_commit
from txmq.errors import (
    CommitConflictError,
    ConfigError,
    ConsumerGroupInUseError,
    ConsumerGroupNotFoundError,
    OffsetOutOfRangeError,
    StorageError,
    StoreFormatError,
    TxmqError,
    UnreadableFileError,
    shown,
)
from txmq.ground.clock import Clock, SystemClock, affine, follows_storage
from txmq.ground.results import Plain
from txmq.message.names import dead_letter_topic, retry_topic, stored_group, stored_topic
from txmq.ops.admin.topics import delete_topic
from txmq.store.config import CONSUMER_GROUP_KEYS
from txmq.store.config_faults import unknown_key
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock
from txmq.store.tables import CONSUMER_GROUP
from txmq.store.topic import REBUILD_MARK

# What damage raises; all other errors of a storage have a type of their own, and may pass.
_DAMAGE = (StorageError, StoreFormatError, UnreadableFileError)


@dataclass(frozen=True, slots=True)
class GroupSummary(Plain):
    """A consumer group; names are stored names, `members` are the living members.

    `is_orderly` says whether a message that fails is tried again in its place, `is_acknowledged`
    whether each message is acknowledged for itself; `own` are the settings that the group keeps.
    """

    group: str
    mode: ConsumeMode
    subscription: Mapping[str, str]
    members: tuple[str, ...]
    lag: int
    is_orderly: bool = False
    is_acknowledged: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetsReset(Plain):
    """The offsets by queue before and after a reset; `is_written` is false in a dry run."""

    group: str
    topic: str
    before: Mapping[int, int]
    after: Mapping[int, int]
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class GroupAlteration(Plain):
    """The settings that a group keeps, before and after; `is_written` is false in a dry run."""

    group: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class GroupDeletion(Plain):
    """What a deletion of a consumer group removes, or has removed.

    Attributes:
        group: the stored name.
        subscription: the topics that it read, with their filters.
        retries: messages in its retry topic, which go; with a `problem` they stay.
        dead_letters: its dead letters, which stay: nobody has handled them.
        is_written: false in a dry run.
        own: the settings that the group keeps, which go.
        problem: why the offsets cannot be read, and so what it reads and whether members live is
            not known; None where they can.
    """

    group: str
    subscription: Mapping[str, str]
    retries: int
    dead_letters: int
    is_written: bool = False
    problem: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)


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
        """List all groups that a member has ever joined, with their lag.

        Args:
            unreadable: is told of each group that is damaged, and of its error; the others are
                listed. Without it, such an error is raised.

        Reads: state/group_<group> of each group, the topics that it reads. Commits: 0. Raises:
        StorageError.
        """
        groups = readable_groups(self._store, self._clock, unreadable)
        return [summary_of(group, self._clock) for group in groups]

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
        and one more for a rebuild of the topic meanwhile; else 0. A call that failed can be
        repeated.

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
        start = StartPoint.of({stored: to} if isinstance(to, Mapping) else to, moment)

        def planned(state: GroupState) -> OffsetsReset:
            if state.is_gone:
                raise ConsumerGroupNotFoundError(name)
            queues = _queues_to_reset(state, stored, to, queue_id)
            offsets = start.offsets_in(self._store, stored, queues)
            return OffsetsReset(name, stored, _before(state, stored, queues), offsets)

        plan = planned(group.read() if group.exists else GroupState())
        if not apply:
            return plan
        after = self._reset(group, stored, planned, force=force)
        return replace(plan, after=after, is_written=True)

    def alter(
        self, consumer_group: str, changes: Mapping[str, object], *, apply: bool = False
    ) -> GroupAlteration:
        """Give a group settings of its own; a dry run unless `apply`.

        They come before `consumer_groups` of any settings file, and hold for members that join
        from then on. A group that nobody has joined yet is made.

        Args:
            consumer_group: the stored name, or as RocketMQ shows it.
            changes: values by the names of `ConsumeSettings`; None goes back to what the settings
                of the process say.
            apply: write them; without it they are only checked.

        Reads: state/group_<group>. Commits: with `apply` one to `state/group_<group>`, and one more
        that creates the table of a new group; else 0. A retry sets the same values again.

        Raises:
            ConfigError: no setting of a group, or a value that it cannot have.
            ConsumerGroupInUseError: members live, who would disagree about the order.
            InvalidNameError, StorageError.
        """
        name = stored_group(consumer_group)
        check_changes(changes)
        group = group_in(self._store, name, create=apply)
        state = group.read() if group.exists else GroupState()
        after = self._altered(group, changes, state).own
        if apply:
            group.change(partial(self._altered, group, changes), self._clock.now_ms())
        return GroupAlteration(name, usable_settings(state.own), usable_settings(after), apply)

    def _altered(
        self, group: ConsumerGroup, changes: Mapping[str, object], state: GroupState
    ) -> GroupState:
        after = altered(state, changes)
        kept = usable_settings(after.own)
        settings = self._store.config.of_consumer_group(group.name, kept)
        if settings.consume_message_orderly != state.settings.is_orderly:
            self._living.check_none(group, state, can_be_forced=False)
        return after

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
        topic: str,
        planned: Callable[[GroupState], OffsetsReset],
        *,
        force: bool,
    ) -> Mapping[int, int]:
        """Set the offsets, again where a rebuild gave them to other messages meanwhile.

        Where it left no such offset, what was set is undone.
        """
        reset = _OffsetReset(
            topic, planned, None if force else partial(self._living.check_none, group)
        )
        rebuilds = None
        while rebuilds != (now := self._rebuilds(topic)):
            rebuilds, reset.read_in = now, self._commit_of(topic)
            try:
                group.change(reset.after, self._clock.now_ms())
            except OffsetOutOfRangeError:
                if reset.is_written:
                    group.change(reset.undone, self._clock.now_ms())
                raise
            reset.note_written()
        return reset.offsets

    def _rebuilds(self, topic: str) -> int:
        """Count how often a topic was rebuilt; 0 if it has no table."""
        table = self._store.tables.table_at(f"topics/{topic}")
        return (table.log.mark(REBUILD_MARK) or 0) if table.exists() else 0

    def _commit_of(self, topic: str) -> TopicCommit | None:
        """Return the newest commit of a topic; None if it has no table."""
        table = self._store.tables.table_at(f"topics/{topic}")
        return topic_commit(table.folder, table.version) if table.exists() else None


class _OffsetReset:
    """The changes of a group by a reset.

    Attributes:
        read_in: the commit of the topic before the offsets were computed, so they are of no older
            one.
        is_written: whether the group was changed.
        undo_to: the group before that.
    """

    def __init__(
        self,
        topic: str,
        planned: Callable[[GroupState], OffsetsReset],
        check: Callable[[GroupState], None] | None,
    ) -> None:
        """Compute nothing yet; `check` refuses groups whose members live."""
        self._topic, self._planned, self._check = topic, planned, check
        self.read_in: TopicCommit | None = None
        self.is_written, self.undo_to = False, GroupState()
        self.offsets: Mapping[int, int] = {}
        self._before = GroupState()

    def after(self, state: GroupState) -> GroupState:
        """Return the group with the offsets that its messages have now."""
        if self._check is not None:
            self._check(state)
        self.offsets, self._before = self._planned(state).after, state
        offsets = {TopicQueue(self._topic, queue): at for queue, at in self.offsets.items()}
        return state.reset(
            offsets, {} if self.read_in is None else dict.fromkeys(offsets, self.read_in)
        )

    def note_written(self) -> None:
        """Note that the group is as `after` said."""
        if not self.is_written:
            self.is_written, self.undo_to = True, self._before

    def undone(self, state: GroupState) -> GroupState:
        """Return the group with the offsets that it had before."""
        queues = {TopicQueue(self._topic, queue) for queue in self.offsets}
        return state.undone(self.undo_to, queues)


def check_changes(changes: object) -> None:
    """Refuse what is no settings of a group; None takes one away. Raises: ConfigError."""
    if not isinstance(changes, Mapping):
        raise ConfigError([f"changes must map settings to values, not {shown(changes)}"])
    unset = [name for name, value in changes.items() if value is None]
    if unknown := [name for name in unset if name not in CONSUMER_GROUP_KEYS]:
        raise ConfigError([unknown_key(name, CONSUMER_GROUP_KEYS) for name in unknown])
    own_settings({name: value for name, value in changes.items() if value is not None})


def altered(state: GroupState, changes: Mapping[str, object]) -> GroupState:
    """Return a group with other settings of its own, which are checked; pure."""
    own = {name: value for name, value in {**state.own, **changes}.items() if value is not None}
    return state if own == dict(state.own) else replace(state, own=own)


def untold_settings(store: Store) -> dict[str, Mapping[str, object]]:
    """Return the settings of groups that this process was given, and that members do not read.

    Members read what the store keeps, unless they get the same settings file. 0 commits. It is a
    hint: a group that cannot be read is left out.
    """
    untold: dict[str, Mapping[str, object]] = {}
    for name, own in store.config.consumer_groups.items():
        with suppress(TxmqError, OSError):
            known = asdict(settings_in(Store.open(store.location), name))
            if others := {key: value for key, value in own.items() if known[key] != value}:
                untold[name] = others
    return untold


def summary_of(group: GroupLag, clock: Clock) -> GroupSummary:
    """Sum up a group that was looked at."""
    settings, lag = group.state.settings, sum(queue.lag for queue in group.queues)
    members = tuple(group.state.living(clock.now_ms()))
    subscription = dict(settings.subscription)
    return GroupSummary(
        group.name, settings.mode, subscription, members, lag, settings.is_orderly,
        settings.is_acknowledged, usable_settings(group.state.own),
    )  # fmt: skip


def _queues_to_reset(
    state: GroupState, topic: str, to: ConsumeFromWhere | Mapping[int, int], queue_id: int | None
) -> list[int]:
    """List the queues to reset. Raises: ConfigError for a wrong argument."""
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
    """Return the offset of each queue; in BROADCASTING the smallest offset of all members."""
    readers = [reader for reader in state.offsets if (reader == SHARED) != state.is_broadcasting]
    before: dict[int, int] = {}
    for queue in queues:
        offsets = [state.offsets[reader].get(TopicQueue(topic, queue)) for reader in readers]
        stored = [offset for offset in offsets if offset is not None]
        if stored:
            before[queue] = min(stored)
    return before


# --- deletion -------------------------------------------------------------------------------------


def delete_group(
    store: Store, name: str, clock: Clock, living: LivingMembers, *, apply: bool
) -> GroupDeletion:
    """Remove the offsets and the retries of a group; see `ConsumerGroups.delete`."""
    group = group_in(store, name)
    look, letters = _look_at(group), _rows(store, dead_letter_topic(name))
    if look.problem is not None:
        if apply:
            _begin_anew(store, group, look.version, clock.now_ms())
        retries = _rows(store, retry_topic(name))
        return GroupDeletion(name, {}, retries, letters, apply, look.problem)
    if look.state.is_gone and not _rows(store, retry_topic(name)):
        raise ConsumerGroupNotFoundError(name)
    living.check_none(group, look.state, can_be_forced=False)
    # Refused before anything is written, where retries wait for their time.
    retries = delete_topic(store, retry_topic(name), clock, apply=False).rows
    if apply:
        _apply(store, group, clock, living)
    subscription, own = dict(look.state.settings.subscription), usable_settings(look.state.own)
    return GroupDeletion(name, subscription, retries, letters, apply, own=own)


@dataclass(frozen=True, slots=True)
class _Look:
    """A group as it is, or why it cannot be read; the version is that of its table before."""

    state: GroupState
    version: int
    problem: str | None = None


def _look_at(group: ConsumerGroup) -> _Look:
    # Looked at first: damage of this version is what a new beginning is put behind.
    version = group.newest_version()
    try:
        return _Look(group.read() if group.exists else GroupState(), version)
    except StorageError as error:
        if type(error) not in _DAMAGE:
            raise
        return _Look(GroupState(), version, str(error))


def _begin_anew(store: Store, group: ConsumerGroup, version: int, now_ms: int) -> None:
    """Put a new state in its place; its retries stay, for no member may wait for those to come."""
    state, interval = anew(version, now_ms), store.config.checkpoint_interval
    if not group.begin_anew(state, version, now_ms, interval):
        problem = "was written by another process meanwhile, and may be whole; look again"
        raise CommitConflictError(f"state/{CONSUMER_GROUP}{group.name}", problem)


def anew(version: int, now_ms: int) -> GroupState:
    """Return the state of a deleted group whose state before cannot be read; pure.

    Epochs and replays count changes of the group, each a commit; so milliseconds since 1970 are
    above those of every old member. Where this clock is wrong, a multiple of the version is: one
    commit raises an epoch by a few.

    Args:
        version: the newest version of its table.
        now_ms: the time.
    """
    above = max(now_ms, 1_000 * (version + 1))
    return GroupState(replays={EVERY_QUEUE: above}, epoch=above)


def _apply(store: Store, group: ConsumerGroup, clock: Clock, living: LivingMembers) -> None:
    """Empty the group first: a member that joins meanwhile is refused or begins anew."""
    if group.exists:
        group.change(lambda now: _emptied(group, now, living), clock.now_ms())
    if store.tables.table_at(f"topics/{group.retry_topic}").exists():
        delete_topic(store, group.retry_topic, clock, apply=True)


def _emptied(group: ConsumerGroup, state: GroupState, living: LivingMembers) -> GroupState:
    living.check_none(group, state, can_be_forced=False)
    return state if state.is_gone else emptied(state)


def emptied(state: GroupState) -> GroupState:
    """Return the state of a deleted group; pure.

    The epoch stays above that of every old member. Who joins later reads again on purpose, so what
    fails again is sent back again.
    """
    queues = {queue for offsets in state.offsets.values() for queue in offsets}
    more = {queue: replay_of(state.replays, queue) + 1 for queue in queues}
    return GroupState(replays={**state.replays, **more}, epoch=state.epoch + 1)


def _rows(store: Store, topic: str) -> int:
    """Count the rows of a topic; 0 if it has no table."""
    table = store.tables.table_at(f"topics/{topic}")
    return sum(file.num_records for file in table.files.all()) if table.exists() else 0


# --- living members -------------------------------------------------------------------------------


class LivingMembers:
    """Sees who is silent as a member that joins does: by the storage's time, or by watching.

    A member that has renewed its lease within the length of it may live, whatever the clock of this
    machine says (decision 0031). Not safe for several threads.

    Args:
        store: the store of the groups.
        clock: measures how long this object has watched; only durations count.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        """Look at nobody yet."""
        self._store_clock, self._clock = StoreClock.of(store, clock), clock
        self._lease_ms = round(store.config.consumer_lease_s * 1000)
        self._watches: dict[str, LeaseWatch] = {}

    def check_none(
        self, group: ConsumerGroup, state: GroupState, *, can_be_forced: bool = True
    ) -> None:
        """Refuse where members may live; 0 commits.

        Args:
            group: the group, which has read `state` last.
            state: the newest state of the group.
            can_be_forced: whether the caller has a way to do it all the same.

        Raises: ConsumerGroupInUseError; StorageError if the storage cannot be asked for its time.
        """
        if members := self._living(group, state):
            raise ConsumerGroupInUseError(group.name, members, can_be_forced=can_be_forced)

    def _living(self, group: ConsumerGroup, state: GroupState) -> list[str]:
        """Name the members that may live."""
        if not state.members:
            return []
        watch = self._watches.setdefault(group.name, LeaseWatch(self._clock, self._lease_ms))
        watch.note_silence(state.members, self._silent_ms(group, state))
        return sorted(state.members.keys() - watch.gone(state.members))

    def _silent_ms(self, group: ConsumerGroup, state: GroupState) -> dict[str, int]:
        """Return for how long the storage has shown no renewal of each member."""
        changed_ms = group.changed_ms()
        if changed_ms is None or not follows_storage(self._clock):
            return {}
        now_ms, at = self._store_clock.now_ms(), affine(self._clock).at
        seen = sightings(state.members, state.seen, changed_ms)
        return {name: now_ms - at(sighting.since_ms) for name, sighting in seen.items()}
