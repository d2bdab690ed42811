"""Hooks that are off when what they watch is made, and hooks that break, with real tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import NoOpTracerProvider

from tests.kit.check_world import COMMIT
from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import GROUP, TOPIC
from tests.kit.spans import Spans
from txmq.check.recheck import RecheckJob
from txmq.message.message import Message
from txmq.ops import tracing
from txmq.ops.tracing import OpenTelemetryHook
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher

LATER = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-"


class Listener:
    """Answers COMMIT."""

    def execute_local_transaction(self, _: object, __: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, _: object) -> Any:
        return COMMIT


class Hooked(ConsumerWorld):
    """All its services have one hook."""

    def watch(self, hook: Any) -> None:
        self.hooks = [hook]
        self.publisher = Publisher(self.store, clock=self.clock, hooks=self.hooks)
        self.producer.close()
        self.producer = TransactionProducer(
            self.store, producer_group=GROUP, clock=self.clock, hooks=self.hooks
        )
        self.recheck = RecheckJob(
            self.store, listeners={GROUP: Listener()}, clock=self.clock, hooks=self.hooks
        )
        self.reader = self.consumer(hooks=self.hooks)

    def run(self) -> list[bytes]:
        """One commit, one lost end, an asynchronous send; what a handler then gets."""
        kept, lost = (self.producer.begin_transaction() for _ in range(2))
        for transaction, body in ((kept, b"kept"), (lost, b"lost")):
            transaction.send(Message(TOPIC, body))
            transaction.prepare()
        kept.commit()
        self.producer.send_async(Message(TOPIC, b"async")).result()
        self.clock.advance(3600)
        self.recheck.run_once()
        self.publisher.run_once()
        seen: list[bytes] = []
        self.reader.run_once(lambda message: seen.append(message.body))
        self.reader.run_once(lambda message: seen.append(message.body))
        return sorted(seen)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Hooked]:
    made = Hooked(tmp_path)
    yield made
    made.close()


ALL = [b"async", b"kept", b"lost"]


def test_sdk_that_is_set_up_later_gets_all_spans(
    world: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider: list[Any] = [NoOpTracerProvider()]
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider[0])
    monkeypatch.setattr(tracing, "LOOK_INTERVAL_S", 0.0)
    world.watch(OpenTelemetryHook())
    spans = Spans()
    provider[0] = spans.provider

    assert world.run() == ALL
    told = {name.split()[0] for name in spans.names()}
    assert told == {"send", "local_transaction", "commit", "check", "publish", "process"}


class Cancelled:
    """Breaks wherever it can, by what is no Exception."""

    def _break(self, *_: object) -> Any:
        raise asyncio.CancelledError

    before_send = after_send = end_transaction = _break

    def begin_operation(self, _: object) -> Cancelled:
        return self

    end = _break


class Unsure(Cancelled):
    """Does not even say whether it is on."""

    @property
    def is_on(self) -> bool:
        raise StopIteration


class Wrong(Cancelled):
    """Returns a context that cannot be written."""

    def before_send(self, *_: object) -> Any:
        return {"traceparent": f"{LATER}\ud800"}


@pytest.mark.parametrize("hook", [Cancelled, Unsure, Wrong])
def test_outcome_is_that_without_the_hook(world: Hooked, hook: type[Any]) -> None:
    world.watch(hook())

    assert world.run() == ALL
    assert world.sent_back.messages == []
    assert world.publisher.run_once().published == 0


def test_provider_that_cannot_be_loaded_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[None] = []

    def missing() -> Any:
        looks.append(None)
        raise StopIteration

    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", missing)
    monkeypatch.setattr(tracing, "LOOK_INTERVAL_S", 0.0)
    hook = OpenTelemetryHook()
    # OpenTelemetry writes a traceback at each look.
    assert [hook.is_on, hook.is_on, len(looks)] == [False, False, 1]

    hook._look()
    assert caplog.text.count("OpenTelemetry has no provider: StopIteration") == 1
