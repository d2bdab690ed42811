"""A user's own tests, with the extra `testing`: pytest finds the fixtures by itself."""

from __future__ import annotations

from typing import Any

from txmq import Message


def test_message_is_published(txmq_producer: Any, txmq_published: Any) -> None:
    txmq_producer.send(Message("order-paid", b"42"))

    assert [message.body for message in txmq_published("order-paid")] == [b"42"]
