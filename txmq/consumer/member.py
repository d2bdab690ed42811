"""A member of a consumer group: joins, lives on, gets its share of the queues, commits.

Whoever reads, with Spark or without, is such a member: leases, offsets and lag are the same. A
lease is told by each member's own clock, so clocks of one group must agree within a third of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from txmq.clock import Clock
from txmq.consumer.group import ConsumerGroup
from txmq.consumer.offsets import FROM_THE_BEGINNING, StartPoint
from txmq.consumer.rules import GroupSettings, GroupState, Offsets, Owner, SwapResult, TopicQueue
from txmq.errors import TxmqError
from txmq.handles import ThreadHandle
from txmq.store.catalog import TopicCatalog
from txmq.store.store import Store

logger = logging.getLogger(__name__)

# Who has not asked for messages for so long is stuck (RocketMQ's consume timeout).
CONSUME_TIMEOUT_S = 900.0
# The other thread renews first, together with its offsets.
RENEWAL, LATE_RENEWAL = 1 / 3, 1 / 2
HEARTBEAT = 1 / 6
UNFAIR_LOOK_S = 0.1
_NOBODY = Owner("", 0)
Commits = Mapping[TopicQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class HeldQueues:
    """What a member may read now.

    Attributes:
        epochs: the queues, each with the epoch under which the member has it.
        offsets: where the group goes on.
        surplus: queues that it is to give up as soon as it can.
        replays: how often the group went back in a queue on purpose.
    """

    epochs: Mapping[TopicQueue, int] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    surplus: frozenset[TopicQueue] = frozenset()
    replays: Mapping[TopicQueue, int] = field(default_factory=dict)


class GroupMember:
    """One member. Its own thread renews the lease; everything else is for one other thread.

    Reads: topics that the group has no offsets of, `state/topics`. Writes: `state/group_<group>`.
    """

    def __init__(  # noqa: PLR0913 - what a member is told once
        self,
        store: Store,
        group: ConsumerGroup,
        settings: GroupSettings,
        start: StartPoint,
        *,
        member_id: str,
        clock: Clock,
        seen_queues: Callable[[], Mapping[str, int]],
    ) -> None:
        """Nothing is written yet; `join()` does. `seen_queues` says how many topics show."""
        self.member_id, self.settings = member_id, settings
        self._store, self._group, self._start, self._clock = store, group, start, clock
        self._lease_ms = round(store.config.consumer_lease_s * 1000)
        self._catalog, self._seen_queues = TopicCatalog(store), seen_queues
        self._lock = threading.RLock()
        self._me, self._state, self._lease_end_ms = _NOBODY, GroupState(), 0
        self._held = HeldQueues()
        self._looked_s = self._asked_s = time.monotonic()
        self._told_of_namesake = False
        self._lease_renewal: LeaseRenewal | None = None

    @property
    def topics(self) -> list[str]:
        """Stored names of what is read; in CLUSTERING the group's retry topic too."""
        own = list(self.settings.subscription)
        retry = self._group.retry_topic
        return own if self._is_broadcasting or retry in own else [*own, retry]

    @property
    def renewal_s(self) -> float:
        """How long offsets may wait for a swap that renews the lease."""
        return self._lease_ms / 1000 * RENEWAL

    @property
    def held(self) -> HeldQueues:
        """The queues that are this member's, as far as it knows; nothing once its lease is over."""
        return self._held if self.may_serve else HeldQueues()

    @property
    def may_serve(self) -> bool:
        """Whether the lease is not over: only then may messages be handed out."""
        return self._clock.now_ms() < self._lease_end_ms

    @property
    def _is_broadcasting(self) -> bool:
        return GroupState(self.settings).is_broadcasting

    # --- joining and leaving ----------------------------------------------------------------

    def join(self) -> bool:
        """Become a member with its share of the queues: one commit.

        False where another member of this name lives: it is waited for until its lease is over.

        Raises: ConsumerGroupConflictError, OffsetOutOfRangeError, StorageError.
        """
        with self._lock:
            self._me = _NOBODY
            self._adopt(self._group.change(self._joined, self._clock.now_ms()))
            is_member = self._state.is_member(self._me)
        self._tell_of_namesake(is_member=is_member)
        if is_member and self._lease_renewal is None:
            self._lease_renewal = LeaseRenewal(self, self._lease_ms / 1000 * HEARTBEAT)
            self._lease_renewal.begin()
        return is_member

    def _joined(self, state: GroupState) -> GroupState:
        now_ms = self._clock.now_ms()
        self._me = _NOBODY
        if self.member_id in state.living(now_ms):
            return state
        after = state.joined(
            self._group.name, self.member_id, self.settings, self._queues(),
            now_ms=now_ms, lease_end_ms=now_ms + self._lease_ms,
        )  # fmt: skip
        self._me = Owner(self.member_id, after.epoch)
        return self._with_starts(after.shared_out(self._me, ()))

    def _tell_of_namesake(self, *, is_member: bool) -> None:
        if not is_member and not self._told_of_namesake:
            logger.warning("group %s: another %s lives; waiting", self._group.name, self.member_id)
        self._told_of_namesake = not is_member

    def leave(self) -> None:
        """Give all queues to the others at once: one commit, or none where it was forgotten."""
        if self._lease_renewal is not None:
            self._lease_renewal.stop()
        with self._lock:
            if self._me != _NOBODY:
                self._group.change(lambda state: state.left(self._me), self._clock.now_ms())
            self._me, self._held, self._lease_end_ms = _NOBODY, HeldQueues(), 0

    # --- living -----------------------------------------------------------------------------

    def keep_up(
        self, commits: Commits, busy: Collection[TopicQueue]
    ) -> frozenset[TopicQueue] | None:
        """See what changed, renew the lease and the share where it is time.

        Args:
            commits: what may be committed on the way, if a swap is made at all.
            busy: queues whose messages are in the hands of the caller.

        Returns the queues whose offsets were refused; None if no swap was made. Commits: at most
        one.

        Raises: as `join`.
        """
        self._asked_s = time.monotonic()
        with self._lock:
            if self._group_has_news():
                self._adopt(self._group.read())
            if not self._state.is_member(self._me):
                return frozenset(commits) if self._joined_again() else None
            if self._is_due(RENEWAL) or self._is_unfair(busy):
                return self.swap(commits, busy)
            return None

    def swap(self, commits: Commits, busy: Collection[TopicQueue] = ()) -> frozenset[TopicQueue]:
        """One swap: commit, renew, share out. Returns the queues whose offsets were refused."""
        refused: frozenset[TopicQueue] = frozenset(commits)

        def changed(state: GroupState) -> GroupState:
            nonlocal refused
            result = self._swapped(state, commits, busy)
            refused = result.refused
            return self._with_starts(result.state)

        with self._lock:
            self._asked_s = time.monotonic()
            self._adopt(self._group.change(changed, self._clock.now_ms()))
        return refused

    def seek(self, offsets: Commits) -> frozenset[TopicQueue]:
        """Set offsets of own queues, back or forth: one commit. Returns those that were refused."""
        refused: frozenset[TopicQueue] = frozenset()

        def changed(state: GroupState) -> GroupState:
            nonlocal refused
            result = state.committed(self._me, offsets, may_go_back=True)
            refused = result.refused
            return result.state

        with self._lock:
            self._adopt(self._group.change(changed, self._clock.now_ms()))
        return refused

    def beat(self) -> None:
        """Renew the lease while the other thread is busy with messages; one commit if it is due."""
        if time.monotonic() - self._asked_s > CONSUME_TIMEOUT_S:
            return
        with self._lock:
            if self._me != _NOBODY and self._is_due(LATE_RENEWAL):
                self._adopt(self._group.change(self._renewed, self._clock.now_ms()))

    def _joined_again(self) -> bool:
        """A name that is taken is looked at again now and then, for a lease may end."""
        now_s = time.monotonic()
        if self._told_of_namesake and now_s - self._looked_s < UNFAIR_LOOK_S:
            return False
        self._looked_s = now_s
        return self.join()

    def _group_has_news(self) -> bool:
        return self._me != _NOBODY and self._group.has_news()

    def _is_due(self, share: float) -> bool:
        """Whether this share of the lease is over."""
        left_ms = self._lease_end_ms - self._clock.now_ms()
        return left_ms <= self._lease_ms * (1 - share)

    def _is_unfair(self, busy: Collection[TopicQueue]) -> bool:
        """Whether queues are free for us, or too many are ours; asked a few times a second."""
        now_s = time.monotonic()
        if now_s - self._looked_s < UNFAIR_LOOK_S:
            return False
        self._looked_s = now_s
        has_grown = self._state.grown(self._queues()) != self._state
        return has_grown or self._state.is_unfair_to(self._me, busy, self._clock.now_ms())

    # --- changes of the group ---------------------------------------------------------------

    def _swapped(
        self, state: GroupState, commits: Commits, busy: Collection[TopicQueue]
    ) -> SwapResult:
        now_ms = self._clock.now_ms()
        if not state.is_member(self._me):
            return SwapResult(state, frozenset(commits))
        return state.grown(self._queues()).swapped(
            self._me, now_ms=now_ms, lease_end_ms=now_ms + self._lease_ms,
            commits=commits, busy=busy,
        )  # fmt: skip

    def _renewed(self, state: GroupState) -> GroupState:
        return state.renewed(self._me, self._clock.now_ms() + self._lease_ms)

    def _with_starts(self, state: GroupState) -> GroupState:
        """Offsets for all queues that have none, so that nobody begins later than the group did."""
        known = state.offsets_of(self.member_id)
        missing: dict[str, list[int]] = {}
        for topic, queue_id in state.all_queues():
            if TopicQueue(topic, queue_id) not in known:
                missing.setdefault(topic, []).append(queue_id)
        if not (missing and state.is_member(self._me)):
            return state
        begun = {queue.topic for queue in known}
        starts = {
            TopicQueue(topic, queue_id): offset
            for topic, queues in missing.items()
            for queue_id, offset in self._starts_in(topic, queues, begun).items()
        }
        return state.begun(self.member_id, starts)

    def _starts_in(self, topic: str, queues: list[int], begun: Collection[str]) -> dict[int, int]:
        # A queue that a topic got later, and the group's own retries, are read from the first.
        is_whole = topic in begun or topic == self._group.retry_topic
        start = FROM_THE_BEGINNING if is_whole else self._start
        return start.offsets_in(self._store, topic, queues)

    def _queues(self) -> dict[str, int]:
        seen, known = self._seen_queues(), self._catalog.queue_count
        return {topic: max(known(topic), seen.get(topic, 0)) for topic in self.topics}

    def _adopt(self, state: GroupState) -> None:
        """What the newest value says of us; `held` changes as a whole."""
        self._state = state
        if not state.is_member(self._me):
            self._held, self._lease_end_ms = HeldQueues(), 0
            return
        epochs = state.held_by(self._me)
        self._held = HeldQueues(
            epochs,
            state.offsets_of(self.member_id),
            frozenset(state.surplus_of(self._me)),
            state.replays,
        )
        self._lease_end_ms = state.members[self.member_id].lease_end_ms


class LeaseRenewal(ThreadHandle):
    """Renews the lease of a member beside its other thread."""

    def __init__(self, member: GroupMember, interval_s: float) -> None:
        """The first renewal is due after an interval."""
        super().__init__("consumer", interval_s, first_s=interval_s)
        self._member = member

    def _turn(self) -> None:
        try:
            self._member.beat()
        except (TxmqError, OSError) as error:
            logger.warning("a lease could not be renewed: %s", error)
