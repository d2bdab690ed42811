"""Single-message transactions that are sent without waiting, from one process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.routing import SendResult, TransactionSendResult
from txmq.store.store import Store

THREADS = 8
WARM_UP = 5_000
WINDOW = 1_000
# RocketMQ made 11,500 on such a machine with 8 threads, flushed later.
LEAST_PER_S = 30_000.0
Sent = Future[TransactionSendResult] | Future[SendResult]


class Paid:
    """A local transaction that costs nothing, as in RocketMQ's own benchmark."""

    def execute_local_transaction(self, _: HalfMessage, __: object) -> LocalTransactionState:
        """Done."""
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        """Done."""
        return LocalTransactionState.COMMIT


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Transactions and ordinary messages a second, all ends durable and confirmed."""
    bar = Bar(LEAST_PER_S, at_most=False)
    return [
        _outcome("transactions", "transactions/s", sizes, folder, bar),
        _outcome("ordinary messages", "messages/s", sizes, folder, None),
    ]


def _outcome(kind: str, unit: str, sizes: Sizes, folder: Path, bar: Bar | None) -> Outcome:
    runs = [_run(kind, sizes, folder) for _ in range(sizes.rounds)]
    rates = [rate for rate, _ in runs]
    facts = {"commits_per_1000_messages": round(runs[-1][1], 2)}
    measure = f"{kind}, one process, {THREADS} threads"
    return Outcome("asynchronous", measure, unit, rates, bar=bar, facts=facts)


def _run(kind: str, sizes: Sizes, folder: Path) -> tuple[float, float]:
    """Messages a second, and commits for 1,000 of them."""
    store = Store.create(fresh_folder(folder, "asynchronous"))
    body = random_body(sizes.body_bytes)
    with (
        TransactionProducer(store, producer_group=GROUP, listener=Paid()) as producer,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        send = partial(_send, producer, kind, body)
        _all(pool, send, WARM_UP)
        before = _commits(store)
        began_s = time.perf_counter()
        _all(pool, send, sizes.asynchronous)
        passed_s = time.perf_counter() - began_s
    commits = _commits(store) - before
    return sizes.asynchronous / passed_s, 1000 * commits / sizes.asynchronous


def _send(producer: TransactionProducer, kind: str, body: bytes, count: int) -> None:
    """A window of sends on their way; nobody keeps the answers to all that was ever sent."""
    asynchronous: Callable[[Message], Sent] = (
        producer.send_message_in_transaction_async
        if kind == "transactions"
        else producer.send_async
    )
    window: deque[Sent] = deque()
    for number in range(count):
        window.append(asynchronous(Message(TOPIC, body, keys=str(number))))
        if len(window) > WINDOW:
            window.popleft().result()
    for future in window:
        future.result()


def _all(pool: ThreadPoolExecutor, send: partial[None], count: int) -> None:
    list(pool.map(send, [count // THREADS] * THREADS))


def _commits(store: Store) -> int:
    return store.tables.half_log().table.version + store.tables.op_log().table.version
