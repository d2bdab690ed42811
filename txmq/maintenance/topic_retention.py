"""Retention of topics: removes whole files whose newest message exceeds `reserved_time_h`.

Only files up to the version that every topic has published are removed. `state/maintenance` says
which messages may be missing before they are removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from txmq.clock import Clock, affine, milliseconds
from txmq.delta.files import DataFile
from txmq.delta.storage import Table
from txmq.errors import CommitRefusedError, StorageError
from txmq.fail_points import FailPoint, reached
from txmq.maintenance.retention import published_up_to
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock

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
        """Read nothing yet. Files are old by the store's time, however wrong `clock` is."""
        self._store, self._clock = store, StoreClock.of(store, clock)
        self._register = store.tables.topic_register()
        # By topic and file. A file never changes, so it is read once.
        self._newest_ms: dict[str, dict[str, float]] = {}

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
        files = [span.file for span in published]
        newest_ms = self._newest_ms_of(topic, table, files)
        old = [span for span in published if newest_ms[span.file.path] <= limit_ms]
        if not old:
            return None
        return _Old(table, [span.file for span in old], max(span.high for span in old))

    def _newest_ms_of(
        self, topic: str, table: Table, files: Sequence[DataFile]
    ) -> dict[str, float]:
        """When the newest message of each file was stored."""
        known = self._newest_ms.get(topic, {})
        newest_ms = {
            file.path: known[file.path] if file.path in known else self._stored_ms(table, file)
            for file in files
        }
        # Only of the files that are there, so that it does not grow for ever.
        self._newest_ms[topic] = newest_ms
        return newest_ms

    def _stored_ms(self, table: Table, file: DataFile) -> float:
        """The time of its newest message, or of the file, if that is later.

        Publishers of older versions stamped their own time, which may be wrong.
        """
        try:
            newest = pc.max(table.read([file], ("store_timestamp",))["store_timestamp"]).as_py()
        except (StorageError, OSError) as error:
            # It stays; the files beside it and other topics go on.
            logger.warning("%s: %s cannot be read (%s)", table.name, file.path, error)
            return math.inf
        written_ms = table.written_ms([file.path]).get(file.path)
        if newest is None or written_ms is None:
            return math.inf
        return max(milliseconds(newest), affine(self._clock).at(written_ms))


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
