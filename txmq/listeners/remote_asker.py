"""The check service's side of remote listeners: puts questions and waits for the answers."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.errors import CommitRefusedError, InvalidNameError
from txmq.listeners.outcomes import (
    OUTCOMES,
    TIMED_OUT,
    UNASKED_REASONS,
    Collect,
    Reason,
    one_line,
    outcome_table,
)
from txmq.listeners.remote_requests import (
    RemoteAnswer,
    RemoteQuestion,
    RemoteRequests,
    Requests,
    requests_in,
)
from txmq.message.message import LocalTransactionState
from txmq.store.check_settings import CheckSettings
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

POLL_INTERVAL_S = 0.05
# If no member has taken a question by then, no member is alive.
FIRST_TAKE_S = 5.0
# Of one round: each take and each answer writes the whole value again.
QUESTIONS_MAX = 10_000
_STATES = frozenset(state.value for state in LocalTransactionState)
_NO_LISTENER = RemoteAnswer(None, Reason.NO_LISTENER.value)
_TIMED_OUT = RemoteAnswer(TIMED_OUT.state.value, str(TIMED_OUT.reason))


class RemoteAsker:
    """Asks the live producers of a group through the store (R77 to R80, decision 0013).

    A question that no producer took does not count. A question that a producer took and did not
    answer in time counts.
    """

    columns = ("transaction_id", "check_times", "client_id")

    def __init__(self, requests: RemoteRequests, clock: Clock, settings: CheckSettings) -> None:
        """Write nothing."""
        self.limit = min(settings.check_queue_size, QUESTIONS_MAX)
        self._requests, self._clock = requests, clock
        self._timeout_s = settings.listener_timeout_s

    def ask(self, heads: pa.Table) -> Collect:
        """Begin a round with these questions: one commit; its end is another."""
        questions = {
            row["transaction_id"]: RemoteQuestion(row["check_times"], row["client_id"])
            for row in heads.to_pylist()
        }
        wait = _Wait(str(uuid.uuid4()), time.monotonic(), self._timeout_s)
        self._requests.change(lambda now: now.begun(wait.round_id, questions), self._clock.now_ms())
        return Collect(partial(self._waited, wait), lambda: self._collected(wait, questions))

    def late(self) -> pa.Table:
        """No rows: an answer after its round changes nothing, and the next round asks again."""
        return OUTCOMES.empty_table()

    def close(self) -> None:
        """Nothing to end: the threads are those of the producers."""

    def _collected(self, wait: _Wait, questions: Mapping[str, RemoteQuestion]) -> pa.Table:
        """Wait for the answers, end the round, and return OUTCOMES."""
        self._waited(wait, math.inf)
        requests = self._requests.read()
        if requests.round_id != wait.round_id:
            requests = Requests()
        with suppress(CommitRefusedError):
            # An answer between the last read and the end of the round is not lost.
            requests = self._ended(wait.round_id, requests)
        return _outcomes(questions, requests)

    def _waited(self, wait: _Wait, until_s: float) -> bool:
        """Wait until the monotonic time `until_s` at the latest; whether the round is over."""
        requests = self._requests.read()
        while requests.round_id == wait.round_id and not wait.is_over(requests):
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_INTERVAL_S)
            if self._requests.has_news():
                requests = self._requests.read()
        return True

    def _ended(self, round_id: str, requests: Requests) -> Requests:
        """End the round: one commit. Returns the round as it was right before its end."""
        last: list[Requests] = [requests]

        def end(now: Requests) -> Requests:
            last[0] = now if now.round_id == round_id else requests
            return now.over(round_id)

        self._requests.change(end, self._clock.now_ms())
        return last[0]


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long a round is waited for."""

    round_id: str
    since_s: float
    timeout_s: float

    def is_over(self, requests: Requests) -> bool:
        waited_s = time.monotonic() - self.since_s
        is_untouched = not requests.taken and not requests.answers
        return (
            requests.is_answered
            or waited_s >= self.timeout_s
            or (is_untouched and waited_s >= min(FIRST_TAKE_S, self.timeout_s))
        )


def _outcomes(questions: Mapping[str, RemoteQuestion], requests: Requests) -> pa.Table:
    answers = {
        key: requests.answers.get(key, _TIMED_OUT if key in requests.taken else _NO_LISTENER)
        for key in questions
    }
    return outcome_table((key, *_believed(answer)) for key, answer in answers.items())


def _believed(answer: RemoteAnswer) -> tuple[str | None, str | None]:
    """State and reason of an answer that another process wrote, maybe none of txmq."""
    reason = one_line(None if answer.reason is None else str(answer.reason))
    if answer.state is None:
        return None, reason if reason in UNASKED_REASONS else Reason.NO_LISTENER.value
    if answer.state not in _STATES:
        return LocalTransactionState.UNKNOWN.value, Reason.NO_STATE.value
    return answer.state, reason


# Finds the asker of a group without a listener in this process.
RemoteAskers = Callable[[str], RemoteAsker | None]


def remote_asker(store: Store, clock: Clock, group: str) -> RemoteAsker | None:
    """The asker of a group's live producers; None if no producer was alive lately."""
    try:
        requests = requests_in(store, group)
    except InvalidNameError:
        # A half written by hand may name any group.
        return None
    if not requests.exists or not requests.read().member_count(clock.now_ms()):
        return None
    return RemoteAsker(requests, clock, store.config.of_group(group))
