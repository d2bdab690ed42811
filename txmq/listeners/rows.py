"""The row form of a listener, RocketMQ's own: a question is one half (R72, R81)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from txmq.listeners.heads import half_messages
from txmq.listeners.outcomes import (
    BUSY,
    TIMED_OUT,
    Answered,
    Collect,
    Outcome,
    outcome_table,
    raised,
    same_outcome,
    warn_of_open,
)
from txmq.listeners.protocol import HEAD_COLUMNS, HalfMessage, answer_of
from txmq.listeners.threads import Asking, ListenerThreads, Unanswered
from txmq.store.config import CheckSettings


class RowAsker:
    """Asks about one half after the other, up to `check_threads` at the same time.

    A half that cannot be parsed is in no outcome.
    """

    def __init__(self, group: str, listener: Any, settings: CheckSettings) -> None:
        """Start no thread yet."""
        self.columns = HEAD_COLUMNS
        self.limit = settings.check_queue_size
        self._group, self._listener = group, listener
        self._timeout_s = settings.listener_timeout_s
        threads = settings.check_threads
        self._threads = ListenerThreads[HalfMessage, Answered](group, self._answer, threads)

    def ask(self, heads: pa.Table) -> Collect:
        """Put a question for each head; they wait for `listener_timeout_s` in all."""
        halves = half_messages(heads)
        asking = self._threads.ask(halves)
        deadline_s = time.monotonic() + self._timeout_s
        return lambda: self._outcomes(halves, asking, deadline_s)

    def late(self) -> pa.Table:
        """OUTCOMES that came after their time, each once."""
        found = self._threads.late()
        return _outcome_table((half.transaction_id, answer) for half, answer in found)

    def close(self) -> None:
        """End the threads that do not hang."""
        self._threads.close()

    def _answer(self, half: HalfMessage) -> Answered:
        try:
            return Answered(*answer_of(self._listener.check_local_transaction(half)))
        except BaseException as error:  # noqa: BLE001 - R81: whatever it raises is UNKNOWN
            return raised(error)

    def _outcomes(
        self,
        halves: list[HalfMessage],
        asking: Asking[HalfMessage, Answered] | None,
        deadline_s: float,
    ) -> pa.Table:
        ids = [half.transaction_id for half in halves]
        if asking is None:
            return same_outcome(pa.array(ids, pa.string()), BUSY)
        answers = asking.answers(deadline_s)
        warn_of_open(self._group, sum(one is Unanswered.HANGS for one in answers))
        return _outcome_table(zip(ids, map(_outcome, answers), strict=True))


def _outcome(answer: Answered | Unanswered) -> Outcome:
    if isinstance(answer, Answered):
        return answer
    return TIMED_OUT if answer is Unanswered.HANGS else BUSY


def _outcome_table(outcomes: Iterable[tuple[str, Outcome]]) -> pa.Table:
    return outcome_table(
        (own_id, outcome.state.value if isinstance(outcome, Answered) else None, outcome.reason)
        for own_id, outcome in outcomes
    )
