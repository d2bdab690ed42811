"""Who serves a store, as each broker said of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from txmq.clock import timestamp
from txmq.errors import TxmqError
from txmq.watch.brokers import BrokerEntry, read_brokers

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


def broker_statuses(store: Store, now_ms: int) -> tuple[tuple[BrokerStatus, ...], str | None]:
    """The brokers of a store, who lives and was seen last first; and why they cannot be read.

    Nothing rests on what brokers say of themselves, so one that cannot be read stops nobody.
    Commits: 0.
    """
    try:
        entries = read_brokers(store.tables).entries
    except TxmqError as error:
        return (), str(error)
    return _statuses(entries, now_ms), None


def _statuses(entries: Mapping[str, BrokerEntry], now_ms: int) -> tuple[BrokerStatus, ...]:
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
        for key, entry in sorted(
            entries.items(), key=lambda pair: (pair[1].is_gone(now_ms), -pair[1].seen_ms)
        )
    )
