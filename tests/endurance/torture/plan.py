"""What happens in each round: a function of the seed and the round's number alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

from txmq.ground.fail_points import FailPoint

# Which process passes a point, and up to which time of passing it the kill may wait.
POINTS: dict[str, dict[FailPoint, int]] = {
    "creator": {FailPoint.STORE_TABLE_CREATED: 6},
    "producer": {
        FailPoint.FILES_WRITTEN: 60,
        FailPoint.HALF_READY: 40,
        FailPoint.HALF_COMMITTED: 40,
        FailPoint.END_READY: 40,
        FailPoint.END_COMMITTED: 40,
        FailPoint.END_CONFIRMED: 40,
    },
    "publisher": {
        FailPoint.CLAIMS_READ: 12,
        FailPoint.FACTS_DECIDED: 12,
        FailPoint.FACTS_COMMITTED: 12,
        FailPoint.PLAN_MADE: 12,
        FailPoint.TOPIC_CREATED: 1,
        FailPoint.PAYLOAD_WRITTEN: 30,
        FailPoint.TOPIC_COMMITTED: 30,
        FailPoint.TOPICS_DONE: 12,
        FailPoint.TOPIC_PARKED: 1,
        FailPoint.PROGRESS_KEPT: 3,
    },
    "checker": {
        FailPoint.REGISTER_SWAPPED: 4,
        FailPoint.DUE_FOUND: 2,
        FailPoint.LEASE_TAKEN: 2,
        FailPoint.CHECKS_DECIDED: 2,
        FailPoint.CHECKS_ANSWERED: 2,
        FailPoint.CHECKS_COMMITTED: 2,
        FailPoint.LEASE_RETURNED: 2,
    },
    "maintainer": {
        FailPoint.FILES_MERGED: 3,
        FailPoint.FILES_REPLACED: 3,
        FailPoint.LOG_CLEANED: 3,
    },
    "delayer": {
        FailPoint.DUE_MESSAGES_FOUND: 3,
        FailPoint.DELIVERIES_CLAIMED: 3,
        FailPoint.DELAY_PROGRESS_KEPT: 2,
    },
    "broker": {
        FailPoint.TIMER_FIRED: 2,
        FailPoint.FACTS_COMMITTED: 30,
        FailPoint.TOPIC_COMMITTED: 60,
        FailPoint.CHECKS_ANSWERED: 2,
        FailPoint.LEASE_TAKEN: 2,
        FailPoint.PROGRESS_KEPT: 8,
        FailPoint.FILES_REPLACED: 2,
        FailPoint.DELIVERIES_CLAIMED: 8,
    },
    "frame producer": {FailPoint.FRAMES_WRITTEN: 1, FailPoint.FRAMES_COMMITTED: 1},
    "retirer": {
        FailPoint.EXPIRY_CLAIMED: 1,
        FailPoint.DAYS_FORGOTTEN: 1,
        FailPoint.HALF_DAYS_REMOVED: 1,
        FailPoint.DUE_DAYS_REMOVED: 1,
    },
}
SERVICES = ("publisher", "checker", "delayer", "maintainer")


@dataclass(frozen=True)
class Round:
    """One round: which services run, with how many brokers, and what is done to checkpoints."""

    number: int
    brokers: int
    has_frames: bool
    has_obstacle: bool

    @property
    def topic(self) -> str:
        """A topic that nobody has written to before."""
        return f"round-{self.number}"


def round_of(number: int, rounds: int) -> Round:
    """Two brokers in the middle third, one in the last; without Spark in the first."""
    third = min(3 * number // max(rounds, 1), 2)
    brokers = (0, 2, 1)[third]
    return Round(number, brokers, has_frames=number % 8 == 7, has_obstacle=number % 4 == 2)


def kills(seed: int, actor: str) -> list[tuple[FailPoint, int]]:
    """The kills of an actor in their order: each point as often as any other, hits at random."""
    draw = random.Random(f"{seed}/{actor}")
    points = [point for point in POINTS[actor] for _ in range(50)]
    draw.shuffle(points)
    # The first ones are all different, so that short runs reach them too.
    first = list(POINTS[actor])
    draw.shuffle(first)
    return [(point, draw.randint(1, POINTS[actor][point])) for point in [*first, *points]]
