"""The processes of a race: producers with local transactions, and checkers."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.endurance.race.business import GROUP, Business, business, journal
from txmq.check.recheck import RecheckJob
from txmq.errors import TxmqError
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store


def produce(location: str, spec: str, folder: str, seed: int) -> None:
    """Orders without end, several side by side."""
    place, stop = business(spec), Path(folder) / "stop producers"
    store, drawn = Store.open(location), random.Random(seed)

    def sell(own_seed: int) -> None:
        if not stop.exists():
            sell_one(producer, place, f"{folder}/journal", random.Random(own_seed))

    # Its local transactions close their connections, so `commit()` looks through the listener's.
    listener = place.listener(fenced=True)
    with (
        TransactionProducer(store, producer_group=GROUP, listener=listener) as producer,
        ThreadPoolExecutor(place.threads) as pool,
    ):
        while not stop.exists():
            list(pool.map(sell, [drawn.getrandbits(32) for _ in range(place.threads)]))


def sell_one(
    producer: TransactionProducer, place: Business, path: str, drawn: random.Random
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message("orders", transaction.id.encode()))
    transaction.prepare()
    journal(path, id=transaction.id, what="prepared")
    slowness_s = drawn.choice([0.0, place.immunity_s, 6 * place.immunity_s])

    def pause() -> None:
        time.sleep(drawn.uniform(0, slowness_s))

    try:
        pause()
        place.do(transaction, pause)
        transaction.commit()
    except (TxmqError, *place.errors()) as error:
        journal(path, id=transaction.id, what=type(error).__name__, text=str(error)[:500])
    else:
        journal(path, id=transaction.id, what="committed")


def check(location: str, spec: str, folder: str, *, fenced: bool) -> None:
    """Ask and publish, again and again."""
    store, stop = Store.open(location), Path(folder) / "stop checkers"
    listeners = {GROUP: business(spec).listener(fenced=fenced)}
    recheck, publisher = RecheckJob(store, listeners=listeners), Publisher(store)
    while not stop.exists():
        try:
            recheck.run_once()
            publisher.run_once()
        except TxmqError as error:
            journal(f"{folder}/journal", what=f"checker {type(error).__name__}")
        time.sleep(0.02)


def create(spec: str) -> None:
    """The business table; by a process of its own, for Spark is not forked from."""
    business(spec).create()


def main(role: str, location: str, spec: str, folder: str, last: str) -> None:
    if role == "producer":
        produce(location, spec, folder, int(last))
    else:
        check(location, spec, folder, fenced=last == "fenced")
