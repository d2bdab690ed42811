"""What every story ends with: a broker drains the store, and the topics equal the books."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.books import GROUP, TOPICS, Books
from tests.kit.reading import DEADLINE_S, are_gap_free, topic_rows, wait_until
from txmq.ops.admin.status import Admin
from txmq.ops.broker import Broker
from txmq.verify import verify

if TYPE_CHECKING:
    from txmq.store.store import Store


def drain(store: Store, books: Books) -> None:
    """A broker that starts anew works until no transaction is open."""
    run_until_all_is_done(store, Broker(store, listeners={GROUP: books}))


def run_until_all_is_done(store: Store, broker: Broker, deadline_s: float = DEADLINE_S) -> None:
    """Work until nothing is pending, nothing waits or is behind and no topic is parked."""

    def is_done() -> bool:
        broker.run_once()
        now = Admin(store).status()
        behind = now.settled.op_versions + now.published.op_versions
        return (now.open, now.scheduled, behind, now.parked) == (0, 0, 0, ())

    wait_until(is_done, deadline_s)


def assert_topics_tell_the_truth(store: Store, books: Books) -> None:
    paid = books.paid()
    for topic in TOPICS:
        rows = topic_rows(store, topic)
        assert {row["transaction_id"]: row["body"] for row in rows} == paid
        assert len({row["message_id"] for row in rows}) == len(rows)
        assert are_gap_free(rows)
    report = verify(store.location)
    assert report.is_clean, report
