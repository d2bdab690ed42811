"""Asks listeners in this process: about one half at a time, or about a whole set in one call.

In the set form one question is a table of heads, and one answer is a table of states. Hooks hear of
the questions. The log shows why a listener failed: text, traceback and transaction, but no body.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.ground.columns import DistinctRows, Integers, integers
from txmq.listeners.heads import half_messages
from txmq.listeners.hooks import TOLD_MAX, Hooks, Operation, OperationName, RunningOperations
from txmq.listeners.protocol import (
    BUSY,
    CHECK_ARROW_SET,
    HEAD_COLUMNS,
    LEFT,
    OUTCOMES,
    TIMED_OUT,
    Answered,
    Collect,
    HalfMessage,
    Outcome,
    Reason,
    answer_of,
    answers_sets,
    one_line,
    outcome_table,
    raised,
    same_outcome,
    warn_of_open,
)
from txmq.listeners.threads import ListenerThreads, PendingQuestions, Unanswered, waited
from txmq.message.message import LocalTransactionState
from txmq.message.names import namespace_of, unwrapped
from txmq.message.trace_context import context_of
from txmq.store.config import CheckSettings

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession


logger = logging.getLogger(__name__)
# One call asks about all heads, so a second thread would have nothing to ask.
THREADS_OF_A_SET = 1
SHOWN_IDS = 5
MAX_TRACE_CHARACTERS = 20_000
MAX_FRAMES = 50
# A shorter body is part of many words.
MIN_BODY_BYTES = 4
# An error may show the begin of a body alone.
BEGIN_CHARACTERS = 12
_HIDDEN = "<body>"
_NEEDED = ("transaction_id", "message_id", "topic", "properties")
_UNKNOWN = LocalTransactionState.UNKNOWN.value
_STATES = pa.array([state.value for state in LocalTransactionState])
# Numbers in arrays: of a state that is not in _STATES, and of a transaction without a row.
_NO_STATE, _NO_ROW = -1, -1
_DOUBTS = pa.array([Reason.NO_ANSWER.value, Reason.CONTRADICTION.value, Reason.NO_STATE.value])
USE_SESSION = "use_session"
SetCall = Callable[[pa.Table], object]


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
        """Return OUTCOMES of the answers that came after their deadline, each once."""
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


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The answer about one half."""

    transaction_id: str
    answered: Answered


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


class SetAsker:
    """Asks about all heads of a round in one call, within `listener_timeout_s`."""

    def __init__(  # noqa: PLR0913 - what a listener and its group say
        self,
        group: str,
        call: SetCall,
        columns: tuple[str, ...],
        limit: int,
        settings: CheckSettings,
        *,
        watch: CheckWatch | None = None,
    ) -> None:
        """Start no thread; `limit` is the largest number of heads in a call."""
        self.columns = columns
        self.limit = limit
        self._group, self._call = group, call
        self._watch = watch or CheckWatch(group)
        self._timeout_s = settings.listener_timeout_s
        self._threads = ListenerThreads[pa.Table, pa.Table](
            group, self._answer, self._failed, THREADS_OF_A_SET
        )
        self._failures = Failures(group)

    def ask(self, heads: pa.Table) -> Collect:
        """Put one question about all heads."""
        self._failures.begin()
        pending = self._threads.ask([heads])
        deadline_s = time.monotonic() + self._timeout_s
        ids = _ids(heads)
        return Collect(
            partial(waited, pending, deadline_s), lambda: self._outcomes(ids, pending, deadline_s)
        )

    def late(self) -> pa.Table:
        """Return OUTCOMES of the answers that came after their deadline, each once."""
        return pa.concat_tables([OUTCOMES.empty_table(), *self._threads.late()])

    def close(self) -> None:
        """End the thread; a thread that hangs ends when its listener returns."""
        self._threads.close()

    def _answer(self, heads: pa.Table) -> pa.Table:
        begun_ns = time.time_ns()
        answers = set_answers(self._call(heads), _ids(heads))
        self._watch.questions(heads, answers.outcomes, begun_ns)
        if answers.strangers:
            warning = "group %s answered for %d transactions that it was not asked about"
            logger.warning(warning, self._group, answers.strangers)
        return answers.outcomes

    def _failed(self, heads: pa.Table, error: BaseException) -> pa.Table:
        shown = ", ".join(heads["transaction_id"].slice(0, SHOWN_IDS).to_pylist())
        bodies = heads["body"].to_pylist() if "body" in heads.column_names else []
        about = f"{heads.num_rows:,} transactions, first {shown}"
        self._failures.failed(about, error, (body for body in bodies if body))
        return same_outcome(_ids(heads), raised(error))

    def _outcomes(
        self,
        ids: pa.Array,
        pending: PendingQuestions[pa.Table, pa.Table] | None,
        deadline_s: float,
    ) -> pa.Table:
        if pending is None:
            return same_outcome(ids, BUSY)
        (answer,) = pending.answers(deadline_s)
        if not isinstance(answer, Unanswered):
            return answer
        is_hanging = answer is Unanswered.HANGS
        warn_of_open(self._group, len(ids) if is_hanging else 0)
        return same_outcome(ids, TIMED_OUT if is_hanging else BUSY)


def call_of(listener: Any, spark: SparkSession | None) -> SetCall | None:
    """Return the function that asks the listener about a set; None if it has no set form here.

    A listener with the Spark form alone has none without a Spark session. One with `use_session`
    gets the session.
    """
    if spark is not None and hasattr(listener, USE_SESSION):
        getattr(listener, USE_SESSION)(spark)
    if answers_sets(listener, with_spark=False):
        arrow_call: SetCall = getattr(listener, CHECK_ARROW_SET)
        return arrow_call
    if spark is None or not answers_sets(listener, with_spark=True):
        return None

    def spark_call(heads: pa.Table) -> object:
        answers = listener.check_local_transactions(spark.createDataFrame(heads))
        # Spark computes lazily: this line spends the listener's time, not the round's.
        return answers.toArrow()

    return spark_call


def _ids(heads: pa.Table) -> pa.Array:
    return heads["transaction_id"].combine_chunks()


# --- answers of a set -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetAnswers:
    """OUTCOMES of all questions, and the number of rows about transactions not asked about."""

    outcomes: pa.Table
    strangers: int


def set_answers(value: object, transaction_ids: pa.Array) -> SetAnswers:
    """Check what a set listener returned, and give each question an outcome.

    A transaction is UNKNOWN if it has no row (NO_ANSWER), rows with different states
    (CONTRADICTION), or text that is no state (NO_STATE). One without a state whose reason is LEFT
    keeps both. If the value is no table of transaction_id and state, all transactions are UNKNOWN.

    Args:
        value: what the listener returned: transaction_id, state and, if wanted, reason.
        transaction_ids: the questions, each once.
    """
    try:
        answers = _as_table(value)
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        problem = _problem(value, error)
        unknown = Answered(LocalTransactionState.UNKNOWN, problem)
        return SetAnswers(same_outcome(transaction_ids, unknown), 0)
    place = pc.index_in(answers["transaction_id"], value_set=transaction_ids)
    placed = answers.append_column("place", place).filter(pc.is_valid(place))
    strangers = answers.num_rows - placed.num_rows
    return SetAnswers(_outcomes(placed, transaction_ids), strangers)


def _as_table(value: object) -> pa.Table:
    """Convert a table of any kind, with text of any kind, to OUTCOMES."""
    table = pa.table(value)
    reasons = table["reason"] if "reason" in table.column_names else None
    if reasons is None or pa.types.is_null(reasons.type):
        reasons = pa.nulls(table.num_rows, pa.string())
    columns = [table["transaction_id"], table["state"], reasons]
    return pa.table([_as_text(column) for column in columns], OUTCOMES.names).cast(OUTCOMES)


def _as_text(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type).cast(pa.string())
    return column.cast(pa.string())


def _problem(value: object, error: Exception) -> str:
    """Show types only: the text of an error may hold a body."""
    kind, expected = type(value).__name__, "a table with transaction_id and state"
    return f"the listener returned {kind}, not {expected} ({type(error).__name__})"


def _outcomes(answers: pa.Table, transaction_ids: pa.Array) -> pa.Table:
    """Return one outcome for each question; `place` in `answers` is the number of the question."""
    place = integers(answers["place"], 0)
    state = integers(pc.index_in(answers["state"], value_set=_STATES), _NO_STATE)
    count = len(transaction_ids)
    row = np.full(count, _NO_ROW, dtype=np.int64)
    # In reverse, so that the first row of a transaction stays.
    row[place[::-1]] = np.arange(len(place))[::-1]
    doubt = _doubts(place, state, count)
    is_certain = pa.array(doubt < 0)
    rows = pa.array(row, mask=row == _NO_ROW)
    states = pc.if_else(is_certain, answers["state"].combine_chunks().take(rows), _UNKNOWN)
    doubts = _DOUBTS.take(pa.array(doubt, mask=doubt < 0))
    reasons = pc.if_else(is_certain, _bounded(answers["reason"]).take(rows), doubts)
    is_left = pc.coalesce(_left(answers).take(rows), pa.scalar(value=False))
    states = pc.if_else(is_left, pa.scalar(None, pa.string()), states)
    reasons = pc.if_else(is_left, LEFT, reasons)
    return pa.table([transaction_ids, states, reasons], OUTCOMES)


def _left(answers: pa.Table) -> pa.Array:
    """Tell which answers leave their transactions for a later call."""
    is_left = pc.equal(answers["reason"], LEFT)
    return pc.and_kleene(pc.is_null(answers["state"]), is_left).combine_chunks()


def _doubts(place: Integers, state: Integers, count: int) -> Integers:
    """Return the number in _DOUBTS of the doubt about each transaction; -1 if there is none."""
    low, high = np.full(count, len(_STATES), dtype=np.int64), np.full(count, -2, dtype=np.int64)
    np.minimum.at(low, place, state)
    np.maximum.at(high, place, state)
    is_answered = np.zeros(count, dtype=bool)
    is_answered[place] = True
    return np.select([~is_answered, low != high, low == _NO_STATE], [0, 1, 2], -1)


def _bounded(reasons: Any) -> pa.Array:
    """Cut a listener's reasons and put them on one line, each distinct reason once."""
    distinct = DistinctRows.of(pa.table({"reason": reasons}))
    return distinct.values(map(one_line, distinct.rows["reason"].to_pylist()), pa.string())


# --- what hooks hear ------------------------------------------------------------------------------


class CheckWatch:
    """The hooks of who asks the listener of one group."""

    def __init__(self, group: str, hooks: Hooks | None = None) -> None:
        """Count for the group of this stored name."""
        self._hooks = Hooks() if hooks is None else hooks
        self._group, self._namespace = unwrapped(group), namespace_of(group)

    def question(self, half: HalfMessage) -> RunningOperations:
        """Begin a question about one half."""
        return self._hooks.operation(
            lambda: self._operation(
                half.transaction_id, half.message_id, half.topic, half.properties
            )
        )

    def questions(self, heads: pa.Table, outcomes: pa.Table, begun_ns: int) -> None:
        """Tell of one question about many halves: of the first TOLD_MAX ones, in TOLD_S.

        Args:
            heads: what the listener got; where a column is missing that is needed, nothing is told.
            outcomes: OUTCOMES.
        """
        if not (self._hooks.hear_operations and set(_NEEDED) <= {*heads.column_names}):
            return
        ids, states = (outcomes[name].to_pylist() for name in ("transaction_id", "state"))
        answers = dict(zip(ids, states, strict=True))
        operations = self._operations(heads.slice(0, TOLD_MAX), begun_ns)
        self._hooks.over_each([(each, answers[each.transaction_id]) for each in operations])

    def _operations(self, heads: pa.Table, begun_ns: int) -> Iterator[Operation]:
        for row in heads.select(_NEEDED).to_pylist():
            yield self._operation(**row, begun_ns=begun_ns)

    def _operation(
        self,
        transaction_id: str,
        message_id: str,
        topic: str | None,
        properties: Mapping[str, str] | Iterable[tuple[str, str]] | None,
        begun_ns: int | None = None,
    ) -> Operation:
        return Operation(
            OperationName.CHECK,
            topic,
            message_id,
            transaction_id,
            group=self._group,
            namespace=self._namespace,
            context=context_of(properties),
            begun_ns=begun_ns,
        )


# --- what the log shows of a failure --------------------------------------------------------------


class Failures:
    """The failures of one listener: each kind once at ERROR, and again at DEBUG. Safe for threads.

    A listener whose database is away fails in each of two thousand questions alike.
    """

    def __init__(self, group: str) -> None:
        """Log nothing yet."""
        self._group = group
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def begin(self) -> None:
        """Begin a new round: each kind is worth a line again."""
        with self._lock:
            self._seen.clear()

    def failed(self, about: str, error: BaseException, bodies: Iterable[bytes]) -> None:
        """Log one failure.

        Args:
            about: what was asked, with the ids of the transactions.
            error: what the listener raised.
            bodies: what the text of the error must not show.
        """
        kind = _kind(error)
        with self._lock:
            level = logging.DEBUG if kind in self._seen else logging.ERROR
            self._seen.add(kind)
        if logger.isEnabledFor(level):
            text = "group %s: its listener failed when asked about %s; this counts as UNKNOWN\n%s"
            logger.log(level, text, self._group, about, trace(error, bodies))


def trace(error: BaseException, bodies: Iterable[bytes]) -> str:
    """Return the traceback and the text of an error, cut, without the bodies."""
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_FRAMES)
    return without_bodies("".join(lines).rstrip(), bodies)[-MAX_TRACE_CHARACTERS:]


def without_bodies(text: str, bodies: Iterable[bytes]) -> str:
    """Replace each body in the text, in each form in which Python may show it."""
    for body in bodies:
        if len(body) < MIN_BODY_BYTES:
            continue
        shown = body.decode("utf-8", errors="replace")
        for form in (shown, repr(shown)[1:-1], repr(body)[2:-1]):
            text = _without(text, form)
    return text


def _without(text: str, form: str) -> str:
    """Replace the form in the text, also if the text holds only its begin."""
    begin = form[:BEGIN_CHARACTERS]
    place = text.find(begin)
    while place >= 0:
        end = place + _same(text[place : place + len(form)], form)
        text = f"{text[:place]}{_HIDDEN}{text[end:]}"
        place = text.find(begin, place + len(_HIDDEN))
    return text


def _same(text: str, form: str) -> int:
    """Count the characters that both begin with."""
    pairs = enumerate(zip(text, form, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), len(text))


def _kind(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} {place}"
