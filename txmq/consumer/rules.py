"""What a consumer group is, as one frozen value, and every rule about it; pure.

A change is computed from the newest value and put in its place by compare-and-swap, so two members
never decide on different pictures of the group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from txmq.errors import ConsumerGroupConflictError

# Offsets that all members share; in BROADCASTING each member has its own.
SHARED = ""
ALL = "*"


class ConsumeMode(enum.StrEnum):
    """Whether the members of a group share its messages, or each reads all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(enum.Enum):
    """Where a new group begins (R106); a group that has offsets goes on where it was."""

    FIRST_OFFSET = "first"
    LAST_OFFSET = "last"
    TIMESTAMP = "timestamp"


class ConsumeStatus(enum.Enum):
    """What a handler says of a message; RECONSUME_LATER sends it back (R107)."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class TopicQueue(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


class Owner(NamedTuple):
    """The member that reads a queue; the epoch says since which change of the group."""

    member_id: str
    epoch: int


class Membership(NamedTuple):
    """Since which change of the group somebody is a member, and how long at least."""

    epoch: int
    lease_end_ms: int


Offsets = Mapping[TopicQueue, int]
_NO_OFFSETS: Offsets = {}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What all members of a group have to agree on; `subscription` is a filter for each topic."""

    mode: ConsumeMode = ConsumeMode.CLUSTERING
    subscription: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As errors show it."""
        topics = ", ".join(
            topic if text == ALL else f"{topic} [{text}]"
            for topic, text in sorted(self.subscription.items())
        )
        return f"{topics} ({self.mode})"


@dataclass(frozen=True, slots=True)
class SwapResult:
    """What one swap of a member came to; of the `refused` queues nothing was committed."""

    state: GroupState
    refused: frozenset[TopicQueue] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group.

    Attributes:
        settings: what its members read.
        queues: how many queues each topic has that is read, the retry topic too.
        offsets: for SHARED, or for each member in BROADCASTING: the first offset of each queue
            that is not yet consumed.
        members: who reads.
        owners: which member has which queue; none in BROADCASTING.
        replays: how often the group went back in a queue on purpose.
        epoch: counts joins and queues that changed hands, so that nothing old fits again.
    """

    settings: GroupSettings = field(default_factory=GroupSettings)
    queues: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, Offsets] = field(default_factory=dict)
    members: Mapping[str, Membership] = field(default_factory=dict)
    owners: Mapping[TopicQueue, Owner] = field(default_factory=dict)
    replays: Mapping[TopicQueue, int] = field(default_factory=dict)
    epoch: int = 0

    # --- looking ----------------------------------------------------------------------------

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member reads all."""
        return self.settings.mode is ConsumeMode.BROADCASTING

    def living(self, now_ms: int) -> list[str]:
        """Members whose lease is not over."""
        return sorted(name for name, own in self.members.items() if now_ms < own.lease_end_ms)

    def all_queues(self) -> list[TopicQueue]:
        """Every queue that is read, in the order in which they are shared out."""
        found = (TopicQueue(topic, q) for topic, count in self.queues.items() for q in range(count))
        return sorted(found, key=_by_queue)

    def offsets_of(self, member_id: str) -> Offsets:
        """Where a member goes on."""
        return self.offsets.get(self._reader(member_id), _NO_OFFSETS)

    def is_member(self, me: Owner) -> bool:
        """Whether this member has not been forgotten since it joined."""
        own = self.members.get(me.member_id)
        return own is not None and own.epoch == me.epoch

    def held_by(self, me: Owner) -> dict[TopicQueue, int]:
        """The queues that a member may read, each with the epoch under which it has it."""
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

    # --- members ----------------------------------------------------------------------------

    def joined(  # noqa: PLR0913 - what a member brings
        self,
        group: str,
        member_id: str,
        settings: GroupSettings,
        queues: Mapping[str, int],
        *,
        now_ms: int,
        lease_end_ms: int,
    ) -> GroupState:
        """The same with one more member, which has no queue yet.

        Settings of a group whose members are all gone are replaced; its offsets stay.

        Raises: ConsumerGroupConflictError.
        """
        after = self.without_gone(now_ms)
        if after.settings != settings:
            if any(name != member_id for name in after.members):
                raise ConsumerGroupConflictError(group, str(after.settings), str(settings))
            after = replace(after, settings=settings, queues={}, owners={}, members={})
        epoch = after.epoch + 1
        others = {name: own for name, own in after.members.items() if name != member_id}
        # What an earlier process of this name had is not its own.
        after = after._with_members(others)  # noqa: SLF001 - its own kind
        members = {**others, member_id: Membership(epoch, lease_end_ms)}
        return replace(after, members=members, epoch=epoch).grown(queues)

    def without_gone(self, now_ms: int) -> GroupState:
        """The same without members whose lease is over; their queues are free."""
        living = self.living(now_ms)
        if len(living) == len(self.members):
            return self
        return self._with_members({name: self.members[name] for name in living})

    def left(self, me: Owner) -> GroupState:
        """The same without this member; its queues are free."""
        if not self.is_member(me):
            return self
        kept = {name: own for name, own in self.members.items() if name != me.member_id}
        return self._with_members(kept)

    def _with_members(self, members: Mapping[str, Membership]) -> GroupState:
        owners = {queue: own for queue, own in self.owners.items() if own.member_id in members}
        return replace(self, members=members, owners=owners)

    def renewed(self, me: Owner, lease_end_ms: int) -> GroupState:
        """The same with a longer lease; a member that was forgotten has to join again."""
        if not self.is_member(me):
            return self
        end_ms = max(lease_end_ms, self.members[me.member_id].lease_end_ms)
        return replace(self, members={**self.members, me.member_id: Membership(me.epoch, end_ms)})

    # --- queues -----------------------------------------------------------------------------

    def grown(self, queues: Mapping[str, int]) -> GroupState:
        """The same with as many queues as anybody has seen."""
        counts = {
            topic: max(count, self.queues.get(topic, 0)) for topic, count in queues.items() if count
        }
        after = {**self.queues, **counts}
        return self if after == self.queues else replace(self, queues=after)

    def share_of(self, member_id: str) -> int:
        """How many queues a member should have; who has more keeps the odd ones."""
        counts = dict.fromkeys(self.members, 0)
        for owner in self.owners.values():
            counts[owner.member_id] = counts.get(owner.member_id, 0) + 1
        order = sorted(self.members, key=lambda name: (-counts[name], name))
        least, odd = divmod(sum(self.queues.values()), len(order))
        return least + (order.index(member_id) < odd)

    def is_unfair_to(self, me: Owner, busy: Collection[TopicQueue], now_ms: int) -> bool:
        """Whether this member should take queues, or give up some that it is not busy with."""
        if not self.is_member(me):
            return False
        after = self.without_gone(now_ms)
        return after.shared_out(me, busy).owners != after.owners

    def shared_out(self, me: Owner, busy: Collection[TopicQueue]) -> GroupState:
        """The same after this member gave up what is too much, or took what is free.

        Queues that it is `busy` with stay with it: messages of them are in its hands.
        """
        if self.is_broadcasting or not self.is_member(me):
            return self
        surplus = len(self.surplus_of(me))
        if surplus:
            idle = [queue for queue in self._own(me) if queue not in busy]
            return self.given_up(idle[-surplus:])
        free = [queue for queue in self.all_queues() if queue not in self.owners]
        return self._taken(me.member_id, free[: self.share_of(me.member_id) - len(self._own(me))])

    def surplus_of(self, me: Owner) -> list[TopicQueue]:
        """Queues of a member above its share, which it gives up as soon as it can."""
        if self.is_broadcasting or not self.is_member(me):
            return []
        own = self._own(me)
        return own[self.share_of(me.member_id) :]

    def _own(self, me: Owner) -> list[TopicQueue]:
        return sorted(self.held_by(me), key=_by_queue)

    def given_up(self, queues: Collection[TopicQueue]) -> GroupState:
        """The same with these queues free."""
        kept = {queue: owner for queue, owner in self.owners.items() if queue not in queues}
        return self if len(kept) == len(self.owners) else replace(self, owners=kept)

    def _taken(self, member_id: str, queues: Collection[TopicQueue]) -> GroupState:
        if not queues:
            return self
        epoch = self.epoch + 1
        taken = dict.fromkeys(queues, Owner(member_id, epoch))
        return replace(self, owners={**self.owners, **taken}, epoch=epoch)

    # --- offsets ----------------------------------------------------------------------------

    def begun(self, member_id: str, starts: Offsets) -> GroupState:
        """The same with a first offset for each queue that has none; one that is there wins."""
        known = self.offsets_of(member_id)
        return self._with_offsets(self._reader(member_id), {**starts, **known})

    def committed(
        self,
        me: Owner,
        offsets: Mapping[TopicQueue, tuple[int, int]],
        *,
        may_go_back: bool = False,
    ) -> SwapResult:
        """What a member consumed, each queue with the epoch under which it has it.

        A queue that it has no more is refused; no offset goes back, unless it may.
        """
        held = self.held_by(me)
        refused = frozenset(q for q, (epoch, _) in offsets.items() if held.get(q) != epoch)
        known = self.offsets_of(me.member_id)
        moved = {
            queue: offset if may_go_back else max(offset, known.get(queue, 0))
            for queue, (_, offset) in offsets.items()
            if queue not in refused
        }
        after = self._with_offsets(self._reader(me.member_id), {**known, **moved})
        return SwapResult(after._replayed(known, moved), refused)  # noqa: SLF001 - its own kind

    def reset(self, offsets: Offsets) -> GroupState:
        """The same with other offsets, for each member in BROADCASTING; who lives joins again."""
        readers = self.offsets if self.is_broadcasting else (SHARED,)
        after = {name: {**self.offsets.get(name, {}), **offsets} for name in readers}
        changed = self._replayed(self.offsets.get(SHARED, {}), offsets)
        return replace(
            changed, offsets={**self.offsets, **after}, members={}, owners={}, epoch=self.epoch + 1
        )

    def _replayed(self, before: Offsets, after: Offsets) -> GroupState:
        """The same, knowing in which queues the group goes back."""
        back = [queue for queue, offset in after.items() if offset < before.get(queue, 0)]
        if not back:
            return self
        more = {queue: self.replays.get(queue, 0) + 1 for queue in back}
        return replace(self, replays={**self.replays, **more})

    def _with_offsets(self, reader: str, offsets: Offsets) -> GroupState:
        if offsets == self.offsets.get(reader, {}):
            return self
        return replace(self, offsets={**self.offsets, reader: offsets})

    # --- one swap of a member ---------------------------------------------------------------

    def swapped(
        self,
        me: Owner,
        *,
        now_ms: int,
        lease_end_ms: int,
        commits: Mapping[TopicQueue, tuple[int, int]] | None = None,
        busy: Collection[TopicQueue] = (),
    ) -> SwapResult:
        """Commit, forget who is gone, live on, give up or take queues: all in one."""
        # First what is ours: a lease that ended counts only once somebody says so.
        done = self.committed(me, commits or {})
        after = done.state.renewed(me, lease_end_ms).without_gone(now_ms)
        return SwapResult(after.shared_out(me, busy), done.refused)

    # --- as plain values --------------------------------------------------------------------

    def to_value(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "mode": self.settings.mode.value,
            "subscription": dict(self.settings.subscription),
            "queues": dict(self.queues),
            "offsets": {reader: _nested(own) for reader, own in self.offsets.items()},
            "members": {name: list(own) for name, own in self.members.items()},
            "owners": _nested({queue: list(own) for queue, own in self.owners.items()}),
            "replays": _nested(self.replays),
            "epoch": self.epoch,
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> GroupState:
        """What `to_value` made; an empty value is a group that nobody has joined."""
        if not value:
            return cls()
        settings = GroupSettings(ConsumeMode(value["mode"]), dict(value["subscription"]))
        return cls(
            settings,
            dict(value["queues"]),
            {reader: dict(_flat(own)) for reader, own in value["offsets"].items()},
            {name: Membership(*own) for name, own in value["members"].items()},
            {queue: Owner(*own) for queue, own in _flat(value["owners"])},
            dict(_flat(value["replays"])),
            value["epoch"],
        )


def _by_queue(queue: TopicQueue) -> tuple[int, str]:
    # Each member then has queues of every topic.
    return queue.queue_id, queue.topic


def _nested(by_queue: Mapping[TopicQueue, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (topic, queue_id), own in by_queue.items():
        nested.setdefault(topic, {})[str(queue_id)] = own
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[TopicQueue, Any]]:
    for topic, by_queue in nested.items():
        for queue_id, own in by_queue.items():
            yield TopicQueue(topic, int(queue_id)), own
