"""A broker for tests: nothing runs by itself, and time passes when the test says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from txmq.consumer.peek import TopicPeek
from txmq.ground.clock import milliseconds
from txmq.message.names import stored_topic
from txmq.message.received import ReceivedMessage
from txmq.ops.broker import Broker
from txmq.ops.broker_log import BrokerCounts
from txmq.store.store import Store
from txmq.testing.clocks import ManualClock

if TYPE_CHECKING:
    from txmq.listeners.protocol import CheckListener


ROUNDS_MAX = 1_000
# Between two looks at what cannot be asked now.
LEAST_STEP_MS = 1_000


class SteppedBroker:
    """All services of a store; `run` does what is due, `run_for` lets time pass as well.

    Args:
        store: the store to serve.
        clock: the clock of the test; give it to producers and consumers too.
        listeners: the listener of each producer group, as `Broker` takes them.

    Raises: ListenerError.

    Example:
        >>> broker = SteppedBroker(store, clock)
        >>> broker.run_for(60).delivered
        1
    """

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        *,
        listeners: Mapping[str, CheckListener] | None = None,
    ) -> None:
        """Build the services; nothing runs yet."""
        self._broker = Broker(store, listeners=listeners, clock=clock)
        self._clock = clock
        self._next_check: datetime | None = None

    def run(self) -> BrokerCounts:
        """Run all services until nothing is left to do at this time.

        Settles, publishes, asks about open transactions that are due, delivers delayed messages
        that are due, and maintains. Commits: as `Broker.run_once`. Retry: call it again.

        Returns:
            What the services did.

        Raises: as `Broker.run_once`; RuntimeError where the services find work again and again.
        """
        total = BrokerCounts()
        for _ in range(ROUNDS_MAX):
            result = self._broker.run_once()
            done, self._next_check = result.counts, result.checked.next_check
            total += done
            if not (done.settled or done.published or done.delivered or done.asked):
                return total
        problem = f"the services are not done after {ROUNDS_MAX:,} rounds at one time"
        raise RuntimeError(f"{problem}: does a hook or a listener send messages? {total}")

    def run_for(self, seconds: float) -> BrokerCounts:
        """Let time pass, and run all services meanwhile.

        They run at once, each time that a transaction is to be asked about, and at the end. The
        clock stands where it was told to, `seconds` later.

        Args:
            seconds: how long, from 0 on.

        Returns, raises: as `run`; ValueError for a time that cannot pass.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be a number from 0 on, not {seconds!r}")
        end_ms = self._clock.now_ms() + round(seconds * 1000)
        total = self.run()
        while (now_ms := self._clock.now_ms()) < end_ms:
            self._clock.advance((min(end_ms, self._next_ms(now_ms)) - now_ms) / 1000)
            total += self.run()
        return total

    def _next_ms(self, now_ms: int) -> float:
        if self._next_check is None:
            return math.inf
        return max(milliseconds(self._next_check), now_ms + LEAST_STEP_MS)


def published_messages(store: Store, topic: str) -> list[ReceivedMessage]:
    """Return all visible messages of a topic, in the order in which they became visible.

    Reads: the topic. Commits: 0.

    Args:
        store: the store of the topic.
        topic: its name; in a namespace its stored name. `%RETRY%group` and `%DLQ%group` are topics
            too.

    Returns:
        The messages as consumers get them; none where nothing was published to this topic.

    Raises: InvalidNameError, StorageError.
    """
    stored = stored_topic(topic)
    if stored not in store.topics():
        return []
    table = store.tables.table_at(f"topics/{stored}")
    rows = table.rows.read(table.files.all(), ["message_id", "op_version", "sequence"]).to_pylist()
    places = {row["message_id"]: (row["op_version"], row["sequence"]) for row in rows}
    messages = TopicPeek(store, stored).messages()
    return sorted(messages, key=lambda message: (*places[message.message_id], message.message_id))
