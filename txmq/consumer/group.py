"""Consumer groups in the store: a table `state/group_<group>` each, changed by compare-and-swap."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NotRequired, TypedDict

from txmq.consumer.attempts import Attempts, Span
from txmq.consumer.group_rules import (
    SHARED,
    ConsumeMode,
    GroupSettings,
    GroupState,
    Owner,
    TopicCommit,
    TopicQueue,
)
from txmq.consumer.leases import Membership, Sighting
from txmq.errors import ConfigError, ConsumerGroupFullError, StoreFormatError, shown
from txmq.message.names import check_stored_group, retry_topic, shown_name
from txmq.store.config import (
    CONSUMER_GROUP_KEYS,
    RECONSUME_TIMES_MAX,
    SPECS,
    ConsumeSettings,
)
from txmq.store.config_faults import faults_of_overrides
from txmq.store.register import Register, SharedValue
from txmq.store.shapes import AtMost, Name, QueueNumber
from txmq.store.store import Store
from txmq.store.tables import CONSUMER_GROUP
from txmq.store.topic_settings import MAX_QUEUE_NUMS

# A group is one value, which each member reads whole and writes again with each renewal.
MEMBERS_MAX = 10_000
# Settings that a group keeps, also those that only a later txmq knows.
OWN_MAX = 100
logger = logging.getLogger(__name__)


class ConsumerGroup(SharedValue[GroupState]):
    """The state of one group. Not safe for several threads.

    It does not hold back VACUUM or the clean-up of logs: members always read the newest version.
    """

    def __init__(self, name: str, register: Register) -> None:
        """Take the stored name; the first member that joins creates the table."""
        super().__init__(register, f"state/{CONSUMER_GROUP}{name}", self._read, value_of)
        self.name = name

    @property
    def retry_topic(self) -> str:
        """The stored name of the topic of messages that a member could not handle (R107)."""
        return retry_topic(self.name)

    def changed_ms(self) -> int | None:
        """Return when the storage stored what was read or written last; None if it does not say."""
        table = self._register.table
        return table.folder.commit_times_ms().get(table.version)

    @property
    def rounding_ms(self) -> int:
        """By how much `changed_ms` may be too late: an object store may keep whole seconds."""
        return self._register.table.folder.rounding_ms

    def check_room(
        self, state: GroupState, member_id: str, mode: ConsumeMode, gone: Collection[str]
    ) -> None:
        """Refuse one more member of a group that is full. Raises: ConsumerGroupFullError."""
        if len(state.members.keys() - {member_id, *gone}) >= MEMBERS_MAX:
            raise ConsumerGroupFullError(self.name, MEMBERS_MAX, "members that live")
        is_new = mode is ConsumeMode.BROADCASTING and member_id not in state.offsets
        if is_new and len(state.offsets) >= MEMBERS_MAX:
            raise ConsumerGroupFullError(self.name, MEMBERS_MAX, "members with offsets")

    def _read(self, value: Mapping[str, Any]) -> GroupState:
        try:
            state = state_of(value)
            self._check_topics(state)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem = f"cannot be read as a consumer group ({type(error).__name__})"
            raise StoreFormatError(f"state/{CONSUMER_GROUP}{self.name}", problem) from error
        return state

    def _check_topics(self, state: GroupState) -> None:
        """Refuse queues of a topic that the group does not read. Raises: ValueError."""
        if unread := state.queues.keys() - {*state.settings.subscription, self.retry_topic}:
            raise ValueError(f"it does not read {min(unread)}")


def group_in(store: Store, consumer_group: str, *, create: bool = False) -> ConsumerGroup:
    """Return the members and offsets of a consumer group.

    Args:
        store: the store of the group.
        consumer_group: the stored name of the group.
        create: create the table of a new group: one commit.

    Raises: InvalidNameError, StorageError.
    """
    name = check_stored_group(consumer_group, "consumer_group")
    register = store.tables.register(CONSUMER_GROUP + name, GroupValue, create=create)
    return ConsumerGroup(name, register)


def settings_in(store: Store, consumer_group: str) -> ConsumeSettings:
    """Return the settings of a consumer group that hold for a member which joins now; 0 commits.

    Args:
        store: the store of the group, with the settings of this process.
        consumer_group: the stored name of the group.

    Raises: StorageError.
    """
    group = group_in(store, consumer_group)
    own = group.read().own if group.exists else {}
    usable = usable_settings(own)
    if unused := sorted(own.keys() - usable.keys()):
        logger.warning("group %s keeps settings that this txmq cannot use: %s",
                       shown_name(consumer_group), ", ".join(map(shown, unused)))  # fmt: skip
    return store.config.of_consumer_group(consumer_group, usable)


def own_settings(values: Mapping[str, object]) -> dict[str, Any]:
    """Check settings of one group. Raises: ConfigError, which names all faults."""
    if faults := faults_of_overrides(values, SPECS, CONSUMER_GROUP_KEYS):
        raise ConfigError(faults)
    return dict(values)


def usable_settings(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a group keeps, without what this txmq cannot use.

    A later txmq may keep others, and other values.
    """
    usable: dict[str, Any] = {}
    for name, value in own.items():
        with suppress(ConfigError):
            usable |= own_settings({name: value})
    return usable


def group_names(store: Store) -> list[str]:
    """List the stored names of all consumer groups that a member has ever joined."""
    return store.tables.groups_with(CONSUMER_GROUP)


# --- as plain values --------------------------------------------------------------------------


# By topic and queue.
_Offsets = Mapping[str, Mapping[QueueNumber, int]]


class GroupValue(TypedDict):
    """The value of the register of a group. In BROADCASTING members that left have offsets too."""

    mode: str
    subscription: Mapping[str, str]
    queues: Mapping[str, int]
    offsets: Mapping[Name, _Offsets]
    members: Annotated[Mapping[Name, tuple[int, int]], AtMost(MEMBERS_MAX)]
    leases: NotRequired[Annotated[Mapping[Name, int], AtMost(MEMBERS_MAX)]]
    seen: NotRequired[Annotated[Mapping[Name, Sighting], AtMost(MEMBERS_MAX)]]
    owners: Mapping[str, Mapping[QueueNumber, tuple[Name, int]]]
    replays: _Offsets
    epoch: int
    orderly: NotRequired[int]
    acknowledged: NotRequired[int]
    attempts: NotRequired[Mapping[str, Mapping[QueueNumber, Attempts]]]
    own: NotRequired[Annotated[Mapping[Name, Any], AtMost(OWN_MAX)]]
    followed: NotRequired[Mapping[Name, Mapping[str, Mapping[QueueNumber, tuple[int, int]]]]]


def value_of(state: GroupState) -> dict[str, Any]:
    """Return a state as plain values, for JSON; `state_of` reads them."""
    return {
        "mode": state.settings.mode.value,
        "subscription": dict(state.settings.subscription),
        "orderly": int(state.settings.is_orderly),
        "acknowledged": int(state.settings.is_acknowledged),
        "queues": dict(state.queues),
        "offsets": {reader: _nested(offsets) for reader, offsets in state.offsets.items()},
        # Two numbers, as members of earlier versions read them; the others go by other keys.
        "members": {name: [at.epoch, at.lease_end_ms] for name, at in state.members.items()},
        "leases": {name: at.lease_ms for name, at in state.members.items()},
        "seen": {name: list(sighting) for name, sighting in state.seen.items()},
        "followed": {reader: _nested(commits) for reader, commits in state.followed.items()},
        "owners": _nested({queue: list(owner) for queue, owner in state.owners.items()}),
        "replays": _nested(state.replays),
        "attempts": _nested(
            {queue: [at.end, list(map(list, at.spans))] for queue, at in state.attempts.items()}
        ),
        "epoch": state.epoch,
        "own": dict(state.own),
    }


def state_of(value: Mapping[str, Any]) -> GroupState:
    """Read a value of `value_of`; an empty one is a group that nobody has joined."""
    if not value:
        return GroupState()
    leases_ms = value.get("leases", {})
    return GroupState(
        settings=GroupSettings(
            ConsumeMode(value["mode"]),
            dict(value["subscription"]),
            is_orderly=bool(value.get("orderly", 0)),
            is_acknowledged=bool(value.get("acknowledged", 0)),
        ),
        # A row for any number was believed once, and numbers of queues never shrink.
        queues={topic: min(count, MAX_QUEUE_NUMS) for topic, count in value["queues"].items()},
        offsets={reader: dict(_flat(offsets)) for reader, offsets in value["offsets"].items()},
        members={
            name: Membership(epoch, lease_end_ms, leases_ms.get(name, 0))
            for name, (epoch, lease_end_ms) in value["members"].items()
        },
        seen={name: Sighting(*sighting) for name, sighting in value.get("seen", {}).items()},
        followed={
            reader: {queue: TopicCommit(*commit) for queue, commit in _flat(commits)}
            for reader, commits in value.get("followed", {}).items()
        },
        owners={queue: Owner(*owner) for queue, owner in _flat(value["owners"])},
        replays=dict(_flat(value["replays"])),
        attempts=dict(_attempts_in(value)),
        own=dict(value.get("own", {})),
        epoch=value["epoch"],
    )


def _attempts_in(value: Mapping[str, Any]) -> Iterable[tuple[TopicQueue, Attempts]]:
    """Yield the attempts of each queue; without those of others its messages only come again."""
    offsets = dict(_flat(value["offsets"].get(SHARED, {})))
    for queue, (end, spans) in _flat(value.get("attempts", {})):
        attempts = Attempts(end, tuple(Span(*span) for span in spans))
        if attempts.are_sound(offsets.get(queue, -1), RECONSUME_TIMES_MAX + 2):
            yield queue, attempts


def _nested(by_queue: Mapping[TopicQueue, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (topic, queue_id), value in by_queue.items():
        nested.setdefault(topic, {})[str(queue_id)] = value
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[TopicQueue, Any]]:
    for topic, by_queue in nested.items():
        for queue_id, value in by_queue.items():
            yield TopicQueue(topic, int(queue_id)), value
