"""A topic is rebuilt while two publishers write it, and the one who rebuilds is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError

from tests.kit.accidents import rebuild
from tests.kit.forked import forked
from tests.kit.planted import Vandal
from tests.kit.reading import topic_rows, wait_until
from txmq.ground.fail_points import FailPoint
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

GROUP, TOPIC = "orders", "order-paid"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(default_topic_queue_nums=3))


def send(store: Store, count: int) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(count):
            transaction = producer.begin_transaction()
            transaction.send(Message(TOPIC, b"%d" % number, sharding_key=str(number % 7)))
            transaction.prepare()
            transaction.commit()


@contextmanager
def publishing(store: Store, publishers: int) -> Iterator[None]:
    """Publishers and a producer at work; what they raise is raised at the end."""
    stopping = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        publisher = Publisher(store)
        try:
            while not stopping.is_set():
                publisher.run_once()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            failures.append(error)

    def produce() -> None:
        while not stopping.is_set():
            send(store, 3)

    threads = [threading.Thread(target=publish) for _ in range(publishers)]
    threads.append(threading.Thread(target=produce))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert failures == []


def damage(store: Store) -> None:
    """A doubled row, by somebody who does not give up while publishers are faster."""
    vandal = Vandal(store.location)
    row = topic_rows(store, TOPIC)[0]

    def is_done() -> bool:
        try:
            vandal.show(row["transaction_id"], TOPIC, op_version=row["op_version"])
        except CommitFailedError:
            return False
        return True

    wait_until(is_done)


def rebuild_in_a_process(store: Store, faults: str = "") -> int:
    return forked(rebuild, store.location, TOPIC, faults=faults).wait(120)


def assert_right(store: Store) -> None:
    Publisher(store).run_once()
    report = verify(store.location)
    assert [one for one in report.results if one.violation_count] == []
    assert not Topics(store).rebuild(TOPIC).is_needed


def test_publishers_go_on_while_their_topic_is_rebuilt_again_and_again(store: Store) -> None:
    send(store, 20)
    Publisher(store).run_once()
    with publishing(store, publishers=2):
        for _ in range(4):
            damage(store)
            assert Topics(store).rebuild(TOPIC, apply=True).is_written

    assert_right(store)


@pytest.mark.parametrize("point", [FailPoint.PAYLOAD_WRITTEN, FailPoint.TOPIC_COMMITTED])
def test_killed_rebuild_leaves_a_topic_that_can_be_rebuilt(store: Store, point: FailPoint) -> None:
    send(store, 20)
    Publisher(store).run_once()
    damage(store)
    with publishing(store, publishers=2):
        assert rebuild_in_a_process(store, f"{point}=kill") == -signal.SIGKILL
        assert rebuild_in_a_process(store) == 0

    assert_right(store)
