"""Trace records and the hook that writes them (R90); RocketMQ's TraceDataEncoderTest, restated."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import transaction_id
from tests.kit.reading import wait_until
from txmq.errors import AlreadyResolvedError, InvalidBodyError, StoreFullError
from txmq.listeners.hooks import EndContext, SendContext, SentMessage
from txmq.message.lifecycle import TransactionState
from txmq.message.message import MAX_FIELD_BYTES, LocalTransactionState, Message
from txmq.message.names import TRACE_TOPIC
from txmq.producer import trace
from txmq.producer.trace import (
    MESSAGES_OF_A_RECORD_MAX,
    TRACE_GROUP,
    TraceHook,
    TraceRecord,
    TraceType,
    decoded,
    encoded,
    record_of_end,
    records_of_send,
)
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import ManualClock

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
TIME_MS = 1_767_225_600_000
ID = transaction_id(1)


def sent_message(number: int = 0, keys: str | None = "Keys", own_id: str = ID) -> SentMessage:
    return SentMessage(f"{own_id}:{number}", "topic-test", "Tags", keys, 26, TopicKind.TRANSACTION)


def send_context(*messages: SentMessage, **changes: Any) -> SendContext:
    sent = messages or (sent_message(),)
    return replace(SendContext("PID-test", None, (ID,), sent, cost_ms=245.0), **changes)


def end_context(**changes: Any) -> EndContext:
    plain = EndContext(
        producer_group="PID-test",
        namespace=None,
        transaction_id=ID,
        asked=COMMIT,
        source="producer",
        from_check=False,
        state=TransactionState.COMMITTED,
        messages=(sent_message(),),
        message_count=1,
    )
    return replace(plain, **changes)


# --- TraceDataEncoderTest -------------------------------------------------------------------------


def test_a_record_of_a_send_is_read_back_as_it_was() -> None:
    (record,) = records_of_send(send_context(), TIME_MS)

    again = decoded(encoded(record))

    assert again == record
    assert again.trace_type is TraceType.PUB
    assert again.time_ms == TIME_MS
    assert again.cost_ms == 245.0
    assert again.success


@pytest.mark.parametrize("from_check", [True, False])
def test_a_record_of_an_end_is_read_back_as_it_was(from_check: bool) -> None:  # noqa: FBT001
    record = record_of_end(end_context(from_check=from_check), TIME_MS)

    again = decoded(encoded(record))

    assert again == record
    assert again.trace_type is TraceType.END_TRANSACTION
    assert again.from_check is from_check
    assert again.state is TransactionState.COMMITTED
    assert again.messages[0].topic == "topic-test"


def test_the_keys_of_a_record_are_ids_and_each_key_of_the_messages() -> None:
    (record,) = records_of_send(send_context(sent_message(keys="Keys Keys2")), TIME_MS)

    assert record.keys == (ID, f"{ID}:0", "Keys", "Keys2")
    assert record_of_end(end_context(), TIME_MS).keys == (ID, f"{ID}:0", "Keys")


def test_a_record_is_json_of_plain_fields() -> None:
    (record,) = records_of_send(send_context(), TIME_MS)

    assert json.loads(encoded(record)) == {
        "trace_type": "Pub",
        "time_ms": TIME_MS,
        "group": "PID-test",
        "transaction_id": ID,
        "messages": [
            {
                "message_id": f"{ID}:0",
                "topic": "topic-test",
                "tags": "Tags",
                "keys": "Keys",
                "body_size_bytes": 26,
                "kind": "TRANSACTION",
            }
        ],
        "message_count": 1,
        "dataframe_topics": [],
        "cost_ms": 245.0,
        "success": True,
    }


# --- the truth about ends -------------------------------------------------------------------------


def test_a_rollback_is_recorded_as_a_rollback() -> None:
    context = end_context(asked=ROLLBACK, state=TransactionState.ROLLED_BACK)

    record = record_of_end(context, TIME_MS)

    assert (record.asked, record.state) == (ROLLBACK, TransactionState.ROLLED_BACK)
    assert record.success


def test_an_end_that_came_too_late_is_no_success() -> None:
    error = AlreadyResolvedError(ID, "ROLLED_BACK", "check")
    context = end_context(state=TransactionState.ROLLED_BACK, source="check", error=error)

    record = record_of_end(context, TIME_MS)

    assert not record.success
    assert (record.error, record.source) == ("AlreadyResolvedError", "check")


def test_an_answer_of_the_check_that_came_too_late_is_no_success() -> None:
    context = end_context(state=TransactionState.ROLLED_BACK, from_check=True)

    assert not record_of_end(context, TIME_MS).success


def test_a_send_that_failed_is_recorded_by_the_type_of_its_error() -> None:
    (record,) = records_of_send(send_context(error=StoreFullError("half", "no space")), TIME_MS)

    assert (record.success, record.error) == (False, "StoreFullError")


# --- sizes ----------------------------------------------------------------------------------------


def test_a_large_send_is_several_records_that_name_every_message() -> None:
    count = 2 * MESSAGES_OF_A_RECORD_MAX + 1
    messages = [sent_message(number, keys="k" * 1_000) for number in range(count)]

    records = list(records_of_send(send_context(*messages), TIME_MS))

    assert len(records) == 3
    named = [one.message_id for record in records for one in record.messages]
    assert named == [one.message_id for one in messages]
    for record in records:
        assert set(record.keys) >= {one.message_id for one in record.messages}
        assert len(" ".join(record.keys).encode()) <= MAX_FIELD_BYTES
        assert record.message_count == count


def test_a_send_with_much_text_is_several_records_of_bounded_size() -> None:
    # Control characters take six times their bytes in JSON.
    messages = [sent_message(number, keys="\x01" * 16_000) for number in range(100)]

    records = list(records_of_send(send_context(*messages), TIME_MS))

    named = [one.message_id for record in records for one in record.messages]
    assert named == [one.message_id for one in messages]
    assert max(len(encoded(record)) for record in records) < 4 * 1024 * 1024
    assert len(encoded(record_of_end(end_context(messages=tuple(messages)), TIME_MS))) < 4_000_000


def test_the_size_of_a_record_counts_its_texts() -> None:
    plain, *_ = records_of_send(send_context(sent_message(keys="")), TIME_MS)
    with_keys, *_ = records_of_send(send_context(sent_message(keys="k" * 10_000)), TIME_MS)
    with_reason = replace(plain, reason="r" * 10_000)

    assert plain.size_bytes > 0
    assert with_keys.size_bytes - plain.size_bytes == 10_000
    assert with_reason.size_bytes - plain.size_bytes == 10_000


def test_an_ordinary_send_of_several_transactions_is_a_record_of_each() -> None:
    other = transaction_id(2)
    context = send_context(sent_message(), sent_message(own_id=other), transaction_ids=(ID, other))

    records = list(records_of_send(context, TIME_MS))

    assert [record.transaction_id for record in records] == [ID, other]
    assert [len(record.messages) for record in records] == [1, 1]


def test_a_send_of_dataframes_alone_is_one_record() -> None:
    context = replace(send_context(), messages=(), dataframe_topics=("bulk",))

    (record,) = records_of_send(context, TIME_MS)

    assert record.keys == (ID, f"{ID}:0")
    assert record.dataframe_topics == ("bulk",)
    assert record.message_count is None


# --- what is no record ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b"1", b"[]", b"{}", b"\xff", b'{"trace_type": "Sub"}', b"[" * 100_000,
        b'{"trace_type":"Pub","time_ms":1,"group":"g","transaction_id":"t","messages":[1]}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError):
        decoded(body)


def test_fields_of_a_later_version_are_left_out() -> None:
    (record,) = records_of_send(send_context(), TIME_MS)
    values = {**json.loads(encoded(record)), "weather": "fair"}

    assert decoded(json.dumps(values).encode()) == record


_TEXTS = st.none() | st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(
    st.lists(st.tuples(_TEXTS, _TEXTS, st.integers(0, 1 << 40)), max_size=4),
    st.none() | st.sampled_from(TransactionState),
    st.sampled_from(LocalTransactionState),
    _TEXTS,
)
def test_any_record_is_read_back_as_it_was(
    messages: list[tuple[str | None, str | None, int]],
    state: TransactionState | None,
    asked: LocalTransactionState,
    reason: str | None,
) -> None:
    sent = tuple(
        SentMessage(f"{ID}:{number}", "t", tags, keys, size, TopicKind.DELAY)
        for number, (tags, keys, size) in enumerate(messages)
    )
    context = end_context(messages=sent, state=state, asked=asked, reason=reason)

    record = record_of_end(context, TIME_MS)

    assert decoded(encoded(record)) == record


# --- the hook -------------------------------------------------------------------------------------


class Sender:
    """Takes records as a producer would."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.batches: list[list[Message]] = []
        self.is_closed = False
        self._wait = wait

    def send(self, messages: Sequence[Message]) -> object:
        self._wait()
        self.batches.append(list(messages))
        return None

    def close(self) -> None:
        self.is_closed = True

    @property
    def records(self) -> list[TraceRecord]:
        return [decoded(message.body) for batch in self.batches for message in batch]


def hook_of(store: Store, sender: Any, **options: Any) -> TraceHook:
    given = {"flush_interval_s": 0.01, "clock": ManualClock(TIME_MS), **options}
    return TraceHook(store, sender=sender, **given)


def test_records_are_messages_to_the_trace_topic(store: Store) -> None:
    sender = Sender()
    with hook_of(store, sender) as hook:
        hook.after_send(send_context())
        hook.end_transaction(end_context())

    sent = [message for batch in sender.batches for message in batch]
    assert {message.topic for message in sent} == {TRACE_TOPIC}
    assert [message.tags for message in sent] == ["Pub", "EndTransaction"]
    assert sent[0].joined_keys == f"{ID} {ID}:0 Keys"
    assert [record.time_ms for record in sender.records] == [TIME_MS, TIME_MS]
    assert sender.is_closed


def test_records_that_come_together_are_sent_together(store: Store) -> None:
    sender = Sender()
    with hook_of(store, sender, flush_interval_s=60) as hook:
        for _ in range(50):
            hook.after_send(send_context())
        hook.flush()

        assert [len(batch) for batch in sender.batches] == [50]


def test_flush_returns_when_all_is_written(store: Store) -> None:
    sender = Sender()
    with hook_of(store, sender, flush_interval_s=60) as hook:
        hook.after_send(send_context())
        hook.flush()

        assert len(sender.records) == 1


def test_without_a_record_no_thread_runs(store: Store) -> None:
    before = threading.active_count()

    with hook_of(store, Sender()) as hook:
        hook.flush()

        assert threading.active_count() == before


def test_a_full_queue_drops_records_and_says_how_many(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    free = threading.Event()
    sender = Sender(lambda: bool(free.wait(30)) and None)
    with caplog.at_level(logging.WARNING, "txmq.producer.trace"):
        hook = hook_of(store, sender, queue_size=3)
        for _ in range(10):
            hook.after_send(send_context())
        assert hook.dropped == 7
        free.set()
        hook.close()

    assert len(sender.records) == 3
    assert "7 trace records were dropped so far" in caplog.text


def test_records_that_wait_are_bounded_in_bytes_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "QUEUE_BYTES", 50_000)
    free = threading.Event()
    sender = Sender(lambda: bool(free.wait(30)) and None)
    hook = hook_of(store, sender)
    for _ in range(10):
        hook.after_send(send_context(sent_message(keys="k" * 15_000)))
    assert hook.dropped == 7
    free.set()
    hook.flush()
    hook.after_send(send_context(sent_message(keys="k" * 15_000)))
    hook.close()

    assert len(sender.records) == 4
    assert hook.dropped == 7


@pytest.mark.parametrize("error", [SystemExit("secret"), KeyboardInterrupt(), MemoryError()])
def test_the_thread_goes_on_whatever_a_send_raises(
    store: Store, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    errors = iter([error])

    def fail() -> None:
        for failure in errors:
            raise failure

    sender = Sender(fail)
    with caplog.at_level(logging.WARNING, "txmq.producer.trace"), hook_of(store, sender) as hook:
        hook.after_send(send_context())
        hook.flush()
        assert hook.dropped == 1
        hook.after_send(send_context())

    assert len(sender.records) == 1
    assert type(error).__name__ in caplog.text
    assert "secret" not in caplog.text


def test_flush_and_close_after_the_end_return(store: Store) -> None:
    hook = hook_of(store, Sender())
    hook.after_send(send_context())
    hook.close()

    hook.flush()
    hook.close()

    assert hook.dropped == 0


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_cannot_be_started_costs_one_record(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sender, start, threads = Sender(), threading.Thread.start, list[threading.Thread]()

    def fail(thread: threading.Thread) -> None:
        if isinstance(error, KeyboardInterrupt):
            # Ctrl-C while the caller waits until the thread says that it runs.
            start(thread)
            threads.append(thread)
        raise error

    with hook_of(store, sender) as hook:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(type(error)):
                hook.after_send(send_context())
        hook.after_send(send_context())
        hook.flush()
        for thread in threads:
            thread.join(5)

        assert not any(thread.is_alive() for thread in threads)
    assert (len(sender.records), hook.dropped) == (1, 1)


def test_a_store_that_takes_no_records_loses_records_alone(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([StoreFullError("half", "no space"), RuntimeError("secret")])

    def fail() -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure

    sender = Sender(fail)
    with caplog.at_level(logging.WARNING, "txmq.producer.trace"), hook_of(store, sender) as hook:
        for expected in (1, 2):
            hook.after_send(send_context())
            wait_until(lambda: hook.dropped == expected)  # noqa: B023
        hook.after_send(send_context())
        hook.flush()

    assert len(sender.records) == 1
    assert "no space" in caplog.text
    assert "secret" not in caplog.text


def test_what_comes_after_the_end_is_dropped(store: Store) -> None:
    sender = Sender()
    hook = hook_of(store, sender)
    hook.close()

    hook.after_send(send_context())

    assert hook.dropped == 1
    assert sender.batches == []


def test_records_about_records_are_not_kept(store: Store) -> None:
    sender = Sender()
    with hook_of(store, sender) as hook:
        hook.after_send(send_context(producer_group=TRACE_GROUP))
        hook.end_transaction(end_context(producer_group=TRACE_GROUP, from_check=True))

    assert sender.batches == []
