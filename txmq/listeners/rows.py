"""The row form of a listener, RocketMQ's own: one question is about one half (R72, R81)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from txmq.listeners.check_watch import CheckWatch
from txmq.listeners.failures import Failures
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
from txmq.listeners.threads import ListenerThreads, PendingQuestions, Unanswered, waited
from txmq.store.check_settings import CheckSettings


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The answer about one half."""

    transaction_id: str
    answered: Answered


class RowAsker:
    """Asks about one half at a time, up to `check_threads` at once.

    A half that cannot be parsed gets no outcome.
    """

    def __init__(
        self, group: str, listener: Any, settings: CheckSettings, watch: CheckWatch | None = None
    ) -> None:
        """Start no thread."""
        self.columns = HEAD_COLUMNS
        self.limit = settings.check_queue_size
        self._group, self._listener = group, listener
        self._watch = watch or CheckWatch(group)
        self._timeout_s = settings.listener_timeout_s
        self._failures = Failures(group)
        self._threads = ListenerThreads[HalfMessage, RowAnswer](
            group, self._answer, self._failed, settings.check_threads
        )

    def ask(self, heads: pa.Table) -> Collect:
        """Put a question for each head; all of them share one `listener_timeout_s`."""
        halves = half_messages(heads)
        self._failures.begin()
        pending = self._threads.ask(halves)
        deadline_s = time.monotonic() + self._timeout_s
        return Collect(
            partial(waited, pending, deadline_s),
            lambda: self._outcomes([half.transaction_id for half in halves], pending, deadline_s),
        )

    def late(self) -> pa.Table:
        """OUTCOMES of the answers that came after their deadline, each once."""
        answers = self._threads.late()
        return _outcome_table((answer.transaction_id, answer.answered) for answer in answers)

    def close(self) -> None:
        """End the threads; a thread that hangs ends when its listener returns."""
        self._threads.close()

    def _answer(self, half: HalfMessage) -> RowAnswer:
        with self._watch.question(half) as running:
            state, reason = answer_of(self._listener.check_local_transaction(half))
            running.answered(state.value)
        return RowAnswer(half.transaction_id, Answered(state, reason))

    def _failed(self, half: HalfMessage, error: BaseException) -> RowAnswer:
        about = f"transaction {half.transaction_id}"
        self._failures.failed(about, error, [half.body])
        return RowAnswer(half.transaction_id, raised(error))

    def _outcomes(
        self,
        ids: list[str],
        pending: PendingQuestions[HalfMessage, RowAnswer] | None,
        deadline_s: float,
    ) -> pa.Table:
        if pending is None:
            return same_outcome(pa.array(ids, pa.string()), BUSY)
        answers = pending.answers(deadline_s)
        warn_of_open(self._group, sum(answer is Unanswered.HANGS for answer in answers))
        return _outcome_table(zip(ids, map(_outcome, answers), strict=True))


def _outcome(answer: RowAnswer | Unanswered) -> Outcome:
    if isinstance(answer, RowAnswer):
        return answer.answered
    return TIMED_OUT if answer is Unanswered.HANGS else BUSY


def _outcome_table(outcomes: Iterable[tuple[str, Outcome]]) -> pa.Table:
    return outcome_table(
        (transaction_id, outcome.state.value if isinstance(outcome, Answered) else None,
         outcome.reason)
        for transaction_id, outcome in outcomes
    )  # fmt: skip
