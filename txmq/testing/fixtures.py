"""Fixtures of pytest: a real store in a temporary folder, on a clock that stands still.

pytest loads this module wherever txmq is installed, so it imports no more than it must.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txmq.testing.clocks import ManualClock

if TYPE_CHECKING:
    from txmq.consumer.pull import PullConsumer
    from txmq.listeners.protocol import CheckListener
    from txmq.message.received import ReceivedMessage
    from txmq.ops.admin.dead_letters import DeadLetter
    from txmq.producer.producer import TransactionProducer
    from txmq.store.config import Config
    from txmq.store.store import Store
    from txmq.testing.stepped_broker import SteppedBroker

PRODUCER_GROUP = "txmq-tests"


@pytest.fixture
def txmq_clock() -> ManualClock:
    """Return a clock that stands still; it begins at the time of this machine."""
    # What a test makes without this clock has nearly the same time.
    return ManualClock(now_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def txmq_config() -> Config | None:
    """Return the settings of `txmq_store`; override it for others."""
    return None


@pytest.fixture
def txmq_listeners() -> Mapping[str, CheckListener]:
    """Return the listeners of `txmq_broker` by producer group; override it to name yours."""
    return {}


@pytest.fixture
def txmq_store(tmp_path: Path, txmq_clock: ManualClock, txmq_config: Config | None) -> Store:
    """Make a new store in the folder of the test."""
    from txmq.store.store import Store

    return Store.create(tmp_path / "txmq-store", txmq_config, clock=txmq_clock)


@pytest.fixture
def txmq_producer(txmq_store: Store, txmq_clock: ManualClock) -> Iterator[TransactionProducer]:
    """Make a producer of the group `txmq-tests`; the end of the test closes it."""
    from txmq.producer.producer import TransactionProducer

    with TransactionProducer(
        txmq_store, producer_group=PRODUCER_GROUP, clock=txmq_clock
    ) as producer:
        yield producer


@pytest.fixture
def txmq_broker(
    txmq_store: Store, txmq_clock: ManualClock, txmq_listeners: Mapping[str, CheckListener]
) -> SteppedBroker:
    """Make all services of the store: `run()` does what is due, `run_for(60)` lets time pass."""
    from txmq.testing.stepped_broker import SteppedBroker

    return SteppedBroker(txmq_store, txmq_clock, listeners=txmq_listeners)


@pytest.fixture
def txmq_published(
    txmq_store: Store, txmq_broker: SteppedBroker
) -> Callable[[str], list[ReceivedMessage]]:
    """Make `txmq_published("order-paid")`: it publishes what is due, returns the messages."""
    from txmq.testing.stepped_broker import published_messages

    def published(topic: str) -> list[ReceivedMessage]:
        txmq_broker.run()
        return published_messages(txmq_store, topic)

    return published


@pytest.fixture
def txmq_consumer(
    txmq_store: Store, txmq_clock: ManualClock
) -> Iterator[Callable[..., PullConsumer]]:
    """Make `txmq_consumer("billing", "order-paid")`: it joins a group until the end of the test."""
    from txmq.consumer.pull import PullConsumer

    with ExitStack() as stack:

        def consumer(consumer_group: str, topics: Any, **options: Any) -> PullConsumer:
            arguments = {"consumer_group": consumer_group, "topics": topics, "clock": txmq_clock}
            return stack.enter_context(PullConsumer(txmq_store, **{**arguments, **options}))

        yield consumer


@pytest.fixture
def txmq_dead_letters(
    txmq_store: Store, txmq_clock: ManualClock, txmq_broker: SteppedBroker
) -> Callable[[str], tuple[DeadLetter, ...]]:
    """Make `txmq_dead_letters("billing")`: it publishes what is due, returns dead letters."""
    from txmq.ops.admin.dead_letters import DeadLetters

    def dead_letters(consumer_group: str) -> tuple[DeadLetter, ...]:
        txmq_broker.run()
        return DeadLetters(txmq_store, consumer_group, clock=txmq_clock).all()

    return dead_letters
