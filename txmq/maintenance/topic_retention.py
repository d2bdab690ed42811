"""Retention of topics: removes whole files whose newest message exceeds `reserved_time_h`.

Only files up to the version that every topic has published are removed. `state/maintenance` says
which messages may be missing before they are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from txmq.clock import Clock, milliseconds
from txmq.delta.files import DataFile
from txmq.delta.storage import Table
from txmq.errors import CommitRefusedError
from txmq.fail_points import FailPoint, reached
from txmq.maintenance.retention import published_up_to
from txmq.store.store import Store

logger = logging.getLogger(__name__)

TOPIC_BEGIN = "topic_begin"
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class _Old:
    """The files of a topic to remove, and the newest op version among their rows."""

    table: Table
    files: Sequence[DataFile]
    op_version: int


class TopicRetention:
    """Removes files of topics that are too old. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Read nothing yet."""
        self._store, self._clock = store, clock
        self._register = store.tables.topic_register()
        # A file never changes, so it is read once.
        self._newest_ms: dict[str, int | None] = {}

    def run(self) -> int:
        """Remove old files of the topics that have a `reserved_time_h`; returns how many.

        Reads: state/topics, state/publisher, store_timestamp of these topics. Writes:
        state/maintenance, topics. Commits: none where no file is too old; else one to
        state/maintenance and one for each topic that loses files.

        Raises: StorageError, SourceRestoredError.
        """
        settings = self._register.read().settings
        hours = {
            name: topic.reserved_time_h for name, topic in settings.items() if topic.reserved_time_h
        }
        if not hours:
            return 0
        version = published_up_to(self._store)
        candidates = {name: self._old(name, limit_h, version) for name, limit_h in hours.items()}
        old = {name: files for name, files in candidates.items() if files is not None}
        if not old:
            return 0
        # Recorded before files are removed, so that verify never meets an unexplained gap.
        begins = {name: files.op_version for name, files in old.items()}
        tell_topic_begin(self._store, begins, self._clock.now_ms())
        reached(FailPoint.DAYS_FORGOTTEN)
        return sum(_removed(name, files) for name, files in old.items())

    def _old(self, topic: str, reserved_time_h: float, version: int) -> _Old | None:
        table = self._store.tables.table_at(f"topics/{topic}")
        if not table.exists():
            return None
        limit_ms = self._clock.now_ms() - reserved_time_h * _HOUR_MS
        # A file without statistics is kept, since its newest op version is unknown.
        published = [
            span
            for span in table.ranges("op_version")
            if span.high is not None and span.high < version
        ]
        old = [span for span in published if self._is_older(table, span.file, limit_ms)]
        if not old:
            return None
        return _Old(table, [span.file for span in old], max(span.high for span in old))

    def _is_older(self, table: Table, file: DataFile, limit_ms: float) -> bool:
        if file.path not in self._newest_ms:
            times = table.read([file], ("store_timestamp",))["store_timestamp"]
            newest = pc.max(times).as_py()
            self._newest_ms[file.path] = None if newest is None else milliseconds(newest)
        newest_ms = self._newest_ms[file.path]
        return newest_ms is not None and newest_ms <= limit_ms


def _removed(topic: str, old: _Old) -> int:
    try:
        old.table.remove(old.files)
    except CommitRefusedError:
        # Another maintenance was faster or merged some of the files; the next round sees the rest.
        return 0
    logger.info("topic %s: %d old files were removed", topic, len(old.files))
    return len(old.files)


def topic_begins(store: Store) -> dict[str, int]:
    """For each topic the op version up to which its messages may have been removed."""
    return dict(store.tables.register("maintenance").read().value.get(TOPIC_BEGIN, {}))


def tell_topic_begin(store: Store, begins: Mapping[str, int], now_ms: int) -> None:
    """Record up to which op version messages of topics may be removed: one commit, or none.

    Raises: CommitRefusedError.
    """
    register = store.tables.register("maintenance")
    seen = register.read()
    before = seen.value.get(TOPIC_BEGIN, {})
    newer = {name: max(begin, before.get(name, begin)) for name, begin in begins.items()}
    after = {**before, **newer}
    if after != before:
        register.swap(seen, {**seen.value, TOPIC_BEGIN: after}, now_ms)
