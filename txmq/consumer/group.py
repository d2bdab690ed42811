"""A consumer group in the store: `state/group_<group>`, changed by compare-and-swap alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txmq.consumer.rules import GroupState
from txmq.errors import StoreFormatError
from txmq.message.names import check_stored_group, retry_topic
from txmq.store.register import Register, SharedValue
from txmq.store.store import Store
from txmq.store.tables import CONSUMER_GROUP


class ConsumerGroup(SharedValue[GroupState]):
    """The state of one group. Not safe for several threads.

    It needs no hold on VACUUM or on the clean-up of logs: members read it anew.
    """

    def __init__(self, name: str, register: Register) -> None:
        """`name` is the stored name; the first join makes the table."""
        super().__init__(register, f"state/group_{name}", self._read, GroupState.to_value)
        self.name = name

    @property
    def retry_topic(self) -> str:
        """Where messages wait that a member could not handle (R107)."""
        return retry_topic(self.name)

    def _read(self, value: Mapping[str, Any]) -> GroupState:
        try:
            return GroupState.from_value(value)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem = f"cannot be read as a consumer group ({type(error).__name__})"
            raise StoreFormatError(self._name, problem) from error


def group_in(store: Store, consumer_group: str, *, create: bool = False) -> ConsumerGroup:
    """Members and offsets of a consumer group by its stored name."""
    name = check_stored_group(consumer_group, "consumer_group")
    return ConsumerGroup(name, store.tables.register(CONSUMER_GROUP + name, create=create))


def group_names(store: Store) -> list[str]:
    """Stored names of the consumer groups that a member has ever joined."""
    return store.tables.groups_with(CONSUMER_GROUP)
