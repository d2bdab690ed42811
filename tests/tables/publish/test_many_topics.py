"""A round looks at the catalog once, however many of its topics are new to the publisher."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.kit.builders import halves, op_row
from tests.kit.reading import bodies
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.claim_writer import ClaimWriter
from txmq.store.store import Store
from txmq.store.tables import StoreTables

if TYPE_CHECKING:
    import pytest

TOPICS = [f"topic-{number}" for number in range(12)]


def send(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        transaction = producer.begin_transaction()
        for topic in TOPICS:
            transaction.send(Message(topic, b"x"))
        transaction.prepare()
        transaction.commit()


def test_a_restart_looks_at_the_catalog_once_for_all_topics(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    listed = StoreTables._folders

    def counted(tables: StoreTables, parent: str) -> list[str]:
        looks[parent] += 1
        return listed(tables, parent)

    send(store)
    Publisher(store).run_once()
    send(store)
    monkeypatch.setattr(StoreTables, "_folders", counted)
    restarted = Publisher(store)

    restarted.run_once()
    restarted.run_once()

    assert looks["topics"] == 1
    assert all(bodies(store, topic) == [b"x"] * 2 for topic in TOPICS)


def test_two_new_topics_of_one_round_that_differ_in_case_alone_are_not_mixed(store: Store) -> None:
    half = store.tables.table_at("half")
    for number, topic in enumerate(("stock", "Stock"), 1):
        rows = halves(number, [Message(topic, topic.encode())])
        half.writer.append(rows, app_id="test", number=number)
    ClaimWriter(store.tables.op_log(), "test", 4).append([op_row(1), op_row(2)])

    result = Publisher(store).run_once()

    assert result.parked == 1
    parked = store.tables.register("publisher").read().value["parked"]
    assert "differs only in case" in parked["stock"]["reason"]
    assert bodies(store, "Stock") == [b"Stock"]
