"""The example of docs/listeners.md with a Delta table does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.pages import block
from tests.kit.reading import publish, topic_rows
from txmq import DeltaListener, Message, TransactionProducer
from txmq.store.store import Store


def test_marked_append_is_told(store: Store, spark: Any, tmp_path: Path) -> None:
    orders = str(tmp_path / "orders")
    rows = spark.range(42, 43)
    rows.limit(0).write.format("delta").save(orders)
    code = block("docs/listeners.md", "from txmq import DeltaListener")
    code = code.replace("/lake/orders", orders)
    names = {
        "DeltaListener": DeltaListener, "TransactionProducer": TransactionProducer,
        "Message": Message, "store": store, "rows": rows,
    }  # fmt: skip

    exec(code, names)  # noqa: S102 - our own page
    names["producer"].close()  # type: ignore[attr-defined]
    publish(store)

    assert [row.id for row in spark.read.format("delta").load(orders).collect()] == [42]
    assert [row["body"] for row in topic_rows(store, "order-paid")] == [b"42"]
