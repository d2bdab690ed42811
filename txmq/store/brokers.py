"""Who serves a store, as each broker says of itself in `state/brokers`, and which keys they know.

For people, and for who signs claims: nothing else rests on it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from txmq.errors import ConfigError, TxmqError, shown
from txmq.ground.clock import Clock
from txmq.store.register import SharedValue
from txmq.store.shapes import LATER, AtMost, Moment, Name

if TYPE_CHECKING:
    from txmq.store.tables import StoreTables

BEAT_INTERVAL_MS = 60_000
# A broker that missed two heartbeats is taken for gone.
GONE_MS = 3 * BEAT_INTERVAL_MS
# Who is gone for so long is removed by the next heartbeat of another broker.
SWEPT_MS = 24 * 3_600_000
# Brokers that are killed again and again fill no memory; the last ones are kept.
ENTRIES_MAX = 100
SERVICES_MAX = 32
CLAIM_KEYS_MAX = 100
KeyIds = Mapping[Name, Annotated[Sequence[Name], AtMost(CLAIM_KEYS_MAX)]]


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """What a broker says of itself; times are those of the store.

    Attributes:
        claim_key_ids: the ids of the keys that it knows, of each group whose claims it believes
            only if they are signed.
    """

    name: Name
    version: Name
    services: Annotated[tuple[Name, ...], AtMost(SERVICES_MAX)]
    started_ms: Moment
    seen_ms: Moment
    claim_key_ids: Annotated[KeyIds, LATER] = field(default_factory=dict)

    def is_gone(self, now_ms: int) -> bool:
        """Tell whether it is silent for so long that it has probably ended.

        Nobody can have been seen far in the future.
        """
        return now_ms - self.seen_ms > GONE_MS or self.is_to_come(now_ms)

    def is_to_come(self, now_ms: int) -> bool:
        """Tell whether its time lies so far in the future that it cannot be right."""
        return self.seen_ms > now_ms + GONE_MS


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a store by their ids, each of which is one start."""

    entries: Mapping[str, BrokerEntry]

    def beaten(self, broker_id: str, entry: BrokerEntry) -> Brokers:
        """Add this heartbeat; leave out brokers that are gone for long or to come."""
        limit_ms = entry.seen_ms - SWEPT_MS
        others = [
            (key, other)
            for key, other in self.others(broker_id).items()
            if other.seen_ms >= limit_ms and not other.is_to_come(entry.seen_ms)
        ]
        others.sort(key=lambda pair: pair[1].seen_ms)
        return Brokers({**dict(others[-(ENTRIES_MAX - 1) :]), broker_id: entry})

    def without(self, broker_id: str) -> Brokers:
        """Leave out a broker that stopped in order."""
        return replace(self, entries=self.others(broker_id))

    def others(self, broker_id: str) -> dict[str, BrokerEntry]:
        """Return all entries but this one."""
        return {key: entry for key, entry in self.entries.items() if key != broker_id}


def read_brokers(tables: StoreTables) -> Brokers:
    """Read the brokers that were seen last; none if no broker ever wrote here. Commits: 0."""
    shared = shared_brokers(tables)
    return shared.read() if shared.exists else Brokers({})


class BrokersValue(TypedDict):
    """The value of the register `state/brokers`."""

    brokers: Mapping[Name, BrokerEntry]


def shared_brokers(tables: StoreTables, *, create: bool = False) -> SharedValue[Brokers]:
    """Return the register of brokers; `create` makes its table."""
    register = tables.register("brokers", BrokersValue, create=create)
    return SharedValue(register, "the brokers of this store", _from_value, _to_value)


def _from_value(value: Mapping[str, Any]) -> Brokers:
    return Brokers(
        {
            key: BrokerEntry(
                entry["name"],
                entry["version"],
                tuple(entry["services"]),
                entry["started_ms"],
                entry["seen_ms"],
                entry.get("claim_key_ids", {}),
            )
            for key, entry in value.get("brokers", {}).items()
        }
    )


def _to_value(brokers: Brokers) -> dict[str, Any]:
    return {
        "brokers": {
            key: {
                "name": entry.name,
                "version": entry.version,
                "services": list(entry.services),
                "started_ms": entry.started_ms,
                "seen_ms": entry.seen_ms,
                "claim_key_ids": dict(entry.claim_key_ids),
            }
            for key, entry in brokers.entries.items()
        }
    }


# --- keys of claims -------------------------------------------------------------------------------


class SigningKey:
    """The key by which one process signs the claims of a group. Safe for several threads.

    A broker that does not know the key sets the claims aside: their messages wait, and nobody who
    sent them is told. So who signs looks before it begins, and again after each heartbeat.
    """

    def __init__(self, tables: StoreTables, producer_group: str, clock: Clock) -> None:
        """Read nothing yet."""
        self._key_id = tables.claim_keys.signing_id(producer_group)
        self._tables, self._group, self._clock = tables, producer_group, clock
        self._shared = shared_brokers(tables)
        self._lock, self._next_look_ms = threading.Lock(), 0

    @property
    def is_needed(self) -> bool:
        """Whether the claims of the group are signed here."""
        return self._key_id is not None

    def check(self) -> None:
        """Refuse a key that a running broker does not know; 0 commits.

        Reads `state/brokers` at the first call and then at most once in BEAT_INTERVAL_MS; nothing
        for a group without a key. Brokers count that were seen for GONE_MS, by this process' clock.

        Raises: ConfigError; nothing was written.
        """
        if self._key_id is None:
            return
        with self._lock:
            now_ms = self._clock.now_ms()
            if not self._next_look_ms - BEAT_INTERVAL_MS <= now_ms < self._next_look_ms:
                self._look(self._key_id, now_ms)
                self._next_look_ms = now_ms + BEAT_INTERVAL_MS

    def _look(self, key_id: str, now_ms: int) -> None:
        for entry in self._living(now_ms):
            known = entry.claim_key_ids.get(self._group)
            if known is not None and key_id not in known:
                raise ConfigError([_unknown(self._group, key_id, entry, known)])

    def _living(self, now_ms: int) -> Sequence[BrokerEntry]:
        # What cannot be read stops nobody: claims of a key that is not known are not lost.
        with suppress(TxmqError):
            if self._shared.exists:
                entries = self._shared.read().entries.values()
                return [entry for entry in entries if not entry.is_gone(now_ms)]
        return ()


def _unknown(group: str, key_id: str, entry: BrokerEntry, known: Sequence[str]) -> str:
    knows = f"the running broker {shown(entry.name)} knows {', '.join(known)} only"
    cure = "give every broker and producer both keys, then let the new one sign (docs/security.md)"
    return f"claim_keys: group {shown(group)} signs here by the key {key_id}, and {knows}; {cure}"
