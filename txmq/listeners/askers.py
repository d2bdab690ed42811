"""Asks the listeners of all groups in one round, whichever form each listener has.

The common form is columns: heads in, OUTCOMES out (decision 0010).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ListenerError
from txmq.ground.columns import Groups, place_in_group
from txmq.listeners.answering import CheckWatch, RowAsker, SetAsker, call_of
from txmq.listeners.heads import Heads, heads_of
from txmq.listeners.hooks import Hooks
from txmq.listeners.protocol import (
    BUSY,
    CHECK_SET,
    LEFT,
    OUTCOMES,
    CheckListener,
    Collect,
    Reason,
    answers_rows,
    head_columns,
    same_outcome,
)
from txmq.listeners.remote import RemoteAskers
from txmq.message.message import LocalTransactionState
from txmq.store.config import Config
from txmq.store.half import HalfLog

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession


LATE = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("state", pa.string()),
    ]
)
# Why a question without an answer has none: no asker, no readable head, no room in this round.
_DEFAULT_REASONS = pa.array([Reason.NO_LISTENER.value, Reason.UNREADABLE.value, Reason.BUSY.value])


class Asker(Protocol):
    """Asks the listener of one group, whichever form it has."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the heads that the listener gets."""
        ...

    @property
    def limit(self) -> int:
        """The largest number of questions in one round."""
        ...

    def ask(self, heads: pa.Table) -> Collect:
        """Put the questions; call the result to wait for their OUTCOMES."""
        ...

    def late(self) -> pa.Table:
        """Return OUTCOMES of the answers that came after their deadline, each once."""
        ...

    def close(self) -> None:
        """End the threads; a thread that hangs ends when its listener returns."""
        ...


class Askers:
    """The asker of each producer group."""

    def __init__(
        self,
        listeners: Mapping[str, CheckListener],
        config: Config,
        spark: SparkSession | None = None,
        remote: RemoteAskers | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Start no thread; `remote` finds the asker of a group that has no listener here.

        `hooks` hear of each question to a listener here.

        Raises: ListenerError if a listener's only form needs a Spark session and there is none.
        """
        self._default_limit = config.check_set_size
        self._remote = remote
        self._askers: dict[str, Asker] = {
            group: _asker_of(group, listener, config, spark, CheckWatch(group, hooks))
            for group, listener in listeners.items()
        }

    @property
    def groups(self) -> frozenset[str]:
        """The groups that have a listener in this process."""
        return frozenset(self._askers)

    def limit_of(self, producer_group: str) -> int:
        """Return the largest number of questions about a group in one round."""
        asker = self._asker(producer_group)
        return self._default_limit if asker is None else asker.limit

    def ask(self, half: HalfLog, questions: pa.Table) -> AskedRound:
        """Put all questions, each group's to its own listener.

        Args:
            half: holds the heads; its handle must be fresh.
            questions: transaction_id, producer_group and check_times, the most urgent first.
                Questions beyond the limit of their group are not put: their outcome is BUSY.

        Reads: half. Commits: 0.
        """
        groups = pc.unique(questions["producer_group"]).to_pylist()
        by_group = {group: self._asker(group) for group in groups}
        askers = {group: asker for group, asker in by_group.items() if asker is not None}
        assigned, default_outcomes = _assign(questions, askers)
        round_ = AskedRound(questions, default_outcomes)
        for heads, groups in _heads(half, assigned, askers):
            round_.leave(heads.left)
            for group, of_group in _by_group(heads.rows, groups):
                round_.begin(group, askers[group].ask(of_group))
        return round_

    def late_answers(self) -> pa.Table:
        """Return LATE: COMMIT and ROLLBACK answers that came after their round, each once."""
        tables = [LATE.empty_table()]
        for group, asker in self._askers.items():
            outcomes = asker.late()
            names = pa.repeat(pa.scalar(group, pa.string()), outcomes.num_rows)
            tables.append(pa.table([outcomes["transaction_id"], names, outcomes["state"]], LATE))
        answers = pa.concat_tables(tables)
        return answers.filter(pc.not_equal(answers["state"], LocalTransactionState.UNKNOWN.value))

    def close(self) -> None:
        """End the threads; a thread that hangs ends when its listener returns."""
        for asker in self._askers.values():
            asker.close()

    def _asker(self, group: str) -> Asker | None:
        """Return the asker of a listener here, else of the group's live producers, else None."""
        asker = self._askers.get(group)
        return asker if asker is not None or self._remote is None else self._remote(group)


def _asker_of(
    group: str, listener: Any, config: Config, spark: SparkSession | None, watch: CheckWatch
) -> Asker:
    settings, call = config.of_group(group), call_of(listener, spark)
    if call is not None:
        columns = head_columns(listener)
        return SetAsker(group, call, columns, config.check_set_size, settings, watch=watch)
    if hasattr(listener, CHECK_SET) and not answers_rows(listener):
        problem = (
            f"for group {group} answers by {CHECK_SET}, which needs Spark; pass spark=, or run "
            "jobs/check_service.py --once"
        )
        raise ListenerError(type(listener).__name__, problem)
    return RowAsker(group, listener, settings, watch)


class AskedRound:
    """The questions of one round, on their way to the listeners of their groups."""

    def __init__(self, questions: pa.Table, default_outcomes: pa.Table) -> None:
        """Ask nobody; `default_outcomes` are those of questions that bring no answer."""
        self._questions, self._defaults = questions, default_outcomes
        self._open: dict[str, Collect] = {}
        self.left = pa.array([], pa.string())

    def begin(self, group: str, collect: Collect) -> None:
        """Wait for the answers of this group too."""
        self._open[group] = collect

    def leave(self, transaction_ids: pa.Array) -> None:
        """Take questions out that found no room in the round: they get no outcome, and stay due."""
        self.left = pa.concat_arrays([self.left, transaction_ids])

    @property
    def open_groups(self) -> frozenset[str]:
        """The groups whose listeners have still time to answer."""
        return frozenset(self._open)

    @property
    def waiting(self) -> pa.Array:
        """The questions of these groups."""
        groups = pa.array(list(self._open), pa.string())
        is_open = pc.is_in(self._questions["producer_group"], value_set=groups)
        return self._questions["transaction_id"].filter(is_open).combine_chunks()

    def take(self, until_s: float = math.inf) -> pa.Table:
        """Return OUTCOMES of the groups that are over by the monotonic time `until_s`, each once.

        It waits until then at the latest; a group is over at the end of its timeout. What a
        listener left for its next call has no outcome, and stays due.
        """
        over = [group for group, collect in self._open.items() if collect.wait(until_s)]
        groups = [self._without_left(self._open.pop(group)()) for group in over]
        answered = pa.concat_tables([OUTCOMES.empty_table(), *groups])
        done = self._defaults.filter(
            pc.invert(
                pc.is_in(self._defaults["transaction_id"], value_set=self._not_done(answered))
            )
        )
        self._forget(answered, done)
        return pa.concat_tables([answered, done])

    def _without_left(self, outcomes: pa.Table) -> pa.Table:
        """Take out what a listener left for its next call; if it left all, they are BUSY."""
        is_left = pc.fill_null(pc.equal(outcomes["reason"], LEFT), fill_value=False)
        is_left = pc.and_(is_left, pc.is_null(outcomes["state"]))
        left = outcomes["transaction_id"].filter(is_left).combine_chunks()
        if len(left) == outcomes.num_rows:
            return same_outcome(left, BUSY)
        self.leave(left)
        return outcomes.filter(pc.invert(is_left))

    def _not_done(self, answered: pa.Table) -> pa.Array:
        answers = answered["transaction_id"].combine_chunks()
        return pa.concat_arrays([answers, self.waiting, self.left])

    def _forget(self, *tables: pa.Table) -> None:
        for table in tables:
            is_told = pc.is_in(self._defaults["transaction_id"], value_set=table["transaction_id"])
            self._defaults = self._defaults.filter(pc.invert(is_told))


def _assign(questions: pa.Table, askers: Mapping[str, Asker]) -> tuple[pa.Table, pa.Table]:
    """Choose the questions to ask now; all others get a default outcome."""
    place = place_in_group(questions["producer_group"])
    groups = Groups.of(questions["producer_group"])
    names = groups.keys.to_pylist()
    limits = np.array(
        [askers[name].limit if name in askers else 0 for name in names], dtype=np.int64
    )[groups.place]
    has_asker = np.array([name in askers for name in names], dtype=bool)[groups.place]
    fits = place < limits
    reasons = _DEFAULT_REASONS.take(pa.array(np.select([~has_asker, fits], [0, 1], 2)))
    states = pa.nulls(questions.num_rows, pa.string())
    default_outcomes = pa.table([questions["transaction_id"], states, reasons], OUTCOMES)
    return questions.filter(pa.array(has_asker & fits)), default_outcomes


def _heads(
    half: HalfLog, questions: pa.Table, askers: Mapping[str, Asker]
) -> Iterator[tuple[Heads, pa.Table]]:
    """Read heads by group; groups that want the same columns share one read of the half log."""
    groups_by_columns: dict[tuple[str, ...], list[str]] = {}
    for group in pc.unique(questions["producer_group"]).to_pylist():
        groups_by_columns.setdefault(askers[group].columns, []).append(group)
    for columns, groups in groups_by_columns.items():
        is_in_groups = pc.is_in(questions["producer_group"], value_set=pa.array(groups))
        of_groups = questions.filter(is_in_groups)
        yield heads_of(half, of_groups, columns), of_groups


def _by_group(heads: pa.Table, questions: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    ids = questions["transaction_id"].combine_chunks()
    rows = pc.index_in(heads["transaction_id"], value_set=ids)
    groups = questions["producer_group"].take(rows)
    for group in pc.unique(groups).to_pylist():
        yield group, heads.filter(pc.equal(groups, group))
