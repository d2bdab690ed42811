"""The examples of docs/spark.md do what the page says, and its table has all options."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.reading import bodies, publish
from txmq import Message, TransactionProducer
from txmq.spark.data_source import OPTIONS, WRITE_OPTIONS
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
    names |= {"forward_checkpoint": str(tmp_path / "forward")}
    names |= {"named_checkpoint": str(tmp_path / "named"), "run_time": datetime.now(UTC)}
    names["producer"] = TransactionProducer(store, producer_group="shop")
    for name, rows in (("orders_table", orders), ("paid_orders_table", None)):
        names[name] = str(tmp_path / name)
        if rows is not None:
            rows.write.format("delta").save(names[name])

    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if "order-named" in example:
            publish(store)
        exec(example, names)  # noqa: S102 - our own page

    assert names["paid"].count() == 6
    joined = spark.read.format("delta").load(names["paid_orders_table"])
    assert sorted(row["order_id"] for row in joined.collect()) == [f"order-{n}" for n in range(4)]
    publish(store)
    assert {body.decode() for body in bodies(store, "order-booked")} == {
        f'{{"order_id":"order-{n}","amount":{n / 2}}}' for n in range(3)
    }
    assert len(bodies(store, "order-booked")) == 9
    # Three of each order, but for order-3, whose id became order-9.
    assert len(bodies(store, "order-named")) == 9
    assert len(bodies(store, "order-forwarded")) == 4
    changed = spark.read.format("delta").load(names["orders_table"])
    assert changed.where("order_id = 'order-9'").count() == 1


def test_tables_have_each_option() -> None:
    page = PAGE.read_text("utf-8")
    readers, writers = page.index("## Options of a reader"), page.index("## Options of a writer")

    assert {"path", *options_in(page[readers:writers])} == {*OPTIONS.values()}
    assert options_in(page[writers:]) == {*WRITE_OPTIONS.values()}


def options_in(text: str) -> set[str]:
    """The names in the first column of the first table."""
    table = text[text.index("\n| option ") :].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([A-Za-z]+)`", cell)}
