"""Who serves a store, as each broker said of itself."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from txmq.errors import StorageError, TxmqError
from txmq.ground.clock import Clock, timestamp
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ground.printable import printable
from txmq.ground.version import __version__
from txmq.store.brokers import (
    BEAT_INTERVAL_MS,
    BrokerEntry,
    Brokers,
    read_brokers,
    shared_brokers,
)
from txmq.store.register import SharedValue
from txmq.store.shapes import NAME_CHARACTERS_MAX
from txmq.store.tables import StoreTables

if TYPE_CHECKING:
    from txmq.store.store import Store


# Of those that came since the last beat.
SHOWN_OTHERS = 5
logger = logging.getLogger(__name__)


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
        entry = BrokerEntry(
            self._name, __version__, self._services, self._started_ms, now_ms,
            self._tables.claim_keys.required_ids(),
        )  # fmt: skip
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
