"""A broker's process without Spark: `python -m tests.process.publish.follower store folder name`.

It publishes until a file named `stop` appears in the folder, then writes what it did. Its file
`NAME.worked` says that it has made a commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.delta.table_writer import TableWriter
from txmq.errors import SourceRestoredError
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import PublishResult
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.delta.parquet import NewFile


def switch_off_compare_and_swap() -> None:
    """Appends still carry their marks, but nobody looks whether these moved meanwhile."""
    swap, swap_files = TableWriter.swap, TableWriter.swap_files

    def blind(self: TableWriter, rows: pa.Table, marks: Mapping[str, int]) -> None:
        self._log.reopen()
        swap(self, rows, marks)

    def blind_files(self: TableWriter, files: list[NewFile], marks: Mapping[str, int]) -> None:
        self._log.reopen()
        swap_files(self, files, marks)

    TableWriter.swap, TableWriter.swap_files = blind, blind_files  # type: ignore[method-assign, assignment]


def run_once(publisher: Publisher) -> PublishResult:
    """Without compare-and-swap a publisher may see that another one went back, and refuse."""
    try:
        return publisher.run_once()
    except SourceRestoredError:
        return PublishResult()


def follow(store: Store, folder: Path, name: str) -> None:
    publisher = Publisher(store, name=name)
    folder.joinpath(f"{name}.ready").touch()
    while not folder.joinpath("stop").exists():
        if run_once(publisher).settled_commits:
            folder.joinpath(f"{name}.worked").touch()
    run_once(publisher)
    folder.joinpath(f"{name}.json").write_text(json.dumps(asdict(publisher.total)))


def main(location: str, folder: str, name: str, mode: str) -> None:
    if mode == "without-compare-and-swap":
        switch_off_compare_and_swap()
    follow(Store.open(location), Path(folder), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
