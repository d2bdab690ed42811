"""Who serves a store, as each broker said of itself."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from txmq.errors import StorageError, TxmqError
from txmq.ground.clock import Clock, timestamp
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ground.printable import printable
from txmq.ground.version import __version__
from txmq.store.register import SharedValue
from txmq.store.shapes import NAME_CHARACTERS_MAX, AtMost, Moment, Name
from txmq.store.tables import StoreTables

if TYPE_CHECKING:
    from txmq.store.store import Store


BEAT_INTERVAL_MS = 60_000
# A broker that missed two heartbeats is taken for gone.
GONE_MS = 3 * BEAT_INTERVAL_MS
# Who is gone for so long is removed by the next heartbeat of another broker.
SWEPT_MS = 24 * 3_600_000
# Brokers that are killed again and again fill no memory; the last ones are kept.
ENTRIES_MAX = 100
SERVICES_MAX = 32
# Of those that came since the last beat.
SHOWN_OTHERS = 5
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """What a broker says of itself; times are those of the store."""

    name: Name
    version: Name
    services: Annotated[tuple[Name, ...], AtMost(SERVICES_MAX)]
    started_ms: Moment
    seen_ms: Moment

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
    """List the brokers of a store, living and lately seen ones first; also why they cannot be read.

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


class Heartbeat:
    """The heartbeats of one broker. Not safe for several threads.

    Args:
        tables: of the store that it serves.
        clock: shows the store's time.
        name: of the broker, for people.
        services: the names of its services.

    A beat commits once. It never fails: what goes wrong is logged once.
    """

    def __init__(
        self, tables: StoreTables, clock: Clock, name: str, services: Iterable[str]
    ) -> None:
        """Write nothing yet."""
        self._tables, self._clock = tables, clock
        self._name, self._services = name[:NAME_CHARACTERS_MAX], tuple(services)
        self.broker_id = str(uuid.uuid4())
        self._shared: SharedValue[Brokers] | None = None
        self._started_ms: int | None = None
        self._known: set[str] = set()
        self._is_failing = False

    def beat(self) -> None:
        """Say that the broker runs; the log names those who came since the last beat."""
        self._attempt(self._beat)

    def end(self) -> None:
        """Say that it has stopped: one commit."""
        self._attempt(self._end)

    def _beat(self) -> None:
        now_ms = self._clock.now_ms()
        self._shared = self._shared or shared_brokers(self._tables, create=True)
        self._started_ms = now_ms if self._started_ms is None else self._started_ms
        entry = BrokerEntry(self._name, __version__, self._services, self._started_ms, now_ms)
        after = self._shared.change(
            lambda seen: seen.beaten(self.broker_id, entry), now_ms, unreadable=_tell_of_damage
        )
        self._tell_others(after.others(self.broker_id), now_ms)

    def _end(self) -> None:
        if self._shared is not None:
            now_ms = self._clock.now_ms()
            self._shared.change(lambda seen: seen.without(self.broker_id), now_ms)

    def _tell_others(self, others: dict[str, BrokerEntry], now_ms: int) -> None:
        living = {key: entry for key, entry in others.items() if not entry.is_gone(now_ms)}
        new = [entry for key, entry in sorted(living.items()) if key not in self._known]
        if new:
            logger.warning(
                "%s: %s; several are safe, and two are enough for one to fail",
                "another broker serves this store"
                if len(new) == 1
                else f"{len(new):,} other brokers serve this store",
                "; ".join(_said_of(entry, now_ms) for entry in new[:SHOWN_OTHERS])
                + (f"; and {len(new) - SHOWN_OTHERS:,} more" if len(new) > SHOWN_OTHERS else ""),
            )
        self._known = set(living)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:
            if not is_survivable(error):
                raise
            # A new handle next time; whoever watches sees that the broker is silent.
            self._shared = None
            if not self._is_failing:
                logger.warning("no heartbeat of this broker can be written: %s", error)
            self._is_failing = True
            return
        self._is_failing = False


def _said_of(entry: BrokerEntry, now_ms: int) -> str:
    started = timestamp(entry.started_ms).isoformat(sep=" ", timespec="seconds")
    ago_s = (now_ms - entry.seen_ms) / 1000
    return f"{printable(entry.name)}, started {started}, seen {ago_s:.0f} s ago"


def _tell_of_damage(error: StorageError) -> None:
    logger.warning("what brokers said of themselves is replaced: %s", error)


class HeartbeatHandle(ThreadHandle):
    """A thread that beats at once and then once a minute; the last thing it does is to end."""

    def __init__(self, heartbeat: Heartbeat, interval_s: float = BEAT_INTERVAL_MS / 1000) -> None:
        """Start the thread."""
        super().__init__("heartbeat", interval_s)
        self._heartbeat = heartbeat
        self.begin()

    def _turn(self) -> None:
        self._heartbeat.beat()

    def _end(self) -> None:
        self._heartbeat.end()
