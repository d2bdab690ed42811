"""No page reads more for a large store: 100,000 open transactions, 1,000 topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.check_world import CheckWorld
from tests.kit.dashboard_world import CONSUMERS, DashboardWorld
from tests.kit.wsgi import asked
from txmq.delta.file_rows import FileRows
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.dashboard.app import Dashboard
from txmq.ops.dashboard.pages import ROWS_MAX
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings

OPEN, TOPICS = 100_000, 1_000
PAGE_BYTES_MAX = 150_000


class Reads:
    """How many rows of files were read."""

    def __init__(self) -> None:
        self.rows = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    counted, stored = Reads(), FileRows._read_once

    def noted(table: FileRows, *arguments: object, **named: object) -> object:
        rows = stored(table, *arguments, **named)  # type: ignore[arg-type]
        counted.rows += rows.num_rows
        return rows

    monkeypatch.setattr(FileRows, "_read_once", noted)
    return counted


def test_pages_of_a_large_store_read_nothing_and_stay_small(tmp_path: Path, reads: Reads) -> None:
    world = CheckWorld(tmp_path)
    for _ in range(10):
        ids = world.prepare(OPEN // 10)
    settings = {
        f"topic-{number}": TopicSettings(TopicKind.UNSPECIFIED, 4) for number in range(TOPICS)
    }
    register = world.store.tables.topic_register(create=True)
    register.read()
    register.swap(RegisteredTopics(settings), world.clock.now_ms())
    dashboard = Dashboard(world.store, clock=world.clock)
    dashboard.counting.count()
    counted = reads.rows

    for address in ("/", "/transactions", "/transactions?page=200", "/topics", "/topics?page=20",
                    "/groups", "/delayed", "/dead-letters"):  # fmt: skip
        page = asked(dashboard.app, address)
        assert page.status == 200
        assert len(page.text) < PAGE_BYTES_MAX, address
        assert page.text.count("<tr>") <= ROWS_MAX + 30
    assert reads.rows == counted
    listed = asked(dashboard.app, "/transactions").words
    assert "The oldest 10,000 of 100,000 are listed" in listed
    assert f"50 of {TOPICS:,} topics" in asked(dashboard.app, "/topics").words

    # Of half the one file that holds it, by its few columns and by its rows.
    assert asked(dashboard.app, f"/transactions/{ids[0]}").status == 200
    assert reads.rows - counted <= 8 * OPEN // 10


def test_search_reads_no_more_keys_than_it_may(tmp_path: Path) -> None:
    world = DashboardWorld(tmp_path)
    for number in range(5):
        world.prepared("order-paid", "order-paid", key=f"k{number}").commit()
        world.publisher.run_once()
    query = MessageQuery(world.store)

    found = query.newest_by_key("k0", topic="order-paid", max_rows=4)
    assert (found.messages, found.rows, found.is_complete) == ((), 4, False)
    found = query.newest_by_key("k4", topic="order-paid", max_rows=4)
    assert len(found.messages) == 2
    whole = query.newest_by_key("k0", max_rows=1_000)
    assert (len(whole.messages), whole.is_complete) == (2, True)
    assert whole.messages == query.by_key("k0")
    world.close()


def test_page_of_dead_letters_is_a_window_of_offsets(tmp_path: Path) -> None:
    world = DashboardWorld(tmp_path)
    world.bury(*(f"key-{number}" for number in range(4)))
    world.count()
    letters = DeadLetters(world.store, CONSUMERS, clock=world.clock)
    assert [one.keys for one in letters.between(1, 3)] == ["key-1", "key-2"]
    letters.purge(Chosen((letters.all()[0].message_id,)), reason="test", apply=True)

    assert letters.first_offset(0) == 1
    assert "key-0" not in world.page(f"/dead-letters/{CONSUMERS}").words
    assert "key-1" in world.page(f"/dead-letters/{CONSUMERS}?from=0").words
    world.close()


def test_large_transaction_is_shown_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.ops.dashboard.lookups.MESSAGES_MAX", 3)
    world = DashboardWorld(tmp_path)
    made = world.prepared(*(["order-paid"] * 9))
    made.commit()
    world.publisher.run_once()
    world.count()

    page = world.page(f"/transactions/{made.id}")

    assert page.text.count("half</span>") == 3
    assert "9 of 9" in page.words
    assert "rows at most are shown" in page.words
    world.close()
