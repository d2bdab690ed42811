"""The check service's side of remote listeners: put questions, wait for what producers answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.errors import CommitRefusedError, InvalidNameError
from txmq.listeners.outcomes import OUTCOMES, TIMED_OUT, Collect, Reason, outcome_table
from txmq.listeners.remote_requests import Answer, Question, RemoteRequests, Requests, requests_in
from txmq.store.check_settings import CheckSettings
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

POLL_INTERVAL_S = 0.05
# A member that lives has taken something by then.
FIRST_TAKE_S = 5.0
_NOBODY = Answer(None, Reason.NO_LISTENER.value)
_NOT_TOLD = Answer(TIMED_OUT.state.value, str(TIMED_OUT.reason))


class RemoteAsker:
    """Asks any live producer of a group (RocketMQ R72, R79), by way of the store.

    What nobody took is not counted; what was taken and not answered in time is.
    """

    columns = ("transaction_id", "check_times", "client_id")

    def __init__(self, requests: RemoteRequests, clock: Clock, settings: CheckSettings) -> None:
        """Nothing is written yet."""
        self.limit = settings.check_queue_size
        self._requests, self._clock = requests, clock
        self._timeout_s = settings.listener_timeout_s

    def ask(self, heads: pa.Table) -> Collect:
        """Put the questions: one commit."""
        asked = {
            row["transaction_id"]: Question(row["check_times"], row["client_id"])
            for row in heads.to_pylist()
        }
        waiting = _Waiting(str(uuid.uuid4()), time.monotonic(), self._timeout_s)
        self._requests.change(lambda now: now.begun(waiting.round_id, asked), self._clock.now_ms())
        return lambda: self._collected(waiting, asked)

    def late(self) -> pa.Table:
        """None: an answer after its round changes nothing, the next round asks again."""
        return OUTCOMES.empty_table()

    def close(self) -> None:
        """There is nothing to end."""

    def _collected(self, waiting: _Waiting, asked: Mapping[str, Question]) -> pa.Table:
        seen = self._requests.read()
        while seen.round_id == waiting.round_id and not waiting.is_over(seen):
            time.sleep(POLL_INTERVAL_S)
            if self._requests.has_news():
                seen = self._requests.read()
        told = seen if seen.round_id == waiting.round_id else Requests()
        with suppress(CommitRefusedError):
            # What is answered between the two is not lost: the change sees it.
            told = self._closed(waiting.round_id, told)
        return _outcomes(asked, told)

    def _closed(self, round_id: str, told: Requests) -> Requests:
        last: list[Requests] = [told]

        def close(now: Requests) -> Requests:
            last[0] = now if now.round_id == round_id else told
            return now.over(round_id)

        self._requests.change(close, self._clock.now_ms())
        return last[0]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A round and when its time is over."""

    round_id: str
    since_s: float
    timeout_s: float

    def is_over(self, seen: Requests) -> bool:
        waited_s = time.monotonic() - self.since_s
        nobody = not seen.taken and not seen.answers
        return (
            seen.is_answered
            or waited_s >= self.timeout_s
            or (nobody and waited_s >= min(FIRST_TAKE_S, self.timeout_s))
        )


def _outcomes(asked: Mapping[str, Question], told: Requests) -> pa.Table:
    found = [told.answers.get(key, _NOT_TOLD if key in told.taken else _NOBODY) for key in asked]
    told_of = zip(asked, found, strict=True)
    return outcome_table((key, answer.state, answer.reason) for key, answer in told_of)


RemoteAskers = Callable[[str], RemoteAsker | None]


def remote_asker(store: Store, clock: Clock, group: str) -> RemoteAsker | None:
    """Who asks the producers of a group; None where none of them was alive lately."""
    try:
        requests = requests_in(store, group)
    except InvalidNameError:
        # A half by hand may name anything.
        return None
    if not requests.exists or not requests.read().member_count(clock.now_ms()):
        return None
    return RemoteAsker(requests, clock, store.config.of_group(group))
