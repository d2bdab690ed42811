"""Whatever members of a group do, in any order and at any time, these statements hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from txmq.consumer.group import state_of, value_of
from txmq.consumer.group_rules import (
    SHARED,
    ConsumeMode,
    GroupSettings,
    GroupState,
    Owner,
    TopicQueue,
)
from txmq.consumer.leases import LeaseWatch, OwnLease
from txmq.errors import ConsumerGroupConflictError
from txmq.testing import ManualClock

LEASE_MS = 10_000
NAMES = ("a", "b", "c", "d")
# Clocks that differ by more than a lease, as those of machines may.
AHEAD_MS = {"a": 0, "b": 3_600_000, "c": -3_600_000, "d": 15_000}
SETTINGS = GroupSettings(ConsumeMode.CLUSTERING, {"orders": "*", "stock": "eu"})


@dataclass
class Member:
    """A process: what it believes of itself, which may be long out of date."""

    me: Owner
    clock: ManualClock
    watch: LeaseWatch
    lease: OwnLease
    epochs: dict[TopicQueue, int] = field(default_factory=dict)
    read: dict[TopicQueue, int] = field(default_factory=dict)
    busy: set[TopicQueue] = field(default_factory=set)

    @classmethod
    def started(cls, name: str, now_ms: int) -> Member:
        clock = ManualClock(now_ms + AHEAD_MS[name])
        return cls(Owner("", 0), clock, LeaseWatch(clock, LEASE_MS), OwnLease(clock, LEASE_MS))

    def others_gone(self, state: GroupState) -> frozenset[str]:
        return self.watch.gone(state.members) - {self.me.member_id}

    def adopt(self, state: GroupState) -> None:
        self.watch.look(state.members)
        held = state.held_by(self.me)
        offsets = state.offsets_of(self.me.member_id)
        for queue, epoch in held.items():
            if self.epochs.get(queue) != epoch:
                self.read[queue] = offsets.get(queue, 0)
        self.busy = {queue for queue in self.busy if held.get(queue) == self.epochs.get(queue)}
        self.epochs = dict(held)
        is_member = state.is_member(self.me)
        self.lease.adopt(state.members[self.me.member_id] if is_member else None)


class GroupMachine(RuleBasedStateMachine):
    """Members join, swap, fall silent and come back; the group's value is the only truth."""

    @initialize(
        counts=st.fixed_dictionaries({"orders": st.integers(1, 5), "stock": st.integers(1, 3)})
    )
    def begin(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.state = GroupState()
        self.now_ms = 10_000_000
        self.members: dict[str, Member] = {}
        self.handed: Counter[tuple[TopicQueue, int]] = Counter()

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        member = self.members.get(name)
        if member is None or self.state.is_member(member.me):
            # Another process of the name, which has seen nothing yet.
            self.members[name] = member = Member.started(name, self.now_ms)
        gone = member.watch.gone(self.state.members)
        if name in self.state.members and name not in gone:
            return
        after = self.state.joined(
            "group", name, SETTINGS, self.counts,
            gone=gone, lease_end_ms=member.lease.next_number(None), lease_ms=LEASE_MS,
        )  # fmt: skip
        member.me = Owner(name, after.epoch)
        self._put(after.shared_out(member.me, ()), member)

    @rule(name=st.sampled_from(NAMES), is_commit=st.booleans())
    def swap(self, name: str, is_commit: bool) -> None:  # noqa: FBT001 - Hypothesis draws it
        """One swap of a member, which the group may have forgotten meanwhile."""
        member = self.members.get(name)
        if member is None:
            return
        if not self.state.is_member(member.me):
            member.adopt(self.state)
            return
        commits = (
            {q: (member.epochs[q], member.read[q]) for q in member.epochs} if is_commit else {}
        )
        before = self.state.offsets_of(name)
        held = self.state.held_by(member.me)
        result = self.state.swapped(
            member.me, gone=member.others_gone(self.state),
            lease_end_ms=member.lease.next_number(self.state.members[name]),
            commits=commits, busy=() if is_commit else member.busy,
        )  # fmt: skip
        assert result.refused == {q for q, (epoch, _) in commits.items() if held.get(q) != epoch}
        for queue in result.refused:
            assert result.state.offsets_of(name).get(queue) == before.get(queue)
        if is_commit:
            member.busy.clear()
        self._put(result.state, member)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def consume(self, name: str, count: int) -> None:
        """Only while the lease is not over, only of what is believed to be held."""
        member = self.members.get(name)
        if member is None or member.lease.left_ms <= 0:
            return
        for queue in sorted(member.epochs)[:count]:
            owner = self.state.owners.get(queue)
            assert owner == Owner(name, member.epochs[queue]), "nobody else may have it now"
            member.read[queue] += 1
            member.busy.add(queue)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None:
            self._put(self.state.left(member.me), None)

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def wait(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        for member in self.members.values():
            member.clock.advance(seconds)

    @rule(topic=st.sampled_from(["orders", "stock"]))
    def alter(self, topic: str) -> None:
        """A topic gets another queue; members see it at their next join."""
        self.counts = {**self.counts, topic: self.counts[topic] + 1}
        if self.state.members:
            self._put(self.state.grown(self.counts), None)

    @rule()
    def come_to_rest(self) -> None:
        """Members that only live on and commit share the queues evenly, and then nothing moves."""
        for _ in range(12):
            for name, member in self.members.items():
                if self.state.is_member(member.me):
                    member.adopt(self.state)
                    self.swap(name, is_commit=True)
        living = sorted(name for name in self.members if self.is_serving(name))
        if not living or set(self.state.members) - set(self.members):
            return
        if set(living) != set(self.state.members):
            return
        counts = Counter(owner.member_id for owner in self.state.owners.values())
        shares = [counts[name] for name in living]
        assert sum(shares) == sum(self.state.queues.values())
        assert max(shares) - min(shares) <= 1
        owners = dict(self.state.owners)
        for name in living:
            self.swap(name, is_commit=True)
        assert self.state.owners == owners

    @invariant()
    def value_survives_the_store(self) -> None:
        if hasattr(self, "state"):
            again = state_of(json.loads(json.dumps(value_of(self.state))))
            assert again == self.state

    @invariant()
    def every_owner_is_a_member(self) -> None:
        if hasattr(self, "state"):
            assert {o.member_id for o in self.state.owners.values()} <= set(self.state.members)
            assert set(self.state.owners) <= set(self.state.all_queues())

    def is_serving(self, name: str) -> bool:
        """Whether the group shows the process of a name, and its lease is not over."""
        member = self.members.get(name)
        return member is not None and self.state.is_member(member.me) and member.lease.left_ms > 0

    def _put(self, after: GroupState, member: Member | None) -> None:
        before = self.state.offsets.get(SHARED, {})
        now = after.offsets.get(SHARED, {})
        assert all(now[queue] >= offset for queue, offset in before.items())
        assert after.epoch >= self.state.epoch
        moved = {
            q for q, owner in after.owners.items() if self.state.owners.get(q) not in (None, owner)
        }
        for queue in moved:
            old = self.state.owners[queue]
            membership = self.state.members.get(old.member_id)
            is_the_same = membership is not None and self.is_serving(old.member_id)
            assert not is_the_same, "a queue is taken only from who is gone"
        self.state = after
        if member is not None:
            member.adopt(after)


TestGroup = GroupMachine.TestCase


def joined(*names: str, queues: int = 4) -> tuple[GroupState, list[Owner]]:
    """A group at rest."""
    state, members = GroupState(), []
    for name in names:
        state = state.joined(
            "group", name, SETTINGS, {"orders": queues}, gone=(), lease_end_ms=LEASE_MS
        )
        members.append(Owner(name, state.epoch))
    for _ in range(4):
        for me in members:
            state = state.shared_out(me, ())
    return state, members


@given(st.integers(1, 12), st.integers(1, 4))
def test_queue_stays_where_it_is_when_a_member_joins_unless_it_is_needed(
    queues: int, count: int
) -> None:
    before, _ = joined(*NAMES[: count - 1], queues=queues) if count > 1 else (GroupState(), [])
    state = before.joined(
        "group", "z", SETTINGS, {"orders": queues}, gone=(), lease_end_ms=LEASE_MS
    )
    members = [Owner(name, membership.epoch) for name, membership in state.members.items()]
    for _ in range(4):
        for me in members:
            state = state.shared_out(me, ())

    moved = [queue for queue, owner in before.owners.items() if state.owners[queue] != owner]
    assert len(moved) <= -(-queues // count)
    assert all(state.owners[queue].member_id == "z" for queue in moved)


def test_member_that_is_busy_gives_up_only_what_it_is_not_busy_with() -> None:
    state, (first,) = joined("a")
    state = state.joined("group", "b", SETTINGS, {}, gone=(), lease_end_ms=LEASE_MS)
    busy = {TopicQueue("orders", queue) for queue in (1, 2, 3)}

    after = state.shared_out(first, busy)

    assert set(after.held_by(first)) == busy
    assert after.surplus_of(first) == [TopicQueue("orders", 3)]


def test_commit_under_an_old_epoch_changes_nothing() -> None:
    state, (first,) = joined("a")
    queue = TopicQueue("orders", 0)
    epoch = state.held_by(first)[queue]
    state = state.given_up([queue]).shared_out(first, ())

    result = state.committed(first, {queue: (epoch, 7)})

    assert result.refused == {queue}
    assert result.state == state


def test_commit_never_goes_back_and_a_seek_may() -> None:
    state, (first,) = joined("a")
    queue = TopicQueue("orders", 0)
    epoch = state.held_by(first)[queue]
    state = state.committed(first, {queue: (epoch, 7)}).state

    assert state.committed(first, {queue: (epoch, 3)}).state == state
    sought = state.committed(first, {queue: (epoch, 3)}, may_go_back=True).state
    assert sought.offsets_of("a")[queue] == 3


def test_other_settings_are_refused_while_anybody_lives_and_replace_them_later() -> None:
    state, _ = joined("a")
    state = state.begun("a", {TopicQueue("orders", 0): 5})
    other = GroupSettings(ConsumeMode.CLUSTERING, {"orders": "us"})
    with pytest.raises(ConsumerGroupConflictError) as refused:
        state.joined("group", "b", other, {"orders": 4}, gone=(), lease_end_ms=LEASE_MS)
    assert (refused.value.group, refused.value.given) == ("group", str(other))

    after = state.joined("group", "b", other, {"orders": 4}, gone={"a"}, lease_end_ms=2 * LEASE_MS)

    assert after.settings == other
    assert after.offsets == state.offsets
    assert list(after.members) == ["b"]


def test_reset_lets_everybody_join_again() -> None:
    state, (first,) = joined("a")
    queue = TopicQueue("orders", 0)

    after = state.reset({queue: 2})

    assert after.offsets_of("a")[queue] == 2
    assert not after.is_member(first)
    assert after.committed(first, {queue: (state.held_by(first)[queue], 9)}).refused == {queue}
