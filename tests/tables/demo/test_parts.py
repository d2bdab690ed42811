"""The demo's plan, the dispatchers' own tables and what the report counts; no Spark, no process."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from txmq.errors import EnvironmentProblemError, StoreExistsError
from txmq.listeners.protocol import HalfMessage
from txmq.maintenance.compaction import compact
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.demo.books import Books, DepartureListener, FencedError
from txmq.ops.demo.folder import DISPATCHER_PROPERTY, GROUP, DemoFolder
from txmq.ops.demo.plan import (
    COURSES,
    Decision,
    Fate,
    Flight,
    PlannedTransaction,
    load_flights,
    make_plan,
)
from txmq.ops.demo.reader import Exactness, PlainReader
from txmq.ops.demo.screen import percentile
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLIGHTS = 300
COMMITS = 9
MEBIBYTE = 1024 * 1024
FLIGHT = Flight(7, "2013-01-01", "UA", "UA1545", "EWR", "IAH", 20)


@pytest.fixture
def folder(tmp_path: Path) -> DemoFolder:
    return DemoFolder(tmp_path)


@pytest.fixture
def books(folder: DemoFolder) -> Iterator[Books]:
    opened = Books(folder.books(0))
    yield opened
    opened.close()


@pytest.fixture
def listener(folder: DemoFolder) -> Iterator[DepartureListener]:
    made = DepartureListener(folder)
    yield made
    made.close()


def planned(fate: Fate, unknown_checks: int = 0) -> PlannedTransaction:
    return PlannedTransaction(3, fate, unknown_checks, (FLIGHT,))


def asked(transaction_id: str, check_times: int = 0) -> HalfMessage:
    return HalfMessage(
        transaction_id=transaction_id,
        message_id=f"{transaction_id}:0",
        producer_group=GROUP,
        topic="flight-departed",
        body=b"",
        tags=None,
        keys=None,
        properties={DISPATCHER_PROPERTY: "0"},
        sharding_key=None,
        born_timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        message_count=1,
        check_times=check_times,
    )


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    flights = load_flights(FLIGHTS)
    plan = make_plan(flights, seed=13, kills=6)
    assert plan == make_plan(flights, seed=13, kills=6)
    assert plan != make_plan(flights, seed=14, kills=6)


def test_a_plan_holds_every_flight_once_and_every_fate() -> None:
    flights = load_flights(FLIGHTS)
    plan = make_plan(flights, seed=13, kills=6)
    assert [flight for transaction in plan for flight in transaction.flights] == list(flights)
    assert [transaction.number for transaction in plan] == list(range(len(plan)))
    fates = Counter(transaction.fate for transaction in plan)
    assert set(fates) == set(Fate) == set(COURSES)
    assert fates[Fate.KILLED_BEFORE] == fates[Fate.KILLED_AFTER] == 3
    assert fates[Fate.COMMIT] > len(plan) / 2


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_plan_may_be_tiny(count: int) -> None:
    plan = make_plan(load_flights(count), seed=13, kills=24)
    assert sum(len(transaction.flights) for transaction in plan) == count


def test_a_plan_survives_its_file(folder: DemoFolder) -> None:
    plan = make_plan(load_flights(FLIGHTS), seed=13, kills=6)
    folder.keep_plan(1, plan)
    assert folder.plan(1) == list(plan)


def test_a_flight_goes_to_the_topics_of_its_status() -> None:
    flights = load_flights(2_000)
    assert FLIGHT.topics == ("flight-departed", "flight-delayed")
    topics = Counter(flight.topics for flight in flights)
    assert set(topics) == {
        ("flight-departed",),
        ("flight-departed", "flight-delayed"),
        ("flight-cancelled",),
    }


def test_without_the_flights_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmq.ops.demo.plan.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentProblemError, match=r"extra demo"):
        load_flights(1)


def test_a_folder_that_holds_something_is_left_alone(folder: DemoFolder) -> None:
    kept = folder.path / "kept.txt"
    kept.write_text("mine", encoding="utf-8")
    with pytest.raises(StoreExistsError):
        folder.make()
    assert kept.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (Decision.DONE, LocalTransactionState.COMMIT),
        (Decision.REFUSED, LocalTransactionState.ROLLBACK),
        (Decision.OPEN, LocalTransactionState.UNKNOWN),
    ],
)
def test_the_row_is_the_answer(
    books: Books,
    listener: DepartureListener,
    decision: Decision,
    answer: LocalTransactionState,
) -> None:
    transaction_id = new_transaction_id(0)
    books.record(planned(Fate.COMMIT), transaction_id, decision)
    assert listener.check_local_transaction(asked(transaction_id)) is answer
    assert len(books.departures()) == (decision is Decision.DONE)
    assert books.has_finished(3)


def test_an_unsure_listener_answers_later(books: Books, listener: DepartureListener) -> None:
    transaction_id = new_transaction_id(0)
    books.record(planned(Fate.LATE_COMMIT, unknown_checks=2), transaction_id, Decision.DONE)
    answers = [listener.check_local_transaction(asked(transaction_id, n)) for n in range(3)]
    states = LocalTransactionState
    assert answers == [states.UNKNOWN, states.UNKNOWN, states.COMMIT]


def test_after_a_rollback_the_local_transaction_cannot_land_any_more(
    books: Books, listener: DepartureListener
) -> None:
    transaction_id = new_transaction_id(0)
    answer = listener.check_local_transaction(asked(transaction_id))
    assert answer is LocalTransactionState.ROLLBACK
    with pytest.raises(FencedError):
        books.record(planned(Fate.COMMIT), transaction_id, Decision.DONE)
    assert books.departures() == []
    assert not books.has_finished(3)
    books.record(planned(Fate.COMMIT), new_transaction_id(1), Decision.DONE)
    assert len(books.departures()) == 1


def test_exactness_counts_what_is_missing_doubled_and_from_nowhere() -> None:
    done = Counter({("t", 1, "a"): 1, ("t", 2, "b"): 1})
    visible = Counter({("t", 2, "b"): 2, ("t", 3, "c"): 1})
    exactness = Exactness.of(done, visible)
    assert exactness.missing == Counter({("t", 1, "a"): 1})
    assert exactness.surplus == Counter({("t", 2, "b"): 1, ("t", 3, "c"): 1})
    assert not exactness.is_clean
    assert Exactness.of(done, done).is_clean


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([5.0], 0.99) == 5.0


def test_every_fate_has_one_end() -> None:
    ends = {course.state for course in COURSES.values()}
    assert ends == {
        TransactionState.COMMITTED,
        TransactionState.ROLLED_BACK,
        TransactionState.DISCARDED,
    }


# --- the plain reader ---------------------------------------------------------------------------


def depart(producer: TransactionProducer, publisher: Publisher, number: int) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(Message("flight-departed", b"", keys=str(number), tags="UA"))
        transaction.prepare()
        transaction.commit()
    publisher.run_once()


def test_rows_that_compaction_wrote_again_are_not_counted_again(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    reader = PlainReader(store)
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(COMMITS):
            depart(producer, publisher, number)
            reader.read_topics()
        topic = store.tables.table_at("topics/flight-departed")
        assert compact(topic, MEBIBYTE).files_before > 1
        reader.read_topics()
        assert reader.ledger.visible == COMMITS
        depart(producer, publisher, COMMITS)
        reader.read_topics()
        reader.read_logs()
    assert reader.ledger.visible == COMMITS + 1
    assert reader.ledger.in_state(TransactionState.COMMITTED) == COMMITS + 1
