"""A process is killed while hundreds of its sends are on their way."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.books import SETTINGS
from tests.kit.forked import Forked
from tests.kit.reading import topic_rows
from tests.kit.truth import drain
from tests.process.producer.asynchronous_seller import PAID, SALES, TOLD, AsynchronousBooks, main
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

DEATHS = {
    "halves written, not committed": ("storage.files_written=kill@2", ""),
    "halves committed, not answered": ("producer.half_committed=kill@1", ""),
    "in a local transaction": ("", "sale 100"),
    "after local transactions": ("producer.end_ready=kill@1", ""),
    "ends committed, not answered": ("producer.end_committed=kill@1", ""),
}


@pytest.mark.parametrize(("faults", "last"), DEATHS.values(), ids=DEATHS)
def test_what_was_paid_is_told_and_what_was_acknowledged_is_there(
    tmp_path: Path, faults: str, last: str
) -> None:
    store = Store.create(tmp_path / "store", Config(**SETTINGS))
    books, told = AsynchronousBooks(tmp_path / "books"), tmp_path / "told"
    given = (store.location, books.path, str(told), last)
    killed = Forked(main, *given, faults=faults, log=tmp_path / "log")
    assert killed.wait(120) == -signal.SIGKILL, killed.complaint()

    drain(store, books)

    paid, shown = books.paid(), topic_rows(store, PAID)
    assert {row["transaction_id"]: row["body"] for row in shown} == paid
    assert len(shown) == len(paid) < SALES
    plain = [row["message_id"] for row in topic_rows(store, TOLD)]
    assert len(plain) == len(set(plain))
    assert set(told.read_text(encoding="utf-8").split()) <= set(plain)
    assert verify(store.location).is_clean
