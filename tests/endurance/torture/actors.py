"""A process under torture."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.endurance.torture.ledger import GROUP, Ledger
from tests.endurance.torture.orders import FORESEEN, TOPICS, Orders
from tests.endurance.torture.place import Place
from tests.endurance.torture.strikes import struck
from txmq.check.recheck import RecheckJob
from txmq.errors import CommitConflictError, StorageError, TransactionError
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.operator import Operator
from txmq.ops.broker import Broker, run_until_signal
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.spark.session import local_session
from txmq.store.store import Store
from txmq.testing import ManualClock

# Without it the fail points of the environment would not be armed.
__all__ = ["ManualClock", "main"]

PAUSE_S = 0.02
ORDERS, THREADS = 120, 8
MANY_THREADS = 24
REASON = "torture"


class Actor:
    """One process: what it does is one of its methods."""

    def __init__(
        self, folder: str, name: str, round_number: int, *, is_struck: bool = False
    ) -> None:
        """Open the store and the ledger of the folder."""
        self._place = Place.read(Path(folder))
        # A storage that throttles strikes everybody.
        self._is_struck = is_struck or self._place.is_remote
        self.folder, self.name = Path(folder), name
        self.topic = f"round-{round_number}"
        if name.startswith("creator"):
            return
        self.store = Store.open(self._place.location)
        self.ledger = Ledger(self.folder / "ledger.sqlite")

    def creator(self) -> None:
        """A store that is made, and made again where it was not made to its end."""
        Store.create(self.folder / "stores" / self.name)

    def producer(self) -> None:
        self._take(ORDERS, THREADS)

    def busy_producer(self) -> None:
        self._take(self._place.orders, MANY_THREADS)

    def _take(self, count: int, threads: int) -> None:
        with TransactionProducer(self.store, producer_group=GROUP) as producer:
            topics = (*TOPICS, self.topic)
            foreseen = (*FORESEEN, StorageError) if self._is_struck else FORESEEN
            orders = Orders(self.store, self.ledger, producer, self.name, topics, foreseen)
            happened = orders.take(count, threads)
        path = self.folder / "happened" / f"{self.name}.json"
        path.write_text(json.dumps(happened), encoding="utf-8")

    def frame_producer(self) -> None:
        """Orders of many messages, sent as DataFrames."""
        frame = local_session(for_minutes=True).range(0, 500, 1, 2)
        frame = frame.selectExpr("concat('message ', id) AS body")
        with TransactionProducer(self.store, producer_group=GROUP) as producer:
            for _ in range(3):
                transaction = producer.begin_transaction()
                transaction.send_dataframe(frame, topic=self.topic)
                transaction.prepare()
                if self.ledger.pay(transaction.id):
                    transaction.commit()

    def publisher(self) -> None:
        publisher = Publisher(self.store, name=self.name)
        while not self._is_over():
            self._done(publisher.run_once)

    def checker(self) -> None:
        """Asks, and does what an operator would do about what was given up."""
        recheck = RecheckJob(self.store, listeners={GROUP: self.ledger})
        while not self._is_over():
            self._done(recheck.run_once)
            self._done(lambda: operate(Operator(self.store)))

    def delayer(self) -> None:
        service = DelayService(self.store)
        while not self._is_over():
            self._done(service.run_once)
            # The handle does so once a second; here it is to be died at.
            self._done(service._keep_progress)

    def maintainer(self) -> None:
        maintenance = Maintenance(self.store)
        while not self._is_over():
            failed = maintenance.run_once().failed
            if failed and not self._is_struck:
                raise RuntimeError(str(failed))

    def broker(self) -> None:
        broker = Broker(
            self.store,
            spark=None if self._place.is_remote else local_session(for_minutes=True),
            listeners={GROUP: self.ledger},
            name=self.name,
        )
        run_until_signal(broker.start)

    def retirer(self) -> None:
        """Days go by in which nothing is sent; what is open expires, all else is forgotten."""
        with TransactionProducer(self.store, producer_group=GROUP) as producer:
            transaction = producer.begin_transaction()
            transaction.send(Message(TOPICS[0], b"nobody pays for this"))
            transaction.prepare()
        for _ in range(3):
            Publisher(self.store).run_once()
            clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
            clock.advance(5 * 86_400)
            Maintenance(self.store, clock=clock).run_once()

    def _done(self, work: Callable[[], object]) -> None:
        """A service that a fault has struck goes on after its error, as its thread does."""
        try:
            work()
        except StorageError:
            if not self._is_struck:
                raise

    def _is_over(self) -> bool:
        time.sleep(PAUSE_S)
        return (self.folder / "stop").exists()


def operate(operator: Operator) -> None:
    """Resume each second discarded transaction once, roll back what has halves missing."""
    for one in operator.discarded():
        if one.life == 0 and int(one.transaction_id[-1], 16) % 2:
            _try(
                lambda own_id=one.transaction_id: operator.resume(own_id, reason=REASON, apply=True)
            )
    for one in operator.open_transactions():
        if one.state.value == "INCOMPLETE":
            _try(lambda own_id=one.transaction_id: operator.resolve(
                own_id, LocalTransactionState.ROLLBACK, reason=REASON, apply=True))  # fmt: skip


def _try(claim: object) -> None:
    """Another operator may have been faster."""
    try:
        claim()  # type: ignore[operator]
    except (TransactionError, CommitConflictError):
        return


def main(actor: str, folder: str, name: str, round_number: str, *strikes: str) -> None:
    """Do what the actor does, until it dies or all is done; strikes as `Strike` writes them."""
    with struck(Path(folder), strikes):
        this = Actor(folder, name, int(round_number), is_struck=bool(strikes))
        getattr(this, actor.replace(" ", "_"))()
