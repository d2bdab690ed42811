"""A publisher's service whose storage is away for a while, and topics that fail in strange ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import bodies, wait_until
from txmq.errors import StorageUnavailableError
from txmq.ground.handles import BREAKS_MAX
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish import publisher as module
from txmq.publish.publisher import Publisher
from txmq.publish.round import PublishRound
from txmq.publish.topic_writer import TopicWriter
from txmq.store.config import Config
from txmq.store.store import Store

FAILURES = 2 * BREAKS_MAX


class PanicException(BaseException):
    """What a panic in Rust becomes."""


def send(store: Store, *topics: str) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        for topic in topics:
            producer.send(Message(topic, topic.encode()))


@pytest.mark.parametrize("step", ["advance", "wait_for_news", "keep_progress"])
def test_outage_of_the_storage_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = Store.create(tmp_path / "store", Config(publish_drain_s=0.01))
    done: Callable[..., Any] = getattr(PublishRound, step)
    failures: Counter[str] = Counter()

    def fail_for_a_while(*arguments: Any) -> Any:
        if failures[step] < FAILURES:
            failures[step] += 1
            raise StorageUnavailableError("op", "cannot be read: too many requests")
        return done(*arguments)

    monkeypatch.setattr(module, "ERROR_PAUSE_S", 0.0)
    handle = Publisher(store).start()
    monkeypatch.setattr(PublishRound, step, fail_for_a_while)
    wait_until(lambda: failures[step] >= FAILURES, what="the end of the outage")
    send(store, "a")
    wait_until(lambda: "a" in store.topics() and bodies(store, "a") == [b"a"], what="the message")

    assert handle.is_alive
    handle.stop()
    assert handle.exception is None


def test_panic_while_one_topic_is_written_parks_that_topic_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = TopicWriter.write

    def panic(writer: TopicWriter, name: str, *arguments: Any) -> Any:
        if name == "bad":
            raise PanicException
        return write(writer, name, *arguments)

    monkeypatch.setattr(TopicWriter, "write", panic)
    send(store, "bad", "good")

    result = Publisher(store).run_once()

    assert result.parked == 1
    assert bodies(store, "good") == [b"good"]


def test_end_of_the_process_while_a_topic_is_written_is_no_reason_to_park_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: Any) -> Any:
        raise SystemExit

    monkeypatch.setattr(TopicWriter, "write", end)
    send(store, "a")

    with pytest.raises(SystemExit):
        Publisher(store).run_once()
