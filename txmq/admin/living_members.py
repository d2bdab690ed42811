"""Which members of a consumer group may live, for what an operator cannot take back."""

from __future__ import annotations

from txmq.clock import Clock, affine, follows_storage
from txmq.consumer.group import ConsumerGroup
from txmq.consumer.leases import LeaseWatch, sightings
from txmq.consumer.rules import GroupState
from txmq.errors import ConsumerGroupInUseError
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock


class LivingMembers:
    """Sees who is silent as a member that joins does: by the storage's time, or by watching.

    A member that has renewed its lease within the length of it may live, whatever the clock of this
    machine says (decision 0031). Not safe for several threads.

    Args:
        store: the store of the groups.
        clock: measures how long this object has watched; only durations count.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        """Nobody was seen yet."""
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
        if members := self._of(group, state):
            raise ConsumerGroupInUseError(group.name, members, can_be_forced=can_be_forced)

    def _of(self, group: ConsumerGroup, state: GroupState) -> list[str]:
        if not state.members:
            return []
        watch = self._watches.setdefault(group.name, LeaseWatch(self._clock, self._lease_ms))
        watch.note_silence(state.members, self._silent_ms(group, state))
        return sorted(state.members.keys() - watch.gone(state.members))

    def _silent_ms(self, group: ConsumerGroup, state: GroupState) -> dict[str, int]:
        """For how long the storage has shown no renewal of each member."""
        changed_ms = group.changed_ms()
        if changed_ms is None or not follows_storage(self._clock):
            return {}
        now_ms, at = self._store_clock.now_ms(), affine(self._clock).at
        seen = sightings(state.members, state.seen, changed_ms)
        return {name: now_ms - at(sighting.since_ms) for name, sighting in seen.items()}
