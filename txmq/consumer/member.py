"""A member of a consumer group: it joins, renews its lease, gets its share of queues, commits.

Readers with Spark and without are such members, with the same leases, offsets and lag. Whether
another member lives is seen and not computed; see `leases`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from txmq.consumer.attempts import Attempts
from txmq.consumer.group import ConsumerGroup
from txmq.consumer.group_rules import (
    AttemptsByQueue,
    Commits,
    Followed,
    GroupSettings,
    GroupState,
    Offsets,
    Owner,
    SwapResult,
    TopicQueue,
)
from txmq.consumer.leases import LeaseWatch, OwnLease
from txmq.consumer.offsets import FROM_THE_BEGINNING, ConsumeFromWhere, StartPoint
from txmq.delta.failures import in_one_line
from txmq.errors import ConsumerGroupConflictError, MessagesExpiredError, StorageError
from txmq.ground.clock import Clock, affine
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.store.catalog import TopicCatalog
from txmq.store.store import Store

logger = logging.getLogger(__name__)
# Shares of a lease. The reading thread renews first, together with its offsets; the thread of
# LeaseRenewal looks every sixth of a lease, and renews only where the other one is late.
RENEWAL, LATE_RENEWAL = 1 / 3, 1 / 2
RENEWAL_LOOK = 1 / 6
UNFAIR_LOOK_S = 0.1
_NOBODY = Owner("", 0)


@dataclass(frozen=True, slots=True)
class HeldQueues:
    """The queues that a member may read now.

    Attributes:
        epochs: the queues, each with the epoch in which the member got it.
        offsets: the next offset of each queue, as the group knows it.
        surplus: queues that the member must give up as soon as it can.
        replays: how often the group went back in a queue on purpose.
        followed: the commit of the topic that each offset is of, if it is known.
        attempts: what of a queue was handed out from the next offset on, and is not over.
    """

    epochs: Mapping[TopicQueue, int] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    surplus: frozenset[TopicQueue] = frozenset()
    replays: Mapping[TopicQueue, int] = field(default_factory=dict)
    followed: Followed = field(default_factory=dict)
    attempts: Mapping[TopicQueue, Attempts] = field(default_factory=dict)


class GroupMember:
    """One member of a group.

    A thread of its own renews the lease; all methods are for one other thread.

    Reads: `state/topics`, and topics of which the group has no offsets. Writes:
    `state/group_<group>`.

    Args:
        store: the store of the topics.
        group: the group in the store.
        settings: what the member reads; all members of a group must agree.
        start: where the group begins in queues of which it has no offsets.
        member_id: the name of the member.
        clock: measures leases; only durations count.
        seen_queues: the numbers of queues that the topics show.
        read_in: the commit of its topic that the offset of each queue was read in.
        attempts: what was handed out of each queue and is not over.
        consume_timeout_s: a member that has not asked for messages for so long is stuck, and its
            lease ends.
    """

    def __init__(  # noqa: PLR0913 - the facts of a member
        self,
        store: Store,
        group: ConsumerGroup,
        settings: GroupSettings,
        start: StartPoint,
        *,
        member_id: str,
        clock: Clock,
        seen_queues: Callable[[], Mapping[str, int]],
        read_in: Callable[[Collection[TopicQueue]], Followed],
        attempts: Callable[[], AttemptsByQueue],
        consume_timeout_s: float,
    ) -> None:
        """Write nothing before `join`."""
        self.member_id, self.settings = member_id, settings
        self._store, self._group, self._clock = store, group, clock
        self._starts = GroupStart(store, start, group.retry_topic)
        self._lease_ms = round(store.config.consumer_lease_s * 1000)
        self._catalog, self._seen_queues = TopicCatalog(store), seen_queues
        self._read_in, self._attempts = read_in, attempts
        self._lock = threading.RLock()
        self._me, self._state, self._held = _NOBODY, GroupState(), HeldQueues()
        self._lease = OwnLease(clock, self._lease_ms)
        self._watch = LeaseWatch(clock, self._lease_ms)
        self._consume_timeout_s = consume_timeout_s
        self._looked_s = self._asked_s = self._next_group_look_s = time.monotonic()
        self._works_until_s = 0.0
        self._has_warned = self._has_sighted = False
        self._lease_renewal: LeaseRenewal | None = None

    @property
    def topics(self) -> list[str]:
        """The stored names of the topics that are read; in CLUSTERING also the retry topic."""
        topics, retry_topic = list(self.settings.subscription), self._group.retry_topic
        return topics if self._is_broadcasting or retry_topic in topics else [*topics, retry_topic]

    @property
    def renewal_s(self) -> float:
        """How long offsets may wait until a swap commits them and renews the lease."""
        return self._lease_ms / 1000 * RENEWAL

    @property
    def held(self) -> HeldQueues:
        """The queues of this member as far as it knows; none once its lease is over."""
        return self._held if self.may_serve else HeldQueues()

    @property
    def has_all_queues(self) -> bool:
        """Whether the member reads every queue of the group."""
        return self._held.epochs.keys() >= set(self._state.all_queues())

    @property
    def may_serve(self) -> bool:
        """Whether the lease is not over: only then may messages be handed out."""
        return self._lease.left_ms > 0

    @property
    def begin_failure(self) -> Exception | None:
        """Why queues of this member have no offset to begin at yet; None if all have one."""
        failures, held = self._starts.failures, self.held
        if not failures:
            return None
        topics = {queue.topic for queue in held.epochs if queue not in held.offsets}
        return next((error for topic, error in failures.items() if topic in topics), None)

    @property
    def _is_broadcasting(self) -> bool:
        return GroupState(self.settings).is_broadcasting

    # --- joining and leaving ----------------------------------------------------------------

    def join(self) -> bool:
        """Become a member and take a share of the queues: one commit.

        One more commit the first time, if the group lists other members.

        Returns:
            False if another member of this name lives. `keep_up` tries again until its lease is
            over.

        Raises: ConsumerGroupConflictError, OffsetOutOfRangeError, StorageError.
        """
        with self._lock:
            self._me = _NOBODY
            self._see_silent_members()
            self._change(self._joined)
            is_member = self._state.is_member(self._me)
        self._warn_of_namesake(is_member=is_member)
        if is_member and self._lease_renewal is None:
            self._lease_renewal = LeaseRenewal(self, self._lease_ms / 1000 * RENEWAL_LOOK)
            self._lease_renewal.begin()
        return is_member

    def _see_silent_members(self) -> None:
        """Learn from the storage for how long the listed members have shown no renewal.

        A process that lives for less than a lease could never see it by itself.
        """
        if self._has_sighted:
            return
        state = self._group.change(self._sighted, self._clock.now_ms())
        stored_ms, self._has_sighted = self._group.changed_ms(), True
        if state.seen and stored_ms is not None:
            at = affine(self._clock).at
            # As long as is certain: who is dropped may live, and others get what it has in hand.
            now_ms = at(stored_ms - self._group.rounding_ms)
            silent_ms = {name: now_ms - at(s.since_ms) for name, s in state.seen.items()}
            self._watch.note_silence(state.members, silent_ms)

    def _sighted(self, state: GroupState) -> GroupState:
        stored_ms = self._group.changed_ms() if state.members else None
        return state if stored_ms is None else state.sighted(stored_ms)

    def _joined(self, state: GroupState) -> GroupState:
        self._me, gone = _NOBODY, self._watch.gone(state.members)
        if self.member_id in state.members and self.member_id not in gone:
            return state
        self._check_order(state)
        self._group.check_room(state, self.member_id, self.settings.mode, gone)
        after = state.joined(
            self._group.name, self.member_id, self.settings, self._queues(), gone=gone,
            lease_end_ms=self._lease.next_number(None), lease_ms=self._lease_ms,
        )  # fmt: skip
        self._me = Owner(self.member_id, after.epoch)
        return self._with_starts(after.shared_out(self._me, ()))

    def _check_order(self, state: GroupState) -> None:
        """Refuse to join by settings that an operator has changed since they were read."""
        is_orderly = state.own.get("consume_message_orderly")
        if is_orderly in (None, self.settings.is_orderly) or self._is_broadcasting:
            return
        now = replace(self.settings, is_orderly=bool(is_orderly))
        raise ConsumerGroupConflictError(self._group.name, str(now), str(self.settings))

    def _warn_of_namesake(self, *, is_member: bool) -> None:
        if not is_member and not self._has_warned:
            logger.warning(
                "group %s: another member %s lives; this one waits until its lease is over",
                self._group.name, self.member_id,
            )  # fmt: skip
        self._has_warned = not is_member

    def leave(self) -> None:
        """Stop renewing the lease, and give up all queues: one commit.

        No commit if the group has dropped this member already. Raises: StorageError.
        """
        if self._lease_renewal is not None:
            self._lease_renewal.stop()
        with self._lock:
            if self._me != _NOBODY:
                self._group.change(lambda state: state.left(self._me), self._clock.now_ms())
            self._me, self._held = _NOBODY, HeldQueues()
            self._lease.adopt(None)
            self._lease_renewal = None

    # --- living -----------------------------------------------------------------------------

    def keep_up(
        self, commits: Commits, busy: Collection[TopicQueue]
    ) -> frozenset[TopicQueue] | None:
        """Read the news of the group; renew the lease, and adjust the share, if it is time.

        Commits: at most one. A member that was dropped joins again.

        Args:
            commits: offsets to commit on the way, if a swap is made at all.
            busy: queues whose messages are in the hands of the caller.

        Returns:
            The queues whose offsets were refused; None if no swap was made.

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
        """Commit offsets, renew the lease and adjust the share of the queues: one commit.

        Returns:
            The queues whose offsets were refused, because the member does not have them any more.

        Raises: StorageError.
        """
        with self._lock:
            self._asked_s = time.monotonic()
            return self._commit(lambda state: self._swapped(state, commits, busy))

    def seek(self, offsets: Commits, seen_in: Followed) -> frozenset[TopicQueue]:
        """Set the offsets of queues of this member, back or forth: one commit.

        `seen_in` is the commit of its topic that each offset is of, as far as it is known.

        Returns:
            The queues that were refused, because the member does not have them any more.

        Raises: StorageError.
        """
        with self._lock:
            return self._commit(
                lambda state: state.committed(self._me, offsets, may_go_back=True, followed=seen_in)
            )

    def renew_if_late(self) -> None:
        """Renew the lease while the reading thread is busy with messages: at most one commit.

        Does nothing once the reading thread has not asked for messages for the consume timeout.
        """
        if time.monotonic() > max(self._asked_s + self._consume_timeout_s, self._works_until_s):
            return
        with self._lock:
            if self._me != _NOBODY and self._is_due(LATE_RENEWAL):
                self._change(self._renewed)

    def work_for(self, time_s: float) -> None:
        """Let the reading thread be silent for so long from now on: messages are invisible."""
        self._works_until_s = time.monotonic() + time_s

    def _joined_again(self) -> bool:
        """Join again; if another member has the name, only some times a second."""
        now_s = time.monotonic()
        if self._has_warned and now_s - self._looked_s < UNFAIR_LOOK_S:
            return False
        self._looked_s = now_s
        return self.join()

    def _group_has_news(self) -> bool:
        """Tell whether others changed the group; commits are swaps, so news may be noticed late."""
        now_s = time.monotonic()
        if self._me == _NOBODY or now_s < self._next_group_look_s:
            return False
        self._next_group_look_s = now_s + self._store.look_interval_s(0.0, is_idle=True)
        return self._group.has_news()

    def _is_due(self, share: float) -> bool:
        """Tell whether this share of the lease is over."""
        return self._lease.left_ms <= self._lease_ms * (1 - share)

    def _is_unfair(self, busy: Collection[TopicQueue]) -> bool:
        """Tell whether the member should take or give up queues; looks some times a second."""
        now_s = time.monotonic()
        if now_s - self._looked_s < UNFAIR_LOOK_S:
            return False
        self._looked_s = now_s
        has_grown = self._state.grown(self._queues()) != self._state
        return has_grown or self._state.is_unfair_to(self._me, busy, self._others_gone(self._state))

    # --- changes of the group ---------------------------------------------------------------

    def _commit(self, change: Callable[[GroupState], SwapResult]) -> frozenset[TopicQueue]:
        """Change the group: one commit. Return the queues whose offsets were refused."""
        refused: frozenset[TopicQueue] = frozenset()

        def changed(state: GroupState) -> GroupState:
            nonlocal refused
            result = change(state)
            refused = result.refused
            return result.state

        self._change(changed)
        return refused

    def _change(self, change: Callable[[GroupState], GroupState]) -> None:
        self._adopt(self._group.change(change, self._clock.now_ms()))

    def _swapped(
        self, state: GroupState, commits: Commits, busy: Collection[TopicQueue]
    ) -> SwapResult:
        attempts = self._attempts()
        if not state.is_member(self._me):
            return SwapResult(state, frozenset({*commits, *attempts}))
        number = self._lease.next_number(state.members[self.member_id])
        result = state.grown(self._queues()).swapped(
            self._me, gone=self._others_gone(state), lease_end_ms=number,
            commits=commits, busy=busy, followed=self._read_in({*commits, *attempts}),
            attempts=attempts,
        )  # fmt: skip
        return SwapResult(self._with_starts(result.state), result.refused)

    def _others_gone(self, state: GroupState) -> frozenset[str]:
        return self._watch.gone(state.members) - {self.member_id}

    def _renewed(self, state: GroupState) -> GroupState:
        if not state.is_member(self._me):
            return state
        return state.renewed(self._me, self._lease.next_number(state.members[self.member_id]))

    def _with_starts(self, state: GroupState) -> GroupState:
        return self._starts.begun(state, self.member_id) if state.is_member(self._me) else state

    def _queues(self) -> dict[str, int]:
        seen, declared = self._seen_queues(), self._catalog.queue_count
        return {topic: max(declared(topic), seen.get(topic, 0)) for topic in self.topics}

    def _adopt(self, state: GroupState) -> None:
        """Take over a state of the group; `held` is replaced as a whole."""
        self._state = state
        self._watch.look(state.members)
        if not state.is_member(self._me):
            self._held = HeldQueues()
            self._lease.adopt(None)
            return
        epochs = state.held_by(self._me)
        self._held = HeldQueues(
            epochs,
            state.offsets_of(self.member_id),
            frozenset(state.surplus_of(self._me)),
            state.replays,
            state.followed_by(self.member_id),
            state.attempts,
        )
        self._lease.adopt(state.members[self.member_id])


class LeaseRenewal(ThreadHandle):
    """Renews the lease of a member in a thread of its own."""

    def __init__(self, member: GroupMember, interval_s: float) -> None:
        """Look at the lease every `interval_s`."""
        super().__init__("consumer", interval_s, first_s=interval_s)
        self._member = member

    def _turn(self) -> None:
        try:
            self._member.renew_if_late()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.warning("a lease could not be renewed: %s", in_one_line(error))


class GroupStart:
    """Sets first offsets of a group. Not safe for several threads; 0 commits.

    Args:
        store: the store of the topics.
        start: where the group begins.
        retry_topic: read from its first message, as are queues that a topic got later.

    Attributes:
        failures: why topics could not be read at the last try.
    """

    def __init__(self, store: Store, start: StartPoint, retry_topic: str) -> None:
        """Read nothing yet."""
        self._store, self._start, self._retry_topic = store, start, retry_topic
        self.failures: Mapping[str, Exception] = {}

    def begun(self, state: GroupState, member_id: str) -> GroupState:
        """Set first offsets for all queues that have none, also for those of other members.

        So a queue begins where the group began, however late a member takes it. Queues of a topic
        that cannot be read begin at a later try.

        Raises: OffsetOutOfRangeError; StorageError where the group begins at the last offset.
        """
        stored = state.offsets_of(member_id)
        missing: dict[str, list[int]] = {}
        for queue in state.all_queues():
            if queue not in stored:
                missing.setdefault(queue.topic, []).append(queue.queue_id)
        begun_topics = {queue.topic for queue in stored}
        starts, failures = dict[TopicQueue, int](), dict[str, Exception]()
        for topic, queue_ids in missing.items():
            try:
                offsets = self._offsets_in(topic, queue_ids, begun_topics)
            except (MessagesExpiredError, StorageError, OSError) as error:
                # The last offset moves on: beginning there later would skip messages.
                if self._start.where is ConsumeFromWhere.LAST_OFFSET:
                    raise
                failures[topic] = error
                continue
            starts |= {TopicQueue(topic, queue_id): at for queue_id, at in offsets.items()}
        self.failures = failures
        return state.begun(member_id, starts) if starts else state

    def _offsets_in(
        self, topic: str, queue_ids: list[int], begun_topics: Collection[str]
    ) -> dict[int, int]:
        is_whole = topic in begun_topics or topic == self._retry_topic
        start = FROM_THE_BEGINNING if is_whole else self._start
        refuses_losses = not self._start.accepts_losses
        return start.offsets_in(self._store, topic, queue_ids, refuses_losses=refuses_losses)
