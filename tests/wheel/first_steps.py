"""What a newcomer types after `pip install txmq`: send, publish, read; run in an empty folder."""

from txmq import Message, Publisher, PullConsumer, Store, TransactionProducer

store = Store.create("store")
producer = TransactionProducer(store, producer_group="orders")
with producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"42"))
    transaction.prepare()
    transaction.commit()
producer.close()

Publisher(store).run_once()

with PullConsumer(store, consumer_group="billing", topics="order-paid") as consumer:
    bodies = [message.body for message in consumer.poll(timeout_s=60.0)]
    consumer.commit()

if bodies != [b"42"]:
    raise SystemExit(f"expected one message, got {bodies}")
print("sent, published and read one message")  # noqa: T201 - a newcomer looks at it
