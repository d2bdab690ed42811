"""The state of a consumer group as one frozen value, and all rules about it; pure.

A change is computed from the newest state and replaces it by compare-and-swap. So two members never
decide by different states of the group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from txmq.consumer.attempts import Attempts
from txmq.consumer.leases import Membership, Sighting, sightings
from txmq.errors import ConsumerGroupConflictError

# The key of the offsets that all members share; in BROADCASTING each member has a key.
SHARED = ""
ALL = "*"
Value = TypeVar("Value")


class ConsumeMode(enum.StrEnum):
    """Whether the members of a group share the messages, or each member reads all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class TopicQueue(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


class Owner(NamedTuple):
    """The member that reads a queue.

    Attributes:
        member_id: the name of the member.
        epoch: the epoch of the group when it got the queue.
    """

    member_id: str
    epoch: int


class TopicCommit(NamedTuple):
    """A commit of a topic.

    Attributes:
        version: its version of the table.
        fingerprint: the first digits of the hash of its commit file, as a number.
    """

    version: int
    fingerprint: int


Offsets = Mapping[TopicQueue, int]
# Of each queue the epoch in which the member got it, and the next offset.
Commits = Mapping[TopicQueue, tuple[int, int]]
# Of each queue the epoch, and what was handed out and is not over.
AttemptsByQueue = Mapping[TopicQueue, tuple[int, Attempts]]
# The key of the replays of every queue that has none of its own: no topic has this name.
EVERY_QUEUE = TopicQueue("", 0)
_NO_OFFSETS: Offsets = {}
Followed = Mapping[TopicQueue, TopicCommit]
_NO_COMMITS: Followed = {}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings that all members of a group must share.

    Attributes:
        mode: whether the members share the messages.
        subscription: the text of the filter of each topic.
        is_orderly: whether a message that fails is tried again in its place.
        is_acknowledged: whether each message is acknowledged for itself.
    """

    mode: ConsumeMode = ConsumeMode.CLUSTERING
    subscription: Mapping[str, str] = field(default_factory=dict)
    is_orderly: bool = False
    is_acknowledged: bool = False

    def __str__(self) -> str:
        """Return the text that errors show."""
        topics = ", ".join(
            topic if text == ALL else f"{topic} [{text}]"
            for topic, text in sorted(self.subscription.items())
        )
        order = ", in order" if self.is_orderly else ""
        return f"{topics} ({self.mode}{order}{', acknowledged' if self.is_acknowledged else ''})"


@dataclass(frozen=True, slots=True)
class SwapResult:
    """The outcome of one swap of a member.

    Attributes:
        state: the state after the swap.
        refused: queues that the member does not have any more; nothing of them was committed.
    """

    state: GroupState
    refused: frozenset[TopicQueue] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a consumer group. Each change returns the state after it.

    Attributes:
        settings: what the members read.
        queues: the number of queues of each topic that is read, also of the retry topic.
        offsets: the next offset to consume of each queue, under SHARED; in BROADCASTING under the
            name of each member.
        members: the members by name.
        seen: since when the members that joiners met have shown no renewal.
        owners: the member that has each queue; empty in BROADCASTING.
        replays: how often the group went back in a queue on purpose, see `replay_of`.
        followed: which commit of its topic each offset is of, by the keys of `offsets`.
        attempts: what of a queue was handed out from the next offset on, and is not over: messages
            that have failed in their place, or that nobody has acknowledged.
        epoch: grows when a member joins or a queue changes hands, so that an old owner never
            equals a new one.
        own: settings that an operator gave the group, as they are kept; see `usable_settings`.
    """

    settings: GroupSettings = field(default_factory=GroupSettings)
    queues: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    members: Mapping[str, Membership] = field(default_factory=dict)
    owners: Mapping[TopicQueue, Owner] = field(default_factory=dict)
    replays: Mapping[TopicQueue, int] = field(default_factory=dict)
    epoch: int = 0
    seen: Mapping[str, Sighting] = field(default_factory=dict)
    followed: Mapping[str, Followed] = field(default_factory=dict)
    attempts: Mapping[TopicQueue, Attempts] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)

    # --- questions --------------------------------------------------------------------------

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member reads all messages."""
        return self.settings.mode is ConsumeMode.BROADCASTING

    @property
    def is_gone(self) -> bool:
        """Whether nobody has joined the group or given it settings, or it was deleted."""
        return not (self.settings.subscription or self.offsets or self.members or self.own)

    def living(self, now_ms: int) -> list[str]:
        """List the members that live as far as this clock can say, sorted; for people to look at.

        Members do not rest on it: their clocks may differ. They watch each other instead.
        """
        return sorted(name for name, at in self.members.items() if now_ms < at.lease_end_ms)

    def all_queues(self) -> list[TopicQueue]:
        """List all queues that are read, in the order in which they are shared out."""
        queues = (TopicQueue(topic, q) for topic, n in self.queues.items() for q in range(n))
        return sorted(queues, key=_by_queue)

    def offsets_of(self, member_id: str) -> Offsets:
        """Return the next offsets of a member."""
        return self.offsets.get(self._reader(member_id), _NO_OFFSETS)

    def followed_by(self, member_id: str) -> Followed:
        """Return which commit of its topic each offset of a member is of; not all are known."""
        return self.followed.get(self._reader(member_id), _NO_COMMITS)

    def is_member(self, me: Owner) -> bool:
        """Tell whether the group has not dropped this member since it joined."""
        membership = self.members.get(me.member_id)
        return membership is not None and membership.epoch == me.epoch

    def held_by(self, me: Owner) -> dict[TopicQueue, int]:
        """Return the queues that a member may read, with the epoch in which it got each."""
        if not self.is_member(me):
            return {}
        if self.is_broadcasting:
            return dict.fromkeys(self.all_queues(), me.epoch)
        return {
            queue: owner.epoch
            for queue, owner in self.owners.items()
            if owner.member_id == me.member_id
        }

    def _reader(self, member_id: str) -> str:
        return member_id if self.is_broadcasting else SHARED

    # --- one swap of a member ---------------------------------------------------------------

    def swapped(  # noqa: PLR0913 - all that a member does
        self,
        me: Owner,
        *,
        gone: Collection[str],
        lease_end_ms: int,
        commits: Commits | None = None,
        busy: Collection[TopicQueue] = (),
        followed: Followed = _NO_COMMITS,
        attempts: AttemptsByQueue | None = None,
    ) -> SwapResult:
        """Do all that a member does in one swap.

        Commits offsets, renews its lease, drops members that are gone, and adjusts its share.
        The arguments are those of `committed`, `attempted` and the others; it is not among the
        `gone` itself.
        """
        result, held = self.committed(me, commits or {}, followed=followed), self.held_by(me)
        after = result.state.attempted(me, attempts or {}, followed).renewed(me, lease_end_ms)
        lost = {q for q, (epoch, _) in (attempts or {}).items() if held.get(q) != epoch}
        return SwapResult(after.without_gone(gone).shared_out(me, busy), result.refused | lost)

    # --- members ----------------------------------------------------------------------------

    def joined(  # noqa: PLR0913 - the facts of a member
        self,
        group: str,
        member_id: str,
        settings: GroupSettings,
        queues: Mapping[str, int],
        *,
        gone: Collection[str],
        lease_end_ms: int,
        lease_ms: int = 0,
    ) -> GroupState:
        """Add a member, which has no queue yet.

        If all other members are gone, the settings of the new member replace those of the group;
        the offsets stay.

        Raises: ConsumerGroupConflictError if members with other settings live.
        """
        after = self.without_gone(gone)
        if after.settings != settings:
            if any(name != member_id for name in after.members):
                raise ConsumerGroupConflictError(group, str(after.settings), str(settings))
            after = replace(after, settings=settings, queues={}, owners={}, members={})
            if self.settings.is_acknowledged != settings.is_acknowledged:
                after = replace(after, attempts={})
        epoch = after.epoch + 1
        others = {name: at for name, at in after.members.items() if name != member_id}
        # A new process does not inherit the queues of an earlier one of the same name.
        after = after._with_members(others)  # noqa: SLF001 - of the same class
        members = {**others, member_id: Membership(epoch, lease_end_ms, lease_ms)}
        return replace(after, members=members, epoch=epoch).grown(queues)

    def without_gone(self, gone: Collection[str]) -> GroupState:
        """Drop members whose lease is over; their queues become free."""
        living = {name: at for name, at in self.members.items() if name not in gone}
        return self if len(living) == len(self.members) else self._with_members(living)

    def sighted(self, stored_ms: int) -> GroupState:
        """Note what the members showed at a time of the storage.

        The epoch grows, so that each call is a commit, which has a time of the storage too.
        """
        seen = sightings(self.members, self.seen, stored_ms)
        return replace(self, seen=seen, epoch=self.epoch + 1)

    def left(self, me: Owner) -> GroupState:
        """Drop this member; its queues become free."""
        if not self.is_member(me):
            return self
        others = {name: at for name, at in self.members.items() if name != me.member_id}
        return self._with_members(others)

    def _with_members(self, members: Mapping[str, Membership]) -> GroupState:
        owners = {queue: by for queue, by in self.owners.items() if by.member_id in members}
        return replace(self, members=members, owners=owners)

    def renewed(self, me: Owner, lease_end_ms: int) -> GroupState:
        """Give this member a longer lease, unless it was dropped: then it must join again."""
        if not self.is_member(me):
            return self
        before = self.members[me.member_id]
        end_ms = max(lease_end_ms, before.lease_end_ms)
        after = before._replace(lease_end_ms=end_ms)
        return replace(self, members={**self.members, me.member_id: after})

    # --- queues -----------------------------------------------------------------------------

    def grown(self, queues: Mapping[str, int]) -> GroupState:
        """Raise the numbers of queues to at least these; they never shrink."""
        counts = {
            topic: max(count, self.queues.get(topic, 0)) for topic, count in queues.items() if count
        }
        after = {**self.queues, **counts}
        return self if after == self.queues else replace(self, queues=after)

    def share_of(self, member_id: str) -> int:
        """Compute how many queues a member should have.

        If the queues cannot be shared out evenly, members that have more keep one more.
        """
        counts = dict.fromkeys(self.members, 0)
        for owner in self.owners.values():
            counts[owner.member_id] = counts.get(owner.member_id, 0) + 1
        order = sorted(self.members, key=lambda name: (-counts[name], name))
        least, odd = divmod(sum(self.queues.values()), len(order))
        return least + (order.index(member_id) < odd)

    def is_unfair_to(self, me: Owner, busy: Collection[TopicQueue], gone: Collection[str]) -> bool:
        """Tell whether this member should take queues, or give up some that it is not busy with."""
        if not self.is_member(me):
            return False
        after = self.without_gone(gone)
        return after.shared_out(me, busy).owners != after.owners

    def shared_out(self, me: Owner, busy: Collection[TopicQueue]) -> GroupState:
        """Have this member give up its surplus, or take its share of the free queues.

        It keeps the queues that it is `busy` with: their messages are in its hands.
        """
        if self.is_broadcasting or not self.is_member(me):
            return self
        surplus = len(self.surplus_of(me))
        if surplus:
            idle = [queue for queue in self._queues_of(me) if queue not in busy]
            return self.given_up(idle[-surplus:])
        free = [queue for queue in self.all_queues() if queue not in self.owners]
        missing = self.share_of(me.member_id) - len(self._queues_of(me))
        return self._taken(me.member_id, free[:missing])

    def surplus_of(self, me: Owner) -> list[TopicQueue]:
        """List the queues of a member above its share; it gives them up as soon as it can."""
        if self.is_broadcasting or not self.is_member(me):
            return []
        return self._queues_of(me)[self.share_of(me.member_id) :]

    def _queues_of(self, me: Owner) -> list[TopicQueue]:
        return sorted(self.held_by(me), key=_by_queue)

    def given_up(self, queues: Collection[TopicQueue]) -> GroupState:
        """Make these queues free."""
        owners = {queue: owner for queue, owner in self.owners.items() if queue not in queues}
        return self if len(owners) == len(self.owners) else replace(self, owners=owners)

    def _taken(self, member_id: str, queues: Collection[TopicQueue]) -> GroupState:
        if not queues:
            return self
        epoch = self.epoch + 1
        owners = dict.fromkeys(queues, Owner(member_id, epoch))
        return replace(self, owners={**self.owners, **owners}, epoch=epoch)

    # --- offsets ----------------------------------------------------------------------------

    def begun(self, member_id: str, starts: Offsets) -> GroupState:
        """Set first offsets of queues that have none; a stored offset stays."""
        stored = self.offsets_of(member_id)
        return self._with_offsets(self._reader(member_id), {**starts, **stored})

    def committed(
        self,
        me: Owner,
        offsets: Commits,
        *,
        may_go_back: bool = False,
        followed: Followed = _NO_COMMITS,
    ) -> SwapResult:
        """Commit the offsets of a member.

        Args:
            me: the member.
            offsets: for each queue the epoch in which the member got it, and the next offset.
            may_go_back: whether an offset may become smaller, as with `seek`.
            followed: the commit of its topic that each offset was read in.

        Returns:
            The new state; queues that the member does not have any more are refused.
        """
        held = self.held_by(me)
        refused = frozenset(q for q, (epoch, _) in offsets.items() if held.get(q) != epoch)
        stored = self.offsets_of(me.member_id)
        moved = {
            queue: offset if may_go_back else max(offset, stored.get(queue, 0))
            for queue, (_, offset) in offsets.items()
            if queue not in refused
        }
        reader = self._reader(me.member_id)
        # ruff takes these for members of another class.
        after = self._with_offsets(reader, {**stored, **moved})._noted(reader, moved, followed)  # noqa: SLF001
        anew = moved if may_go_back else ()
        return SwapResult(after._replayed(stored, moved, anew), refused)  # noqa: SLF001

    def attempted(
        self, me: Owner, attempts: AttemptsByQueue, followed: Followed = _NO_COMMITS
    ) -> GroupState:
        """Keep what was handed out of queues of this member, each from its next offset on.

        Others are left out: what has them now, or comes back to them, begins anew. `followed` is
        as that of `committed`: the ends of the attempts are of these commits.
        """
        if not attempts:
            return self
        held, stored = self.held_by(me), self.offsets_of(me.member_id)
        own = {
            queue: handed
            for queue, (epoch, handed) in attempts.items()
            if held.get(queue) == epoch and stored.get(queue) == handed.offset
        }
        after = {**self.attempts, **own}
        if after == self.attempts:
            return self
        # ruff takes this for a member of another class.
        noted = self._noted(self._reader(me.member_id), own, followed)
        return replace(noted, attempts=after)

    def reset(self, offsets: Offsets, read_in: Followed = _NO_COMMITS) -> GroupState:
        """Set other offsets, in BROADCASTING for each member.

        Drops all members: those that live join again. `read_in` is as `followed` of `committed`.
        """
        readers = self.offsets if self.is_broadcasting else (SHARED,)
        after = {name: {**self.offsets.get(name, {}), **offsets} for name in readers}
        changed = self._replayed(self.offsets.get(SHARED, {}), offsets, offsets)
        for name in readers:
            # ruff takes this for a member of another class.
            changed = changed._noted(name, offsets, read_in)  # noqa: SLF001
        return replace(
            changed, offsets={**self.offsets, **after},
            members={}, owners={}, epoch=self.epoch + 1,
        )  # fmt: skip

    def undone(self, before: GroupState, queues: Collection[TopicQueue]) -> GroupState:
        """Undo a reset of these queues; `before` is the state that it changed."""
        offsets = {
            reader: _with_those_of(own, before.offsets.get(reader, {}), queues)
            for reader, own in self.offsets.items()
        }
        followed = {
            reader: _with_those_of(own, before.followed.get(reader, {}), queues)
            for reader, own in self.followed.items()
        }
        changed = self._replayed(self.offsets.get(SHARED, {}), offsets.get(SHARED, {}), queues)
        return replace(
            changed, offsets=offsets, followed=followed,
            members={}, owners={}, epoch=self.epoch + 1,
        )  # fmt: skip

    def put_back(self, first: Offsets, *, since: int | None = None) -> GroupState:
        """Move offsets beyond these back to them, and drop all members.

        Those that are of the version `since` of their topic, or of a later one, stay.
        """
        after = {
            reader: {**own, **self._moved_back(reader, first, since)}
            for reader, own in self.offsets.items()
        }
        over = [q for q, at in self.attempts.items() if q in first and at.end > first[q]]
        changed = self._replayed(self.offsets.get(SHARED, {}), after.get(SHARED, {}), over)
        if after == self.offsets and not self.members:
            return changed
        return replace(changed, offsets=after, members={}, owners={}, epoch=self.epoch + 1)

    def _moved_back(self, reader: str, first: Offsets, since: int | None) -> Offsets:
        own = self.offsets[reader]
        return {
            queue: min(own[queue], offset)
            for queue, offset in first.items()
            if queue in own and not self._is_of(reader, queue, since)
        }

    def _is_of(self, reader: str, queue: TopicQueue, since: int | None) -> bool:
        """Tell whether the offset of a reader is known to be of a version, or of a later one."""
        commit = self.followed.get(reader, {}).get(queue)
        return since is not None and commit is not None and commit.version >= since

    def _replayed(
        self, before: Offsets, after: Offsets, anew: Collection[TopicQueue] = ()
    ) -> GroupState:
        """Count one more replay of each queue in which the group goes back.

        Where an offset moves, either way, the attempts there are over, and in the queues that begin
        `anew`.
        """
        moved = {queue: offset for queue, offset in after.items() if offset != before.get(queue)}
        over = {*moved, *anew}
        attempts = {queue: at for queue, at in self.attempts.items() if queue not in over}
        back = [queue for queue, offset in moved.items() if offset < before.get(queue, 0)]
        if not back and len(attempts) == len(self.attempts):
            return self
        more = {queue: replay_of(self.replays, queue) + 1 for queue in back}
        return replace(self, replays={**self.replays, **more}, attempts=attempts)

    def _noted(self, reader: str, queues: Collection[TopicQueue], commits: Followed) -> GroupState:
        """Note of which commit of its topic each of these offsets of a reader is.

        A commit that is not known takes the place of one that is: that one is of an older offset.
        """
        before = self.followed.get(reader, {})
        after = {queue: at for queue, at in before.items() if queue not in queues}
        after |= {queue: commits[queue] for queue in queues if queue in commits}
        return self if after == before else replace(self, followed={**self.followed, reader: after})

    def _with_offsets(self, reader: str, offsets: Offsets) -> GroupState:
        if offsets == self.offsets.get(reader, {}):
            return self
        return replace(self, offsets={**self.offsets, reader: offsets})


def replay_of(replays: Mapping[TopicQueue, int], queue: TopicQueue) -> int:
    """Return how often the group went back in a queue; it is a part of the key of a send-back."""
    return replays.get(queue, replays.get(EVERY_QUEUE, 0))


def _with_those_of(
    now: Mapping[TopicQueue, Value],
    before: Mapping[TopicQueue, Value],
    queues: Collection[TopicQueue],
) -> dict[TopicQueue, Value]:
    """Return values by queue, but for these queues those of `before`."""
    others = {queue: value for queue, value in now.items() if queue not in queues}
    return {**others, **{queue: before[queue] for queue in queues if queue in before}}


def _by_queue(queue: TopicQueue) -> tuple[int, str]:
    # Queue ids first, so that each member gets queues of all topics.
    return queue.queue_id, queue.topic
