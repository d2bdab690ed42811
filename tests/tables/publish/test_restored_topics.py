"""A topic that went back to an older copy is parked until it is rebuilt: no gap is hidden."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.reading import are_gap_free, bodies, topic_rows
from tests.kit.sending import send_each
from txmq.delta.checkpoints import checkpoint_now
from txmq.delta.folder import TableFolder
from txmq.errors import TopicNotFoundError, TopicNotRebuiltError
from txmq.ops.admin.topics import Topics
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock

RETRY_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(park_retry_interval_s=RETRY_S))


def folder(store: Store, topic: str = "order-paid") -> Path:
    return Path(store.location, "topics", topic)


def copied(store: Store, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder(store), tmp_path / "copy"))


def restore(store: Store, copy: Path) -> None:
    shutil.rmtree(folder(store))
    shutil.copytree(copy, folder(store))


def reasons(store: Store) -> dict[str, str]:
    parked = store.tables.register("publisher").read().value["parked"]
    return {name: topic["reason"] for name, topic in parked.items()}


def rebuilt(store: Store, publisher: Publisher, clock: ManualClock) -> None:
    """As its operator does it; the publisher then tries the parked topic again."""
    assert "order-paid" in reasons(store)
    Topics(store, clock=clock).rebuild("order-paid", apply=True)
    clock.advance(2 * RETRY_S)
    publisher.run_once()
    assert reasons(store) == {}


def test_topic_that_went_back_is_another_table_once_it_is_rebuilt(
    store: Store, tmp_path: Path
) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    copy, before = copied(store, tmp_path), DeltaTable(folder(store)).metadata().id
    send_each(store, b"2")
    publisher.run_once()
    restore(store, copy)
    send_each(store, b"3")
    publisher.run_once()

    rebuilt(store, publisher, clock)
    after = DeltaTable(folder(store)).metadata().id
    send_each(store, b"4")
    publisher.run_once()
    checkpoint_now(TableFolder("t", str(folder(store))), DeltaTable(folder(store)).version())

    assert after != before
    assert DeltaTable(folder(store)).metadata().id == after
    assert store.tables.table_at("topics/order-paid").log.table_id == after
    assert bodies(store) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_new_publisher", [False, True])
def test_topic_that_went_back_is_parked_and_rebuilt(
    store: Store, tmp_path: Path, *, is_new_publisher: bool
) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    copy = copied(store, tmp_path)
    send_each(store, b"2", b"3")
    publisher.run_once()
    restore(store, copy)
    if is_new_publisher:
        publisher = Publisher(store, clock=clock)

    send_each(store, b"4")
    send_each(store, b"other", topic="other")
    publisher.run_once()

    assert "had 3 messages up to version" in reasons(store)["order-paid"]
    assert bodies(store) == [b"1"]
    assert bodies(store, "other") == [b"other"]

    rebuilt(store, publisher, clock)
    send_each(store, b"5")
    publisher.run_once()

    assert reasons(store) == {}
    assert bodies(store) == [b"1", b"2", b"3", b"4", b"5"]
    assert are_gap_free(topic_rows(store))


def test_topic_whose_table_is_gone_is_not_made_anew(store: Store) -> None:
    publisher = Publisher(store, clock=ManualClock())
    send_each(store, b"1")
    publisher.run_once()
    shutil.rmtree(folder(store))
    send_each(store, b"2")

    publisher.run_once()
    Publisher(store, clock=ManualClock()).run_once()

    assert "had 1 messages, and its table is gone" in reasons(store)["order-paid"]
    assert not folder(store).exists()


def test_topic_whose_table_is_gone_can_be_rebuilt_before_a_publisher_has_noticed(
    store: Store,
) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    shutil.rmtree(folder(store))

    with pytest.raises(TopicNotRebuiltError, match="--apply"):
        Topics(store, clock=clock).rebuild("order-paid")
    assert not folder(store).exists()
    Topics(store, clock=clock).rebuild("order-paid", apply=True)

    assert bodies(store) == [b"1"]


def test_topic_that_was_deleted_or_never_there_is_not_made_by_a_rebuild(store: Store) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    Topics(store, clock=clock).delete("order-paid", apply=True)

    for name in ("order-paid", "never-there"):
        with pytest.raises(TopicNotFoundError):
            Topics(store, clock=clock).rebuild(name, apply=True)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_topic_whose_table_was_gone_is_rebuilt(store: Store, *, is_made_anew: bool) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    shutil.rmtree(folder(store))
    if is_made_anew:
        store.tables.create_topic("order-paid")
    send_each(store, b"2")
    publisher.run_once()

    rebuilt(store, publisher, clock)

    assert bodies(store) == [b"1", b"2"]
    assert are_gap_free(topic_rows(store))


def test_older_copy_from_before_a_rebuild_is_parked_and_rebuilt_once_more(
    store: Store, tmp_path: Path
) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send_each(store, b"1")
    publisher.run_once()
    copy = copied(store, tmp_path)
    shutil.rmtree(folder(store))
    publisher.run_once()
    Topics(store, clock=clock).rebuild("order-paid", apply=True)
    send_each(store, b"2")
    publisher.run_once()
    restore(store, copy)
    send_each(store, b"3")
    publisher.run_once()

    rebuilt(store, publisher, clock)

    assert bodies(store) == [b"1", b"2", b"3"]


def test_copy_that_lacks_no_message_goes_on(store: Store, tmp_path: Path) -> None:
    publisher = Publisher(store)
    send_each(store, b"1")
    publisher.run_once()
    copy = copied(store, tmp_path)
    store.tables.table_at("topics/order-paid").writer.checkpoint()
    restore(store, copy)
    send_each(store, b"2")

    publisher.run_once()

    assert reasons(store) == {}
    assert bodies(store) == [b"1", b"2"]


def test_publisher_learns_from_another_one_how_far_a_topic_was(
    store: Store, tmp_path: Path
) -> None:
    clock = ManualClock()
    first, second = Publisher(store, clock=clock), Publisher(store, clock=clock)
    send_each(store, b"1")
    first.run_once()
    second.run_once()
    copy = copied(store, tmp_path)
    send_each(store, b"2")
    first.run_once()
    send_each(store, b"other", topic="other")
    second.run_once()
    restore(store, copy)
    send_each(store, b"3")

    second.run_once()

    assert "order-paid" in reasons(store)
    assert bodies(store) == [b"1"]
