"""Rebuilding a topic in place: what half and settled say it shows, in one commit.

Rows, mark and offsets change together, through a handle that was opened a moment before. So a
publisher that still holds the old table is refused and goes on with the new one. What publishers
append while the files are written is added to them, however busy the topic is.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.rebuild_sources import Expected, expected_rows, shown_rows
from txmq.admin.topic_rebuild import NONE, RebuildPicture, TopicRebuild, expected_files
from txmq.clock import Clock
from txmq.columns import integers
from txmq.delta.parquet import NewFile
from txmq.errors import CommitConflictError, CommitRefusedError
from txmq.fail_points import FailPoint, reached
from txmq.maintenance.topic_retention import topic_begins
from txmq.store.store import Store
from txmq.store.topic import REBUILD_MARK, offsets_in_order

logger = logging.getLogger(__name__)


def rebuild_topic(store: Store, topic: str, clock: Clock, *, apply: bool) -> TopicRebuild:
    """Compare a topic with what it should show, and write it anew if they differ and `apply`.

    Needs memory for about 300 bytes a message. Reads: half, settled, the schedule, the topic.
    Writes: the topic. Commits: one if it writes, else 0.

    Raises: TopicNotRebuiltError, PayloadMissingError, CommitConflictError, StorageError.
    """
    for _ in range(store.config.commit_attempts):
        picture = RebuildPicture(store, topic)
        result = picture.result()
        if not (apply and result.is_needed):
            return result
        landing = _Landing(store, picture, clock.now_ms())
        if landing.land():
            logger.warning("topic %s was rebuilt: %d rows", topic, landing.rows)
            return replace(
                result, op_version=landing.op_version, rows=landing.rows, is_written=True
            )
    raise CommitConflictError(topic, "other writers won every try; stop the publisher, try again")


class _Landing:
    """New files of a topic, and what is appended to it until they are all that it holds."""

    def __init__(self, store: Store, picture: RebuildPicture, now_ms: int) -> None:
        """Write the files; 0 commits."""
        self._store, self._picture, self._log = store, picture, picture.log
        self._now_ms = now_ms
        self._seen = {file.path for file in picture.shown.files}
        self._rebuilt = self._log.table.mark(REBUILD_MARK)
        self._next = dict(picture.next_offsets)
        self.op_version, self.rows = picture.expected.op_version, picture.row_count
        self._files: list[NewFile] = [*picture.files(now_ms)]
        reached(FailPoint.PAYLOAD_WRITTEN)

    def land(self) -> bool:
        """One commit; false where the picture does not hold any more.

        Raises: CommitConflictError, PayloadMissingError, StorageError.
        """
        for _ in range(self._store.config.commit_attempts):
            self._log.table.refresh()
            if self._is_outdated():
                return False
            if self._log.mark > self.op_version:
                self._extend()
                continue
            try:
                self._log.replace_files(self._files, self.op_version, self._next)
            except CommitRefusedError:
                continue
            reached(FailPoint.TOPIC_COMMITTED)
            return True
        problem = "publishers won every try; stop them, then try again"
        raise CommitConflictError(self._log.name, problem)

    def _is_outdated(self) -> bool:
        """Whether retention took messages away, or another rebuild was faster."""
        begin = topic_begins(self._store).get(self._log.name)
        return begin != self._picture.begin or self._rebuilt != self._log.table.mark(REBUILD_MARK)

    def _extend(self) -> None:
        """Add what is settled since."""
        topic, op_table_id = self._log.name, self._picture.op_table_id
        later = expected_rows(self._store, op_table_id, topic, self.op_version)
        queues = later.plan.rows["queue_id"]
        begin = {queue: self._next_offset(queue) for queue in pc.unique(queues).to_pylist()}
        offsets, ends = offsets_in_order(queues, begin)
        times = self._times(later)
        self._files += expected_files(self._log.table, later.plan, offsets, times, self._now_ms)
        self._next |= ends
        self.op_version, self.rows = later.op_version, self.rows + later.plan.rows.num_rows

    def _next_offset(self, queue: int) -> int:
        if queue in self._next or self._picture.begin is None:
            return self._next.get(queue, 0)
        return self._log.next_offsets([queue])[queue]

    def _times(self, later: Expected) -> pa.Array:
        """When publishers stored these messages; null where they have not yet."""
        shown = shown_rows(self._log, None, skip=self._seen)
        self._seen |= {file.path for file in shown.files}
        at = integers(pc.index_in(later.keys, value_set=shown.keys), NONE)
        return shown.store_timestamp.take(pa.array(at, mask=np.equal(at, NONE)))
