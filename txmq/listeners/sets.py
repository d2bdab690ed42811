"""The set form of a listener: a question is a table, and its one answer tells of all."""

from __future__ import annotations

import logging
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import DistinctRows, Integers, integers
from txmq.listeners.outcomes import (
    BUSY,
    MAX_REASON_CHARACTERS,
    OUTCOMES,
    TIMED_OUT,
    Answered,
    Collect,
    Reason,
    raised,
    same_outcome,
    warn_of_open,
)
from txmq.listeners.protocol import CHECK_ARROW_SET, answers_sets
from txmq.listeners.threads import Asking, ListenerThreads, Unanswered
from txmq.message.message import LocalTransactionState
from txmq.store.config import CheckSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNKNOWN = LocalTransactionState.UNKNOWN.value
_STATES = pa.array([state.value for state in LocalTransactionState])
_NO_STATE = -1
_DOUBTS = pa.array([Reason.NO_ANSWER.value, Reason.CONTRADICTION.value, Reason.NO_STATE.value])

logger = logging.getLogger(__name__)

# One call answers for all, so a second thread would have nothing to ask.
THREADS_OF_A_SET = 1
SetCall = Callable[[pa.Table], object]


def call_of(listener: Any, spark: SparkSession | None) -> SetCall | None:
    """How a listener is asked about a set; None where it cannot be asked so, here."""
    if answers_sets(listener, with_spark=False):
        arrow_call: SetCall = getattr(listener, CHECK_ARROW_SET)
        return arrow_call
    if spark is None or not answers_sets(listener, with_spark=True):
        return None

    def spark_call(heads: pa.Table) -> object:
        answers = listener.check_local_transactions(spark.createDataFrame(heads))
        # It is computed here, within the time that the listener has.
        return answers.toArrow()

    return spark_call


class SetAsker:
    """Asks about all halves of a round in one call, within `listener_timeout_s`."""

    def __init__(
        self,
        group: str,
        call: SetCall,
        columns: tuple[str, ...],
        limit: int,
        settings: CheckSettings,
    ) -> None:
        """`limit` is the size of a set; no thread is started yet."""
        self.columns = columns
        self.limit = limit
        self._group, self._call = group, call
        self._timeout_s = settings.listener_timeout_s
        self._threads = ListenerThreads[pa.Table, pa.Table](group, self._answer, THREADS_OF_A_SET)

    def ask(self, heads: pa.Table) -> Collect:
        """Put one question about all heads."""
        asking = self._threads.ask([heads])
        deadline_s = time.monotonic() + self._timeout_s
        return lambda: self._outcomes(heads, asking, deadline_s)

    def late(self) -> pa.Table:
        """OUTCOMES that came after their time, each once."""
        answers = (answer for _, answer in self._threads.late())
        return pa.concat_tables([OUTCOMES.empty_table(), *answers])

    def close(self) -> None:
        """End the threads that do not hang."""
        self._threads.close()

    def _answer(self, heads: pa.Table) -> pa.Table:
        try:
            answers = set_answers(self._call(heads), _ids(heads))
        except BaseException as error:  # noqa: BLE001 - R81: whatever it raises is UNKNOWN
            return same_outcome(_ids(heads), raised(error))
        if answers.strangers:
            said = "group %s answered for %d transactions that it was not asked about"
            logger.warning(said, self._group, answers.strangers)
        return answers.outcomes

    def _outcomes(
        self, heads: pa.Table, asking: Asking[pa.Table, pa.Table] | None, deadline_s: float
    ) -> pa.Table:
        if asking is None:
            return same_outcome(_ids(heads), BUSY)
        (answer,) = asking.answers(deadline_s)
        if not isinstance(answer, Unanswered):
            return answer
        hangs = answer is Unanswered.HANGS
        warn_of_open(self._group, heads.num_rows if hangs else 0)
        return same_outcome(_ids(heads), TIMED_OUT if hangs else BUSY)


def _ids(heads: pa.Table) -> pa.Array:
    return heads["transaction_id"].combine_chunks()


@dataclass(frozen=True, slots=True)
class SetAnswers:
    """OUTCOMES of all that were asked, and how many rows were about others."""

    outcomes: pa.Table
    strangers: int


def set_answers(value: object, transaction_ids: pa.Array) -> SetAnswers:
    """The answer of a set listener, for each transaction that it was asked about.

    Args:
        value: what the listener returned: transaction_id, state and perhaps reason.
        transaction_ids: the questions, each once.

    A transaction without a row is UNKNOWN (NO_ANSWER), as is one with different states
    (CONTRADICTION) or with a state that is none (NO_STATE); no table at all is UNKNOWN for all.
    """
    try:
        answers = _as_table(value)
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        problem = _problem(value, error)
        said = Answered(LocalTransactionState.UNKNOWN, problem)
        return SetAnswers(same_outcome(transaction_ids, said), 0)
    asked = pc.index_in(answers["transaction_id"], value_set=transaction_ids)
    own = answers.append_column("place", asked).filter(pc.is_valid(asked))
    strangers = answers.num_rows - own.num_rows
    return SetAnswers(_outcomes(own, transaction_ids), strangers)


def _as_table(value: object) -> pa.Table:
    """Text columns of a table, whatever kind of table and of text it is."""
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
    """The type alone: the text of an error may hold a body."""
    kind, named = type(value).__name__, "a table with transaction_id and state"
    return f"the listener returned {kind}, not {named} ({type(error).__name__})"


def _outcomes(own: pa.Table, transaction_ids: pa.Array) -> pa.Table:
    place = integers(own["place"], 0)
    state = integers(pc.index_in(own["state"], value_set=_STATES), _NO_STATE)
    count = len(transaction_ids)
    row = np.full(count, -1, dtype=np.int64)
    row[place[::-1]] = np.arange(len(place))[::-1]
    doubtful = _doubts(place, state, count)
    found = pa.array(row, mask=row < 0)
    states = pc.if_else(pa.array(doubtful < 0), own["state"].combine_chunks().take(found), _UNKNOWN)
    reasons = pc.if_else(
        pa.array(doubtful < 0),
        _bounded(own["reason"]).take(found),
        _DOUBTS.take(pa.array(doubtful, mask=doubtful < 0)),
    )
    return pa.table([transaction_ids, states, reasons], OUTCOMES)


def _doubts(place: Integers, state: Integers, count: int) -> Integers:
    """Which of _DOUBTS there is about each transaction; -1 for none."""
    low, high = np.full(count, len(_STATES), dtype=np.int64), np.full(count, -2, dtype=np.int64)
    np.minimum.at(low, place, state)
    np.maximum.at(high, place, state)
    answered = np.zeros(count, dtype=bool)
    answered[place] = True
    return np.select([~answered, low != high, low == _NO_STATE], [0, 1, 2], -1)


def _bounded(reasons: Any) -> pa.Array:
    """A listener's reasons, cut and on one line; most are alike."""
    distinct = DistinctRows.of(pa.table({"reason": reasons}))
    return distinct.values(map(_one_line, distinct.rows["reason"].to_pylist()), pa.string())


def _one_line(text: str | None) -> str | None:
    if text is None:
        return None
    kept = text[:MAX_REASON_CHARACTERS]
    return "".join(" " if unicodedata.category(one)[0] == "C" else one for one in kept)
