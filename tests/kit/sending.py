"""Committed messages, each in a transaction of its own."""

from __future__ import annotations

from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

GROUP = "orders"


def send_each(store: Store, *texts: bytes, topic: str = "order-paid") -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for body in texts:
            with producer.begin_transaction() as transaction:
                transaction.send(Message(topic, body))
                transaction.prepare()
                transaction.commit()
