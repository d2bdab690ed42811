"""A backlog is published range by range; the next one is settled while topics are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.kit.reading import are_gap_free, bodies, topic_rows
from tests.kit.sending import send_each
from txmq.ground.fail_points import FailPoint, arm
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import Goal, PublishResult, TopicWriter
from txmq.store.store import Store
from txmq.testing import arm_fail_points, failing_commits

ENDS = 12
TEXTS = [b"%02d" % number for number in range(ENDS)]
BROKEN = OSError(5, "broken")


@pytest.fixture
def backlog(store: Store) -> Store:
    """Twelve commits that wait, and rounds of two."""
    send_each(store, *TEXTS, topic="a")
    return store.with_settings(store.config.replace(publish_batch_rows=2, publish_threads=2))


@pytest.fixture
def seen() -> Iterator[list[tuple[FailPoint, str]]]:
    """Each step of the publisher, with the name of the thread that took it."""
    steps: list[tuple[FailPoint, str]] = []
    disarm = arm(lambda point: steps.append((point, threading.current_thread().name)))
    yield steps
    disarm()


def are_published(store: Store) -> bool:
    rows = topic_rows(store, "a")
    return bodies(store, "a") == TEXTS and are_gap_free(rows)


def test_a_range_ends_with_the_commit_that_fills_it(backlog: Store) -> None:
    result = Publisher(backlog).run_once()

    assert (result.settled, result.published) == (ENDS, ENDS)
    assert (result.settled_commits, result.topic_commits) == (ENDS // 2, ENDS // 2)
    assert are_published(backlog)


def test_all_but_the_last_range_are_written_by_other_threads(
    backlog: Store, seen: list[tuple[FailPoint, str]]
) -> None:
    Publisher(backlog).run_once()

    own = threading.current_thread().name
    writers = [name == own for point, name in seen if point is FailPoint.PAYLOAD_WRITTEN]
    assert writers == [False] * (ENDS // 2 - 1) + [True]


def test_with_one_thread_one_thing_is_done_after_the_other(
    backlog: Store, seen: list[tuple[FailPoint, str]]
) -> None:
    alone = backlog.with_settings(backlog.config.replace(publish_threads=1))
    Publisher(alone).run_once()

    assert {name for _, name in seen} == {threading.current_thread().name}
    assert are_published(backlog)


def test_a_refused_range_is_tried_again_before_the_next_one(backlog: Store) -> None:
    with failing_commits(1, table="a"):
        result = Publisher(backlog).run_once()

    assert result.parked == 0
    assert are_published(backlog)


def test_a_topic_that_cannot_be_written_is_parked_and_catches_up(backlog: Store) -> None:
    with failing_commits(99, error=BROKEN, table="a"):
        result = Publisher(backlog).run_once()
    assert (result.settled, result.published, result.parked) == (ENDS, 0, 1)

    Publisher(backlog.with_settings(backlog.config.replace(park_retry_interval_s=0.01))).run_once()

    assert are_published(backlog)


def test_where_settling_fails_the_range_before_is_whole(
    backlog: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at the second range, while the first one is written."""
    tried, written = TopicWriter._try_once, threading.Event()

    def noted(writer: TopicWriter, name: str, goal: Goal) -> PublishResult:
        result = tried(writer, name, goal)
        written.set()
        return result

    monkeypatch.setattr(TopicWriter, "_try_once", noted)
    publisher = Publisher(backlog)
    disarm = arm_fail_points("settle.facts_decided=raise@2")

    with pytest.raises(OSError, match=r"settle\.facts_decided"):
        publisher.run_once()
    disarm()
    assert written.is_set()
    assert bodies(backlog, "a") == TEXTS[:2]
    publisher.run_once()

    assert are_published(backlog)


def test_two_publishers_with_a_backlog_show_each_message_once(backlog: Store) -> None:
    first, second = Publisher(backlog), Publisher(backlog)
    threads = [threading.Thread(target=one.run_once) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.run_once()

    assert are_published(backlog)


def test_files_with_times_of_another_program_are_published_beside_others(store: Store) -> None:
    send_each(store, *TEXTS, topic="a")
    table = store.tables.table_at("half")
    for file in table.files.all()[::2]:
        # As Spark writes them: without a zone, and in a type of its own.
        path = Path(table.location, file.path)
        rows = pq.ParquetFile(path).read()
        options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
        pq.write_table(rows, path, **options)

    result = Publisher(store).run_once()

    assert (result.published, result.parked, result.set_aside) == (ENDS, 0, 0)
    assert are_published(store)
