"""A parked topic waits alone, without a gap, and no longer than this process has seen."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.reading import are_gap_free, bodies, topic_rows
from tests.kit.sending import send_each
from txmq.publish import engines as arrow_engine
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.testing import ManualClock, before_commit, failing_commits

GROUP = "orders"
BROKEN = OSError(5, "broken")


send = partial(send_each, topic="a")


def parked(store: Store) -> dict[str, dict[str, object]]:
    value: dict[str, dict[str, object]] = store.tables.register("publisher").read().value["parked"]
    return value


def test_a_parked_topic_stays_parked_where_another_publisher_went_further(store: Store) -> None:
    """Two publishers, and a disk that was full for a moment."""
    early, late = ManualClock(), ManualClock()
    first, second = Publisher(store, clock=late), Publisher(store, clock=early)
    send(store, b"1", topic="a")
    send(store, b"1", topic="b")
    with failing_commits(99, error=BROKEN, table="a"), failing_commits(99, error=BROKEN, table="b"):
        first.run_once()
        second.run_once()
    late.advance(3600)

    def the_other_goes_further() -> None:
        """While the first one catches up: for the second one it is too early to try again."""
        send(store, b"2", topic="b")
        second.run_once()

    with before_commit(the_other_goes_further, table="publisher"):
        first.run_once()
    send(store, b"3", topic="b")
    for _ in range(3):
        first.run_once()
        early.advance(3600)
        late.advance(3600)
        second.run_once()

    assert bodies(store, "b") == [b"1", b"2", b"3"]
    assert are_gap_free(topic_rows(store, "b"))
    assert parked(store) == {}


def test_a_round_counts_what_a_parked_topic_has_caught_up(store: Store) -> None:
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send(store, b"1", b"2")
    with failing_commits(1, error=BROKEN, table="a"):
        assert publisher.run_once().published == 0
    clock.advance(3600)

    result = publisher.run_once()

    assert bodies(store, "a") == [b"1", b"2"]
    assert (result.published, result.topic_commits) == (2, 1)
    assert publisher.run_once().published == 0


def test_a_topic_that_was_parked_by_a_clock_ahead_is_tried_at_once(store: Store) -> None:
    ahead, right = ManualClock(), ManualClock()
    ahead.advance(86_400)
    send(store, b"1")
    with failing_commits(1, error=BROKEN, table="a"):
        Publisher(store, clock=ahead).run_once()

    Publisher(store, clock=right).run_once()

    assert bodies(store, "a") == [b"1"]


def test_a_clock_that_goes_back_does_not_keep_a_topic_parked(store: Store) -> None:
    clock = ManualClock()
    clock.advance(86_400)
    publisher = Publisher(store, clock=clock)
    send(store, b"1")
    with failing_commits(1, error=BROKEN, table="a"):
        publisher.run_once()
    clock.advance(-86_400)

    publisher.run_once()

    assert bodies(store, "a") == [b"1"]


@pytest.mark.parametrize("error", [OverflowError, ValueError, RuntimeError, pa.ArrowInvalid])
def test_one_message_that_cannot_be_written_holds_up_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    body = "bad-body"
    rows = arrow_engine._topic_rows

    def broken(messages: pa.Table, *rest: object) -> pa.Table:
        if body.encode() in messages["body"].to_pylist():
            raise error(body)
        return rows(messages, *rest)

    monkeypatch.setattr(arrow_engine, "_topic_rows", broken)
    send(store, b"1", body.encode(), b"2")
    send(store, b"other", topic="b")

    Publisher(store).run_once()

    assert bodies(store, "a") == [b"1", b"2"]
    assert bodies(store, "b") == [b"other"]
    kept = Path(store.location, "state").rglob("*.parquet")
    assert not any(body.encode() in file.read_bytes() for file in kept)


def test_an_error_that_no_transaction_explains_parks_the_topic_without_its_text(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> object:
        raise SystemError("a body, by accident")

    monkeypatch.setattr("txmq.publish.topic_writer.TopicLog.next_offsets", broken)
    send(store, b"1")
    send(store, b"2", topic="b")

    result = Publisher(store).run_once()

    assert result.parked == 2
    assert {str(entry["reason"]) for entry in parked(store).values()} == {"SystemError"}
    assert "by accident" not in caplog.text


def test_a_topic_is_parked_since_its_first_attempt(store: Store) -> None:
    """The alert asks how long it got no messages, and each attempt in vain is no new beginning."""
    clock = ManualClock()
    publisher = Publisher(store, clock=clock)
    send(store, b"1")
    with failing_commits(99, error=BROKEN, table="a"):
        publisher.run_once()
        began_ms = parked(store)["a"]["since_ms"]
        clock.advance(3600)
        publisher.run_once()

    assert (parked(store)["a"]["since_ms"], parked(store)["a"]["attempts"]) == (began_ms, 2)
