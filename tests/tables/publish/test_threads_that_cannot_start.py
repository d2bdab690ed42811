"""A publisher for which no thread can be started writes nothing twice when it tries again."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.kit.reading import topic_rows
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.store.topic import TopicLog

GIVE_UP_S = 60.0


def test_try_that_was_broken_off_ends_before_the_next_one_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group="orders") as producer:
        for number in range(6):
            producer.send(Message("first", b"%d" % number))
            producer.send(Message("second", b"%d" % number))
    rounds: Any = publisher._rounds()
    pool = rounds._topics._threads
    submit, began, may_commit = pool.submit, threading.Event(), threading.Event()
    swap_files, calls = TopicLog.swap_files, 0

    def slow(topic: TopicLog, *arguments: Any, **options: Any) -> None:
        """The first topic stands before its commit until its publisher waits for it."""
        if topic.name == "first" and not began.is_set():
            began.set()
            may_commit.wait(GIVE_UP_S)
        swap_files(topic, *arguments, **options)

    def refused_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            began.wait(GIVE_UP_S)
            threading.Timer(0.0, may_commit.set).start()
            raise RuntimeError("can't start new thread")
        return submit(*arguments)

    monkeypatch.setattr(TopicLog, "swap_files", slow)
    monkeypatch.setattr(pool, "submit", refused_once)

    with pytest.raises(RuntimeError, match="new thread"):
        publisher.run_once()
    # Nothing of the first try is at work any more.
    assert all(task.done() for task in rounds._topics._running)
    publisher.run_once()

    for topic in ("first", "second"):
        rows = topic_rows(store, topic)
        places = Counter((row["queue_id"], row["queue_offset"]) for row in rows)
        assert sorted(row["body"] for row in rows) == [b"%d" % number for number in range(6)]
        assert set(places.values()) == {1}
