"""A producer that answers checks until it is told to stop; its journal is outside txmq."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store


class Journalled:
    """Says COMMIT for even orders, ROLLBACK for odd ones, slowly."""

    def __init__(self, journal: Path, pause_s: float) -> None:
        self._journal, self._pause_s = journal, pause_s

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> None:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(f"{message.transaction_id}\n")
        time.sleep(self._pause_s)
        is_even = int(message.body) % 2 == 0
        return LocalTransactionState.COMMIT if is_even else LocalTransactionState.ROLLBACK


def main(location: str, folder: str, name: str, halves: str, pause_s: str) -> None:
    place = Path(folder)
    listener = Journalled(place / f"{name}.journal", float(pause_s))
    producer = TransactionProducer(Store.open(location), producer_group="orders", listener=listener)
    for number in range(int(halves)):
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", str(number).encode()))
        transaction.prepare()
    producer.answer_checks()
    place.joinpath(f"{name}.ready").write_text(str(os.getpid()), encoding="utf-8")
    while not place.joinpath("stop").exists():
        time.sleep(0.05)
    producer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
