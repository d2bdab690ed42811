"""Asking the listeners of all groups together, whichever form each has.

The common form is columns: heads in, OUTCOMES out (decision 0010).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Groups, place_in_group
from txmq.errors import ListenerError
from txmq.listeners.heads import heads_of
from txmq.listeners.outcomes import OUTCOMES, Collect, Reason
from txmq.listeners.protocol import CHECK_SET, CheckListener, answers_rows, head_columns
from txmq.listeners.remote_asker import RemoteAskers
from txmq.listeners.rows import RowAsker
from txmq.listeners.sets import SetAsker, call_of
from txmq.message.message import LocalTransactionState
from txmq.store.config import Config
from txmq.store.half import HalfLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("state", pa.string()),
    ]
)
_UNTOLD = pa.array([Reason.NO_LISTENER.value, Reason.UNREADABLE.value, Reason.BUSY.value])


class Asker(Protocol):
    """The listener of one group, whichever form it has."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the heads that it wants."""
        ...

    @property
    def limit(self) -> int:
        """Questions in one round."""
        ...

    def ask(self, heads: pa.Table) -> Collect:
        """Put the questions; what is returned waits for their OUTCOMES."""
        ...

    def late(self) -> pa.Table:
        """OUTCOMES that came after their time, each once."""
        ...

    def close(self) -> None:
        """End the threads that do not hang."""
        ...


class GroupListeners:
    """Who answers for which producer group, and how much each is asked at a time."""

    def __init__(
        self,
        listeners: Mapping[str, CheckListener],
        config: Config,
        spark: SparkSession | None = None,
        remote: RemoteAskers | None = None,
    ) -> None:
        """Start no thread yet; `remote` finds who answers for a group without a listener here.

        Raises: ListenerError for a form that needs a Spark session.
        """
        self._unheard_limit = config.check_set_size
        self._remote = remote
        self._groups: dict[str, Asker] = {
            group: _group_listener(group, listener, config, spark)
            for group, listener in listeners.items()
        }

    def limit_of(self, producer_group: str) -> int:
        """How many questions of a group are put in one round."""
        known = self._asker(producer_group)
        return self._unheard_limit if known is None else known.limit

    def ask(self, half: HalfLog, asks: pa.Table) -> pa.Table:
        """OUTCOMES of all questions, after the longest timeout of their groups at the latest.

        Args:
            half: where the heads are; its handle must be fresh.
            asks: transaction_id, producer_group and check_times, the most urgent first; those of
                a group beyond its limit are not put and come back as BUSY.

        Reads: half. Commits: 0.
        """
        groups = pc.unique(asks["producer_group"]).to_pylist()
        found = {group: self._asker(group) for group in groups}
        askers = {group: asker for group, asker in found.items() if asker is not None}
        put, untold = _put(asks, askers)
        collects = [askers[group].ask(heads) for group, heads in _heads(half, put, askers)]
        told = pa.concat_tables([OUTCOMES.empty_table(), *(collect() for collect in collects)])
        ids = asks["transaction_id"]
        is_told = pc.is_in(ids, value_set=told["transaction_id"])
        return pa.concat_tables([told, untold.filter(pc.invert(is_told))])

    def late_answers(self) -> pa.Table:
        """LATE: ends that were named after their round, each returned once."""
        parts = [LATE.empty_table()]
        for group, listener in self._groups.items():
            late = listener.late()
            names = pa.repeat(pa.scalar(group, pa.string()), late.num_rows)
            parts.append(pa.table([late["transaction_id"], names, late["state"]], LATE))
        found = pa.concat_tables(parts)
        return found.filter(pc.not_equal(found["state"], LocalTransactionState.UNKNOWN.value))

    def close(self) -> None:
        """End the threads; those that hang end when their listener returns."""
        for listener in self._groups.values():
            listener.close()

    def _asker(self, group: str) -> Asker | None:
        """Who answers for a group: a listener here, else its producers where any is alive."""
        known = self._groups.get(group)
        return known if known is not None or self._remote is None else self._remote(group)


def _put(asks: pa.Table, askers: Mapping[str, Asker]) -> tuple[pa.Table, pa.Table]:
    """The questions that are put, and OUTCOMES of all in case that nobody tells one."""
    groups, place = asks["producer_group"], place_in_group(asks["producer_group"])
    own = Groups.of(groups)
    names = own.keys.to_pylist()
    limits = np.array(
        [askers[name].limit if name in askers else 0 for name in names], dtype=np.int64
    )[own.place]
    is_heard = np.array([name in askers for name in names], dtype=bool)[own.place]
    fits = place < limits
    reasons = np.select([~is_heard, fits], [0, 1], 2)
    states = pa.nulls(asks.num_rows, pa.string())
    untold = [asks["transaction_id"], states, _UNTOLD.take(pa.array(reasons))]
    return asks.filter(pa.array(is_heard & fits)), pa.table(untold, OUTCOMES)


def _heads(
    half: HalfLog, asks: pa.Table, askers: Mapping[str, Asker]
) -> Iterator[tuple[str, pa.Table]]:
    """The heads of each group; the half log is read once for all that want the same."""
    by_columns: dict[tuple[str, ...], list[str]] = {}
    for group in pc.unique(asks["producer_group"]).to_pylist():
        by_columns.setdefault(askers[group].columns, []).append(group)
    for columns, groups in by_columns.items():
        is_own = pc.is_in(asks["producer_group"], value_set=pa.array(groups))
        yield from _by_group(half, asks.filter(is_own), columns)


def _by_group(
    half: HalfLog, asks: pa.Table, columns: tuple[str, ...]
) -> Iterator[tuple[str, pa.Table]]:
    heads = heads_of(half, asks, columns)
    asked = pc.index_in(heads["transaction_id"], value_set=asks["transaction_id"].combine_chunks())
    groups = asks["producer_group"].take(asked)
    for group in pc.unique(groups).to_pylist():
        yield group, heads.filter(pc.equal(groups, group))


def _group_listener(group: str, listener: Any, config: Config, spark: SparkSession | None) -> Asker:
    settings, call = config.of_group(group), call_of(listener, spark)
    if call is not None:
        columns = head_columns(listener)
        return SetAsker(group, call, columns, config.check_set_size, settings)
    if hasattr(listener, CHECK_SET) and not answers_rows(listener):
        problem = (
            f"for group {group} answers by {CHECK_SET}, which needs Spark; pass spark=, or run "
            "jobs/check_service.py --once"
        )
        raise ListenerError(type(listener).__name__, problem)
    return RowAsker(group, listener, settings)
