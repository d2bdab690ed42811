"""A store and the processes that work on it, each of which is played."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.endurance.generator.ledger import Ledger
from tests.endurance.generator.plan import Step
from tests.endurance.generator.simulation import (
    BangError,
    KilledError,
    Life,
    PlayedClock,
    Simulation,
)
from txmq.check.recheck import RecheckJob
from txmq.consumer.pull import PullConsumer
from txmq.errors import TransactionForgottenError, TxmqError
from txmq.listeners.protocol import HalfMessage
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.user_data.delta_inbox import DeltaInbox

GROUP, READERS, BOOKINGS = "orders", "readers", "bookings"
TOPICS = ("alpha", "beta")
SETTINGS: Mapping[str, Any] = {
    "publish_threads": 1, "check_threads": 1, "half_queues": 1, "transaction_timeout_s": 6.0,
    "transaction_check_interval_s": 30.0, "transaction_check_max": 3, "check_lease_s": 30.0,
    "listener_timeout_s": 20.0, "consumer_lease_s": 600.0, "file_reserved_time_h": 24.0,
    "park_retry_interval_s": 30.0, "commit_attempts": 4, "topic_refresh_s": 0.0,
}  # fmt: skip
EFFECTS = pa.schema([("body", pa.string())])
_TEMPLATES: dict[str, TemporaryDirectory[str]] = {}
Deed = Callable[["World", Life, Step], None]


class World:
    """The store, its processes and what their callers were told.

    Attributes:
        copy: an older copy of the store, once a step has taken one.
    """

    def __init__(self, simulation: Simulation, settings: Mapping[str, Any]) -> None:
        self.simulation, self.ledger = simulation, Ledger()
        self.config = Config(**{**SETTINGS, **settings})
        self.location = simulation.root / "store"
        self.effects = simulation.root / "effects"
        self.copy: Path | None = None
        self.clocks: dict[str, PlayedClock] = {}
        self._lives: dict[str, Life] = {}
        self._parts: dict[str, Any] = {}
        self._busy: set[str] = set()
        self.deeds: Mapping[str, Deed] = {}
        simulation.play = self.play
        _fill(simulation.root, self.config)

    # --- processes --------------------------------------------------------------------------------

    def play(self, step: Step) -> None:
        """Do a step; nothing if its process is on its way already."""
        if step.who in self._busy:
            return
        life = self._lives.setdefault(step.who, Life(step.who))
        self._busy.add(step.who)
        try:
            with self.simulation.living(life), self.simulation.armed(life, step.strike):
                self._done(life, step)
        finally:
            self._busy.discard(step.who)
            self.simulation.stamp(self.simulation.root)

    def _done(self, life: Life, step: Step) -> None:
        try:
            self.deeds[step.do](self, life, step)
        except (KilledError, BangError):
            self.end(step.who)
        except TxmqError as error:
            if isinstance(error, TransactionForgottenError):
                self.ledger.forgotten.add(error.transaction_id)
            self.ledger.errors[step.who] = f"{type(error).__name__}: {error}"
            # A service begins anew with fresh handles.
            self.end(step.who)
        except Exception as error:  # noqa: BLE001 - no caller should meet it
            self.ledger.errors[step.who] = f"{type(error).__name__}: {error}"
            self.ledger.strange.append(f"{step.who} {step.do}: {type(error).__name__}: {error}")
            self.end(step.who)
        if life.is_dead:
            self.end(step.who)

    @property
    def is_quiet(self) -> bool:
        """Whether only one process is on its way, the one that asks."""
        return len(self._busy) <= 1

    def end(self, who: str) -> None:
        """A process is no more; the next step of this name begins a new one."""
        life = self._lives.pop(who, None)
        if life is not None:
            life.is_dead = True
        self._parts.pop(who, None)

    def end_all(self) -> None:
        """All processes but those that are on their way."""
        for who in [*self._lives]:
            if who not in self._busy:
                self.end(who)

    def clock(self, who: str) -> PlayedClock:
        """The clock of a process; it outlives the process."""
        return self.clocks.setdefault(who, PlayedClock(self.simulation))

    def part(self, who: str, make: Callable[[Store, PlayedClock], Any]) -> Any:
        """What a process works with, made at its first step."""
        if who not in self._parts:
            self._parts[who] = make(self.store(), self.clock(who))
        return self._parts[who]

    def store(self) -> Store:
        """The store, as a process opens it."""
        return Store(str(self.location), self.config)

    def producer(self, who: str) -> Any:
        return self.part(who, lambda store, clock: TransactionProducer(
            store, producer_group=GROUP, clock=clock))  # fmt: skip

    def publisher(self, who: str) -> Any:
        return self.part(who, lambda store, clock: Publisher(store, clock=clock))

    def delay(self, who: str) -> Any:
        return self.part(who, lambda store, clock: DelayService(store, clock=clock))

    def check(self, who: str) -> Any:
        return self.part(who, lambda store, clock: RecheckJob(
            store, listeners={GROUP: self}, clock=clock))  # fmt: skip

    def maintenance(self, who: str) -> Any:
        return self.part(who, lambda store, clock: Maintenance(store, clock=clock))

    def consumer(self, who: str) -> Any:
        group = READERS if who.startswith("member") else BOOKINGS
        return self.part(who, lambda store, clock: PullConsumer(
            store, consumer_group=group, topics=TOPICS, clock=clock))  # fmt: skip

    def inbox(self) -> DeltaInbox:
        return DeltaInbox(BOOKINGS, self.effects)

    # --- the user's listener ----------------------------------------------------------------------

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> object:  # noqa: ARG002
        """Local transactions are steps of their own."""
        raise AssertionError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """What each transaction was given to say; of others nothing happened."""
        self.simulation.passed("listener")
        for transaction in self.ledger.open:
            if transaction.id == message.transaction_id:
                return LocalTransactionState[transaction.listener_says]
        return LocalTransactionState.ROLLBACK


def _fill(root: Path, config: Config) -> None:
    """A store and a table of effects, copied from ones that were made once."""
    key = str(config)
    if key not in _TEMPLATES:
        _TEMPLATES[key] = TemporaryDirectory(prefix="txmq-template-")
        template = _TEMPLATES[key].name
        Store.create(f"{template}/store", config)
        DeltaTable.create(f"{template}/effects", pa.schema(EFFECTS))
    shutil.copytree(_TEMPLATES[key].name, root, dirs_exist_ok=True)
