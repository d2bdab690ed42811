"""Figures are equal to a count over the tables that shares no code with them (I25)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.consumer_world import ConsumerWorld, drained
from tests.kit.counted import OF_TOPIC, QUESTIONS, counted
from tests.kit.delay_world import TOPIC
from txmq.errors import StorageError
from txmq.ground.histogram import NO_DURATIONS
from txmq.message.message import Message
from txmq.ops.admin.status import Admin, Status
from txmq.ops.broker import Broker
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics.figures import Latencies
from txmq.ops.metrics.formats import exposition
from txmq.ops.metrics.meter import Meter, MeterHandle
from txmq.ops.metrics.service import MetricsService
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction

OPEN, COMMITTED, ROLLED_BACK, DELAYED = 3, 7, 2, 4
AGES = ("5", "60", "600")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figure(values: Samples, name: str, **labels: str) -> float:
    return values[name, tuple(sorted(labels.items()))]


def transaction(producer: TransactionProducer, number: int) -> Transaction:
    """Prepare a transaction with a message for each of two topics."""
    made = producer.begin_transaction()
    made.send(Message(TOPIC, b"%d" % number))
    made.send(Message("stock", b"%d" % number))
    made.prepare()
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    world = ConsumerWorld(tmp_path)
    for number in range(COMMITTED):
        transaction(world.producer, number).commit()
    for number in range(ROLLED_BACK):
        transaction(world.producer, number).rollback()
    for number in range(OPEN):
        transaction(world.producer, number)
    world.producer.send([Message(TOPIC, b"later", delay_s=60)] * DELAYED)
    world.publisher.run_once()
    yield world
    for consumer in world.consumers:
        consumer.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_figures_equal_a_count_over_the_tables(world: ConsumerWorld, *, is_late: bool) -> None:
    if is_late:
        world.after(61)
    values = samples(MetricsService(world.store, clock=world.clock).run_once())

    truth = counted(world.store)
    labels = {name: {"topic": TOPIC} if name in OF_TOPIC else {} for name in truth}
    assert {name: figure(values, name, **labels[name]) for name in truth} == truth
    assert truth.keys() == QUESTIONS.keys()
    assert values["txmq_scheduled_messages", ()] == (0 if is_late else DELAYED)
    assert values["txmq_open_transactions", ()] == OPEN


def test_age_of_what_is_open_is_counted_by_bounds(world: ConsumerWorld) -> None:
    world.clock.advance(300)
    values = samples(MetricsService(world.store, clock=world.clock).run_once())

    older = {s: figure(values, "txmq_open_transactions_older_than", seconds=s) for s in AGES}
    assert older == {"5": OPEN, "60": OPEN, "600": 0.0}
    assert figure(values, "txmq_oldest_open_half_age_seconds") >= 300


def test_delayed_message_that_nobody_delivers_is_overdue(world: ConsumerWorld) -> None:
    before = samples(MetricsService(world.store, clock=world.clock).run_once())
    world.clock.advance(100)
    after = samples(MetricsService(world.store, clock=world.clock).run_once())

    assert figure(before, "txmq_delay_lag_seconds") == 0
    assert figure(after, "txmq_delay_lag_seconds") == pytest.approx(40, abs=5)


def test_what_is_not_published_lags(world: ConsumerWorld) -> None:
    transaction(world.producer, 0).commit()
    world.clock.advance(7)

    values = samples(MetricsService(world.store, clock=world.clock).run_once())

    assert figure(values, "txmq_publish_lag_commits") == 1
    assert figure(values, "txmq_publish_lag_seconds") >= 7
    assert figure(values, "txmq_commits_total") == COMMITTED + 2


def test_lag_of_a_group_is_what_it_has_not_consumed(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    first = drained(consumer, 1)[:1]
    consumer.commit()
    consumed = figure_of_lag(world)
    transaction(world.producer, 1).commit()
    world.publisher.run_once()

    assert first
    assert consumed == 0
    assert figure_of_lag(world) == 1


def figure_of_lag(world: ConsumerWorld) -> float:
    values = samples(MetricsService(world.store, clock=world.clock).run_once())
    return figure(values, "txmq_consumer_lag_messages", consumer_group="billing", topic=TOPIC)


def test_group_whose_state_cannot_be_read_is_counted_until_it_can(world: ConsumerWorld) -> None:
    world.consumer().poll(1, timeout_s=0)
    newest = max(Path(world.store.location, "state", "group_billing", "_delta_log").glob("*.json"))
    content, service = newest.read_bytes(), MetricsService(world.store, clock=world.clock)

    counts = []
    for written in (content, b"", b"", content):
        newest.write_bytes(written)
        values = samples(service.run_once())
        counts.append(figure(values, "txmq_unreadable_consumer_groups"))

    assert counts == [0, 1, 1, 0]


def test_latencies_are_counted_once_for_each_end(world: ConsumerWorld) -> None:
    ended, shown = world.publisher.total.end_latency, world.publisher.total.publish_latency

    # The batch of delayed messages is committed with its halves.
    assert ended.total == COMMITTED + ROLLED_BACK + 1
    assert shown.total == ended.total
    world.clock.advance(75)
    world.deliver()
    lateness = world.service.total.lateness
    assert lateness.total == DELAYED
    assert lateness.sum_s == pytest.approx(15 * DELAYED, abs=5 * DELAYED)


def test_broker_counts_beside_the_store(world: ConsumerWorld) -> None:
    broker = Broker(world.store, clock=world.clock)
    broker.run_once()

    class Watched:
        def counts(self) -> BrokerCounts:
            return BrokerCounts(published=11)

        def latencies(self) -> Latencies:
            return Latencies(publish=NO_DURATIONS)

        def services(self) -> Mapping[str, bool]:
            return {"publisher": True}

    values = samples(MetricsService(world.store, broker=Watched(), clock=world.clock).run_once())

    assert figure(values, "txmq_published_messages_total") == 11
    assert figure(values, "txmq_service_up", service="publisher") == 1


def test_count_that_fails_leaves_the_last_figures(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(world.store, clock=world.clock)
    meter.count()
    assert meter.has_counted

    def fails(_: Admin) -> Status:
        raise StorageError("op", "is gone")

    monkeypatch.setattr(Admin, "status", fails)
    with pytest.raises(StorageError):
        meter.count()

    values = samples(exposition(meter.figures()))
    assert not meter.has_counted
    assert figure(values, "txmq_count_failures") == 1
    assert figure(values, "txmq_open_transactions") == OPEN


def test_thread_that_counts_survives_a_failure_and_rests_after_a_long_count() -> None:
    took_s = iter([StorageError("op", "is gone"), 2.0])
    both = threading.Event()

    def count() -> float:
        value = next(took_s, None)
        if value is None:
            return 0.0
        if isinstance(value, Exception):
            raise value
        both.set()
        return value

    handle = MeterHandle(count, interval_s=0.0)
    assert both.wait(60)
    handle.stop()

    assert handle.exception is None
    assert handle.pause_s == 40.0


def test_nothing_is_written(world: ConsumerWorld) -> None:
    before = {path for path in Path(world.store.location).rglob("*") if path.is_file()}

    MetricsService(world.store, clock=world.clock).run_once()

    assert {path for path in Path(world.store.location).rglob("*") if path.is_file()} == before
