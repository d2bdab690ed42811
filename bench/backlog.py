"""(b) A backlog of one-message transactions, from its first look at it until all is visible."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.bare import BareStream, quiet_session
from bench.messages import TOPIC, one_message_transactions, plain_rows
from bench.outcome import Bar, Outcome, alternate
from bench.reader import Reader
from bench.sizes import Sizes
from bench.workspace import fresh_folder, linked_copy
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM, ONCE = "txmq, stream", "txmq, run_once"
BARE_TRIGGER, BARE_AVAILABLE = "bare, trigger 0", "bare, availableNow"
POLL_S = 0.02
APP_ID = "bench"
SETTLE_DOWN_S = 0.5
BAR = Bar(2.0, at_most=False)


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Rows a second; the bare stream with whichever trigger is faster."""
    samples, bare = samples_beside_bare(sizes, fresh_folder(folder, "full"))
    facts = {"samples": samples, "rows": sizes.backlog_rows, "commit_rows": sizes.commit_rows}
    return [
        Outcome(
            "backlog", "inside the streaming query", "rows/s", samples[STREAM], bare, BAR, facts
        ),
        Outcome("backlog", "run_once()", "rows/s", samples[ONCE], bare, BAR),
    ]


def samples_beside_bare(
    sizes: Sizes, folder: Path
) -> tuple[dict[str, list[float]], Sequence[float]]:
    """Rows a second of each side, and of the faster bare stream; the store stays in the folder."""
    spark = quiet_session()
    alternate(_sides(spark, sizes.smaller(), fresh_folder(folder, "warm")), 1)
    samples = alternate(_sides(spark, sizes, folder), sizes.rounds)
    return samples, max((samples[BARE_TRIGGER], samples[BARE_AVAILABLE]), key=median)


def _sides(spark: SparkSession, sizes: Sizes, folder: Path) -> dict[str, Callable[[], float]]:
    _prepare(spark, sizes, folder)
    rows = sizes.backlog_rows
    return {
        STREAM: lambda: rows / _stream_s(spark, rows, folder),
        BARE_TRIGGER: lambda: rows / _bare_s(spark, rows, folder, available_now=False),
        ONCE: lambda: rows / _once_s(rows, folder),
        BARE_AVAILABLE: lambda: rows / _bare_s(spark, rows, folder, available_now=True),
    }


def _prepare(spark: SparkSession, sizes: Sizes, folder: Path) -> None:
    """The same messages as halves with their ends, and in a plain table."""
    store = Store.create(folder / "store")
    half, op = store.tables.half_log().table, store.tables.op_log().table
    bare = BareStream(spark, folder)
    for number in range(1, sizes.backlog_rows // sizes.commit_rows + 1):
        halves, ends = one_message_transactions(sizes.commit_rows, sizes.body_bytes)
        half.writer.append(halves, app_id=APP_ID, number=number)
        op.writer.append(ends, app_id=APP_ID, number=number)
        bare.append(plain_rows(halves))


def _once_s(rows: int, folder: Path) -> float:
    copy = copy_of_store(folder)
    publisher = Publisher(Store.open(copy))
    return _until_visible(copy / "topics" / TOPIC, rows, publisher.run_once)


def _stream_s(spark: SparkSession, rows: int, folder: Path) -> float:
    """The query runs on an empty op log; then all of its commits are there at once."""
    copy = copy_of_store(folder)
    hidden = _hide_commits(copy / "op" / "_delta_log", folder)
    handle = Publisher(Store.open(copy), spark=spark).start()
    try:
        time.sleep(SETTLE_DOWN_S)
        return _until_visible(
            copy / "topics" / TOPIC, rows, lambda: _show_commits(hidden, copy / "op" / "_delta_log")
        )
    finally:
        handle.stop()


def _bare_s(spark: SparkSession, rows: int, folder: Path, *, available_now: bool) -> float:
    for name in ("sink", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    stream = BareStream(spark, folder)
    queries: list[Any] = []
    try:
        return _until_visible(
            stream.sink, rows, lambda: queries.append(stream.start(available_now=available_now))
        )
    finally:
        for query in queries:
            query.stop()


def _until_visible(location: Path, rows: int, start: Callable[[], object]) -> float:
    """Seconds from `start` until a reader in another thread sees all rows."""
    with ThreadPoolExecutor(1) as pool:
        start_s = time.perf_counter()
        visible: Future[float] = pool.submit(Reader(location, POLL_S).wait_for_rows, rows)
        start()
        return visible.result() - start_s


def copy_of_store(folder: Path) -> Path:
    """A new copy of the store with the backlog, in place of the one before."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    linked_copy(folder / "store", copy)
    return copy


def _hide_commits(log: Path, folder: Path) -> Path:
    """Move all but the first commit out of a Delta log."""
    hidden = fresh_folder(folder, "hidden")
    for path in sorted(log.iterdir()):
        if path.is_file() and path.name != f"{0:020d}.json":
            path.rename(hidden / path.name)
    return hidden


def _show_commits(hidden: Path, log: Path) -> None:
    """Move them back in their order; checkpoints come after the commits that they sum up."""
    paths = sorted(hidden.iterdir(), key=lambda path: (path.suffix != ".json", path.name))
    for path in paths:
        path.rename(log / path.name)
