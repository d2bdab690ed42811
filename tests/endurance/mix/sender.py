"""A process that sends for the mix: LOCATION JOURNAL SEED COUNT SECONDS."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from txmq.errors import NotRecalledError
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

GROUP = "mixed"
TOPICS = ("orders", "invoices", "stock", "audit")
THREADS, KEYS = 4, 5
BODY_BYTES = 200
SHOWN, NEVER = "shown", "never"


def commits(transaction_id: str) -> bool:
    """What becomes of a transaction that its sender left open."""
    return int(transaction_id[-1], 16) % 2 == 0


class Listener:
    """The broker's: it knows as much as the sender."""

    def execute_local_transaction(self, _: HalfMessage, argument: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT if argument else LocalTransactionState.ROLLBACK

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        is_done = commits(message.transaction_id)
        return LocalTransactionState.COMMIT if is_done else LocalTransactionState.ROLLBACK


class Journal:
    """One line a message, written when its sender knows its fate."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("a", encoding="utf-8"), threading.Lock()

    def note(self, message_ids: Sequence[str], messages: Sequence[Message], fate: str) -> None:
        lines = [
            json.dumps({"id": own_id, "topic": message.topic, "key": message.sharding_key,
                        "body": message.body.decode(), "delayed": message.is_delayed,
                        "fate": fate})
            for own_id, message in zip(message_ids, messages, strict=True)
        ]  # fmt: skip
        with self._lock:
            self._file.write("".join(line + "\n" for line in lines))
            self._file.flush()


class Sender:
    """One thread: it waits for each acknowledgement, so that its keys have an order."""

    def __init__(self, producer: TransactionProducer, journal: Journal, seed: str) -> None:
        self._producer, self._journal, self._seed = producer, journal, seed
        self._draw = random.Random(seed)
        self._number = 0

    def send(self, count: int, seconds: float) -> None:
        """Evenly over the time: lateness says nothing where all wait for a processor."""
        begun_s = time.monotonic()
        ways: list[Callable[[], None]] = [
            self._one, self._batch, self._burst, self._transaction, self._asynchronous,
            self._delayed, self._recalled,
        ]  # fmt: skip
        weights = [3, 4, 2, 4, 2, 4, 2]
        while self._number < count:
            self._draw.choices(ways, weights)[0]()
            ahead_s = begun_s + seconds * self._number / count - time.monotonic()
            time.sleep(max(0.0, ahead_s))

    def _message(self, topic: str | None = None, **delay: Any) -> Message:
        self._number += 1
        key = f"{self._seed}/{self._draw.randrange(KEYS)}" if self._draw.random() < 0.5 else None
        body = f"{self._number:08} {'x' * self._draw.randrange(BODY_BYTES)}".encode()
        return Message(topic or self._draw.choice(TOPICS), body, sharding_key=key, **delay)

    def _messages(self, most: int, **delay: Any) -> list[Message]:
        topic = self._draw.choice(TOPICS)
        return [self._message(topic, **delay) for _ in range(self._draw.randint(2, most))]

    def _delay(self) -> dict[str, Any]:
        if self._draw.random() < 0.5:
            return {"delay_level": self._draw.randint(1, 3)}
        seconds = self._draw.uniform(-2, 12)
        return {"deliver_timestamp": datetime.now(UTC) + timedelta(seconds=seconds)}

    def _one(self) -> None:
        message = self._message()
        self._note(self._producer.send(message).message_ids, [message])

    def _batch(self) -> None:
        messages = self._messages(150)
        self._note(self._producer.send(messages).message_ids, messages)

    def _burst(self) -> None:
        messages = [self._message() for _ in range(self._draw.randint(2, 60))]
        futures = [self._producer.send_async(message) for message in messages]
        self._note([future.result().message_id for future in futures], messages)

    def _transaction(self) -> None:
        transaction = self._producer.begin_transaction()
        messages = [
            self._message(**(self._delay() if self._draw.random() < 0.3 else {}))
            for _ in range(self._draw.randint(1, 30))
        ]
        ids = [transaction.send(message) for message in messages]
        transaction.prepare()
        way = self._draw.random()
        if way < 0.75:
            transaction.commit()
        elif way < 0.95:
            transaction.rollback()
        is_shown = way < 0.75 or (way >= 0.95 and commits(transaction.id))
        # Its end comes when the check asks, so its keys are in no order with the others.
        self._note(ids, messages, SHOWN if is_shown else NEVER, ordered=way < 0.95)

    def _asynchronous(self) -> None:
        sends = [
            (self._message(), self._draw.random() < 0.8) for _ in range(self._draw.randint(2, 40))
        ]
        futures = [
            self._producer.send_message_in_transaction_async(message, argument)
            for message, argument in sends
        ]
        for future, (message, is_shown) in zip(futures, sends, strict=True):
            # Local transactions run side by side, so these have no order.
            fate = SHOWN if is_shown else NEVER
            self._note([future.result().message_id], [message], fate, ordered=False)

    def _delayed(self) -> None:
        messages = self._messages(60, **self._delay())
        self._note(self._producer.send(messages).message_ids, messages)

    def _recalled(self) -> None:
        messages = self._messages(4, delay_s=self._draw.choice([1, 8, 15]))
        ids = self._producer.send(messages).message_ids
        for own_id, message in zip(ids, messages, strict=True):
            try:
                self._producer.recall(own_id)
            except NotRecalledError:
                self._note([own_id], [message])
            else:
                self._note([own_id], [message], NEVER)

    def _note(
        self,
        ids: Sequence[str],
        messages: Sequence[Message],
        fate: str = SHOWN,
        *,
        ordered: bool = True,
    ) -> None:
        known = messages if ordered else [without_key(message) for message in messages]
        self._journal.note(ids, known, fate)


def without_key(message: Message) -> Message:
    """As the journal notes a message whose place among those of its key is not promised."""
    return Message(message.topic, message.body, delay_s=1 if message.is_delayed else None)


def main(location: str, journal: str, seed: str, count: str, seconds: str) -> None:
    notes = Journal(Path(journal))
    with (
        TransactionProducer(
            Store.open(location), producer_group=GROUP, listener=Listener()
        ) as producer,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        senders = [Sender(producer, notes, f"{seed}/{number}") for number in range(THREADS)]
        list(pool.map(lambda one: one.send(int(count) // THREADS, float(seconds)), senders))


if __name__ == "__main__":
    main(*sys.argv[1:])
