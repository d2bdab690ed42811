"""Makes the small store of version 0.1 that the tests of upgrades open: `0.1.tar.gz` beside it.

It runs with the code of that version, which is in the history of this repository:

    git worktree add --detach ../txmq-0.1 5698c28
    (cd ../txmq-0.1; PYTHONPATH=. python ../txmq/tests/kit/old_stores/make_0_1.py FOLDER)

and writes FOLDER/store and FOLDER/truth.json, what it was told. Then:

    tar --sort=name --owner=0 --group=0 -czf 0.1.tar.gz -C FOLDER store truth.json
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from txmq import (
    Broker,
    Config,
    LocalTransactionState,
    Maintenance,
    Message,
    PullConsumer,
    Store,
    Topics,
    TransactionProducer,
)

PAID = {"type": "record", "name": "Paid", "fields": [{"name": "order", "type": "long"}]}
RETRIED_AT = datetime(2026, 11, 22, 7, tzinfo=UTC)


class Unsure:
    """Never knows."""

    def execute_local_transaction(self, message: Message, argument: object) -> object:
        """Not done."""
        del message, argument
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: Message) -> object:
        """Not known."""
        del message
        return LocalTransactionState.UNKNOWN


def main(folder: Path) -> None:
    """Make the store and the truth about it."""
    # Small numbers, so that it holds checkpoints, cleaned logs, merged files and dead letters.
    config = Config(
        transaction_timeout_s=1.0,
        transaction_check_interval_s=1.0,
        transaction_check_max=1,
        checkpoint_interval=10,
        max_reconsume_times=1,
    )
    store = Store.create(folder / "store", config)
    Topics(store).create("paid", queue_nums=2)
    Topics(store).create("typed", body={"encoding": "json", "schema": PAID})
    truth: dict[str, object] = {}
    producer = TransactionProducer(store, producer_group="orders")
    truth["committed"] = [ended(producer, "paid", f"order {n}", commit=True) for n in range(12)]
    truth["rolled_back"] = [ended(producer, "paid", "never", commit=False) for _ in range(3)]
    truth["ordinary"] = producer.send(
        [Message("paid", b"ordinary", sharding_key="one"), Message("paid", b"two")]
    ).message_ids
    truth["typed"] = producer.send(Message("typed", b'{"order": 7}')).message_ids
    keyed = producer.begin_transaction(idempotency_key="orders of 7", key_timestamp=RETRIED_AT)
    keyed.send(Message("paid", b"keyed"))
    keyed.prepare()
    keyed.commit()
    truth["keyed"] = keyed.id
    truth["delayed"] = producer.send(Message("paid", b"late", delay_s=30 * 86_400)).message_ids
    truth["delivered"] = producer.send(Message("paid", b"soon", delay_s=1)).message_ids
    unsure = TransactionProducer(store, producer_group="unsure", listener=Unsure())
    truth["dead"] = opened(unsure, "paid", b"nobody knows")
    broker = Broker(store, listeners={"unsure": Unsure()})
    while not dead_letters(store):
        broker.run_once()
    consume(store, truth)
    truth["open"] = opened(producer, "paid", b"still open")
    Maintenance(store).run_once()
    truth["unsettled"] = ended(producer, "paid", "not settled", commit=True)
    Topics(store).create("later")
    producer.send(Message("later", b"not settled either"))
    (folder / "truth.json").write_text(json.dumps(truth, indent=1, default=list))


def ended(producer: TransactionProducer, topic: str, text: str, *, commit: bool) -> str:
    """A transaction of one message with this end."""
    transaction = producer.begin_transaction()
    transaction.send(Message(topic, text.encode(), keys=text, tags="sale"))
    transaction.prepare()
    if commit:
        transaction.commit()
    else:
        transaction.rollback()
    return str(transaction.id)


def opened(producer: TransactionProducer, topic: str, body: bytes) -> str:
    """A transaction without an end."""
    transaction = producer.begin_transaction()
    transaction.send(Message(topic, body))
    transaction.prepare()
    return str(transaction.id)


def dead_letters(store: Store) -> bool:
    """Whether nobody is asked about a transaction any more."""
    return "TRANS_CHECK_MAX_TIME_TOPIC" in store.topics()


def consume(store: Store, truth: dict[str, object]) -> None:
    """A group that has seen some messages, and one whose handler failed."""
    with PullConsumer(store, consumer_group="billing", topics="paid") as consumer:
        truth["seen"] = [m.message_id for m in consumer.poll(max_messages=5, timeout_s=5.0)]
        consumer.commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
