"""The example of docs/typed_topics.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.reading import publish, topic_rows
from txmq import Message, Store, Topics, TransactionProducer
from txmq.errors import InvalidBodyError

PAGE = Path(__file__).parents[3] / "docs" / "typed_topics.md"


def test_example_sends_one_body_and_has_the_other_refused(store: Store) -> None:
    (example,) = re.findall(r"```python\n(body = .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with TransactionProducer(store, producer_group="shop") as producer:
        names = {"Topics": Topics, "Message": Message, "store": store, "producer": producer}
        with pytest.raises(InvalidBodyError, match="order_number is missing"):
            exec(example, names)  # noqa: S102 - our own page

    publish(store)

    (row,) = topic_rows(store, "order-paid")
    assert (row["order_number"], str(row["amount"]), row["note"]) == (7, "12.50", None)


def test_example_adds_a_field_to_a_topic_with_messages(store: Store) -> None:
    (first,) = re.findall(
        r"```python\n(body = .*?)\n\nproducer", PAGE.read_text("utf-8"), re.DOTALL
    )
    (more,) = re.findall(r"```python\n(fields = .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    sent = b'{"order_number": 7, "amount": "12.50", "paid": "2026-01-31T12:00:00Z"}'
    with TransactionProducer(store, producer_group="shop") as producer:
        names = {"Topics": Topics, "store": store}
        exec(first, names)  # noqa: S102 - our own page
        producer.send(Message("order-paid", sent))
        publish(store)
        exec(more, names)  # noqa: S102 - our own page
        producer.send(Message("order-paid", sent[:-1] + b', "coupon": "HALF"}'))

    publish(store)

    assert [row["coupon"] for row in topic_rows(store, "order-paid")] == [None, "HALF"]
