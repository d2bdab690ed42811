"""A broker of threads alone is killed again and again while orders come in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.kit.books import GROUP, SETTINGS, Books, sell
from tests.kit.forked import Forked, forked
from tests.kit.reading import log_rows, wait_until
from tests.kit.truth import assert_topics_tell_the_truth, drain
from txmq.ops.broker import Broker, run_until_signal
from txmq.store.config import Config
from txmq.store.store import Store

# Nobody may be asked about an order whose producer still works on it.
IMMUNITY_S = 2.0
LIVES = 6


def serve(location: str, path: str) -> None:
    run_until_signal(Broker(Store.open(location), listeners={GROUP: Books(path)}).start)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    settings = {**SETTINGS, "transaction_timeout_s": IMMUNITY_S, "check_trigger_interval_s": 0.1}
    return Store.create(tmp_path / "store", Config(**settings))


@contextmanager
def broker(store: Store, books: Books) -> Iterator[Forked]:
    process = forked(serve, store.location, books.path)
    try:
        yield process
    finally:
        process.kill()


def facts(store: Store) -> int:
    return len(log_rows(store, "settled"))


def asked(store: Store) -> int:
    return sum(row["source"] == "recheck" for row in log_rows(store, "op"))


def test_broker_without_spark_that_is_killed_loses_and_doubles_nothing(
    store: Store, books: Books
) -> None:
    drawn = Random(7)
    for life in range(LIVES):
        before = facts(store)
        with broker(store, books):
            # The kill comes at some moment while it works.
            sell(store, books, 14, 14 * life)
            wait_until(lambda before=before: facts(store) > before)
            sell(store, books, drawn.randint(1, 6), 1_000 + 14 * life)
    before = facts(store)
    with broker(store, books) as last:
        sell(store, books, 3, 2_000)
        wait_until(lambda: facts(store) > before and asked(store) >= LIVES)
        last.terminate()
        assert last.wait(60.0) == 0
    drain(store, books)

    assert_topics_tell_the_truth(store, books)
