"""A producer's side of remote listeners: take questions of the group, ask the listener, answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from txmq.clock import Clock
from txmq.errors import TxmqError
from txmq.handles import ThreadHandle
from txmq.listeners.askers import GroupListeners
from txmq.listeners.protocol import CheckListener
from txmq.listeners.remote_requests import (
    MEMBER_SILENCE_MAX_S,
    Answer,
    Question,
    Requests,
    requests_in,
)
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.2
# How long the client that sent a transaction is waited for.
PREFERENCE_S = 1.0
SIGN_OF_LIFE_S = MEMBER_SILENCE_MAX_S / 4
Take = tuple[str, int]


class RemoteMember(ThreadHandle):
    """Answers checks of its group while it runs; several members share the questions."""

    def __init__(  # noqa: PLR0913 - what it shares with its producer
        self,
        store: Store,
        *,
        group: str,
        client_id: str,
        listener: CheckListener,
        clock: Clock,
        spark: SparkSession | None = None,
    ) -> None:
        """Join: one commit; made by `TransactionProducer.answer_checks()`."""
        super().__init__(f"remote-{group}", POLL_INTERVAL_S)
        self.client_id = client_id
        self.answered = 0
        self._group, self._clock = group, clock
        self._lease_s = store.config.of_group(group).listener_timeout_s / 2
        self._half = store.tables.half_log()
        self._listeners = GroupListeners({group: listener}, store.config, spark)
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
        """Take what is free, again and again while there is something."""
        try:
            while not self._stopping.is_set() and self._took_some():
                pass
        except (TxmqError, OSError) as error:
            logger.warning("group %s: no question could be taken: %s", self._group, error)

    def _took_some(self) -> bool:
        self._look()
        free = self._free(self._seen)
        if not free:
            return False
        takes = self._take(free)
        if takes:
            self._answer(takes, self._told(takes))
        return bool(takes)

    def _look(self) -> None:
        if time.monotonic() - self._sign_of_life_s > SIGN_OF_LIFE_S:
            self._seen = self._join()
        elif self._requests.has_news():
            self._seen = self._requests.read()
        self._note(self._seen)

    def _note(self, seen: Requests) -> None:
        """Remember when each take was first seen: no other clock than ours is believed."""
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
        """What is ours now; nothing where the round is another one meanwhile."""
        round_id, wanted = self._round_id, set(free)

        def take(now: Requests) -> Requests:
            if now.round_id != round_id:
                return now
            still_free = wanted.intersection(self._free(now))
            return now.taken_by(self.client_id, [key for key in now.asked if key in still_free])

        before = self._seen.taken
        self._seen = self._requests.change(take, self._clock.now_ms())
        return {
            key: held
            for key, held in self._seen.taken.items()
            if held[0] == self.client_id and key in wanted and before.get(key) != held
        }

    def _told(self, takes: Mapping[str, Take]) -> dict[str, Answer]:
        """The listener's answers, all within its time."""
        questions = [(key, self._seen.asked.get(key, Question(0, None))) for key in takes]
        asks = pa.table(
            {
                "transaction_id": pa.array([key for key, _ in questions], pa.string()),
                "producer_group": pa.array([self._group] * len(questions), pa.string()),
                "check_times": pa.array([each.check_times for _, each in questions], pa.int32()),
            }
        )
        self._half.table.refresh()
        outcomes = self._listeners.ask(self._half, asks)
        return {
            row["transaction_id"]: Answer(row["state"], row["reason"])
            for row in outcomes.to_pylist()
        }

    def _answer(self, takes: Mapping[str, Take], told: Mapping[str, Answer]) -> None:
        """One commit, or none where all of it was taken from us meanwhile."""
        kept: dict[str, Answer] = {}

        def answer(now: Requests) -> Requests:
            after = now.answered(takes, told)
            kept.clear()
            kept.update(
                {key: each for key, each in after.answers.items() if key not in now.answers}
            )
            return after

        self._seen = self._requests.change(answer, self._clock.now_ms())
        self.answered += len(kept)

    def _end(self) -> None:
        self._listeners.close()
        try:
            self._requests.change(lambda now: now.left(self.client_id), self._clock.now_ms())
        except TxmqError as error:
            logger.warning("group %s: could not leave: %s", self._group, error)
