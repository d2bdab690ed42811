"""A store and the processes that work on it, each of which is played."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.endurance.generator.ledger import Ledger, OpenTransaction
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
from txmq.consumer.simple import SimpleConsumer
from txmq.errors import TransactionForgottenError, TxmqError
from txmq.listeners.delta import DeltaListener
from txmq.listeners.protocol import HalfMessage
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.user_data.delta_inbox import DeltaInbox

GROUP, PAYERS = "orders", "payers"
READERS, BOOKINGS, ORDERED, PACKERS = "readers", "bookings", "ordered", "packers"
GROUPS = {"member": READERS, "inbox": BOOKINGS, "ordered": ORDERED, "packer": PACKERS}
TOPICS = ("alpha", "beta")
SETTINGS: Mapping[str, Any] = {
    "publish_threads": 1, "check_threads": 1, "half_queues": 1, "transaction_timeout_s": 6.0,
    "transaction_check_interval_s": 30.0, "transaction_check_max": 3, "check_lease_s": 30.0,
    "listener_timeout_s": 20.0, "consumer_lease_s": 600.0, "file_reserved_time_h": 24.0,
    "park_retry_interval_s": 30.0, "commit_attempts": 4, "topic_refresh_s": 0.0,
    "consumer_groups": {
        ORDERED: {"consume_message_orderly": True, "suspend_current_queue_time_s": 0.5},
        PACKERS: {"invisible_duration_s": 5.0},
    },
}  # fmt: skip
# The variable that holds the keys of claims, and what may stand in it while they are changed.
KEYS_IN = "TXMQ_GENERATOR_KEYS"
OLD_KEY, NEW_KEY = "old-" * 8, "new-" * 8
KEYS = (OLD_KEY, f"{OLD_KEY} {NEW_KEY}", f"{NEW_KEY} {OLD_KEY}", NEW_KEY)
# What one process may set otherwise than the others.
OTHER_SETTINGS: tuple[Mapping[str, Any], ...] = (
    {}, {"default_topic_queue_nums": 3}, {"commit_attempts": 1}, {"publish_threads": 2},
)  # fmt: skip
# A round may take so long from its look at renewals to its last question.
QUESTION_S = 20.0
# The tables of the user: what an inbox appends, and what local transactions do.
BODIES = pa.schema([("body", pa.string())])
_TEMPLATES: dict[str, TemporaryDirectory[str]] = {}
Deed = Callable[["World", Life, Step], None]


class World:
    """The store, its processes and what their callers were told.

    Attributes:
        copy: an older copy of the store, once a step has taken one.
        has_backup: whether a backup is finished.
        removed: files that were removed, with their content.
        keys: the keys of claims that a process has in its environment; `all_keys` those of others.
        other_settings: what a process sets otherwise.
    """

    def __init__(self, simulation: Simulation, settings: Mapping[str, Any]) -> None:
        self.simulation, self.ledger = simulation, Ledger()
        self.config = Config(**{**SETTINGS, **settings})
        self.location = simulation.root / "store"
        self.effects, self.payments = simulation.root / "effects", simulation.root / "payments"
        self.copy: Path | None = None
        self.has_backup = False
        self.removed: dict[Path, bytes] = {}
        self.clocks: dict[str, PlayedClock] = {}
        self.keys: dict[str, str] = {}
        self.all_keys = OLD_KEY
        self.other_settings: dict[str, Mapping[str, Any]] = {}
        self._lives: dict[str, Life] = {}
        self._parts: dict[str, Any] = {}
        self._busy: set[str] = set()
        self.deeds: Mapping[str, Deed] = {}
        # When each process began its round of checks.
        self.rounds_s: dict[str, float] = {}
        simulation.play = self.play
        with self.environment():
            _fill(simulation.root, self.config)

    # --- processes --------------------------------------------------------------------------------

    def play(self, step: Step) -> None:
        """Do a step; nothing if its process is on its way already."""
        if step.who in self._busy:
            return
        life = self._lives.setdefault(step.who, Life(step.who))
        self._busy.add(step.who)
        try:
            with (
                self.simulation.living(life),
                self.simulation.armed(life, step.strike),
                self.environment(step.who),
            ):
                self._done(life, step)
        finally:
            self._busy.discard(step.who)
            self.simulation.stamp(self.simulation.root)

    @contextmanager
    def environment(self, who: str = "") -> Iterator[None]:
        """The environment of a process: its keys."""
        before = os.environ.get(KEYS_IN, "")
        os.environ[KEYS_IN] = self.keys.get(who, self.all_keys)
        try:
            yield
        finally:
            os.environ[KEYS_IN] = before

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
    def is_spoiled(self) -> bool:
        """Whether `verify` may name what other programs or a damage did."""
        return self.ledger.is_damaged or self.ledger.has_foreign_rows

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
            self._parts[who] = make(self.store(who), self.clock(who))
        return self._parts[who]

    def store(self, who: str = "") -> Store:
        """The store, as a process opens it."""
        config = replace(self.config, **self.other_settings.get(who, {}))
        return Store(str(self.location), config)

    def producer(self, who: str) -> Any:
        group = PAYERS if who.startswith("payer") else GROUP
        return self.part(who, lambda store, clock: TransactionProducer(
            store, producer_group=group, clock=clock))  # fmt: skip

    def publisher(self, who: str) -> Any:
        return self.part(who, lambda store, clock: Publisher(store, clock=clock))

    def delay(self, who: str) -> Any:
        return self.part(who, lambda store, clock: DelayService(store, clock=clock))

    def check(self, who: str) -> Any:
        return self.part(who, lambda store, clock: RecheckJob(
            store, listeners=self._listeners(clock), clock=clock))  # fmt: skip

    def _listeners(self, clock: PlayedClock) -> Mapping[str, Any]:
        return {GROUP: self, PAYERS: DeltaListener(str(self.payments), clock=clock)}

    def maintenance(self, who: str) -> Any:
        return self.part(who, lambda store, clock: Maintenance(store, clock=clock))

    def consumer(self, who: str) -> Any:
        role = who.rstrip("01")
        kind: Any = SimpleConsumer if role == "packer" else PullConsumer
        return self.part(who, lambda store, clock: kind(
            store, consumer_group=GROUPS[role], topics=TOPICS, clock=clock))  # fmt: skip

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
                self._note_renewed(transaction)
                return LocalTransactionState[transaction.listener_says]
        return LocalTransactionState.ROLLBACK

    def _note_renewed(self, transaction: OpenTransaction) -> None:
        """Note a question about what a producer still works on, as the store was told in time."""
        renewed_s, lease_s = transaction.renewed_s, self.config.producer_lease_s
        is_released = transaction.is_ended or transaction.maker is not self._parts.get(
            transaction.who
        )
        now_s = self.simulation.now_s
        # A round that stood still knows no later renewal.
        is_slow = any(
            now_s - self.rounds_s[who] > QUESTION_S for who in self._busy & {*self.rounds_s}
        )
        if renewed_s is None or is_released or is_slow:
            return
        if now_s - renewed_s < lease_s - QUESTION_S:
            self.ledger.asked_too_early.append(transaction.id)

    def producers(self, *, are_all: bool) -> list[TransactionProducer]:
        """The producers that live; those whose processes are on their way only if asked for."""
        return [
            part
            for who, part in self._parts.items()
            if isinstance(part, TransactionProducer) and (are_all or who not in self._busy)
        ]


def readable_files(table: Path) -> list[Path]:
    """The live files of a table that are there and have their content."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    paths = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    return [path for path in paths if path.exists() and path.stat().st_size]


def _fill(root: Path, config: Config) -> None:
    """A store and a table of effects, copied from ones that were made once."""
    key = str(config)
    if key not in _TEMPLATES:
        _TEMPLATES[key] = TemporaryDirectory(prefix="txmq-template-")
        template = _TEMPLATES[key].name
        Store.create(f"{template}/store", config)
        for name in ("effects", "payments"):
            DeltaTable.create(f"{template}/{name}", pa.schema(BODIES))
    shutil.copytree(_TEMPLATES[key].name, root, dirs_exist_ok=True)
