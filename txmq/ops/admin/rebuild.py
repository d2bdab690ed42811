"""Rebuilds a topic: writes the rows that it should show and swaps them in, in one commit.

Rows, mark and next offsets change in the same commit. A publisher that still holds the old version
is refused and continues with the new one. Messages that publishers append while the files are
written are added to the new files, so that a busy topic can be rebuilt too. After any other commit,
as of an erasure or a compaction, all is read again: what was read before must not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.consumer.group import group_in, group_names
from txmq.consumer.group_rules import GroupState, Offsets, TopicQueue
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.table import Table
from txmq.errors import CommitConflictError, CommitRefusedError, TopicNotRebuiltError
from txmq.ground.clock import Clock
from txmq.ground.columns import Integers, integers
from txmq.ground.fail_points import FailPoint, reached
from txmq.maintenance.retention import tell_topic_begin, topic_begins
from txmq.message.names import DEAD_LETTER_PREFIX, shown_name
from txmq.ops.admin.dead_letter_notes import DeadLetterNotes
from txmq.ops.admin.rebuild_plan import (
    NONE,
    Expected,
    TopicComparison,
    TopicRebuild,
    expected_rows,
    shown_rows,
)
from txmq.publish.engines import ArrowEngine
from txmq.publish.plan import NumberedPlan, Plan
from txmq.publish.progress import PublishProgress
from txmq.store.known import begin_of, maintenance_value
from txmq.store.settled import NOTHING
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock
from txmq.store.topic import MovedOffsets, offsets_in_order

logger = logging.getLogger(__name__)
# Publishers may have appended while the new end was written.
EXTENSIONS = 2
# Readers and retention skip whole files, so a topic must not be one large file.
FILE_ROWS = 200_000


def give_up_lost(store: Store, topic: str, clock: Clock) -> None:
    """Let messages count as removed that retention has taken from all other tables.

    Commits: one to state/maintenance, or none. A retry finds nothing to do.

    Raises: PayloadMissingError, CommitRefusedError, StorageError.
    """
    op, begin = store.tables.op_log().table, topic_begins(store).get(topic, NOTHING)
    expected = expected_rows(store, op.log.table_id, topic, begin)
    first = pc.min(expected.plan.rows["op_version"]).as_py()
    # Facts of messages that are gone may be gone too.
    lost = [
        expected.op_version if first is None else first - 1,
        *expected.gone["op_version"].to_pylist(),
    ]
    if expected.first_kept_id is not None:
        tell_topic_begin(store, {topic: max(lost)}, clock.now_ms())


def rebuild_topic(
    store: Store, topic: str, clock: Clock, *, apply: bool, force: bool = False
) -> TopicRebuild:
    """Compare a topic with what it should show, and write it again if they differ and `apply`.

    Where offsets move under consumer groups it refuses; with `force` these groups go back to the
    first offset that moves, before the commit. So do, after it, those that read meanwhile in the
    old order, with `force` or without, and notes about dead letters: those from there on are
    forgotten. Where it is killed in between, members of such a group are told (TopicRestoredError).

    Needs memory for about 300 bytes a message. Reads: half, settled, the schedule, the topic,
    state/group_<group>, state/dead_letters_<group>. Writes: the topic, with `force` the groups and
    the notes. Commits: one if it writes, else 0; with `force` one or two more for each such group,
    and for the notes; one more where the table is gone. A killed
    rebuild leaves files that no commit names, and nothing else; run it again.

    Raises: TopicNotRebuiltError, PayloadMissingError, CommitConflictError, StorageError.
    """
    _make_again(store, topic, apply=apply)
    # Rows that nobody has stored yet are stored now, by the clock by which they grow old.
    clock = StoreClock.of(store, clock)
    for _ in range(store.config.commit_attempts):
        comparison = TopicComparison(store, topic)
        groups = RebuiltGroups(store, topic, comparison.moved_from, comparison.moved_before)
        result = replace(comparison.result(), groups=groups.names())
        if not (apply and result.is_needed):
            return result
        if not force:
            groups.check()
        rebuild = _RebuildCommit(store, comparison, clock.now_ms(), groups, force=force)
        if rebuild.commit():
            late = groups.reset(clock.now_ms(), since=rebuild.version)
            logger.warning("topic %s was rebuilt: %d rows", topic, rebuild.rows)
            return replace(
                result,
                op_version=rebuild.op_version,
                rows=rebuild.rows,
                groups=tuple(sorted({*result.groups, *late})),
                is_written=True,
            )
    raise CommitConflictError(topic, "other writers won every try; stop the publisher, try again")


def _make_again(store: Store, topic: str, *, apply: bool) -> None:
    """Make the table of a topic that publishers know and whose table is gone."""
    op = store.tables.op_log().table
    progress = PublishProgress.from_value(
        store.tables.register("publisher", PublishProgress).read().value, op
    )
    table = store.tables.topic_log(topic, op.log.table_id).table
    if table.exists():
        return
    if not apply:
        problem = "has no table any more, so there is nothing to compare"
        raise TopicNotRebuiltError(topic, f"{problem}; --apply makes it from half and settled")
    if topic in progress.ends:
        store.tables.create_topic(topic)


class _RebuildCommit:
    """The new files of a topic, extended by what publishers append until the commit succeeds."""

    def __init__(
        self,
        store: Store,
        comparison: TopicComparison,
        now_ms: int,
        groups: RebuiltGroups,
        *,
        force: bool,
    ) -> None:
        """Write the files; 0 commits."""
        self._groups, self._force = groups, force
        self._store, self._comparison, self._log = store, comparison, comparison.log
        self._now_ms = now_ms
        self._seen = {file.path for file in comparison.shown.files}
        # The topic was pinned before half was read, so the files are of no older half.
        self._base = self._log.table.writer.base
        self._next = dict(comparison.next_offsets)
        self.op_version, self.rows = comparison.expected.op_version, comparison.row_count
        self._files: list[NewFile] = [*_new_files(comparison, now_ms)]
        reached(FailPoint.PAYLOAD_WRITTEN)

    def commit(self) -> bool:
        """Commit the files; return False if the comparison is outdated and must be made again.

        Raises: CommitConflictError, PayloadMissingError, StorageError.
        """
        for attempt in range(self._store.config.commit_attempts):
            # A publisher commits every few milliseconds, sooner than the new end is written.
            with self._log.table.writer.in_turn() if attempt else nullcontext():
                is_written = self._try()
            if is_written is not None:
                return is_written
        problem = "publishers won every try; stop them, then try again"
        raise CommitConflictError(self._log.name, problem)

    @property
    def version(self) -> int:
        """The version of the topic that the commit made."""
        return self._log.table.version

    def _try(self) -> bool | None:
        """Do what `commit` does; return None if publishers were faster."""
        for _ in range(EXTENSIONS):
            self._log.table.refresh()
            if self._is_outdated():
                return False
            if self._log.mark <= self.op_version:
                return self._replace()
            self._extend()
        return None

    def _replace(self) -> bool | None:
        # Groups may have read on while files were written.
        if self._force:
            self._groups.reset(self._now_ms)
        else:
            self._groups.check()
        known, moved_from = self._comparison.known_end, self._comparison.moved_from
        begin = begin_of(maintenance_value(self._store), self._log.name)
        try:
            self._log.replace_files(
                self._files, self.op_version, self._next, known, begin, moved_from
            )
        except CommitRefusedError:
            return None
        reached(FailPoint.TOPIC_COMMITTED)
        return True

    def _is_outdated(self) -> bool:
        """Tell whether anything but an append was committed since the comparison."""
        return self._log.table.writer.base != self._base

    def _extend(self) -> None:
        """Write files for the messages that were settled since the files before were written."""
        topic, op_table_id = self._log.name, self._comparison.op_table_id
        later = expected_rows(self._store, op_table_id, topic, self.op_version)
        queues = later.plan.rows["queue_id"]
        begin = {queue: self._next_offset(queue) for queue in pc.unique(queues).to_pylist()}
        offsets, ends = offsets_in_order(queues, begin)
        times = self._times(later)
        self._files += _planned_files(self._log.table, later.plan, offsets, times, self._now_ms)
        self._next |= ends
        self.op_version, self.rows = later.op_version, self.rows + later.plan.rows.num_rows

    def _next_offset(self, queue: int) -> int:
        if queue in self._next or self._comparison.begin is None:
            return self._next.get(queue, 0)
        return self._log.next_offsets([queue])[queue]

    def _times(self, later: Expected) -> pa.Array:
        """Return when publishers stored these messages; null if they have not yet."""
        shown = shown_rows(self._log, None, skip=self._seen)
        self._seen |= {file.path for file in shown.files}
        rows = integers(pc.index_in(later.keys, value_set=shown.keys), NONE)
        return shown.store_timestamp.take(pa.array(rows, mask=np.equal(rows, NONE)))


# --- files ----------------------------------------------------------------------------------------


def _new_files(comparison: TopicComparison, now_ms: int) -> Iterator[NewFile]:
    """Write all rows that the topic should show into new files; 0 commits."""
    rows = pa.array(comparison.match, mask=np.equal(comparison.match, NONE))
    times = comparison.shown.store_timestamp.take(rows)
    plan, offsets = comparison.expected.plan, comparison.offsets[: len(rows)]
    yield from _planned_files(comparison.log.table, plan, offsets, times, now_ms)
    yield from _kept_files(comparison)


def _planned_files(
    table: Table, plan: Plan, offsets: Integers, times: pa.Array, now_ms: int
) -> Iterator[NewFile]:
    """Write the messages of a plan into new files of a topic; 0 commits.

    `times` says when each message was stored before; null means `now_ms`.
    """
    rows = plan.rows.append_column("store_timestamp", times)
    for start in range(0, rows.num_rows, FILE_ROWS):
        of_file = Plan(plan.files, rows.slice(start, FILE_ROWS))
        numbered = NumberedPlan(of_file, offsets[start : start + of_file.rows.num_rows])
        yield from ArrowEngine().write(table, [numbered], now_ms)


def _kept_files(comparison: TopicComparison) -> Iterator[NewFile]:
    """Write the rows that only the topic itself still holds into new files; 0 commits."""
    table, kept_count = comparison.log.table, len(comparison.kept)
    for start in range(0, kept_count, FILE_ROWS):
        chosen = np.arange(start, min(start + FILE_ROWS, kept_count))
        rows, statistics = _kept_rows(comparison, chosen), table.schema.statistics_columns
        yield write_file(rows, table.log.columns, table.folder.filesystem, statistics)


def _kept_rows(comparison: TopicComparison, chosen: Integers) -> Iterator[pa.Table]:
    """Read kept rows with their new offsets, one file of the topic at a time."""
    shown, table = comparison.shown, comparison.log.table
    rows = comparison.kept[chosen]
    offsets = comparison.offsets[len(comparison.expected.keys) + chosen]
    for number in np.unique(shown.file[rows]):
        places = np.flatnonzero(shown.file[rows] == number)
        of_file = table.rows.read([shown.files[number]], table.log.columns.names)
        messages = of_file.take(pa.array(shown.row[rows[places]]))
        index = messages.schema.get_field_index("queue_offset")
        yield messages.set_column(index, messages.schema.field(index), pa.array(offsets[places]))


# --- consumer groups ------------------------------------------------------------------------------


class RebuiltGroups:
    """Finds groups that have read beyond the first offset that moves, or are reading the topic.

    Their next offset would name another message: restored messages before it were never seen, and
    others come again. The same holds for the notes about the dead letters of a group, which are by
    offsets too: a letter would count as purged, or as replayed, that is not.

    Args:
        store: the store of the groups.
        topic: the stored name of the topic.
        moved_from: by queue the first offset that a rebuild gives to another message.
        moved_before: what an earlier rebuild moved, which may have been killed before it looked.
    """

    def __init__(
        self, store: Store, topic: str, moved_from: Mapping[int, int], moved_before: MovedOffsets
    ) -> None:
        """Read nothing yet."""
        self._store, self._topic = store, topic
        self._first = _by_topic_queue(topic, moved_from)
        self._before, self._first_before = moved_before, _by_topic_queue(topic, moved_before.first)
        # Dead letters have one queue.
        self._first_letter = moved_from.get(0)

    def names(self) -> tuple[str, ...]:
        """List the stored names of these groups; 0 commits. Raises: StorageError."""
        return (*self._readers(), *self._noted())

    def _noted(self) -> tuple[str, ...]:
        """Name the group of these dead letters, if notes of them are by offsets that move."""
        if self._first_letter is None or not self._topic.startswith(DEAD_LETTER_PREFIX):
            return ()
        name = self._topic.removeprefix(DEAD_LETTER_PREFIX)
        notes = DeadLetterNotes(self._store, name).read()
        return (name,) if notes.reach(self._first_letter) else ()

    def _readers(self, since: int | None = None) -> tuple[str, ...]:
        if not self._first:
            return ()
        groups = (group_in(self._store, name) for name in group_names(self._store))
        states = ((group.name, group.read()) for group in groups)
        return tuple(name for name, state in states if self._put_back(state, since) != state)

    def check(self) -> None:
        """Raise TopicNotRebuiltError if there are such groups; 0 commits."""
        if self._noted():
            problem = (
                f"is not rebuilt: offsets would move (from {self._first_letter:,} on) of letters "
                "that were purged or replayed; force it, which forgets that of them: they are "
                "listed again"
            )
            raise TopicNotRebuiltError(self._topic, problem)
        if names := self._readers():
            where = ", ".join(f"{q.queue_id} from {n:,} on" for q, n in sorted(self._first.items()))
            problem = (
                f"is not rebuilt: offsets would move (queues {where}) under the consumer groups "
                f"{', '.join(map(shown_name, names))}; close their members and reset their offsets "
                "to there, or force it, which does both: what follows comes to them again"
            )
            raise TopicNotRebuiltError(self._topic, problem)

    def reset(self, now_ms: int, *, since: int | None = None) -> tuple[str, ...]:
        """Put these groups back to the first offset that moves: one commit for each group.

        Offsets of the version `since` of the topic, or of a later one, stay: they were read in the
        new order. A retry puts nobody back twice. Return the names. Raises: StorageError.
        """
        names = self._readers(since)
        for name in names:
            group_in(self._store, name).change(partial(self._put_back, since=since), now_ms)
        self._forget_letters(now_ms)
        return names

    def _forget_letters(self, now_ms: int) -> None:
        """Forget notes about letters from the first offset that moves on: one commit, or none."""
        for name in self._noted():
            DeadLetterNotes(self._store, name).forget_from(self._first_letter or 0, now_ms)

    def _put_back(self, state: GroupState, since: int | None = None) -> GroupState:
        if self._topic not in state.queues:
            return state
        earlier = state.put_back(self._first_before, since=self._before.version)
        return earlier.put_back(self._first, since=since)


def _by_topic_queue(topic: str, offsets: Mapping[int, int]) -> Offsets:
    return {TopicQueue(topic, queue): offset for queue, offset in offsets.items()}
