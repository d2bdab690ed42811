"""The examples of docs/spark.md do what the page says, and its table has all options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.kit.reading import publish
from txmq import Message, TransactionProducer
from txmq.spark.data_source import OPTIONS
from txmq.store.store import Store

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_examples_read_a_topic_and_join_a_stream_with_a_table(
    store: Store, spark: Any, tmp_path: Path
) -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send([Message("order-paid", b"paid", keys=f"order-{n}") for n in range(6)])
    publish(store)
    orders = spark.range(4).selectExpr("concat('order-', id) AS order_id")
    names = {"spark": spark, "location": store.location, "checkpoint": str(tmp_path / "point")}
    for name, rows in (("orders_table", orders), ("paid_orders_table", None)):
        names[name] = str(tmp_path / name)
        if rows is not None:
            rows.write.format("delta").save(names[name])

    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(example, names)  # noqa: S102 - our own page

    assert names["paid"].count() == 6
    joined = spark.read.format("delta").load(names["paid_orders_table"])
    assert sorted(row["order_id"] for row in joined.collect()) == [f"order-{n}" for n in range(4)]


def test_table_has_each_option() -> None:
    rows = re.findall(r"^\| `([A-Za-z]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)

    assert {"path", *rows} == {*OPTIONS.values()}
