"""Spans from the producer to the consumer, by a real SDK; what was sent never depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from tests.kit.check_world import COMMIT, UNKNOWN
from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import GROUP, TOPIC
from tests.kit.spans import Spans, attribute, parent_of, trace_of
from txmq.check.recheck import RecheckJob
from txmq.consumer.send_back import SendBack
from txmq.errors import DifferentMessagesError, StoreFullError
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.message.trace_context import with_trace_context
from txmq.ops.tracing import OpenTelemetryHook
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish import announcement as publish_watch
from txmq.publish.publisher import Publisher
from txmq.testing import failing_commits

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = "private-body"


class TracedWorld(ConsumerWorld):
    """Its producer, publisher and consumers have the hook."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.spans = Spans()
        hooks = [self.spans.hook]
        self.publisher = Publisher(self.store, clock=self.clock, hooks=hooks)
        self.producer = TransactionProducer(
            self.store, producer_group=GROUP, clock=self.clock, listener=Bank(self.spans),
            hooks=hooks,
        )  # fmt: skip

    def prepared(self, *messages: Message) -> Transaction:
        transaction = self.producer.begin_transaction()
        for message in messages or (Message(TOPIC, BODY.encode(), keys="order-1"),):
            transaction.send(message)
        transaction.prepare()
        return transaction

    def properties(self) -> list[dict[str, str]]:
        return [dict(row["properties"] or ()) for row in self.rows()]


class Bank:
    """A listener with a span of its own, as a driver of a database makes one."""

    def __init__(self, spans: Spans) -> None:
        self._tracer = spans.provider.get_tracer("bank")

    def execute_local_transaction(self, _: HalfMessage, __: object) -> LocalTransactionState:
        with self._tracer.start_as_current_span("UPDATE accounts"):
            return COMMIT

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        with self._tracer.start_as_current_span("SELECT accounts"):
            return COMMIT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TracedWorld]:
    made = TracedWorld(tmp_path)
    yield made
    made.close()


def consumed(world: TracedWorld, handler: Any = lambda _: None) -> None:
    world.consumer(hooks=[world.spans.hook]).run_once(handler)


def test_one_trace_leads_from_the_producer_to_the_consumer(world: TracedWorld) -> None:
    tracer = world.spans.provider.get_tracer("shop")
    with tracer.start_as_current_span("POST /orders"):
        world.prepared().commit()
    world.publisher.run_once()
    consumed(world)

    steps = ("local_transaction", "commit", "publish", "process")
    names = {f"{step} {TOPIC}" for step in ("send", *steps)}
    assert list(world.spans.by_trace().values()) == [{"POST /orders", *names}]
    send = world.spans.one(f"send {TOPIC}")
    assert send.context is not None
    assert parent_of(send) is not None
    children = [world.spans.one(f"{step} {TOPIC}") for step in steps]
    assert {parent_of(span) for span in children} == {send.context.span_id}
    internal = SpanKind.INTERNAL
    assert [span.kind for span in (send, *children)] == [
        SpanKind.PRODUCER, internal, internal, internal, SpanKind.CONSUMER,
    ]  # fmt: skip
    ends = [span.end_time or 0 for span in (send, *children)]
    assert ends == sorted(ends)


def test_attributes_are_those_of_the_conventions(world: TracedWorld) -> None:
    transaction = world.prepared()
    transaction.rollback()
    world.prepared(Message(TOPIC, b"1"), Message(TOPIC, b"2")).commit()
    world.publisher.run_once()
    consumed(world)

    one, many = world.spans.named(f"send {TOPIC}")
    assert dict(one.attributes or {}) == {
        "messaging.system": "txmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.message.id": f"{transaction.id}:0",
        "txmq.producer.group": GROUP,
        "txmq.transaction.id": transaction.id,
    }
    assert attribute(many, "messaging.batch.message_count") == 2
    assert attribute(world.spans.one(f"rollback {TOPIC}"), "txmq.outcome") == "ROLLED_BACK"
    published = world.spans.one(f"publish {TOPIC}")
    assert attribute(published, "messaging.batch.message_count") == 2
    process, _ = world.spans.named(f"process {TOPIC}")
    assert attribute(process, "messaging.operation.type") == "process"
    assert attribute(process, "messaging.consumer.group.name") == "billing"
    assert [link.context.span_id for link in process.links] == [parent_of(process)]
    assert BODY not in "".join(span.to_json() for span in world.spans.all())


@pytest.mark.parametrize("answers", ["one by one", "as a set"])
def test_check_of_a_lost_end_is_in_the_trace(world: TracedWorld, answers: str) -> None:
    lost = world.prepared()
    world.clock.advance(3600)
    listener: Any = world.producer._listener if answers == "one by one" else Ledger()
    RecheckJob(
        world.store, listeners={GROUP: listener}, clock=world.clock, hooks=[world.spans.hook]
    ).run_once()
    world.publisher.run_once()
    consumed(world)

    (names,) = world.spans.by_trace().values()
    steps = {f"{step} {TOPIC}" for step in ("send", "check", "publish", "process")}
    assert names - {"SELECT accounts"} == steps
    check = world.spans.one(f"check {TOPIC}")
    assert attribute(check, "txmq.outcome") == "COMMIT"
    assert attribute(check, "txmq.transaction.id") == lost.id
    if answers == "one by one":
        assert check.context is not None
        assert parent_of(world.spans.one("SELECT accounts")) == check.context.span_id


class Ledger:
    """Answers for all transactions in one call."""

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        states = pa.array([COMMIT.value] * heads.num_rows)
        return pa.table({"transaction_id": heads["transaction_id"], "state": states})


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_spans_of_the_local_transaction_are_in_the_trace(
    world: TracedWorld, *, is_waited_for: bool
) -> None:
    if is_waited_for:
        world.producer.send_message_in_transaction(Message(TOPIC, b"1"))
    else:
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"1")).result()

    steps = {f"{step} {TOPIC}" for step in ("send", "local_transaction", "commit")}
    assert list(world.spans.by_trace().values()) == [{*steps, "UPDATE accounts"}]
    assert attribute(world.spans.one(f"local_transaction {TOPIC}"), "txmq.outcome") == "COMMIT"


def test_all_ways_to_send_carry_the_trace(world: TracedWorld) -> None:
    world.producer.send(Message(TOPIC, b"1"))
    world.producer.send_async(Message(TOPIC, b"2")).result()
    transaction = world.producer.begin_transaction()
    transaction.send(Message(TOPIC, b"3"))
    transaction.prepare_async().result()
    transaction.commit_async().result()
    world.publisher.run_once()

    traces = {int(one["traceparent"].split("-")[1], 16) for one in world.properties()}
    assert traces == {trace_of(span) for span in world.spans.named(f"send {TOPIC}")}
    assert len(traces) == 3


def test_delayed_message_is_scheduled_and_then_published(world: TracedWorld) -> None:
    world.producer.send(Message(TOPIC, b"later", delay_s=60))
    world.publisher.run_once()
    world.after(61)
    consumed(world)

    steps = {f"{step} {TOPIC}" for step in ("send", "schedule", "publish", "process")}
    assert list(world.spans.by_trace().values()) == [steps]


def test_retry_of_a_message_that_failed_is_in_the_same_trace(world: TracedWorld) -> None:
    def fails(_: Any) -> None:
        raise ValueError(BODY)

    world.producer.send(Message(TOPIC, b"1"))
    world.publisher.run_once()
    sends_back = SendBack(world.store, "billing", clock=world.clock)
    consumer = world.consumer(hooks=[world.spans.hook], sends_back=sends_back)
    consumer.run_once(fails)
    world.publisher.run_once()
    world.after(3600)
    consumer.run_once(lambda _: None)

    first, second = world.spans.named(f"process {TOPIC}")
    assert trace_of(first) == trace_of(second)
    assert first.status.status_code is StatusCode.ERROR
    assert attribute(first, "error.type") == "ValueError"
    assert second.status.status_code is StatusCode.UNSET
    assert BODY not in first.to_json()


def test_messages_that_are_polled_have_a_span_where_asked_for(world: TracedWorld) -> None:
    world.producer.send(Message(TOPIC, b"1"))
    world.publisher.run_once()
    (message,) = world.consumer().poll(timeout_s=0)
    with world.spans.hook.processing(message, "billing"):
        pass

    process = world.spans.one(f"process {TOPIC}")
    assert trace_of(process) == trace_of(world.spans.one(f"send {TOPIC}"))


# --- many traces in one commit ------------------------------------------------------------------


def test_each_trace_in_a_commit_has_its_span_up_to_a_bound(
    world: TracedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_watch, "TOLD_MAX", 3)
    for number in range(5):
        world.producer.send([Message(TOPIC, b"%d" % number)] * 2)
    assert world.publisher.run_once().topic_commits == 1

    published = world.spans.named(f"publish {TOPIC}")
    sent = [trace_of(span) for span in world.spans.named(f"send {TOPIC}")]
    assert [trace_of(span) for span in published] == sent[:3]
    assert {attribute(span, "messaging.batch.message_count") for span in published} == {2}


def test_messages_without_a_trace_cost_no_span(world: TracedWorld) -> None:
    with TransactionProducer(world.store, producer_group="plain", clock=world.clock) as plain:
        plain.send([Message(TOPIC, b"1")] * 3)
    assert world.publisher.run_once().published == 3

    assert world.spans.names() == []


def test_file_that_cannot_be_searched_harms_no_message(
    world: TracedWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError(BODY)

    monkeypatch.setattr(publish_watch, "operations", broken)
    world.producer.send(Message(TOPIC, b"1"))

    assert world.publisher.run_once().published == 1
    assert "hooks hear of no message in order-paid: OSError" in caplog.text
    assert BODY not in caplog.text


# --- what is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [None, NoOpTracerProvider()])
def test_without_an_sdk_messages_stay_as_they_are(world: TracedWorld, provider: Any) -> None:
    hook = OpenTelemetryHook(provider)
    with TransactionProducer(
        world.store, producer_group=GROUP, clock=world.clock, hooks=[hook]
    ) as producer:
        producer.send(Message(TOPIC, b"1", properties={"own": "1"}))
    world.publisher.run_once()

    assert not hook.is_on
    assert world.properties() == [{"own": "1"}]


def test_context_of_the_user_stays(world: TracedWorld) -> None:
    world.prepared(with_trace_context(Message(TOPIC, b"1"), PARENT), Message(TOPIC, b"2")).commit()
    world.publisher.run_once()

    parents = [one["traceparent"] for one in world.properties()]
    assert PARENT in parents
    assert len(set(parents)) == 2
    assert len(world.spans.named(f"publish {TOPIC}")) == 2


def test_message_without_room_for_a_context_goes_without_it(tmp_path: Path) -> None:
    world = TracedWorld(tmp_path, max_properties_size_bytes=80)
    own = {"own": "1" * 40}
    world.producer.send([Message(TOPIC, b"1", properties=own), Message(TOPIC, b"2")])
    world.publisher.run_once()
    world.producer.close()

    assert sorted(map(list, world.properties())) == [["own"], ["traceparent"]]


def test_retry_of_a_key_has_another_trace_and_the_same_messages(world: TracedWorld) -> None:
    def tried(body: bytes) -> Transaction:
        key: Mapping[str, Any] = {"idempotency_key": "invoices", "key_timestamp": world.now}
        transaction = world.producer.begin_transaction(**key)
        transaction.send(Message(TOPIC, body))
        transaction.prepare()
        return transaction

    tried(b"1")
    with pytest.raises(DifferentMessagesError):
        tried(b"2")
    tried(b"1").commit()
    world.publisher.run_once()

    assert world.visible() == ["1"]


class BrokenProvider(TracerProvider):
    """Has no tracer that works."""

    def get_tracer(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(BODY)


def test_nothing_that_breaks_in_spans_harms_what_they_watch(
    world: TracedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.spans.hook = OpenTelemetryHook(BrokenProvider())
    hooks = [world.spans.hook]
    listener = Bank(Spans())
    publisher = Publisher(world.store, clock=world.clock, hooks=hooks)
    with TransactionProducer(
        world.store, producer_group=GROUP, clock=world.clock, listener=listener, hooks=hooks
    ) as producer:
        producer.send_message_in_transaction(with_trace_context(Message(TOPIC, b"1"), PARENT))
        assert publisher.run_once().published == 1
    handled: list[bytes] = []
    consumed(world, lambda message: handled.append(message.body))

    assert handled == [b"1"]
    assert "raised RuntimeError" in caplog.text
    assert BODY not in caplog.text


def test_send_that_fails_says_so(world: TracedWorld) -> None:
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full, table="half"), pytest.raises(StoreFullError):
        world.prepared()

    send = world.spans.one(f"send {TOPIC}")
    assert send.status.status_code is StatusCode.ERROR
    assert attribute(send, "error.type") == "StoreFullError"


def test_local_transaction_that_is_not_known_to_have_happened_is_told(
    world: TracedWorld,
) -> None:
    class Doubtful(Bank):
        def execute_local_transaction(self, *_: object) -> LocalTransactionState:
            return UNKNOWN

    with TransactionProducer(
        world.store, producer_group=GROUP, clock=world.clock, listener=Doubtful(world.spans),
        hooks=[world.spans.hook],
    ) as producer:  # fmt: skip
        producer.send_message_in_transaction(Message(TOPIC, b"1"))

    assert world.spans.names() == [f"send {TOPIC}", f"local_transaction {TOPIC}"]
    assert attribute(world.spans.one(f"local_transaction {TOPIC}"), "txmq.outcome") == "UNKNOWN"
