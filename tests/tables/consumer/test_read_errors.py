"""What a member hands out beside a queue, a file or a topic that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import QUEUES, ConsumerWorld, bodies, drained, wake
from tests.kit.delay_world import TOPIC
from txmq.consumer.pull import PullConsumer
from txmq.consumer.reader import Run, TopicReader
from txmq.delta.storage import Table

FILLED = sorted(f"{queue}-{n}" for queue in range(QUEUES) for n in range(2))


class PanicException(BaseException):
    """As a library in Rust raises it."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


def topic_path(world: ConsumerWorld, topic: str = TOPIC) -> Path:
    return Path(world.store.location) / "topics" / topic


def polled(consumer: PullConsumer) -> list[str]:
    seen = bodies(drained(consumer))
    consumer.commit()
    return seen


def pushed(consumer: PullConsumer) -> list[str]:
    seen: list[str] = []
    consumer.run_once(lambda message: seen.append(message.body.decode()))
    return seen


def failing_second_read(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The second run of messages that is found is lost by an error, once."""
    read, found = TopicReader.read, []

    def failing(self: TopicReader, queue_id: int, offset: int) -> Run | None:
        run = read(self, queue_id, offset)
        if run is not None:
            found.append(run)
            if len(found) == 2:
                raise error
        return run

    monkeypatch.setattr(TopicReader, "read", failing)


@pytest.mark.parametrize("call", [polled, pushed])
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), KeyboardInterrupt(), PanicException("a panic")]
)
def test_error_at_one_queue_loses_no_message_of_the_queues_before_it(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, call: Any, error: BaseException
) -> None:
    world.fill(2)
    consumer = world.consumer()
    failing_second_read(monkeypatch, error)

    with pytest.raises(type(error)):
        call(consumer)

    assert sorted(call(consumer)) == FILLED


def test_list_of_files_that_could_not_be_read_once_is_read_again(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_to(0, "m0")
    consumer = world.consumer()
    assert polled(consumer) == ["m0"]
    world.send_to(0, "m1")
    wake(consumer)
    with monkeypatch.context() as broken:
        # Log clean-up has taken the commit, so the reader reads the list of all files.
        broken.setattr("txmq.consumer.reader.commit_news", lambda *_: None)
        broken.setattr(Table, "parts", _unread)
        with pytest.raises(OSError, match="no disk"):
            consumer.poll(timeout_s=0)

    assert bodies(drained(consumer)) == ["m1"]


def _unread(*_: object) -> None:
    raise OSError(5, "no disk")
