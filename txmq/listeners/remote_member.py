"""A producer's side of remote listeners: takes questions, asks its listener, and answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from txmq.ground.clock import Clock
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.listeners.askers import Askers
from txmq.listeners.hooks import Hooks
from txmq.listeners.protocol import CheckListener, Reason
from txmq.listeners.remote import (
    MEMBER_SILENCE_MAX_S,
    RemoteAnswer,
    RemoteQuestion,
    Requests,
    Take,
    requests_in,
)
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.2
# For this long only the client that sent a transaction may take its question.
PREFERENCE_S = 1.0
SIGN_OF_LIFE_S = MEMBER_SILENCE_MAX_S / 4


class RemoteMember(ThreadHandle):
    """Answers checks of its group in a thread; the members of a group share the questions.

    `TransactionProducer.answer_checks()` makes it. One commit to join and one to leave, one for
    each take, one for its answers, one sign of life every quarter of an hour.
    """

    def __init__(  # noqa: PLR0913 - all of it belongs to its producer
        self,
        store: Store,
        *,
        group: str,
        client_id: str,
        listener: CheckListener,
        clock: Clock,
        spark: SparkSession | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Join the group, by one commit, and start the thread."""
        super().__init__(f"remote-{group}", POLL_INTERVAL_S)
        self.client_id = client_id
        self.answered = 0
        # Who asks compares signs of life with the store's time.
        self._group, self._clock = group, StoreClock.of(store, clock)
        self._lease_s = store.config.of_group(group).listener_timeout_s / 2
        self._half = store.tables.half_log()
        self._askers = Askers({group: listener}, store.config, spark, hooks=hooks)
        self._requests = requests_in(store, group, create=True)
        self._round_id, self._round_seen_s = "", 0.0
        self._takes_seen_s: dict[tuple[str, Take], float] = {}
        self._seen = self._join()
        self.begin()

    def _join(self) -> Requests:
        now_ms = self._clock.now_ms()
        self._sign_of_life_s = time.monotonic()
        return self._requests.change(lambda now: now.joined(self.client_id, now_ms), now_ms)

    def _turn(self) -> None:
        """Take and answer free questions until none is left."""
        try:
            while not self._stopping.is_set() and self._answer_some():
                pass
        except BaseException as error:
            if not is_survivable(error):
                raise
            warning = "group %s: no question could be taken or answered; trying again: %s"
            logger.warning(warning, self._group, error, exc_info=error)

    def _answer_some(self) -> bool:
        """Take and answer a share of the free questions; false if there was none."""
        self._look()
        free = self._free(self._seen)
        if not free:
            return False
        takes = self._take(free)
        if takes:
            self._put_answers(takes, self._answers(takes))
        return bool(takes)

    def _look(self) -> None:
        if time.monotonic() - self._sign_of_life_s > SIGN_OF_LIFE_S:
            self._seen = self._join()
        elif self._requests.has_news():
            self._seen = self._requests.read()
        self._note(self._seen)

    def _note(self, seen: Requests) -> None:
        """Note when each take was first seen; the clock of another machine may be wrong."""
        now_s = time.monotonic()
        if seen.round_id != self._round_id:
            self._round_id, self._round_seen_s = seen.round_id, now_s
            self._takes_seen_s = {}
        for take in seen.taken.items():
            self._takes_seen_s.setdefault(take, now_s)

    def _free(self, seen: Requests) -> list[str]:
        now_s = time.monotonic()
        lost = [
            key
            for key, take in seen.taken.items()
            if now_s - self._takes_seen_s.get((key, take), now_s) > self._lease_s
        ]
        after_others = now_s - self._round_seen_s > PREFERENCE_S
        return seen.free_for(self.client_id, after_others=after_others, lost=lost)

    def _take(self, free: list[str]) -> dict[str, Take]:
        """Take questions by one commit; returns none if another round began meanwhile."""
        round_id, free_keys = self._round_id, set(free)

        def take(now: Requests) -> Requests:
            if now.round_id != round_id:
                return now
            still_free = free_keys.intersection(self._free(now))
            return now.taken_by(self.client_id, [key for key in now.asked if key in still_free])

        before = self._seen.taken
        self._seen = self._requests.change(take, self._clock.now_ms())
        return {
            key: own_take
            for key, own_take in self._seen.taken.items()
            if own_take[0] == self.client_id and key in free_keys and before.get(key) != own_take
        }

    def _answers(self, takes: Mapping[str, Take]) -> dict[str, RemoteAnswer]:
        """Ask the listener, and return its answers within `listener_timeout_s`."""
        unknown = RemoteQuestion(0, None)
        check_times = [self._seen.asked.get(key, unknown).check_times for key in takes]
        questions = pa.table(
            {
                "transaction_id": pa.array(list(takes), pa.string()),
                "producer_group": pa.array([self._group] * len(takes), pa.string()),
                "check_times": pa.array(check_times, pa.int32()),
            }
        )
        self._half.table.refresh()
        round_ = self._askers.ask(self._half, questions)
        # Without an answer they would count as asked.
        busy = RemoteAnswer(None, Reason.BUSY.value)
        return dict.fromkeys(round_.left.to_pylist(), busy) | {
            row["transaction_id"]: RemoteAnswer(row["state"], row["reason"])
            for row in round_.take().to_pylist()
        }

    def _put_answers(self, takes: Mapping[str, Take], answers: Mapping[str, RemoteAnswer]) -> None:
        """Put the answers by one commit; by none if others took all of the questions meanwhile."""
        count = 0

        def put(now: Requests) -> Requests:
            nonlocal count
            after = now.answered(takes, answers)
            count = len(after.answers) - len(now.answers)
            return after

        self._seen = self._requests.change(put, self._clock.now_ms())
        self.answered += count

    def _end(self) -> None:
        self._askers.close()
        try:
            self._requests.change(lambda now: now.left(self.client_id), self._clock.now_ms())
        except Exception as error:  # noqa: BLE001 - it is no member any more, whatever happens here
            logger.warning("group %s: could not leave: %s", self._group, error)
