"""Who serves a store, as each broker said of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from txmq.clock import timestamp
from txmq.watch.brokers import read_brokers

if TYPE_CHECKING:
    from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as it was seen last; one that stopped in order is not there.

    Attributes:
        broker_id: of this start of it.
        name: of its publisher.
        version: of txmq.
        services: what it runs.
        is_gone: it has been silent for some minutes, as one that was killed.
    """

    broker_id: str
    name: str
    version: str
    services: tuple[str, ...]
    started: datetime
    last_seen: datetime
    is_gone: bool


def broker_statuses(store: Store, now_ms: int) -> tuple[BrokerStatus, ...]:
    """The brokers of a store, the one that was seen last first; 0 commits."""
    entries = read_brokers(store.tables).entries.items()
    return tuple(
        BrokerStatus(
            key,
            entry.name,
            entry.version,
            entry.services,
            timestamp(entry.started_ms),
            timestamp(entry.seen_ms),
            is_gone=entry.is_gone(now_ms),
        )
        for key, entry in sorted(entries, key=lambda pair: pair[1].seen_ms, reverse=True)
    )
