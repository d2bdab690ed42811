"""What is left of a range of transactions when the next one is read: sums, and rows of queues."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.arrays import UNSAID, Flags, Integers, as_texts
from txmq.verify.fold import NOT_FINAL, STATES
from txmq.verify.picture import Picture
from txmq.verify.queues import QueueLog
from txmq.verify.report import Findings, Lateness

# Where a message that was sent may be.
PLACES = (
    "published", "rolled back", "dead", "expired", "open", "scheduled", "recalled", "taken away"
)  # fmt: skip
COUNTS = (
    "transactions", *map(str.lower, STATES), "messages", "doubled_half_rows", "claims",
    "claims_without_half", "claims_without_effect", "checks", "facts", "topics",
    "visible_messages", "dead_letters", "scheduled", "delivered", "recalled", "overdue",
    "not_published_yet", "known_by_schedule_alone", "judged_by_settled_alone", "forgotten_facts",
    "forgotten_messages",
)  # fmt: skip
_FINAL = pa.array([state for state in STATES if state not in NOT_FINAL])
Queue = tuple[str, int]
# Of the type of a queue, 32 bits.
_QUEUE_MIN, _QUEUES = -(1 << 31), 1 << 32


class QueueSums:
    """How many messages were sent to each queue, and how many are in each of PLACES."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sent: Counter[Queue] = Counter()
        self._counts: dict[str, Counter[Queue]] = {place: Counter() for place in PLACES}

    def add_sent(self, picture: Picture) -> None:
        """Count the messages of one range."""
        self._sent.update(_per_queue(picture, picture.halves.carries))

    def add(self, place: str, picture: Picture, messages: Flags) -> None:
        """Count those of them that are in one place."""
        self._counts[place].update(_per_queue(picture, messages))

    def add_published(self, topic: str, queues: Integers) -> None:
        """Count rows of a topic by the queue of each."""
        names, counts = np.unique(queues, return_counts=True)
        rows = zip(names.tolist(), counts.tolist(), strict=True)
        self._counts["published"].update({(topic, queue): count for queue, count in rows})

    def check(self, findings: Findings) -> None:
        """Report queues whose messages are not each in one place (I23)."""
        for queue in sorted({*self._sent, *self._counts["published"]}):
            counts = [self._counts[place][queue] for place in PLACES]
            if self._sent[queue] != sum(counts):
                parts = zip(counts, PLACES, strict=True)
                places = " + ".join(f"{count} {place}" for count, place in parts)
                detail = f"{self._sent[queue]} sent, but {places}"
                findings.add("I23", 1, [f"{queue[0]}/{queue[1]}"], detail)


class DeliveryTimes:
    """When delayed messages were due, and how long after that they were shown."""

    def __init__(self) -> None:
        """Begin with none."""
        self._late_us: list[Integers] = [np.empty(0, np.int64)]
        self._scheduled_due_us: list[Integers] = [np.empty(0, np.int64)]
        self._newest_us = UNSAID

    def add_shown(self, late_us: Integers) -> None:
        """Note how long after its time each row was shown."""
        self._late_us.append(late_us)

    def add_ended(self, asked_us: Integers) -> None:
        """Note when the delay service asked to deliver."""
        self._newest_us = max(self._newest_us, int(asked_us.max(initial=UNSAID)))

    def add_scheduled(self, due_us: Integers) -> None:
        """Note when what still waits is due."""
        self._scheduled_due_us.append(due_us[due_us != UNSAID])

    def lateness(self) -> Lateness:
        """Return how long after their time delayed messages were shown."""
        late_us = np.sort(np.concatenate(self._late_us))
        count = len(late_us)
        if not count:
            return Lateness()
        # The smallest that 99 of 100 do not exceed.
        p99_us, max_us = late_us[[(99 * count + 99) // 100 - 1, -1]].tolist()
        return Lateness(count, p99_us / 1e6, max_us / 1e6)

    def count_overdue(self) -> int:
        """Count what still waits though the delay service has delivered what was due later."""
        due_us = np.concatenate(self._scheduled_due_us)
        return int((due_us <= self._newest_us).sum())


class Totals:
    """All that the ranges of a store add up to; violations are in Findings."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.counts: Counter[str] = Counter()
        self.sums = QueueSums()
        self.times = DeliveryTimes()
        self.queues: defaultdict[str, QueueLog] = defaultdict(QueueLog)
        self._open_ids = [pa.array([], pa.string())]

    def add_open(self, picture: Picture) -> None:
        """Note the transactions of one range that have no final end, by claims and by facts."""
        halves = picture.halves
        states = [picture.fates.in_state(name)[: len(halves.ids)] for name in NOT_FINAL]
        is_open = np.logical_or.reduce(states) & ~halves.by_schedule
        ids = halves.ids.filter(pa.array(is_open)).cast(pa.string())
        settled = picture.settled.filter(pc.is_in(picture.settled["state"], value_set=_FINAL))
        has_fact = pc.is_in(ids, value_set=settled["transaction_id"].cast(pa.string()))
        self._open_ids.append(ids.filter(pc.invert(has_fact)))

    @property
    def open_ids(self) -> pa.ChunkedArray:
        """The transactions that have no final end."""
        return pa.chunked_array(self._open_ids)


def _per_queue(picture: Picture, messages: Flags) -> dict[Queue, int]:
    # A queue may be any number, by another program, or ABSENT.
    queues = picture.queue_of[messages].astype(np.int64) - _QUEUE_MIN
    topics = picture.topic_of[messages].astype(np.int64)
    pairs, counts = np.unique(topics * _QUEUES + queues, return_counts=True)
    names = as_texts(picture.topic_names.take(pa.array(pairs // _QUEUES)))
    keys = zip(names, (pairs % _QUEUES + _QUEUE_MIN).tolist(), strict=True)
    return dict(zip(keys, counts.tolist(), strict=True))
