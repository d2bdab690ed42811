"""Commits of half and settled that lost their content, as a full disk leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.reading import bodies
from txmq.delta.actions import commit_path
from txmq.errors import StorageError
from txmq.ground.fail_points import FailPoint
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.testing import arm_fail_points
from txmq.verify import verify

TOPIC = "order-paid"


def send(store: Store, *texts: str) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        for text in texts:
            producer.send(Message(TOPIC, text.encode()))


def emptied(store: Store, log: str, version: int) -> tuple[Path, bytes]:
    file = Path(store.location, log, commit_path(version))
    content = file.read_bytes()
    file.write_bytes(b"")
    return file, content


@pytest.mark.parametrize("is_fresh", [False, True])
def test_half_commit_that_was_settled_by_and_lost_its_content_stops_nobody(
    store: Store, *, is_fresh: bool
) -> None:
    publisher = Publisher(store)
    send(store, "one")
    publisher.run_once()
    emptied(store, "half", 1)
    send(store, "two")

    (Publisher(store) if is_fresh else publisher).run_once()

    assert sorted(bodies(store, TOPIC)) == [b"one", b"two"]


def settled_only(store: Store, text: str) -> None:
    """A publisher that ends between its fact and its topic."""
    send(store, text)
    arm_fail_points(f"{FailPoint.FACTS_COMMITTED}=raise")
    with pytest.raises(Exception, match="fail point"):
        Publisher(store).run_once()
    arm_fail_points("")


def test_settled_commit_that_lost_its_content_is_named_and_skips_nothing(store: Store) -> None:
    settled_only(store, "one")
    send(store, "two")
    versions = store.tables.settled_log(store.tables.op_log().table.log.table_id).table.version
    file, content = emptied(store, "settled", versions)

    for _ in range(2):
        with pytest.raises(StorageError, match=r"settled: .*restore this file"):
            Publisher(store).run_once()
    file.write_bytes(content)
    Publisher(store).run_once()

    assert sorted(bodies(store, TOPIC)) == [b"one", b"two"]
    assert verify(store.location).is_clean


def test_settled_commit_whose_facts_are_all_published_may_be_empty(store: Store) -> None:
    send(store, "one")
    publisher = Publisher(store)
    publisher.run_once()
    emptied(store, "settled", 1)
    send(store, "two")
    publisher.run_once()
    send(store, "three")

    Publisher(store).run_once()

    assert sorted(bodies(store, TOPIC)) == [b"one", b"three", b"two"]
