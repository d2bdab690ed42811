"""The examples of docs/consumers.md that need no Spark do what the page says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import publish
from txmq import (
    AsyncPullConsumer,
    AsyncSimpleConsumer,
    ConsumerLag,
    Message,
    SimpleConsumer,
    Store,
    TransactionProducer,
)

PAGE = Path(__file__).parents[3] / "docs" / "consumers.md"


def example(begin: str) -> str:
    """The code of the page that begins so."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if block.startswith(begin)]
    return str(code)


@pytest.fixture
def filled(store: Store) -> Store:
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send([Message("order-paid", b"", keys=f"order-{n}") for n in range(3)])
    publish(store)
    return store


def lag_of(store: Store, group: str) -> int:
    lags = ConsumerLag(store).of_group(group)
    assert {lag.owner for lag in lags} == {None}
    return sum(lag.lag for lag in lags)


def test_service_on_asyncio_bills_and_leaves(filled: Store) -> None:
    billed: list[str] = []

    async def story() -> None:
        enough = asyncio.Event()

        async def pay(keys: str) -> None:
            billed.append(keys)
            if len(billed) == 3:
                enough.set()

        names: dict[str, Any] = {
            "asyncio": asyncio, "AsyncPullConsumer": AsyncPullConsumer, "store": filled, "pay": pay,
        }  # fmt: skip
        exec(example("async def bill_all"), names)  # noqa: S102 - our own page
        await names["bill_all"](enough)

    asyncio.run(story())

    assert sorted(billed) == ["order-0", "order-1", "order-2"]
    assert lag_of(filled, "bills") == 0


def test_parcel_that_cannot_be_packed_comes_again(filled: Store) -> None:
    packed: list[str] = []

    def pack(keys: str) -> bool:
        packed.append(keys)
        return keys != "order-1"

    names = {"SimpleConsumer": SimpleConsumer, "store": filled, "pack": pack}
    exec(example("with SimpleConsumer("), names)  # noqa: S102 - our own page

    assert sorted(packed) == ["order-0", "order-1", "order-2"]
    assert lag_of(filled, "parcels") == 1


def test_each_parcel_is_acknowledged_as_it_is_packed(filled: Store) -> None:
    packed: list[str] = []
    names: dict[str, Any] = {
        "AsyncSimpleConsumer": AsyncSimpleConsumer, "store": filled, "pack": packed.append,
    }  # fmt: skip
    exec(example("async def pack_all"), names)  # noqa: S102 - our own page

    asyncio.run(names["pack_all"](lambda: len(packed) == 3))

    assert sorted(packed) == ["order-0", "order-1", "order-2"]
    assert lag_of(filled, "packer") == 0
