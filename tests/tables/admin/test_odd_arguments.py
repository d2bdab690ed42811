"""Odd arguments of operators get a typed error before a table is read, and write nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.builders import table_versions
from txmq import (
    Admin,
    Broker,
    DeadLetters,
    Message,
    Operator,
    Store,
    TransactionProducer,
    TxmqError,
)
from txmq.errors import ConfigError
from txmq.ops.admin.messages import MessageQuery
from txmq.verify import verify

LONE = "\ud800"
ID = "01980000-0000-7000-8000-000000000001"


def dead(store: Store) -> DeadLetters:
    return DeadLetters(store, consumer_group="billing")


CALLS: dict[str, Callable[[Store, Any], object]] = {
    "open": lambda store, odd: Operator(store).open_transactions(producer_group=odd),
    "discarded": lambda store, odd: Operator(store).discarded(producer_group=odd),
    "resolve": lambda store, odd: Operator(store).resolve(ID, odd, reason="r", apply=True),
    "look": lambda store, odd: Admin(store).transaction(ID, max_messages=odd),
    "dead letters": lambda store, odd: dead(store).all(max_count=odd),
    "some dead letters": lambda store, odd: dead(store).between(odd, 9),
    "purge": lambda store, odd: dead(store).purge(odd, reason="r", apply=True),
    "replay": lambda store, odd: dead(store).replay(odd, reason="r", apply=True),
    "messages": lambda store, odd: MessageQuery(store).by_transaction(ID, max_count=odd),
    "key": lambda store, odd: MessageQuery(store).by_key("k", max_count=odd),
    "newest": lambda store, odd: MessageQuery(store).newest_by_key("k", max_rows=odd),
    "broker": lambda store, odd: Broker(store, name=odd),
    "verify": lambda _, odd: verify(odd),
}
ODD: dict[str, tuple[Any, ...]] = {
    "open": (5, LONE, ["g"], b"g", ""),
    "discarded": (5, LONE, ["g"]),
    "resolve": (["COMMIT"], None, 5, "UNKNOWN", {}),
    "look": ("3", -1, 0, 1.5, True),
    "dead letters": ("3", -1, 0, 1.5),
    "some dead letters": ("a", 1.5, None),
    "purge": ("x", None, ["x"]),
    "replay": ("x", None, 5),
    "messages": ("3", -1, 1.5),
    "key": ("3", -1, 0, 1.5),
    "newest": ("3", -1, 1.5),
    "broker": (float("nan"), 5, b"one"),
    "verify": (LONE, "a\nb", 5, "", None),
}
CASES = [(name, odd) for name, values in ODD.items() for odd in values]


@pytest.mark.parametrize(("name", "odd"), CASES, ids=[f"{name}-{odd!a}" for name, odd in CASES])
def test_odd_argument_of_an_operator_is_a_typed_error(store: Store, name: str, odd: Any) -> None:
    with TransactionProducer(store, producer_group="g") as producer:
        producer.send(Message("orders", b"1"))
    before = table_versions(store)

    with pytest.raises(TxmqError):
        CALLS[name](store, odd)
    assert table_versions(store) == before


def test_place_with_a_nul_does_not_end_the_process() -> None:
    code = "import txmq\ntry: txmq.verify('a\\0b')\nexcept txmq.TxmqError as error: print(error)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "must be a path or a URI" in done.stdout
    with pytest.raises(ConfigError):
        verify("a\0b")
