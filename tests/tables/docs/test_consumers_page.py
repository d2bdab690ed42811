"""The example of docs/consumers.md for asyncio does what the page says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.kit.reading import publish
from txmq import AsyncPullConsumer, ConsumerLag, Message, Store, TransactionProducer

PAGE = Path(__file__).parents[3] / "docs" / "consumers.md"


def test_service_on_asyncio_bills_and_leaves(store: Store) -> None:
    (example,) = re.findall(r"```python\n(async def .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send([Message("order-paid", b"", keys=f"order-{n}") for n in range(3)])
    publish(store)
    billed: list[str] = []

    async def story() -> None:
        enough = asyncio.Event()

        async def pay(keys: str) -> None:
            billed.append(keys)
            if len(billed) == 3:
                enough.set()

        names = {"asyncio": asyncio, "AsyncPullConsumer": AsyncPullConsumer, "store": store}
        names["pay"] = pay  # type: ignore[assignment]
        exec(example, names)  # noqa: S102 - our own page
        await names["bill_all"](enough)  # type: ignore[operator]

    asyncio.run(story())

    assert sorted(billed) == ["order-0", "order-1", "order-2"]
    lags = ConsumerLag(store).of_group("bills")
    assert (sum(lag.lag for lag in lags), {lag.owner for lag in lags}) == (0, {None})
