"""Retention of topics: whole files whose newest message is older than `reserved_time_h`.

Nothing goes that is not published everywhere, and what may be gone is said before it goes.
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
    """Files of one topic that go, and the newest claim among their rows."""

    table: Table
    files: Sequence[DataFile]
    op_version: int


class TopicRetention:
    """Looks for files that are over, and takes them away. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Nothing is read yet."""
        self._store, self._clock = store, clock
        self._register = store.tables.topic_register()
        # A file never changes, so it is read once.
        self._newest_ms: dict[str, int | None] = {}

    def run(self) -> int:
        """Take away what is too old in the topics that have a `reserved_time_h`; how many files.

        Reads: state/topics, state/publisher, store_timestamp of these topics. Writes:
        state/maintenance, topics. Commits: none where no file is over; else one to
        state/maintenance and one for each topic that loses files. Raises: StorageError,
        SourceRestoredError.
        """
        known = self._register.read().settings.items()
        limited = {name: own.reserved_time_h for name, own in known if own.reserved_time_h}
        if not limited:
            return 0
        version = published_up_to(self._store)
        found = {name: self._old(name, hours, version) for name, hours in limited.items()}
        old = {name: files for name, files in found.items() if files is not None}
        if not old:
            return 0
        # Said before it is done: what is missing and not said to be would be a loss.
        begins = {name: files.op_version for name, files in old.items()}
        tell_topic_begin(self._store, begins, self._clock.now_ms())
        reached(FailPoint.DAYS_FORGOTTEN)
        return sum(_removed(name, files) for name, files in old.items())

    def _old(self, topic: str, reserved_time_h: float, version: int) -> _Old | None:
        table = self._store.tables.table_at(f"topics/{topic}")
        if not table.exists():
            return None
        limit_ms = self._clock.now_ms() - reserved_time_h * _HOUR_MS
        # A file without statistics is kept: nobody knows how far it goes.
        ranges = [
            one for one in table.ranges("op_version") if one.high is not None and one.high < version
        ]
        gone = [one for one in ranges if self._is_older(table, one.file, limit_ms)]
        if not gone:
            return None
        return _Old(table, [one.file for one in gone], max(one.high for one in gone))

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
        # Another maintenance was faster, or merged some of them: the next round sees what is left.
        return 0
    logger.info("topic %s: %d files are over", topic, len(old.files))
    return len(old.files)


def topic_begins(store: Store) -> dict[str, int]:
    """The op version of each topic up to which its messages may be gone."""
    return dict(store.tables.register("maintenance").read().value.get(TOPIC_BEGIN, {}))


def tell_topic_begin(store: Store, begins: Mapping[str, int], now_ms: int) -> None:
    """Say that messages of topics may be gone up to an op version; one commit if that is news.

    Raises: CommitRefusedError.
    """
    register = store.tables.register("maintenance")
    seen = register.read()
    known = seen.value.get(TOPIC_BEGIN, {})
    after = {**known, **{name: max(at, known.get(name, at)) for name, at in begins.items()}}
    if after != known:
        register.swap(seen, {**seen.value, TOPIC_BEGIN: after}, now_ms)
