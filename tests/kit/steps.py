"""A process that dies at a fail point."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.kit.books import GROUP, TOPICS, Books, sell, sell_frame
from tests.kit.forked import forked
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.spark.session import local_session
from txmq.store.store import Store
from txmq.testing import ManualClock

REPOSITORY = Path(__file__).parents[2]
ORDERS = 12
PATIENCE_S = 120


@dataclass(frozen=True)
class Step:
    """Who passes a fail point, and which time of passing it is the last."""

    actor: str
    hit: int = 1


STEPS = {
    FailPoint.STORE_TABLE_CREATED: Step("creator", hit=2),
    FailPoint.FILES_WRITTEN: Step("producer", hit=5),
    FailPoint.REGISTER_SWAPPED: Step("checker", hit=2),
    FailPoint.HALF_READY: Step("producer", hit=4),
    FailPoint.HALF_COMMITTED: Step("producer", hit=4),
    FailPoint.FRAMES_WRITTEN: Step("frame producer"),
    FailPoint.FRAMES_COMMITTED: Step("frame producer"),
    FailPoint.END_READY: Step("producer", hit=5),
    FailPoint.END_COMMITTED: Step("producer", hit=5),
    FailPoint.END_CONFIRMED: Step("producer", hit=5),
    FailPoint.TIMER_FIRED: Step("running publisher"),
    FailPoint.CLAIMS_READ: Step("publisher"),
    FailPoint.FACTS_DECIDED: Step("publisher"),
    FailPoint.FACTS_COMMITTED: Step("publisher"),
    FailPoint.PLAN_MADE: Step("publisher"),
    FailPoint.TOPIC_CREATED: Step("publisher", hit=2),
    FailPoint.PAYLOAD_WRITTEN: Step("publisher", hit=2),
    FailPoint.TOPIC_COMMITTED: Step("publisher"),
    FailPoint.TOPICS_DONE: Step("publisher"),
    FailPoint.TOPIC_PARKED: Step("hindered publisher"),
    FailPoint.PROGRESS_KEPT: Step("publisher"),
    FailPoint.DUE_FOUND: Step("checker"),
    FailPoint.LEASE_TAKEN: Step("checker"),
    FailPoint.CHECKS_DECIDED: Step("checker"),
    FailPoint.CHECKS_ANSWERED: Step("checker"),
    FailPoint.CHECKS_COMMITTED: Step("checker"),
    FailPoint.LEASE_RETURNED: Step("checker"),
    FailPoint.DUE_MESSAGES_FOUND: Step("deliverer"),
    FailPoint.DELIVERIES_CLAIMED: Step("deliverer"),
    FailPoint.DELAY_PROGRESS_KEPT: Step("deliverer"),
    FailPoint.FILES_MERGED: Step("maintainer"),
    FailPoint.FILES_REPLACED: Step("maintainer"),
    FailPoint.LOG_CLEANED: Step("maintainer"),
    FailPoint.EXPIRY_CLAIMED: Step("retirer"),
    FailPoint.DAYS_FORGOTTEN: Step("retirer"),
    FailPoint.HALF_DAYS_REMOVED: Step("retirer"),
    FailPoint.DUE_DAYS_REMOVED: Step("schedule retirer"),
}
WITH_SPARK = ("frame producer", "running publisher")


def act(actor: str, location: str, books: Books) -> None:
    """What the process does while it lives."""
    if actor == "creator":
        Store.create(f"{location}-2")
        return
    store = Store.open(location)
    match actor:
        case "producer":
            sell(store, books, ORDERS)
        case "frame producer":
            sell_frame(store, books, rows=100)
        case "publisher":
            Publisher(store).run_once()
        case "running publisher":
            Publisher(store, spark=local_session(for_minutes=True)).start()
            sell(store, books, ORDERS * 100)
        case "hindered publisher":
            obstacle(store).touch()
            Publisher(store).run_once()
        case "checker":
            RecheckJob(store, listeners={GROUP: books}).run_once()
        case "deliverer":
            deliver(store)
        case "maintainer":
            Maintenance(store).run_once()
            maintain(store, days_ahead=0.5)
        case _:
            retire(store)


def retire(store: Store) -> None:
    """Days go by in which what is open expires, and all that has ended is forgotten."""
    leave_open(store)
    for _ in range(2):
        Publisher(store).run_once()
        maintain(store, days_ahead=5)


def maintain(store: Store, days_ahead: float) -> None:
    """A round by a clock that is days ahead of what is in the tables."""
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    clock.advance(days_ahead * 86_400)
    Maintenance(store, clock=clock).run_once()


def deliver(store: Store) -> None:
    """All that is due, and then how far that was."""
    service = DelayService(store)
    service.run_once()
    service._keep_progress()


def leave_open(store: Store) -> None:
    """A transaction that nobody ends, and that nobody paid for."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPICS[0], b"nobody pays for this"))
        transaction.prepare()


def obstacle(store: Store) -> Path:
    """A file in the place of a topic, which nobody can write then."""
    path = Path(store.location, "topics", TOPICS[0])
    path.parent.mkdir(exist_ok=True)
    return path


def run(point: FailPoint, location: str, books: str) -> int:
    """Start a process that dies at the point and return its exit code, as `subprocess` does."""
    step = STEPS[point]
    faults = f"{point}=kill@{step.hit}"
    return forked(main, location, step.actor, books, faults=faults).wait(PATIENCE_S)


def main(location: str, actor: str, books: str) -> None:
    act(actor, location, Books(books))
