"""The code of docs/encryption.md runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.reading import publish, topic_rows
from txmq import Store

PAGE = Path(__file__).parents[3] / "docs" / "encryption.md"


def test_blocks_send_then_read_then_compress(store: Store) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {"store": store}
    for block in blocks:
        exec(block, names)  # noqa: S102 - our own page
        publish(store)

    assert len(blocks) == 3
    (row,) = topic_rows(store, "reports")
    assert len(row["body"]) < 100
    (sent,) = topic_rows(store, "order-paid")
    assert b"card" not in sent["body"]
