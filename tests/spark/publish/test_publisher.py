from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.builders import GROUP, halves, messages, op_row, table_versions, transaction_id
from tests.kit.reading import (
    are_gap_free,
    bodies,
    commits,
    log_rows,
    publish,
    rows_of,
    topic_rows,
    wait_until,
)
from txmq.delta.table import Table
from txmq.errors import CommitConflictError, SourceRestoredError
from txmq.ground.handles import Restarting
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult
from txmq.store.config import Config
from txmq.store.schemas import OP
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock, before_commit, failing_commits

TOPIC = "order-paid"
COMMIT, ROLLBACK = ClaimKind.COMMIT, ClaimKind.ROLLBACK
BROKEN = OSError("broken")


def send(store: Store, count: int = 1, topic: str = TOPIC, body: bytes = b"42") -> None:
    """Committed transactions of one message each."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for _ in range(count):
            transaction = producer.begin_transaction()
            transaction.send(Message(topic, body))
            transaction.prepare()
            transaction.commit()


def append(store: Store, log: str, rows: Any) -> None:
    write_deltalake(f"{store.location}/{log}", rows, mode="append")


def claim(store: Store, *rows: Any) -> None:
    log = store.tables.op_log()
    log.append(rows, 0, app_id="test", number=log.table.version + 1)


def kept_progress(store: Store) -> dict[str, Any]:
    rows = rows_of(f"{store.location}/state/publisher")
    return json.loads(max(rows, key=lambda row: row["revision"])["value"]) if rows else {}


# --- nothing twice, nothing lost ----------------------------------------------------------------


def test_empty_store_needs_no_commit(store: Store) -> None:
    before = table_versions(store)

    assert publish(store) == PublishResult(settled_commits=1)
    after = table_versions(store)

    assert publish(store) == PublishResult()
    assert table_versions(store) == after
    assert after["op"] == before["op"]


def test_result_counts_what_was_done(store: Store) -> None:
    send(store, 3)
    send(store, 2, "stock")

    result = publish(store)

    assert (result.settled, result.published) == (5, 5)
    assert (result.settled_commits, result.topic_commits) == (1, 2)
    assert (result.refused, result.parked) == (0, 0)


def test_same_publisher_goes_on_where_it_was(store: Store) -> None:
    publisher = Publisher(store)
    for number in range(4):
        send(store, 1, body=b"%d" % number)
        publisher.run_once()

    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    assert publisher.total.published == 4
    assert are_gap_free(topic_rows(store))


@pytest.mark.parametrize("publisher_is_new", [False, True])
def test_second_call_writes_nothing(store: Store, *, publisher_is_new: bool) -> None:
    send(store)
    publisher = Publisher(store)
    publisher.run_once()
    before = table_versions(store)

    again = Publisher(store) if publisher_is_new else publisher

    assert again.run_once() == PublishResult()
    assert table_versions(store) == before


def test_topic_of_the_future_is_not_forgotten(store: Store) -> None:
    send(store)
    publisher = Publisher(store)
    publisher.run_once()

    send(store, 2, "stock")
    publisher.run_once()

    assert (len(topic_rows(store)), len(topic_rows(store, "stock"))) == (1, 2)


def test_many_commits_are_settled_in_few(store: Store) -> None:
    for number in range(100):
        claim(store, op_row(number, ClaimKind.UNKNOWN))

    assert publish(store).settled_commits <= 2


def test_range_is_cut_where_it_holds_many_rows(store: Store) -> None:
    store = Store.open(store.location, store.config.replace(publish_batch_rows=1))
    append(store, "half", halves(1))
    for number in range(100):
        claim(store, op_row(number + 1), op_row(number + 1))

    result = publish(store)

    assert result.settled_commits > 2
    assert bodies(store) == [b"body-0"]


# --- what is shown ----------------------------------------------------------------------


def test_first_end_wins(store: Store) -> None:
    append(store, "half", halves(1))
    append(store, "half", halves(2))
    claim(store, op_row(1), op_row(2, ROLLBACK), op_row(1, ROLLBACK), op_row(2))
    publish(store)

    claim(store, op_row(1, ROLLBACK), op_row(2))
    publish(store)

    assert [row["transaction_id"] for row in topic_rows(store)] == [transaction_id(1)]
    assert len(log_rows(store, "settled")) == 2


def test_incomplete_transaction_is_shown_only_after_repair_and_resume(store: Store) -> None:
    three = halves(1, messages(3))
    append(store, "half", three.slice(0, 2))
    claim(store, op_row(1))
    publish(store)
    assert (store.topics(), log_rows(store, "settled")[0]["state"]) == ([], "INCOMPLETE")

    append(store, "half", three.slice(2, 1))
    claim(store, op_row(1, ClaimKind.RESUME, life=1), op_row(1))
    publish(store)

    assert bodies(store) == [b"body-0", b"body-1", b"body-2"]


@pytest.mark.parametrize(
    "bad",
    [{"kind": "EXPLODE"}, {"kind": None}, {"source": "nobody"}, {"transaction_id": None},
     {"producer_group": None}, {"ordinal": None}],
    ids=str,
)  # fmt: skip
def test_claim_that_txmq_did_not_write_stops_nobody(store: Store, bad: dict[str, Any]) -> None:
    append(store, "half", halves(1))
    claim(store, op_row(1, ClaimKind.UNKNOWN))
    template = rows_of(f"{store.location}/op")[0]
    append(store, "op", pa.Table.from_pylist([template | bad], OP.columns))
    claim(store, op_row(1))

    publish(store)

    assert bodies(store) == [b"body-0"]


# --- two publishers ---------------------------------------------------------------------


@pytest.mark.parametrize("table", ["settled", TOPIC])
def test_publisher_that_came_second_writes_nothing(store: Store, table: str) -> None:
    send(store, 5)
    rival: list[PublishResult] = []

    with before_commit(lambda: rival.append(publish(store)), table=table):
        result = publish(store)

    assert rival[0].published == 5
    assert (result.refused, result.published) == (1, 0)
    assert (len(log_rows(store, "settled")), len(topic_rows(store))) == (5, 5)


def test_publisher_is_not_confused_by_one_that_saw_more(store: Store) -> None:
    """The other one settles, publishes and keeps claims that come while this one works."""
    send(store)
    publisher = Publisher(store)

    def other() -> None:
        send(store, 3)
        publish(store)

    for table in ("settled", TOPIC, "state/publisher"):
        with before_commit(other, table=table):
            publisher.run_once()
        send(store)
    publisher.run_once()

    assert len(topic_rows(store)) == 13
    assert are_gap_free(topic_rows(store))


@pytest.mark.parametrize("publisher_is_new", [False, True])
def test_claims_settled_between_two_looks_are_no_restore(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, publisher_is_new: bool
) -> None:
    send(store)
    publisher = Publisher(store)
    if not publisher_is_new:
        publisher.run_once()
    refresh, waiting = Table.refresh, [True, True]

    def refresh_then_others_work(table: Table) -> Table:
        result = refresh(table)
        if table.schema is OP and waiting:
            waiting.pop()
            with monkeypatch.context() as undone:
                undone.setattr(Table, "refresh", refresh)
                send(store)
                publish(store)
        return result

    monkeypatch.setattr(Table, "refresh", refresh_then_others_work)
    publisher.run_once()
    publisher.run_once()

    assert len(topic_rows(store)) == 3


def test_two_publishers_at_once_show_everything_once(store: Store) -> None:
    config = store.config.replace(publish_batch_rows=1)
    publishers = [Publisher(Store.open(store.location, config)) for _ in range(2)]
    stopped = threading.Event()

    def follow(publisher: Publisher) -> None:
        while not stopped.is_set():
            publisher.run_once()

    threads = [threading.Thread(target=follow, args=[publisher]) for publisher in publishers]
    for thread in threads:
        thread.start()
    send(store, 60)
    stopped.set()
    for thread in threads:
        thread.join()
    publish(store)

    ids = [row["transaction_id"] for row in topic_rows(store)]
    assert (len(ids), len(set(ids))) == (60, 60)
    assert are_gap_free(topic_rows(store))
    assert len(log_rows(store, "settled")) == 60


def test_settle_that_never_wins_gives_up(store: Store) -> None:
    send(store)

    with failing_commits(10_000, table="settled"), pytest.raises(CommitConflictError):
        publish(store)

    assert publish(store).published == 1


# --- parked topics ----------------------------------------------------------------------


def test_topic_that_fails_is_parked_and_the_others_go_on(store: Store) -> None:
    send(store, 2)
    send(store, 3, "stock")

    with failing_commits(99, error=BROKEN, table="stock"):
        result = publish(store)

    assert (result.parked, result.published) == (1, 2)
    assert list(kept_progress(store)["parked"]) == ["stock"]
    assert "broken" in kept_progress(store)["parked"]["stock"]["reason"]


@pytest.mark.parametrize("publisher_is_new", [False, True])
def test_parked_topic_catches_up_with_all_that_came_meanwhile(
    store: Store, *, publisher_is_new: bool
) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    with failing_commits(99, error=BROKEN, table="stock"):
        for _ in range(3):
            send(store, 1, "stock")
            send(store, 1)
            publisher.run_once()
    assert (len(topic_rows(store)), len(topic_rows(store, "stock"))) == (3, 0)
    clock.advance(3600)

    again = Publisher(store, clock=clock) if publisher_is_new else publisher
    again.run_once()
    send(store, 1, "stock")
    again.run_once()

    assert len(topic_rows(store, "stock")) == 4
    assert kept_progress(store)["parked"] == {}


def test_parked_topic_is_tried_again_after_growing_pauses(store: Store) -> None:
    interval_s = store.config.park_retry_interval_s
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send(store)
    tried: list[int] = []
    with failing_commits(999, error=BROKEN, table=TOPIC) as failed:
        for _ in range(8):
            publisher.run_once()
            tried.append(len(failed))
            clock.advance(interval_s)

    assert tried == [1, 2, 2, 3, 3, 3, 3, 4]


def test_rows_of_a_parked_topic_are_not_written_before_its_turn(store: Store) -> None:
    publisher = Publisher(store, clock=ManualClock())
    send(store)
    with failing_commits(1, error=BROKEN, table=TOPIC):
        publisher.run_once()
    send(store)

    publisher.run_once()

    assert topic_rows(store) == []


def test_topics_that_differ_in_case_alone_are_not_mixed(store: Store) -> None:
    append(store, "half", halves(1, messages(1, "Stock")))
    append(store, "half", halves(2, messages(1, "stock")))
    claim(store, op_row(1))
    publish(store)

    claim(store, op_row(2))
    result = publish(store)

    assert result.parked == 1
    assert "differs only in case" in kept_progress(store)["parked"]["stock"]["reason"]


def test_lost_halves_of_a_committed_transaction_are_told(store: Store) -> None:
    append(store, "half", halves(1))
    claim(store, op_row(1))
    with failing_commits(1, error=BROKEN, table="order-paid"):
        Publisher(store, clock=ManualClock()).run_once()
    half = DeltaTable(f"{store.location}/half")
    half.delete("sequence = 0")
    half.vacuum(0, dry_run=False, enforce_retention_duration=False)

    clock = ManualClock()
    clock.advance(3600)
    Publisher(store, clock=clock).run_once()

    assert [*read_set_aside(store.tables).transactions] == [transaction_id(1)]
    assert topic_rows(store) == []


# --- the op log is another one ----------------------------------------------------------


@pytest.fixture
def followed(store: Store) -> Path:
    """The op log of a store that is published up to the third of its commits."""
    op = Path(store.location, "op")
    send(store, 1)
    shutil.copytree(op, op.with_name("older-op"))
    send(store, 2)
    publish(store)
    return op


def restore(op: Path) -> None:
    shutil.rmtree(op)
    op.with_name("older-op").rename(op)


def test_restored_op_log_is_refused(store: Store, followed: Path) -> None:
    restore(followed)

    with pytest.raises(SourceRestoredError):
        publish(store)


def test_restored_op_log_that_grew_again_is_refused(store: Store, followed: Path) -> None:
    restore(followed)
    before = len(topic_rows(store))
    send(store, 5)

    with pytest.raises(SourceRestoredError):
        publish(store)
    assert len(topic_rows(store)) == before


def test_restore_is_seen_by_a_publisher_that_runs(store: Store, followed: Path) -> None:
    publisher = Publisher(store)
    publisher.run_once()
    restore(followed)
    send(store, 5)

    with pytest.raises(SourceRestoredError):
        publisher.run_once()


def test_op_log_that_was_made_anew_is_refused(store: Store, followed: Path) -> None:
    shutil.rmtree(followed)
    store.tables.table(OP, "op").writer.create(100)

    with pytest.raises(SourceRestoredError):
        publish(store)


def test_cleaned_log_of_the_op_log_is_fine(store: Store, followed: Path) -> None:
    table = DeltaTable(str(followed))
    table.create_checkpoint()
    for commit in sorted(followed.joinpath("_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    send(store)

    publish(store)

    assert len(topic_rows(store)) == 4


# --- progress ---------------------------------------------------------------------------


def test_lost_progress_only_costs_another_look(store: Store) -> None:
    send(store, 3)
    publish(store)
    shutil.rmtree(Path(store.location, "state", "publisher"))
    store.tables.register("publisher", create=True)

    send(store, 1)
    publish(store)

    assert len(topic_rows(store)) == 4


def test_publisher_that_lags_does_not_take_progress_back(store: Store) -> None:
    lagging, clock = Publisher(store), ManualClock()
    send(store)
    lagging.run_once()
    send(store, 5)
    with failing_commits(1, error=BROKEN, table="stock"):
        send(store, 1, "stock")
        Publisher(store, clock=clock).run_once()
    reached = kept_progress(store)

    lagging.run_once()

    assert kept_progress(store)["low_water_version"] >= reached["low_water_version"]
    # It may have written the topic itself, and then may have said so.
    has_stock = store.tables.table_at("topics/stock").exists()
    is_caught_up = has_stock and len(topic_rows(store, "stock")) == 1
    assert is_caught_up or list(kept_progress(store)["parked"]) == ["stock"]


# --- start() ----------------------------------------------------------------------------


@pytest.fixture(params=["on Spark", "without Spark"])
def session(request: pytest.FixtureRequest, spark: Any) -> Any:
    return spark if request.param == "on Spark" else None


@pytest.fixture
def started(store: Store, session: Any) -> Iterator[tuple[Publisher, Restarting]]:
    publisher = Publisher(store, spark=session)
    handle = publisher.start()
    yield publisher, handle
    handle.stop()


def test_started_publisher_follows_the_op_log(
    store: Store, started: tuple[Publisher, Restarting]
) -> None:
    for number in range(3):
        send(store)
        wait_until(lambda expected=number + 1: len(topic_rows(store)) == expected)

    assert started[1].is_alive
    assert started[1].exception is None


def test_stopped_publisher_writes_nothing_more(
    store: Store, started: tuple[Publisher, Restarting]
) -> None:
    publisher, handle = started
    handle.stop()
    handle.stop()
    before = table_versions(store)
    send(store)

    assert not handle.is_alive
    assert table_versions(store)["settled"] == before["settled"]
    assert list(Path(store.location, "checkpoints").glob("services/*")) == []
    assert publisher.run_once().published == 1


def test_publisher_goes_on_after_a_failure_that_passes_without_another_claim(
    tmp_path: Path, session: Any
) -> None:
    # Longer than the test waits: nothing but the failure itself makes it look again.
    store = Store.create(str(tmp_path / "store"), config=Config(publish_drain_s=600.0))
    handle = Publisher(store, spark=session).start()
    with failing_commits(1, error=BROKEN, table="settled") as failed:
        send(store)
        wait_until(lambda: bool(failed))
    wait_until(lambda: len(topic_rows(store)) == 1)
    is_alive = handle.is_alive
    handle.stop()

    assert is_alive


def broken_turn(publisher: Publisher, stopping: threading.Event) -> None:  # noqa: ARG001
    raise ZeroDivisionError(publisher.name)


def test_publisher_without_spark_is_started_anew_where_its_thread_breaks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Publisher(store).start()
    with monkeypatch.context() as broken:
        broken.setattr(Publisher, "_advance", broken_turn)
        send(store)
        wait_until(lambda: handle._breaks > 1)
    wait_until(lambda: len(topic_rows(store)) == 1)
    handle.stop()

    assert not handle.is_alive
    assert handle.exception is None


def test_restored_op_log_ends_the_service_and_says_why(store: Store, session: Any) -> None:
    op = Path(store.location, "op")
    shutil.copytree(op, op.with_name("older-op"))
    send(store, 2)
    handle = Publisher(store, spark=session).start()
    wait_until(lambda: commits(store, "settled") > 0)

    restore(op)
    send(store, 5)

    wait_until(lambda: not handle.is_alive)
    assert "SourceRestoredError" in repr(handle.exception)
    handle.stop()
