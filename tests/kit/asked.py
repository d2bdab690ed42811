"""A transaction that may be asked about, and questions as the check service puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from txmq.ground.clock import timestamp
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.schemas import MICROSECONDS_UTC

LONG_AGO_MS = 1_700_000_000_000


def prepared(producer: TransactionProducer) -> Transaction:
    """Durable and without an end; the body is its id."""
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", transaction.id.encode()))
    transaction.prepare()
    return transaction


def asked_about(ids: Sequence[str], *, born_ms: int = LONG_AGO_MS) -> pa.Table:
    """Heads with what the ready-made listeners want."""
    born = pa.array([timestamp(born_ms)] * len(ids), MICROSECONDS_UTC)
    return pa.table({"transaction_id": pa.array(ids, pa.string()), "born_timestamp": born})


def answers(listener: Any, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """State and reason of each."""
    found = listener.check_local_transactions_arrow(asked_about(ids))
    columns = [found[name].to_pylist() for name in ("transaction_id", "state", "reason")]
    return {each: (state, reason) for each, state, reason in zip(*columns, strict=True)}


def states(listener: Any, *ids: str) -> list[str]:
    """The states alone, in the order of the questions."""
    found = answers(listener, ids)
    return [found[each][0] for each in ids]
