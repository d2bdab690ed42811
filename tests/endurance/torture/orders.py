"""Orders in every way in which a transaction can be sent and ended, doubled and contradicted."""

from __future__ import annotations

import enum
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.endurance.torture.ledger import GROUP, PAID, UNDECIDABLE, Ledger
from txmq.errors import (
    AlreadyResolvedError,
    CommitConflictError,
    IncompleteTransactionError,
    TransactionNotFoundError,
    UnknownCommitError,
)
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow
from txmq.store.store import Store

TOPICS = ("order-paid", "stock-reserved", "invoice-due")
BODY_BYTES_MAX = 2_000
# Most are not delayed at all.
PAUSES_S = (None, None, None, None, None, None, 1, 2, 5)
# What a caller must expect when many processes write, or a check was faster.
FORESEEN = (AlreadyResolvedError, CommitConflictError, UnknownCommitError)


class Way(enum.StrEnum):
    """How a producer ends its transaction, or does not."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    COMMIT_TWICE = "commit twice"
    COMMIT_THEN_ROLLBACK = "commit, then rollback"
    ROLLBACK_THEN_COMMIT = "rollback, then commit"
    LEFT_PAID = "paid and left open"
    LEFT_UNPAID = "left open"
    UNDECIDABLE = "nobody knows"
    TRIED_AGAIN = "a job that is tried again"
    ENDED_ELSEWHERE = "ended by another producer"
    TORN = "halves missing"


WEIGHTS = {
    Way.COMMIT: 56,
    Way.ROLLBACK: 11,
    Way.COMMIT_TWICE: 4,
    Way.COMMIT_THEN_ROLLBACK: 4,
    Way.ROLLBACK_THEN_COMMIT: 4,
    Way.LEFT_PAID: 7,
    Way.LEFT_UNPAID: 5,
    Way.UNDECIDABLE: 2,
    Way.TRIED_AGAIN: 4,
    Way.ENDED_ELSEWHERE: 2,
    Way.TORN: 1,
}


@dataclass(frozen=True)
class Orders:
    """Takes orders until told otherwise; each is drawn from its number alone."""

    store: Store
    ledger: Ledger
    producer: TransactionProducer
    seed: str
    topics: tuple[str, ...]
    foreseen: tuple[type[Exception], ...] = FORESEEN

    def take(self, count: int, threads: int) -> Counter[str]:
        """Orders by several threads at once; returns how often each thing happened."""
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(self._order, range(count)), Counter())

    def _order(self, number: int) -> Counter[str]:
        draw = random.Random(f"{self.seed}/{number}")
        way = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        try:
            self._go(way, draw, number)
        except self.foreseen as error:
            return Counter({f"{way}: {type(error).__name__}": 1})
        return Counter({str(way): 1})

    def _go(self, way: Way, draw: random.Random, number: int) -> None:
        if way is Way.TORN:
            self._tear(draw)
        elif way is Way.TRIED_AGAIN:
            self._try_again(draw, number)
        else:
            transaction = self._prepared(self.producer.begin_transaction(), draw)
            self._end(way, transaction)

    def _prepared(self, transaction: Transaction, draw: random.Random) -> Transaction:
        for _ in range(draw.randint(1, 4)):
            body = draw.randbytes(draw.randint(0, BODY_BYTES_MAX))
            topic, key = draw.choice(self.topics), f"order-{draw.random()}"
            transaction.send(Message(topic, body, keys=key, delay_s=draw.choice(PAUSES_S)))
        transaction.prepare()
        return transaction

    def _end(self, way: Way, transaction: Transaction) -> None:
        match way:
            case Way.COMMIT:
                self._pay_and_commit(transaction)
            case Way.ROLLBACK:
                transaction.rollback()
            case Way.COMMIT_TWICE:
                self._pay_and_commit(transaction)
                self._end_again(transaction.id, LocalTransactionState.COMMIT)
            case Way.COMMIT_THEN_ROLLBACK:
                self._pay_and_commit(transaction)
                self._end_again(transaction.id, LocalTransactionState.ROLLBACK)
            case Way.ROLLBACK_THEN_COMMIT:
                transaction.rollback()
                self._end_again(transaction.id, LocalTransactionState.COMMIT)
            case Way.LEFT_PAID:
                self.ledger.pay(transaction.id)
            case Way.UNDECIDABLE:
                self.ledger.pay(transaction.id, UNDECIDABLE)
            case Way.ENDED_ELSEWHERE:
                self._end_elsewhere(transaction)

    def _pay_and_commit(self, transaction: Transaction) -> None:
        """A payment that was fenced off, or undecided before, is a rollback."""
        if self.ledger.pay(transaction.id) or self.ledger.state(transaction.id) == PAID:
            transaction.commit()
        else:
            transaction.rollback()

    def _end_again(self, transaction_id: str, state: LocalTransactionState) -> None:
        with TransactionProducer(self.store, producer_group=GROUP) as other:
            other.end_transaction(transaction_id, state)

    def _end_elsewhere(self, transaction: Transaction) -> None:
        paid = self.ledger.pay(transaction.id)
        state = LocalTransactionState.COMMIT if paid else LocalTransactionState.ROLLBACK
        self._end_again(transaction.id, state)

    def _try_again(self, draw: random.Random, number: int) -> None:
        """Two tries of a job with one key: the second takes up what the first has left."""
        key, moment = f"{self.seed}/{number}", datetime.now(UTC)
        for is_last in (False, True):
            again = random.Random(key)
            transaction = self.producer.begin_transaction(
                idempotency_key=key.replace("/", "-"), key_timestamp=moment
            )
            self._prepared(transaction, again)
            if is_last or draw.random() < 0.5:
                self._pay_and_commit(transaction)

    def _tear(self, draw: random.Random) -> None:
        """A COMMIT whose halves are not all there, as after a loss."""
        now_ms = self.producer.clock.now_ms()
        own_id = new_transaction_id(now_ms)
        origin = HalfOrigin(own_id, GROUP, 0, 2.0, now_ms)
        rows = half_table(
            [HalfTransaction(origin, [Message(TOPICS[0], b"torn")], [0], message_count=2)]
        )
        self.store.tables.half_log().table.writer.append(rows, app_id=f"torn/{own_id}", number=1)
        claim = OpRow(own_id, ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, now_ms)
        self.store.tables.op_log().append([claim], 0, app_id=f"torn/{own_id}", number=1)
        if draw.random() < 0.2:
            self._refused(own_id)

    def _refused(self, own_id: str) -> None:
        """Who counts the halves before the end is told the truth."""
        try:
            self._end_again(own_id, LocalTransactionState.COMMIT)
        except (IncompleteTransactionError, TransactionNotFoundError):
            return
        message = f"{own_id} has halves missing and was committed"
        raise AssertionError(message)
