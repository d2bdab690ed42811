"""Step 1 of rebuilding a topic: read the messages that it should show and the rows that it shows.

Each message becomes a key, a digest of its content and its place. Bodies are read in batches and
not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Flags, Integers, flags, integers, python_values
from txmq.delta.files import DataFile, FileRange
from txmq.delta.schemas import TOPIC
from txmq.errors import StorageError, TopicNotRebuiltError
from txmq.publish.arrow_engine import copied
from txmq.publish.plan import BATCH_ROWS, DELIVERED, Plan, make_plan
from txmq.store.forgotten import kept_since_ms
from txmq.store.half import HalfLog
from txmq.store.schedule import ScheduleLog
from txmq.store.store import Store
from txmq.store.topic import TopicLog

logger = logging.getLogger(__name__)

# A rebuild counts offsets again, and keeps the time at which a row was stored.
_NOT_CONTENT = ("queue_offset", "store_timestamp")
_DIGESTED = tuple(name for name in TOPIC.columns.names if name not in _NOT_CONTENT)
_SHOWN = ("queue_id", "queue_offset", "op_version", "sequence", "store_timestamp")


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that a topic should show, in their order.

    Attributes:
        op_version: the messages are complete up to this version of the op log.
        plan: where the bodies are, and the order of the messages.
        keys, digests: one for each row of the plan.
        gone: facts about transactions whose halves retention has taken.
        first_kept_id: retention may have taken transactions with smaller ids; None where it took
            none.
    """

    op_version: int
    plan: Plan
    keys: pa.Array
    digests: Integers
    gone: pa.Table
    first_kept_id: str | None

    def is_forgotten(self, transaction_ids: Any) -> Any:
        """Whether retention may have taken these transactions."""
        if self.first_kept_id is None:
            return np.zeros(len(transaction_ids), dtype=bool)
        is_older = pc.less(transaction_ids, self.first_kept_id)
        return pc.fill_null(is_older, False).to_numpy(zero_copy_only=False)  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows that a topic shows, in any order.

    Attributes:
        files: the files that could be read.
        file, row: the place of each row: the number of its file in `files`, and its number in it.
    """

    files: Sequence[DataFile]
    file: Integers
    row: Integers
    transaction_ids: pa.Array
    keys: pa.Array
    digests: Integers
    queue_id: Integers
    queue_offset: Integers
    op_version: Integers
    sequence: Integers
    store_timestamp: pa.Array


def expected_rows(store: Store, op_table_id: str, topic: str, after: int) -> Expected:
    """The messages that settled and half say a topic shows after an op version; 0 commits.

    Raises: PayloadMissingError where halves are missing that retention did not take.
    """
    settled, half = store.tables.settled_log(op_table_id), store.tables.half_log()
    mark = settled.mark
    facts = settled.to_show(after, mark)
    half.table.refresh()
    # Read after half: retention writes down what it takes before it takes it.
    first_kept_id = _first_kept_id(store)
    schedule = store.tables.schedule_log()
    kept, gone = _split(half, schedule, facts, first_kept_id)
    plan = make_plan(half, kept, schedule).of_topic(topic, after)
    keys, digests = _digests_of(plan)
    return Expected(mark, plan, keys, digests, gone, first_kept_id)


def shown_rows(
    log: TopicLog, first_kept_id: str | None, skip: Container[str] = frozenset()
) -> Shown:
    """The rows of a topic's pinned version, without the files in `skip`; 0 commits.

    The rows of a file that cannot be read count as missing.

    Raises: TopicNotRebuiltError where the halves of an unreadable file may be gone too.
    """
    files: list[DataFile] = []
    parts: list[pa.Table] = []
    ranges = log.table.ranges("transaction_id")
    for span in (span for span in ranges if span.file.path not in skip):
        part = _shown_file_if_readable(log, span, len(files), first_kept_id)
        if part is not None:
            files.append(span.file)
            parts.append(part)
    rows = pa.concat_tables([_no_rows(), *parts]).combine_chunks()
    return Shown(
        files,
        file=integers(rows["file"], -1),
        row=integers(rows["row"], -1),
        transaction_ids=_array(rows["transaction_id"]),
        keys=_array(rows["key"]),
        digests=integers(rows["digest"], 0),
        queue_id=integers(rows["queue_id"], 0),
        queue_offset=integers(rows["queue_offset"], -1),
        op_version=integers(rows["op_version"], 0),
        sequence=integers(rows["sequence"], -1),
        store_timestamp=_array(rows["store_timestamp"]),
    )


# --- helpers -----------------------------------------------------------------------------------


def _first_kept_id(store: Store) -> str | None:
    since_ms = kept_since_ms(store.tables.register("maintenance").read().value)
    if since_ms is None:
        return None
    digits = f"{since_ms:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _split(
    half: HalfLog, schedule: ScheduleLog, facts: pa.Table, first_kept_id: str | None
) -> tuple[pa.Table, pa.Table]:
    """Facts whose payload is there, and those whose halves retention has taken."""
    if first_kept_id is None:
        return facts, facts.slice(0, 0)
    ids = pc.unique(facts["transaction_id"])
    old = ids.filter(pc.less(ids, first_kept_id))
    halves = half.table.rows_of("transaction_id", old, ("transaction_id",))["transaction_id"]
    gone = old.filter(pc.invert(pc.is_in(old, value_set=pc.unique(halves))))
    is_gone = flags(pc.is_in(facts["transaction_id"], value_set=gone))
    is_gone &= ~_is_scheduled(schedule, facts, gone)
    return facts.filter(pa.array(~is_gone)), facts.filter(pa.array(is_gone))


def _is_scheduled(schedule: ScheduleLog, facts: pa.Table, gone: pa.Array) -> Flags:
    """Which facts deliver messages that the schedule holds, though their halves are gone."""
    delivered = flags(pc.equal(facts["state"], DELIVERED))
    numbers = np.flatnonzero(delivered)
    messages = schedule.refresh().messages_of(gone).select(["transaction_id", "sequence"])
    held = set(zip(*(messages[name].to_pylist() for name in messages.column_names), strict=True))
    answer = np.zeros(facts.num_rows, dtype=bool)
    for number, fact in zip(numbers, facts.filter(pa.array(delivered)).to_pylist(), strict=True):
        transaction_id, sequences = fact["transaction_id"], fact["sequences"]
        answer[number] = all((transaction_id, sequence) in held for sequence in sequences)
    return answer


def _digests_of(plan: Plan) -> tuple[pa.Array, Integers]:
    """Bodies come in the order of the files, so each row carries its place in the plan."""
    count = plan.rows.num_rows
    numbered = plan.rows.append_column("queue_offset", pa.array(np.arange(count)))
    digests = np.zeros(count, dtype=np.int64)
    places: list[Integers] = []
    keys: list[pa.Array] = []
    for part in copied(plan.files, numbered, TOPIC.columns, 0):
        place = integers(part["queue_offset"], -1)
        digests[place] = digests_of(part)
        places.append(place)
        keys.append(keys_of(part))
    order = np.argsort(np.concatenate([np.arange(0), *places]), kind="stable")
    all_keys = pa.concat_arrays([pa.array([], pa.string()), *keys])
    return all_keys.take(pa.array(order)), digests


def _shown_file_if_readable(
    log: TopicLog, span: FileRange, number: int, first_kept_id: str | None
) -> pa.Table | None:
    try:
        return _shown_file(log, span.file, number)
    except (OSError, StorageError, pa.ArrowException) as error:
        path = span.file.path
        if first_kept_id is not None and (span.low is None or span.low < first_kept_id):
            problem = f"has a file that cannot be read ({path}), and the halves of its messages"
            raise TopicNotRebuiltError(log.name, f"{problem} are gone") from error
        logger.warning("topic %s: %s cannot be read", log.name, path)
        return None


def _shown_file(log: TopicLog, file: DataFile, number: int) -> pa.Table:
    parts, start = [_no_rows()], 0
    for batch in log.table.batches(file, TOPIC.columns.names, BATCH_ROWS):
        rows = pa.table(batch)
        count = rows.num_rows
        columns = {
            "file": pa.array(np.full(count, number, dtype=np.int64)),
            "row": pa.array(np.arange(start, start + count)),
            "transaction_id": rows["transaction_id"],
            "key": keys_of(rows),
            "digest": pa.array(digests_of(rows)),
            **{name: rows[name] for name in _SHOWN},
        }
        parts.append(pa.table(columns).cast(_no_rows().schema))
        start += count
    return pa.concat_tables(parts)


def _no_rows() -> pa.Table:
    numbers = [(name, pa.int64()) for name in ("file", "row")]
    texts = [(name, pa.string()) for name in ("transaction_id", "key")]
    shown = [(name, pa.int64()) for name in ("digest", *_SHOWN[:4])]
    stored = ("store_timestamp", TOPIC.columns.field("store_timestamp").type)
    return pa.schema([*numbers, *texts, *shown, stored]).empty_table()


def keys_of(rows: pa.Table) -> pa.Array:
    """A key for each message and its life; a null in a damaged row becomes the word null."""
    texts = [rows[name].cast(pa.string()) for name in ("transaction_id", "sequence", "life")]
    joined = pc.binary_join_element_wise(*(pc.fill_null(text, "null") for text in texts), "/")
    return _array(joined)


def digests_of(rows: pa.Table) -> Integers:
    """A number for the content of each row; comparable within this process only."""
    columns = [_hashable(rows[name]) for name in _DIGESTED]
    digests = (hash(values) for values in zip(*columns, strict=True))
    return np.fromiter(digests, np.int64, rows.num_rows)


def _hashable(column: pa.ChunkedArray) -> Iterator[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_map(column.type):
        return (None if value is None else tuple(value) for value in python_values(column))
    return iter(python_values(column))


def _array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
