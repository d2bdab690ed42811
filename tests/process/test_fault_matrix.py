"""Faults of producers, publishers and checks, each with what must come of it.

docs/faults.md names for each row of the fault matrix the tests that show it, here and elsewhere.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.kit.accidents import DIES, ended, gone_on, stopped
from tests.kit.books import GROUP, SETTINGS, TOPICS, Books, sell
from tests.kit.reading import log_rows, publish, topic_rows, wait_until
from tests.kit.steps import REPOSITORY
from tests.kit.truth import assert_topics_tell_the_truth, drain, run_until_all_is_done
from tests.process.flaky_tasks import FRAME_ROWS, FRAME_TOPIC
from txmq.check.claims import RoundResult
from txmq.check.recheck import RecheckJob
from txmq.errors import AlreadyResolvedError, StorageError, TransactionNotFoundError
from txmq.ground.fail_points import FailPoint
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.status import Admin
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store, service_checkpoint_location
from txmq.testing import ManualClock, before_commit, failing_commits
from txmq.verify import verify

if TYPE_CHECKING:
    from txmq.listeners.protocol import HalfMessage
    from txmq.producer.transaction import Transaction

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
KILLED = -signal.SIGKILL
LOST_RACE = None
NO_ANSWER = OSError("the answer was lost")


class Answers(Books):
    """Answers what it is told, whatever is paid."""

    def __init__(self, path: Path | str, answer: LocalTransactionState) -> None:
        super().__init__(path)
        self.answer = answer

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        return self.answer


class FencingBooks(Books):
    """Before it says no, it makes sure that no late payment can land."""

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        with closing(self._open()) as books, books:
            fence = "INSERT OR IGNORE INTO paid VALUES (?, NULL)"
            is_fenced = books.execute(fence, (message.transaction_id,)).rowcount
        return ROLLBACK if is_fenced else COMMIT

    def paid(self) -> dict[str, bytes]:
        return {key: body for key, body in super().paid().items() if body is not None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(**SETTINGS))


def prepared(producer: TransactionProducer, body: bytes = b"42") -> Transaction:
    transaction = producer.begin_transaction()
    for topic in TOPICS:
        transaction.send(Message(topic, body))
    transaction.prepare()
    return transaction


def ask(store: Store, listener: Books) -> RoundResult:
    """A second later: a file's time stands still for some milliseconds, and nothing is due then."""
    clock = ManualClock(time.time_ns() // 1_000_000 + 1_000)
    return RecheckJob(store, listeners={GROUP: listener}, clock=clock).run_once().checks


def orphans(store: Store, log: str) -> list[Path]:
    """Data files that no commit names."""
    folder = Path(store.location, log)
    live = {Path(uri) for uri in DeltaTable(str(folder)).file_uris()}
    return [path for path in folder.rglob("*.parquet") if path not in live
            and "_delta_log" not in path.parts]  # fmt: skip


def ended_as(state: str, store: Store) -> int:
    return [row["state"] for row in log_rows(store, "settled")].count(state)


def assert_clean(store: Store) -> None:
    report = verify(store.location)
    assert report.is_clean, report


# --- a producer dies (S2, S3, S4) -----------------------------------------------------------------

# What kills the first sale, and what is left of it: halves, payments, claims, orphaned files.
DEATHS = {
    "S2a half written, not committed": ("storage.files_written=kill@1", (0, 0, 0, 1)),
    "S2b half committed, not answered": ("producer.half_committed=kill@1", (2, 0, 0, 0)),
    "S3a in the local transaction": (DIES, (2, 0, 0, 0)),
    "S3b after the local transaction": ("producer.end_ready=kill@1", (2, 1, 0, 0)),
    "S4a end written, not committed": ("storage.files_written=kill@2", (2, 1, 0, 1)),
    "S4b end committed, not answered": ("producer.end_committed=kill@1", (2, 1, 1, 0)),
}


def die(actor: str, store: Store, books: Books, death: str) -> tuple[int, int, int, int]:
    """Kill a process that sells; what it left."""
    what, faults = (DIES, "") if death == DIES else ("", death)
    assert ended(actor, store, books, what, faults)[0] == KILLED
    lost = len(orphans(store, "half")) + len(orphans(store, "op"))
    claims = [row for row in log_rows(store, "op") if row["kind"] == "COMMIT"]
    return len(log_rows(store, "half")), len(books.paid()), len(claims), lost


@pytest.mark.parametrize(("death", "left"), DEATHS.values(), ids=DEATHS)
def test_sale_of_a_killed_process_ends_as_its_payment_did(
    store: Store, books: Books, death: str, left: tuple[int, ...]
) -> None:
    assert die("producer", store, books, death) == left
    drain(store, books)

    assert_topics_tell_the_truth(store, books)


@pytest.mark.parametrize(("death", "left"), DEATHS.values(), ids=DEATHS)
def test_sale_that_is_tried_again_after_a_kill_is_one_sale(
    store: Store, books: Books, death: str, left: tuple[int, ...]
) -> None:
    assert die("seller with a key", store, books, death) == left
    assert ended("seller with a key", store, books) == (0, "")
    drain(store, books)

    assert (len(log_rows(store, "half")), len(books.paid())) == (2, 1)
    assert_topics_tell_the_truth(store, books)


def test_local_transaction_that_comes_after_the_check_s_no_is_fenced_off(
    store: Store, tmp_path: Path
) -> None:
    books = FencingBooks(tmp_path / "books.sqlite")
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        assert ask(store, books).rolled_back == 1
        with pytest.raises(sqlite3.IntegrityError):
            books.pay(transaction.id, b"42")
    drain(store, books)

    assert books.paid() == {}
    assert_topics_tell_the_truth(store, books)


def test_local_transaction_slower_than_the_immunity_is_waited_for(
    store: Store, books: Books
) -> None:
    undecided = Answers(books.path, UNKNOWN)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        assert ask(store, undecided).unknown == 1
        publish(store)
        assert topic_rows(store) == []
        books.pay(transaction.id, b"42")
        transaction.commit()
    drain(store, books)

    assert_topics_tell_the_truth(store, books)


def test_commit_of_an_unknown_transaction_is_refused(store: Store) -> None:
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        TransactionProducer(store, producer_group=GROUP) as other,
    ):
        transaction = producer.begin_transaction()
        with pytest.raises(TransactionNotFoundError):
            other.end_transaction(transaction.id, COMMIT)
    assert log_rows(store, "op") == []


LATE = {"is already ROLLED_BACK": ROLLBACK, "is DISCARDED": UNKNOWN}


@pytest.mark.parametrize(("end", "answer"), LATE.items(), ids=LATE)
def test_commit_of_a_producer_that_slept_too_long_is_told(
    tmp_path: Path, books: Books, end: str, answer: LocalTransactionState
) -> None:
    settings = Config(**SETTINGS, transaction_check_max=1)
    store = Store.create(tmp_path / "store", settings)
    broker = Broker(store, listeners={GROUP: Answers(books.path, answer)})
    with stopped("producer", store, books, FailPoint.END_READY) as producer:
        run_until_all_is_done(store, broker)
        code, complaint = gone_on(producer)

    assert code == 1, complaint
    transaction_id = next(iter(books.paid()))
    assert f"AlreadyResolvedError: transaction {transaction_id!r}: {end}" in complaint
    assert topic_rows(store) == []
    assert_clean(store)


# --- a publisher sleeps (P5) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [FailPoint.CLAIMS_READ, FailPoint.FACTS_DECIDED, FailPoint.FACTS_COMMITTED,
     FailPoint.PLAN_MADE, FailPoint.PAYLOAD_WRITTEN, FailPoint.TOPICS_DONE],
)  # fmt: skip
def test_publisher_that_sleeps_while_another_works_doubles_nothing(
    store: Store, books: Books, point: FailPoint
) -> None:
    sell(store, books, 12)
    with stopped("publisher", store, books, point) as sleeper:
        drain(store, books)
        assert gone_on(sleeper) == (0, "")

    assert_topics_tell_the_truth(store, books)


# --- Spark under a publisher (P4, P6) -------------------------------------------------------------


@pytest.mark.needs_spark
def test_spark_tasks_that_fail_and_run_again_add_no_row(
    store: Store, books: Books, tmp_path: Path
) -> None:
    sell(store, books, 6)
    failures = tmp_path / "failures"
    failures.mkdir()
    module = [sys.executable, "-m", "tests.process.flaky_tasks", store.location, str(failures)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(module, env=environment, timeout=120, check=True, capture_output=True)

    # Two tasks of the DataFrame, and at least one for each of two topics.
    assert len(list(failures.iterdir())) >= 4
    assert len(topic_rows(store)) == 4
    frames = topic_rows(store, FRAME_TOPIC)
    assert sorted(int(row["body"]) for row in frames) == list(range(FRAME_ROWS))
    drain(store, books)
    assert_topics_tell_the_truth(store, books)


def test_two_running_publishers_of_one_name_share_no_checkpoint(
    store: Store, books: Books, spark: Any
) -> None:
    # Two drivers in one: Spark itself refuses two queries of one name in one session.
    sessions = [spark.newSession() for _ in range(2)]
    handles = [Publisher(store, spark=session, name="same").start() for session in sessions]
    checkpoints = Path(service_checkpoint_location(store, "any")).parent
    assert len(list(checkpoints.iterdir())) == 2
    sell(store, books, 30)
    committed = [row["kind"] for row in log_rows(store, "op")].count("COMMIT")
    wait_until(lambda: all(len(topic_rows(store, topic)) == committed for topic in TOPICS))
    assert all(handle.is_alive for handle in handles)
    for handle in handles:
        handle.stop()
    drain(store, books)

    assert_topics_tell_the_truth(store, books)


# --- the check (C1, C3, C4, C5, C7) ---------------------------------------------------------------


def test_check_that_is_killed_while_it_asks_is_done_again(store: Store, books: Books) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        books.pay(transaction.id, b"42")

    assert ended("checker", store, books, DIES)[0] == KILLED
    assert log_rows(store, "op") == []
    drain(store, books)

    assert [row["check_times"] for row in log_rows(store, "op")] == [None]
    assert_topics_tell_the_truth(store, books)


def test_commit_that_is_before_the_check_s_answer_wins(store: Store, books: Books) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        books.pay(transaction.id, b"42")
        with before_commit(transaction.commit, table="op"):
            ask(store, Answers(books.path, ROLLBACK))
    drain(store, books)

    assert [row["kind"] for row in log_rows(store, "op")].count("ROLLBACK") == 1
    assert_topics_tell_the_truth(store, books)


def test_answer_of_the_check_that_is_before_the_commit_wins(store: Store, books: Books) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        check = RecheckJob(store, listeners={GROUP: Answers(books.path, ROLLBACK)})
        with (
            before_commit(lambda: check.run_once() and None, table="op"),
            pytest.raises(AlreadyResolvedError, match="ROLLED_BACK"),
        ):
            transaction.commit()
    drain(store, books)

    assert_topics_tell_the_truth(store, books)


def test_listener_that_says_commit_of_what_was_not_done_is_believed(
    store: Store, books: Books
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
    assert ask(store, Answers(books.path, COMMIT)).committed == 1
    publish(store)

    assert books.paid() == {}
    assert [row["transaction_id"] for row in topic_rows(store)] == [transaction.id]
    (fact,) = log_rows(store, "settled")
    assert fact["source"] == "recheck"
    assert_clean(store)


def test_dead_letters_that_cannot_be_written_wait_and_hold_up_nobody(
    tmp_path: Path, books: Books
) -> None:
    store = Store.create(tmp_path / "store", Config(**SETTINGS, transaction_check_max=1))
    letters = Path(store.location, "topics", TRANS_CHECK_MAX_TIME_TOPIC)
    letters.parent.mkdir()
    letters.touch()
    with TransactionProducer(store, producer_group=GROUP) as producer:
        lost = [prepared(producer).id for _ in range(3)]
    broker = Broker(store, listeners={GROUP: Answers(books.path, UNKNOWN)})
    wait_until(lambda: broker.run_once() and ended_as("DISCARDED", store) == len(lost))
    sell(store, books, 2)
    assert broker.run_once().published.published == 2 * len(TOPICS)
    assert not letters.is_dir()

    letters.unlink()
    run_until_all_is_done(store, broker)
    dead = topic_rows(store, TRANS_CHECK_MAX_TIME_TOPIC)
    assert sorted(row["transaction_id"] for row in dead) == sorted(lost * len(TOPICS))
    assert_clean(store)


# --- a commit whose answer is lost (O1) -----------------------------------------------------------


@pytest.mark.parametrize("error", [LOST_RACE, NO_ANSWER], ids=["as a lost race", "as no answer"])
@pytest.mark.parametrize(
    "table",
    ["half", "op", "settled", *TOPICS, TRANS_CHECK_MAX_TIME_TOPIC, "publisher", "check_lease"],
)
def test_commit_whose_answer_is_lost_is_made_once(
    tmp_path: Path, books: Books, table: str, error: Exception | None
) -> None:
    store = Store.create(tmp_path / "store", Config(**SETTINGS, transaction_check_max=1))
    with failing_commits(1, after_commit=True, error=error, table=table) as lost:
        sell(store, books, 2)
        with TransactionProducer(store, producer_group=GROUP) as producer:
            dead = prepared(producer).id
        undecided = Broker(store, listeners={GROUP: Answers(books.path, UNKNOWN)})
        wait_until(lambda: tries(undecided.run_once) and Admin(store).status().discarded == 1)
    drain(store, books)

    assert len(lost) == 1
    letters = topic_rows(store, TRANS_CHECK_MAX_TIME_TOPIC)
    assert [row["transaction_id"] for row in letters] == [dead] * len(TOPICS)
    assert_topics_tell_the_truth(store, books)


def tries(call: Callable[[], Any]) -> bool:
    """Whether a call worked; a scheduler would make it again."""
    try:
        call()
    except StorageError:
        return False
    return True


@pytest.mark.parametrize("error", [LOST_RACE, NO_ANSWER], ids=["as a lost race", "as no answer"])
def test_compaction_whose_answer_is_lost_doubles_no_row(
    store: Store, books: Books, error: Exception | None
) -> None:
    sell(store, books, 12)
    drain(store, books)
    before = sorted(row["message_id"] for row in log_rows(store, "half"))

    with failing_commits(1, after_commit=True, error=error, table="half") as lost:
        sell(store, books, 12, first=12)
        Maintenance(store).run_once()
    Maintenance(store).run_once()
    drain(store, books)

    assert lost
    after = [row["message_id"] for row in log_rows(store, "half")]
    assert len(after) == len(set(after)) == 2 * len(before)
    assert_topics_tell_the_truth(store, books)
