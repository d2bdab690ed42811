"""A disk that is really full, and one that really cannot be written (E1, E2).

Both are made with `mount`, which needs rights that few machines give to tests; a limit on the size
of files or missing rights on a folder would be other errors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.books import GROUP, SETTINGS, TOPICS, Books, sell
from tests.kit.reading import log_rows, topic_rows
from tests.kit.truth import assert_topics_tell_the_truth, drain
from txmq.check.recheck import RecheckJob
from txmq.errors import ReadOnlyStoreError, StorageError, StoreFullError
from txmq.ground.fail_points import FailPoint, arm
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.op import OpRow
from txmq.store.store import Store
from txmq.verify import verify

DISK_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 4096


def mount(*arguments: str) -> None:
    """Raises: OSError where mounting is not possible."""
    program = shutil.which("mount")
    if program is None:
        raise FileNotFoundError("mount")
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(done.stderr.strip())


@dataclass(frozen=True)
class Disk:
    """A small disk of its own."""

    path: Path

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, left_bytes: int = 0) -> None:
        """Take all the space but `left_bytes`."""
        with (self.path / "ballast").open("wb") as ballast:
            ballast.write(b"x" * max(self.free_bytes - left_bytes, 0))

    def empty(self) -> None:
        (self.path / "ballast").unlink()

    def forbid(self) -> None:
        """Nothing can be written from now on."""
        mount("-o", "remount,ro", str(self.path))

    def allow(self) -> None:
        mount("-o", "remount,rw", str(self.path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    made.path.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(made.path))
    except OSError as error:
        pytest.skip(f"a disk can be full only where one can be mounted: {error}")
    yield made
    subprocess.run(["umount", "--lazy", str(made.path)], check=True)  # noqa: S607


@pytest.fixture
def store(disk: Disk) -> Store:
    return Store.create(disk.path / "store", Config(**SETTINGS))


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP) as made:
        yield made


def begun(producer: TransactionProducer, body: bytes = b"42") -> Transaction:
    transaction = producer.begin_transaction()
    for topic in TOPICS:
        transaction.send(Message(topic, body))
    return transaction


def paid(producer: TransactionProducer, books: Books) -> Transaction:
    transaction = begun(producer)
    transaction.prepare()
    books.pay(transaction.id, b"42")
    return transaction


def discard(store: Store, transaction: Transaction) -> None:
    """As a check does after its last question."""
    now_ms = time.time_ns() // 1_000_000

    def row(kind: ClaimKind, check_times: int | None) -> OpRow:
        at_ms = now_ms + 1_000 * (check_times or 60)
        source = ClaimSource.CHECK
        return OpRow(transaction.id, kind, GROUP, source, at_ms, life=0, check_times=check_times)

    asked = range(1, store.config.transaction_check_max + 1)
    rows = [*(row(ClaimKind.UNKNOWN, times) for times in asked), row(ClaimKind.DISCARD, None)]
    store.tables.op_log().append(rows, 0, app_id="test", number=1)


# --- full ---------------------------------------------------------------------------------


def test_half_that_finds_no_space_is_refused_and_may_be_sent_again(
    disk: Disk, store: Store, books: Books, producer: TransactionProducer
) -> None:
    transaction = begun(producer)
    disk.fill()
    with pytest.raises(StoreFullError, match="half"):
        transaction.prepare()
    disk.empty()
    assert log_rows(store, "half") == []

    transaction.prepare()
    books.pay(transaction.id, b"42")
    transaction.commit()
    drain(store, books)
    assert_topics_tell_the_truth(store, books)


def test_end_that_finds_no_space_is_refused_and_may_be_asked_for_again(
    disk: Disk, store: Store, books: Books, producer: TransactionProducer
) -> None:
    transaction = paid(producer, books)
    disk.fill()
    with pytest.raises(StoreFullError, match="op"):
        transaction.commit()
    disk.empty()
    assert log_rows(store, "op") == []

    transaction.commit()
    drain(store, books)
    assert_topics_tell_the_truth(store, books)


@pytest.mark.parametrize("free_pages", range(9))
def test_what_was_acknowledged_on_an_almost_full_disk_is_there(
    disk: Disk, store: Store, producer: TransactionProducer, free_pages: int
) -> None:
    transaction = begun(producer, os.urandom(2 * PAGE_BYTES))
    disk.fill(free_pages * PAGE_BYTES)
    is_prepared = works(transaction.prepare)
    is_committed = is_prepared and works(transaction.commit)
    disk.empty()

    assert len(log_rows(store, "half")) == (2 if is_prepared else 0)
    assert len(log_rows(store, "op")) == (1 if is_committed else 0)
    Publisher(store).run_once()
    assert len(topic_rows(store)) == (1 if is_committed else 0)
    assert verify(store.location).is_clean


def works(call: object) -> bool:
    """Whether it returned; the only other way is a full store."""
    assert callable(call)
    try:
        call()
    except StoreFullError:
        return False
    return True


FULL_AT = {
    "settled": FailPoint.FACTS_DECIDED,
    "topic": FailPoint.PLAN_MADE,
    "second topic": FailPoint.TOPIC_COMMITTED,
    "progress": FailPoint.TOPICS_DONE,
}


@pytest.mark.parametrize("point", FULL_AT.values(), ids=FULL_AT)
@pytest.mark.parametrize("is_discarded", [False, True], ids=["committed", "discarded"])
def test_publisher_that_finds_no_space_goes_on_when_there_is_some(  # noqa: PLR0913
    disk: Disk,
    store: Store,
    books: Books,
    producer: TransactionProducer,
    point: FailPoint,
    *,
    is_discarded: bool,
) -> None:
    sell(store, books, 2)
    lost = begun(producer)
    lost.prepare()
    if is_discarded:
        discard(store, lost)
    else:
        lost.rollback()

    with pytest.raises(StoreFullError):
        publish_until(store, disk, point)
    disk.empty()
    drain(store, books)
    letters = topic_rows(store, TRANS_CHECK_MAX_TIME_TOPIC)
    assert len(letters) == (len(TOPICS) if is_discarded else 0)
    assert_topics_tell_the_truth(store, books)


def publish_until(store: Store, disk: Disk, point: FailPoint) -> None:
    """A publisher whose disk is full from a fail point on."""
    waiting = [point]

    def hook(reached: FailPoint) -> None:
        if reached in waiting:
            waiting.clear()
            disk.fill()

    disarm = arm(hook)
    try:
        Publisher(store).run_once()
    finally:
        disarm()


def test_check_that_finds_no_space_asks_nobody_and_goes_on_later(
    disk: Disk, store: Store, books: Books, producer: TransactionProducer
) -> None:
    paid(producer, books)
    check = RecheckJob(store, listeners={GROUP: books})
    disk.fill()
    with pytest.raises(StoreFullError):
        check.run_once()
    ops_while_full = log_rows(store, "op")
    disk.empty()
    drain(store, books)

    ends = [op for op in log_rows(store, "op") if op["kind"] != "UNKNOWN"]
    assert (ops_while_full, len(ends)) == ([], 1)
    assert_topics_tell_the_truth(store, books)


# --- read-only ------------------------------------------------------------------------------


def test_store_that_cannot_be_written_says_which_table(
    disk: Disk, store: Store, books: Books, producer: TransactionProducer
) -> None:
    waiting, transaction = begun(producer), paid(producer, books)
    paid(producer, books).commit()
    disk.forbid()
    failures = [
        refused(waiting.prepare), refused(transaction.commit),
        refused(Publisher(store).run_once),
        refused(RecheckJob(store, listeners={GROUP: books}).run_once),
    ]  # fmt: skip
    disk.allow()

    assert [type(failure) for failure in failures] == [ReadOnlyStoreError] * 4
    assert [failure.table for failure in failures] == ["half", "op", "clock", "clock"]
    transaction.commit()
    drain(store, books)
    assert_topics_tell_the_truth(store, books)


def refused(call: object) -> StorageError:
    assert callable(call)
    with pytest.raises(StorageError) as told:
        call()
    return told.value


def test_topic_that_cannot_be_written_waits_and_the_others_go_on(
    disk: Disk, tmp_path: Path, books: Books
) -> None:
    store = Store.create(tmp_path / "store", Config(**SETTINGS))
    sell(store, books, 1)
    Publisher(store).run_once()
    topic = Path(store.location, "topics", TOPICS[0])
    # A link, as where topics lie on other disks.
    shutil.move(topic, disk.path / "topic")
    topic.symlink_to(disk.path / "topic")
    disk.forbid()
    sell(store, books, 1, first=1)
    result = Publisher(store).run_once()
    disk.allow()

    assert (result.parked, result.published) == (1, 1)
    (parked,) = Admin(store).status().parked
    assert (parked.topic, parked.reason.split(":")[0]) == (TOPICS[0], "ReadOnlyStoreError")
    drain(store, books)
    assert_topics_tell_the_truth(store, books)
