"""Both forms of a listener give the same kind of outcomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from txmq.errors import ListenerError
from txmq.listeners.answering import RowAsker, SetAsker, call_of
from txmq.listeners.askers import AskedRound, Asker
from txmq.listeners.protocol import LEFT, OUTCOMES, Collect, HalfMessage, outcome_table
from txmq.listeners.threads import HUNG_PER_THREAD
from txmq.message.message import LocalTransactionState
from txmq.store.config import Config

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
Said = dict[str, tuple[str | None, str | None]]


class Rows:
    """A listener in the row form."""

    def __init__(self, answer: Callable[[HalfMessage], Any]) -> None:
        self.check_local_transaction = answer


class Sets:
    """A listener in the set form."""

    def __init__(self, answer: Callable[[pa.Table], Any]) -> None:
        self.check_local_transactions_arrow = answer


def heads(*ids: str) -> pa.Table:
    rows = [
        {
            "transaction_id": own_id, "message_id": f"{own_id}:0", "producer_group": "orders",
            "topic": "paid", "body": b"secret", "tags": None, "keys": f"key-{own_id}",
            "properties": [("size", "3")], "sharding_key": None,
            "born_timestamp": datetime.now(UTC), "message_count": 1, "check_times": 0,
        }
        for own_id in ids
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema({
        "transaction_id": pa.string(), "message_id": pa.string(), "producer_group": pa.string(),
        "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()), "sharding_key": pa.string(),
        "born_timestamp": pa.timestamp("us", "UTC"), "message_count": pa.int64(),
        "check_times": pa.int32(),
    }))  # fmt: skip


# A thread starts in this time, also beside others.
HANGS_S = 0.5


@contextmanager
def asker(
    listener: Rows | Sets, timeout_s: float = 10.0, threads: int = 2
) -> Iterator[Callable[..., Said]]:
    """Asks about the ids it is called with; its attribute `asker` is the thing itself."""
    settings = Config(listener_timeout_s=timeout_s, check_threads=threads).of_group("orders")
    call = call_of(listener, None)
    asked: Asker = (
        RowAsker("orders", listener, settings)
        if call is None
        else SetAsker("orders", call, ("transaction_id",), 10, settings)
    )

    def ask(*ids: str) -> Said:
        return said(asked.ask(heads(*ids))())

    ask.asker = asked  # type: ignore[attr-defined]
    try:
        yield ask
    finally:
        asked.close()


def said(outcomes: pa.Table) -> Said:
    return {row["transaction_id"]: (row["state"], row["reason"]) for row in outcomes.to_pylist()}


def late_of(ask: Any) -> Said:
    found: Said = {}
    deadline_s = time.monotonic() + 10.0
    while not found:
        assert time.monotonic() < deadline_s
        found = said(ask.asker.late())
        time.sleep(0.001)
    return found


def all_commit(table: pa.Table) -> pa.Table:
    states = pa.repeat(pa.scalar("COMMIT"), table.num_rows)
    return pa.table([table["transaction_id"], states], ["transaction_id", "state"])


def raising(_: Any) -> Any:
    raise ValueError("secret body")


def exiting(_: Any) -> Any:
    raise SystemExit


# --- both ------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [Rows(lambda _: COMMIT), Sets(all_commit)])
def test_each_question_has_its_answer(listener: Rows | Sets) -> None:
    with asker(listener) as ask:
        assert ask("a", "b", "c") == dict.fromkeys("abc", ("COMMIT", None))


@pytest.mark.parametrize("form", [Rows, Sets])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [(raising, "the listener raised ValueError"), (exiting, "the listener raised SystemExit")],
)
def test_what_raises_is_unknown_and_its_text_is_not_repeated(
    form: Any, answer: Any, reason: str
) -> None:
    with asker(form(answer)) as ask:
        assert ask("a", "b") == dict.fromkeys("ab", ("UNKNOWN", reason))


class OwnError(ListenerError):
    """An error of the user's, whose text may hold a body."""

    def __str__(self) -> str:
        raise ValueError("secret body")


@pytest.mark.parametrize("form", [Rows, Sets])
def test_text_of_a_user_s_error_is_never_asked_for(form: Any) -> None:
    def answer(_: Any) -> Any:
        raise OwnError("Orders", "secret body")

    with asker(form(answer)) as ask:
        assert ask("a") == {"a": ("UNKNOWN", "the listener raised OwnError")}


@pytest.mark.parametrize(("form", "late"), [(Rows, lambda _: ROLLBACK), (Sets, all_commit)])
def test_what_hangs_is_unknown_and_late_when_it_answers(form: Any, late: Any) -> None:
    released = threading.Event()
    with asker(form(lambda asked: released.wait(30.0) and late(asked)), timeout_s=HANGS_S) as ask:
        assert ask("a") == {"a": ("UNKNOWN", "TIMEOUT")}
        released.set()

        ((state, _),) = late_of(ask).values()
        assert state in ("COMMIT", "ROLLBACK")
        assert said(ask.asker.late()) == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", [Rows, Sets])
def test_listener_that_hangs_in_all_its_threads_is_busy(form: Any) -> None:
    released = threading.Event()
    with asker(form(lambda _: released.wait(30.0)), timeout_s=HANGS_S, threads=1) as ask:
        for number in range(HUNG_PER_THREAD):
            assert ask(str(number)) == {str(number): ("UNKNOWN", "TIMEOUT")}

        assert ask("a", "b") == dict.fromkeys("ab", (None, "BUSY"))
        released.set()


# --- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_answer_of_the_listener_is_the_outcome(state: LocalTransactionState) -> None:
    with asker(Rows(lambda _: state)) as ask:
        assert ask("a") == {"a": (state.value, None)}


@pytest.mark.parametrize("answer", [None, 42, "commit", "COMMIT", True])
def test_nonsense_is_unknown_and_says_why(answer: object) -> None:
    reason = f"the listener returned {type(answer).__name__}, not a LocalTransactionState"
    with asker(Rows(lambda _: answer)) as ask:
        assert ask("a") == {"a": ("UNKNOWN", reason)}


def test_question_that_never_began_does_not_count() -> None:
    released = threading.Event()
    listener = Rows(lambda _: released.wait(30.0))
    with asker(listener, timeout_s=HANGS_S, threads=1) as ask:
        assert ask("a", "b") == {"a": ("UNKNOWN", "TIMEOUT"), "b": (None, "BUSY")}
        released.set()


def test_half_is_an_object_with_all_that_was_sent() -> None:
    seen: list[HalfMessage] = []
    with asker(Rows(lambda half: seen.append(half) or UNKNOWN)) as ask:
        ask("a")

    (half,) = seen
    assert (half.body, half.keys, half.topic) == (b"secret", "key-a", "paid")
    assert (dict(half.properties), half.message_count) == ({"size": "3"}, 1)
    assert "secret" not in repr(half)


def test_half_that_cannot_be_parsed_is_in_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    import txmq.listeners.heads as module

    original = module.half_message

    def parse(row: dict[str, Any]) -> HalfMessage:
        if row["transaction_id"] == "a":
            raise ValueError("secret body")
        return original(row)

    monkeypatch.setattr(module, "half_message", parse)
    with asker(Rows(lambda _: COMMIT)) as ask:
        assert ask("a", "b") == {"b": ("COMMIT", None)}


# --- sets ------------------------------------------------------------------------------------


def test_set_is_one_call() -> None:
    calls: list[pa.Table] = []
    with asker(Sets(lambda table: calls.append(table) or all_commit(table))) as ask:
        ask(*map(str, range(50)))

    assert [call.num_rows for call in calls] == [50]


def test_answers_about_others_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with asker(Sets(lambda _: all_commit(heads("a", "x", "y")))) as ask:
        assert ask("a", "b") == {"a": ("COMMIT", None), "b": ("UNKNOWN", "NO_ANSWER")}

    assert "answered for 2 transactions that it was not asked about" in caplog.text


def test_late_answer_of_a_set_tells_of_its_transactions_only() -> None:
    released = threading.Event()
    listener = Sets(lambda _: released.wait(30.0) and all_commit(heads("a", "x")))
    with asker(listener, timeout_s=HANGS_S) as ask:
        ask("a", "b")
        released.set()

        assert late_of(ask) == {"a": ("COMMIT", None), "b": ("UNKNOWN", "NO_ANSWER")}


@pytest.mark.parametrize(
    ("answers", "told", "left"),
    [
        ({"a": "ROLLBACK", "b": None}, {"a": ("ROLLBACK", None)}, ["b"]),
        ({"a": None, "b": None}, {"a": (None, "BUSY"), "b": (None, "BUSY")}, []),
    ],
)
def test_what_a_listener_left_stays_due_unless_it_left_all(
    answers: dict[str, str | None], told: Said, left: list[str]
) -> None:
    rows = [(own_id, state, None if state else LEFT) for own_id, state in answers.items()]
    questions = pa.table({"transaction_id": list(answers), "producer_group": ["orders"] * 2})
    round_ = AskedRound(questions, OUTCOMES.empty_table())
    round_.begin("orders", Collect(lambda _: True, lambda: outcome_table(rows)))

    assert said(round_.take()) == told
    assert round_.left.to_pylist() == left
    assert round_.take().num_rows == 0
