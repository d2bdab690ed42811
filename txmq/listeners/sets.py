"""The set form of a listener: a question is a table, and its one answer tells of all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txmq.listeners.outcomes import (
    BUSY,
    OUTCOMES,
    TIMED_OUT,
    Collect,
    raised,
    same_outcome,
    warn_of_open,
)
from txmq.listeners.protocol import CHECK_ARROW_SET, answers_sets
from txmq.listeners.set_answers import set_answers
from txmq.listeners.threads import Asking, ListenerThreads, Unanswered
from txmq.store.config import CheckSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
