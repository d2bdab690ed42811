"""A newcomer with Spark: a marked write, a check, a frame, a stream; in an empty folder."""

from pathlib import Path

from txmq import (
    Broker,
    Config,
    Consumer,
    DeltaListener,
    Message,
    Operator,
    Store,
    TransactionProducer,
    local_session,
    register_data_source,
)
from txmq.errors import EnvironmentProblemError

TOPIC = "order-paid"
ORDERS = str(Path("orders").absolute())
spark = local_session("steps", for_minutes=True)
spark.range(1).write.format("delta").save(ORDERS)
# Asked about at once, and not after six seconds.
store = Store.create("store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0))
listener = DeltaListener(ORDERS)
with TransactionProducer(store, producer_group="orders", listener=listener) as producer:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"42"))
        transaction.prepare()
        with transaction.delta_sql(spark) as sql:
            sql(f"UPDATE delta.`{ORDERS}` SET id = 42 WHERE id = 0")
        transaction.commit()

    forgotten = producer.begin_transaction()
    forgotten.send(Message(TOPIC, b"43"))
    forgotten.prepare()
    options = forgotten.delta_options()
    spark.range(43, 44).write.format("delta").mode("append").options(**options).save(ORDERS)

    never = producer.begin_transaction()
    never.send(Message(TOPIC, b"never"))
    never.prepare()

# Without a listener, for this transaction changes no table.
with TransactionProducer(store, producer_group="frames") as producer:
    frame = spark.createDataFrame([(bytearray(b"44"),), (bytearray(b"45"),)], "body BINARY")
    with producer.begin_transaction() as transaction:
        transaction.send_dataframe(frame, topic=TOPIC)
        transaction.prepare()
        transaction.commit()

broker = Broker(store, spark=spark, listeners={"orders": listener})
for _ in range(10):
    broker.run_once()
    if not Operator(store).open_transactions():
        break

consumer = Consumer(store, consumer_group="billing")
stream = consumer.read_stream(TOPIC, spark=spark)
query = (
    stream.writeStream.format("memory")
    .queryName("paid")
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start()
)
consumer.wait(query)
bodies = sorted(bytes(row.body) for row in spark.sql("SELECT body FROM paid").collect())
if bodies != [b"42", b"43", b"44", b"45"]:
    raise SystemExit(f"expected four messages, got {bodies}")

register_data_source(spark)
version = tuple(int(part) for part in spark.version.split(".")[:2])
by_format = {"topic": "by-format", "path": store.location}
columns = spark.range(5).selectExpr("id", "id * 2 AS twice")
columns.write.format("txmq").options(**by_format).mode("append").save()
broker.run_once()
read = spark.read.format("txmq").options(**by_format).load
if read().count() != 5:
    raise SystemExit(f"expected five messages, got {read().count()}")


def forwarded(source: str) -> None:
    """A stream of messages, by Delta's source or by that of txmq, written by `format("txmq")`."""
    place = f"{store.location}/topics/by-format" if source == "delta" else store.location
    rows = spark.readStream.format(source).option("topic", "by-format").load(place).select("body")
    writer = rows.writeStream.format("txmq").option("topic", f"from-{source}")
    writer = writer.option("path", store.location).trigger(availableNow=True)
    writer.option("checkpointLocation", f"checkpoint-{source}").start().awaitTermination()
    broker.run_once()
    copies = spark.read.format("txmq").option("topic", f"from-{source}").load(store.location)
    if copies.count() != 5:
        raise SystemExit(f"expected five copies, got {copies.count()}")


for source, since in (("delta", (4, 1)), ("txmq", (4, 2))):
    if version >= since:
        forwarded(source)
        continue
    try:
        forwarded(source)
    except Exception as error:
        # Spark keeps the text of what its Python process raised.
        if EnvironmentProblemError.__name__ not in str(error):
            raise

print(f"sent, checked and read {len(bodies)} messages with Spark {spark.version}")  # noqa: T201 - a newcomer looks at it
spark.stop()
