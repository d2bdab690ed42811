"""What a member hands out beside a queue, a file or a topic that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import (
    QUEUES,
    ConsumerWorld,
    bodies,
    drained,
    offsets_of,
    taken_from,
    wake,
)
from txmq.consumer.group_rules import TopicCommit, TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.consumer.reader import Run, TopicReader, topic_commit
from txmq.delta.folder import TableFolder
from txmq.delta.table_log import LiveFiles
from txmq.errors import StorageError
from txmq.spark.members import OffsetRange, RangeReader

FILLED = sorted(f"{queue}-{n}" for queue in range(QUEUES) for n in range(2))


class PanicException(BaseException):
    """As a library in Rust raises it."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


def topic_path(world: ConsumerWorld, topic: str) -> Path:
    return Path(world.store.location) / "topics" / topic


def damaged(folder: Path) -> Callable[[], object]:
    """Damage the newest file of a topic, or of its log; returns how to restore it."""
    files = [path for path in folder.iterdir() if path.suffix in (".json", ".parquet")]
    newest = max(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
    content = newest.read_bytes()
    newest.write_bytes(b"damaged")
    return lambda: newest.write_bytes(content)


def tried(consumer: PullConsumer, times: int = 6) -> tuple[list[str], int]:
    """What some polls hand out, and how many of them raise."""
    seen: list[str] = []
    errors = 0
    for _ in range(times):
        wake(consumer)
        try:
            seen += bodies(consumer.poll(timeout_s=0))
        except StorageError:
            errors += 1
    consumer.commit()
    return seen, errors


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
        broken.setattr(LiveFiles, "parts", _unread)
        with pytest.raises(OSError, match="no disk"):
            consumer.poll(timeout_s=0)

    assert bodies(drained(consumer)) == ["m1"]


@pytest.mark.parametrize("part", ["", "_delta_log"])
def test_other_topics_are_served_beside_one_with_a_damaged_file(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr("txmq.consumer.reader.FAILED_PAUSE_S", 0.0)
    world.send_to(0, "b0", topic="b")
    consumer = world.consumer(["a", "b"])
    assert tried(consumer) == (["b0"], 0)
    world.send_to(0, "b1", topic="b")
    world.fill(2, topic="a")
    restore = damaged(topic_path(world, "b") / part)

    seen, errors = tried(consumer)

    assert sorted(seen) == FILLED
    assert errors >= 3, "it is told as long as the file is damaged"
    assert offsets_of(world)[TopicQueue("b", 0)] == 1
    restore()
    assert tried(consumer)[0] == ["b1"]
    assert offsets_of(world)[TopicQueue("b", 0)] == 2


def test_ranges_of_other_topics_are_taken_beside_one_with_a_damaged_log(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "b0", topic="b")
    consumer = world.consumer(["a", "b"])
    assert tried(consumer) == (["b0"], 0)
    world.send_to(0, "b1", topic="b")
    world.send_to(0, "a0", topic="a")
    restore = damaged(topic_path(world, "b") / "_delta_log")
    ranges = RangeReader(consumer._reader)

    wake(consumer)
    assert taken_from(ranges, 10) == [OffsetRange(TopicQueue("a", 0), 0, 1)]
    with pytest.raises(StorageError):
        taken_from(ranges, 10)
    restore()
    wake(consumer)
    assert taken_from(ranges, 10) == [OffsetRange(TopicQueue("b", 0), 1, 2)]


def test_new_group_serves_other_topics_beside_one_whose_first_offset_cannot_be_read(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "b0", topic="b")
    world.send_to(0, "a0", topic="a")
    restore = damaged(topic_path(world, "b"))
    consumer = world.consumer(["a", "b"])

    seen, errors = tried(consumer)

    assert seen == ["a0"]
    assert errors >= 3
    assert TopicQueue("b", 0) not in offsets_of(world)
    restore()
    world.clock.advance(consumer._reader._renewal_s + 0.1)
    assert tried(consumer) == (["b0"], 0)


def test_new_group_that_begins_at_the_last_offset_skips_nothing_that_came_since(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "b0", topic="b")
    restore = damaged(topic_path(world, "b") / "_delta_log")
    with pytest.raises(StorageError):
        world.consumer("b", from_where=ConsumeFromWhere.LAST_OFFSET)

    restore()
    assert drained(world.consumer("b", from_where=ConsumeFromWhere.LAST_OFFSET)) == []


def test_offsets_of_other_topics_are_committed_beside_one_whose_log_cannot_be_read(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_to(0, "b0", topic="b")
    consumer = world.consumer(["a", "b"])
    assert polled(consumer) == ["b0"]
    world.send_to(0, "b1", topic="b")
    world.send_to(0, "a0", topic="a")
    assert sorted(bodies(drained(consumer))) == ["a0", "b1"]

    def failing(table: TableFolder, version: int) -> TopicCommit | None:
        if "topics/b" in table.location:
            raise OSError(5, "no disk")
        return topic_commit(table, version)

    with monkeypatch.context() as broken:
        broken.setattr("txmq.consumer.reader.topic_commit", failing)
        consumer.commit()

    assert offsets_of(world)[TopicQueue("a", 0)] == 1
    assert offsets_of(world)[TopicQueue("b", 0)] == 2


def _unread(*_: object) -> None:
    raise OSError(5, "no disk")
