"""Which brokers serve a store: what each says of itself, about once a minute.

It is for people alone: no decision that cannot be taken back rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from txmq.store.register import SharedValue
from txmq.store.tables import StoreTables

BEAT_INTERVAL_MS = 60_000
# A broker that missed two heartbeats is taken for gone.
GONE_MS = 3 * BEAT_INTERVAL_MS
# Who is gone for so long is removed by the next heartbeat of another broker.
SWEPT_MS = 24 * 3_600_000
# Brokers that are killed again and again fill no memory; the last ones are kept.
ENTRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """What a broker says of itself; times are those of the store."""

    name: str
    version: str
    services: tuple[str, ...]
    started_ms: int
    seen_ms: int

    def is_gone(self, now_ms: int) -> bool:
        """Whether it is silent for so long that it has probably ended.

        Nobody can have been seen far in the future.
        """
        return now_ms - self.seen_ms > GONE_MS or self.is_to_come(now_ms)

    def is_to_come(self, now_ms: int) -> bool:
        """Whether its time lies so far in the future that it cannot be right."""
        return self.seen_ms > now_ms + GONE_MS


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a store by their ids, each of which is one start."""

    entries: Mapping[str, BrokerEntry]

    def beaten(self, broker_id: str, entry: BrokerEntry) -> Brokers:
        """With this heartbeat, and without those that are gone for long or to come."""
        limit_ms = entry.seen_ms - SWEPT_MS
        others = self.others(broker_id).items()
        kept = [
            (key, other)
            for key, other in others
            if other.seen_ms >= limit_ms and not other.is_to_come(entry.seen_ms)
        ]
        kept.sort(key=lambda pair: pair[1].seen_ms)
        return Brokers({**dict(kept[-(ENTRIES_MAX - 1) :]), broker_id: entry})

    def without(self, broker_id: str) -> Brokers:
        """After its clean stop."""
        return replace(self, entries=self.others(broker_id))

    def others(self, broker_id: str) -> dict[str, BrokerEntry]:
        """All but this one."""
        return {key: entry for key, entry in self.entries.items() if key != broker_id}


def shared_brokers(tables: StoreTables, *, create: bool = False) -> SharedValue[Brokers]:
    """The register of brokers; `create` makes its table."""
    register = tables.register("brokers", create=create)
    return SharedValue(register, "the brokers of this store", _from_value, _to_value)


def read_brokers(tables: StoreTables) -> Brokers:
    """The brokers that were seen last; none where no broker ever said so. Commits: 0."""
    shared = shared_brokers(tables)
    return shared.read() if shared.exists else Brokers({})


def _from_value(value: Mapping[str, Any]) -> Brokers:
    return Brokers(
        {
            key: BrokerEntry(
                entry["name"],
                entry["version"],
                tuple(entry["services"]),
                entry["started_ms"],
                entry["seen_ms"],
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
            }
            for key, entry in brokers.entries.items()
        }
    }
