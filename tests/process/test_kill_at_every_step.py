"""Processes that die at each fail point; afterwards the topics tell the truth."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.books import GROUP, SETTINGS, TOPICS, Books, sell
from tests.kit.reading import log_rows, wait_until
from tests.kit.steps import ORDERS, STEPS, WITH_SPARK, obstacle, run
from tests.kit.truth import assert_topics_tell_the_truth, drain
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(**SETTINGS))


def end_all(store: Store, books: Books) -> None:
    """As `drain`, but maintenance is left to the process that is killed."""
    recheck, publisher = RecheckJob(store, listeners={GROUP: books}), Publisher(store)
    wait_until(lambda: recheck.run_once().open_transactions == 0)
    publisher.run_once()


def prepare(store: Store, books: Books, actor: str) -> None:
    """What must be there before the process that is killed begins."""
    if actor.endswith(("publisher", "checker", "maintainer")) or actor == "retirer":
        sell(store, books, ORDERS)
    if actor in ("maintainer", "retirer"):
        end_all(store, books)
    if actor in ("deliverer", "schedule retirer"):
        sell(store, books, ORDERS, delay_s=1)
        end_all(store, books)
        # They are due by the machine's clock, which the process that is killed goes by.
        wait_until(lambda: is_all_due(store))
    if actor == "schedule retirer":
        drain(store, books)


def is_all_due(store: Store) -> bool:
    schedule = store.tables.schedule_log().refresh().table
    due = schedule.rows.read(schedule.files.all(), ("deliver_timestamp",))["deliver_timestamp"]
    return max(due.to_pylist()) <= datetime.now(UTC)


def test_every_fail_point_has_a_story() -> None:
    # Their processes die beside a Spark that lives: tests/places/test_fences_over_connect.py.
    fences_of_spark = {FailPoint.FENCE_COMMITTED, FailPoint.FENCE_RAISED}

    assert set(STEPS) | fences_of_spark == set(FailPoint)


def stories() -> list[Any]:
    return [
        pytest.param(point, marks=[pytest.mark.needs_spark] if step.actor in WITH_SPARK else [])
        for point, step in STEPS.items()
    ]


@pytest.mark.parametrize("point", stories())
def test_killed_process_changes_nothing_of_the_truth(
    store: Store, books: Books, point: FailPoint
) -> None:
    prepare(store, books, STEPS[point].actor)

    assert run(point, store.location, books.path) == -signal.SIGKILL
    if obstacle(store).is_file():
        obstacle(store).unlink()
    sell(store, books, 3, first=ORDERS)
    drain(store, books)

    assert len(books.paid()) >= 2
    assert_topics_tell_the_truth(store, books)


@pytest.mark.needs_spark
def test_frames_of_a_killed_process_stay_hidden(store: Store, books: Books) -> None:
    assert run(FailPoint.FRAMES_WRITTEN, store.location, books.path) == -signal.SIGKILL

    orphans = set(Path(store.location, "half").rglob("*.parquet"))
    assert orphans
    assert log_rows(store, "half") == []
    sell(store, books, 3)
    drain(store, books)
    assert_topics_tell_the_truth(store, books)
    live = {Path(uri) for uri in DeltaTable(f"{store.location}/half").file_uris()}
    assert not orphans & live


def test_killed_creation_is_done_again(store: Store, books: Books) -> None:
    run(FailPoint.STORE_TABLE_CREATED, store.location, books.path)

    Store.create(f"{store.location}-2")

    assert Store.open(f"{store.location}-2").topics() == []


def test_publisher_that_dies_again_and_again_gets_there(store: Store, books: Books) -> None:
    sell(store, books, ORDERS)
    points = [point for point in STEPS if STEPS[point].actor == "publisher"]

    codes = [run(point, store.location, books.path) for point in points]
    drain(store, books)

    assert codes.count(-signal.SIGKILL) >= len(points) / 2
    assert_topics_tell_the_truth(store, books)


def test_topic_files_of_a_killed_publisher_are_not_read(store: Store, books: Books) -> None:
    sell(store, books, ORDERS)

    run(FailPoint.PAYLOAD_WRITTEN, store.location, books.path)
    Publisher(store).run_once()

    folder = Path(store.location, "topics", TOPICS[1])
    assert len(list(folder.glob("*.parquet"))) == 2
    assert len(DeltaTable(str(folder)).file_uris()) == 1
