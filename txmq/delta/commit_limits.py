"""What a table's properties ask of its commits, and the files of a commit as its actions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from txmq.delta.actions import AddedFile, RemovedFile
from txmq.delta.files import DataFile, partition_texts
from txmq.delta.parquet import NewFile
from txmq.delta.schemas import SWEPT_PROPERTY

CHECKPOINT_INTERVAL = "delta.checkpointInterval"


class CommitLimits(NamedTuple):
    """What the properties of a table ask of commits.

    Attributes:
        fenced_ms: files that were written up to this time may be gone; -1 for none.
        checkpoint_interval: commits between two checkpoints; 0 for no checkpoints.
    """

    fenced_ms: int = -1
    checkpoint_interval: int = 0

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """By the properties of a table."""
        interval = int(properties.get(CHECKPOINT_INTERVAL, 0))
        return cls(int(properties.get(SWEPT_PROPERTY, -1)), interval)

    def is_checkpoint_due(self, before: int, after: int) -> bool:
        """Whether these commits passed a multiple of the interval."""
        interval = self.checkpoint_interval
        return bool(interval) and before // interval != after // interval

    def swept(self, written_ms: Mapping[str, int], paths: Iterable[str]) -> list[str]:
        """The files that may be gone: they are, or are as old as those that were removed."""
        return [p for p in paths if written_ms.get(p, self.fenced_ms) <= self.fenced_ms]


def added_file(file: NewFile, compacted_of_ms: int | None = None) -> AddedFile:
    """A new file; with a time its rows were in the table before, the newest of them then."""
    is_news = compacted_of_ms is None
    modified_ms = time.time_ns() // 1_000_000 if compacted_of_ms is None else compacted_of_ms
    partition = dict(file.partition)
    return AddedFile(file.path, file.size_bytes, partition, modified_ms, is_news, file.stats_json)


def removed_file(file: DataFile, *, is_news: bool) -> RemovedFile:
    """A live file that goes; `is_news` where its rows go with it."""
    removed_ms, partition = time.time_ns() // 1_000_000, partition_texts(file.partition)
    return RemovedFile(file.path, file.size_bytes, partition, removed_ms, is_news, file.log_path)
