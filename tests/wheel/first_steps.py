"""What a newcomer types after `pip install txmq`: send, publish, read; run in an empty folder."""

from txmq import (
    EnvironmentProblemError,
    Message,
    OpenTelemetryHook,
    OpenTelemetryMetrics,
    Publisher,
    PullConsumer,
    Store,
    TransactionProducer,
)

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
for part in (OpenTelemetryHook, OpenTelemetryMetrics):
    try:
        part()
    except EnvironmentProblemError as error:
        if "extra otel" not in str(error):
            raise
    else:
        raise SystemExit(f"{part.__name__} needs an extra, and it is not installed")
print("sent, published and read one message")  # noqa: T201 - a newcomer looks at it
