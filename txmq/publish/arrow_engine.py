"""The arrow engine: copies bodies through this process, record batch by record batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.delta.parquet import NewFile, write_file, write_partitions
from txmq.delta.pinned import disk_error
from txmq.delta.schemas import MICROSECONDS_UTC, SCHEDULE
from txmq.delta.storage import Table
from txmq.publish.plan import BATCH_ROWS, COPIED, GIVEN, Plan, PlanFile
from txmq.store.typed import body_schema_in, typed_columns, with_body_columns

READ_AHEAD_BATCHES = 3


class ArrowEngine:
    """Streams the files through this process: one new file, memory of a few record batches."""

    def write(self, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int) -> list[NewFile]:
        """See PayloadEngine."""
        numbered = plan.rows.append_column("queue_offset", offsets)
        parts = copied(plan.files, numbered, topic.schema.columns, now_ms)
        columns, body = topic.schema.columns, body_schema_in(topic)
        if body is not None:
            parts, columns = with_body_columns(parts, body), typed_columns(body)
        try:
            return _written(_read_ahead(parts), topic, columns)
        except OSError as error:
            told = disk_error(topic.schema.name, error)
            if told is None:
                raise
            raise told from error


def _written(parts: Iterator[pa.Table], topic: Table, columns: pa.Schema) -> list[NewFile]:
    schema, filesystem = topic.schema, topic.filesystem
    if schema.partition_by:
        return write_partitions(parts, schema.partition_by, filesystem, schema.statistics_columns)
    return [write_file(parts, columns, filesystem, schema.statistics_columns)]


def copied(
    files: Sequence[PlanFile], rows: pa.Table, schema: pa.Schema, now_ms: int
) -> Iterator[pa.Table]:
    """Rows of a topic for `rows` of a plan, each with a queue_offset, in the order of the files.

    A column store_timestamp in `rows` counts where it is not null, else `now_ms` does.
    """
    by_file = rows.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks()
    numbers = by_file["file"].to_numpy()
    for number in pc.unique(rows["file"]).to_pylist():
        first, last = np.searchsorted(numbers, [number, number + 1])
        wanted = by_file.slice(first, last - first)
        for part, given in _copied_file(files[number], wanted):
            yield _topic_rows(part, given, schema, now_ms)


def _copied_file(file: PlanFile, wanted: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The wanted messages by the names of a topic's columns, and what the plan gives them."""
    places = wanted["row"].to_numpy()
    copied = _copied_columns(file.table)
    start = 0
    for batch in file.table.batches(file.file, list(copied.values()), BATCH_ROWS):
        first, last = np.searchsorted(places, [start, start + batch.num_rows])
        if last > first:
            part, chosen = batch, places[first:last] - start
            # Two discarded lives show one message twice, so their number alone says nothing.
            if not np.array_equal(chosen, np.arange(batch.num_rows)):
                part = batch.take(pa.array(chosen))
            yield _renamed(part, copied), wanted.slice(first, last - first)
        start += batch.num_rows


def _copied_columns(table: Table) -> dict[str, str]:
    """A topic's column, and the one of this table that it is copied from."""
    return {name: name for name in COPIED} if table.schema.name == SCHEDULE.name else COPIED


def _renamed(batch: pa.RecordBatch, copied: Mapping[str, str]) -> pa.Table:
    stored = set(batch.schema.names)
    names = {name: source for name, source in copied.items() if source in stored}
    return pa.table([batch[source] for source in names.values()], names=list(names))


def _topic_rows(messages: pa.Table, given: pa.Table, schema: pa.Schema, now_ms: int) -> pa.Table:
    """Rows of a topic: what is copied, what the plan gives, and when it is stored."""
    known = {name: messages[name] for name in messages.column_names}
    known |= {name: given[name] for name in GIVEN}
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    known["store_timestamp"] = (
        pc.fill_null(given["store_timestamp"], now)
        if "store_timestamp" in given.column_names
        else pa.repeat(now, messages.num_rows)
    )
    if "due_date" in schema.names:
        known["deliver_timestamp"] = given["deliver_timestamp"]
        known["due_date"] = given["deliver_timestamp"].cast(pa.date32())
    missing = pa.nulls(messages.num_rows)
    columns = [known.get(column.name, missing).cast(column.type) for column in schema]
    return pa.table(columns, schema=schema)


def _read_ahead(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Read in another thread while this one writes; an error there is raised here."""
    first = next(parts, None)
    second = next(parts, None)
    if first is not None:
        yield first
    if second is None:
        return
    yield second
    yield from _from_thread(parts)


def _from_thread(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    ready: queue.Queue[tuple[pa.Table | None, BaseException | None]] = queue.Queue(
        READ_AHEAD_BATCHES
    )
    stopped = threading.Event()

    def read() -> None:
        failure: BaseException | None = None
        try:
            for part in parts:
                if stopped.is_set():
                    return
                ready.put((part, None))
        except BaseException as error:  # noqa: BLE001 - raised in the consuming thread
            failure = error
        ready.put((None, failure))

    threading.Thread(target=read, name="txmq-read-ahead", daemon=True).start()
    try:
        while (item := ready.get())[0] is not None:
            yield item[0]
        if item[1] is not None:
            raise item[1]
    finally:
        stopped.set()
        # A reader that waits for room must see the flag.
        while not ready.empty():
            ready.get_nowait()
