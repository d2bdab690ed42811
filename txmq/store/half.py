"""The half log: one row for each half message (RocketMQ's half topic, R24, R26)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import UnreadableFile
from txmq.delta.reading import Shrink
from txmq.delta.table import Table
from txmq.ground.clock import timestamp
from txmq.ground.columns import (
    Groups,
    Integers,
    first_of_each,
    flags,
    integers,
    only,
    python_rows,
)
from txmq.message.delay_levels import delay_s_of
from txmq.message.ids import HEAD_SEQUENCE, message_id, transaction_time_ms
from txmq.message.lifecycle import Halves
from txmq.message.message import Message
from txmq.store.schemas import HALF, PROPERTIES

# Two rows of a retried append differ in these columns only.
IGNORED_WHEN_COMPARED = ("born_timestamp", "queue_id", "store_date", "client_id")
SUMMARY_COLUMNS = (
    "transaction_id", "sequence", "producer_group", "real_topic", "message_count", "delay_s",
)  # fmt: skip
COMPARED_COLUMNS = tuple(n for n in HALF.columns.names if n not in IGNORED_WHEN_COMPARED)
DELAY_COLUMNS = ("delay_s", "deliver_timestamp")
DELAYED_COLUMNS = ("transaction_id", "sequence", "producer_group")
# How many rows a run of halves has.
RUN_ROWS = "rows"
# Of fewer rows no runs are made.
MANY_ROWS = 1_024
NO_SEQUENCE = -1
# Each DataFrame of a transaction gets a range of sequences; the ranges do not overlap.
SEQUENCES_PER_DATAFRAME = 1 << 56
# About so many doubled halves are compared at once, by their digests.
COMPARED_ROWS = 65_536
DIGEST = "digest"
_DAY_MS = 86_400_000
_FIELDS = list(HALF.columns)
_NO_TEXTS = pa.array([], pa.string())


class HalfOrigin(NamedTuple):
    """The values that all rows of one transaction share."""

    transaction_id: str
    producer_group: str
    queue_id: int
    check_immunity_time_s: float
    born_timestamp_ms: int
    client_id: str | None = None
    ordinary: bool = False
    delay_levels_s: tuple[int, ...] = ()


class HalfTransaction(NamedTuple):
    """The halves of a transaction that are written together; without messages, only its head.

    A head without a message goes with messages of DataFrames, which Spark writes into other files.
    """

    origin: HalfOrigin
    messages: Sequence[Message]
    queues: Sequence[int]
    message_count: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return max(1, len(self.messages))


class HalfLog:
    """Reads the half log; the producer appends `half_table` to it."""

    def __init__(self, table: Table) -> None:
        """Open nothing yet; `table` is not shared."""
        self.table = table

    def summaries(self, transaction_ids: pa.Array) -> pa.Table:
        """Read SUMMARY_COLUMNS of all rows of these transactions, with duplicates, as `runs`."""
        return self.table.search.rows_of(
            "transaction_id", transaction_ids, SUMMARY_COLUMNS, Shrink(runs)
        )

    def readable_summaries(
        self, transaction_ids: pa.Array
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Read as `summaries`, without the files that cannot be read, which are returned."""
        return self.table.search.readable_rows_of(
            "transaction_id", transaction_ids, SUMMARY_COLUMNS, Shrink(runs)
        )

    def rows(self, transaction_ids: pa.Array) -> pa.Table:
        """Read all columns of all rows of these transactions, duplicates included."""
        return self.table.search.rows_of("transaction_id", transaction_ids, HALF.columns.names)

    def readable_delayed_of(
        self, transaction_ids: pa.Array
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Read DELAYED_COLUMNS of the delayed messages of these transactions, once each.

        Files that cannot be read are left out, and returned.
        """
        columns = (*DELAYED_COLUMNS, *DELAY_COLUMNS)
        rows, unreadable = self.table.search.readable_rows_of(
            "transaction_id", transaction_ids, columns
        )
        rows = rows.filter(is_delayed(rows)).select(list(DELAYED_COLUMNS))
        return once_each(rows), unreadable

    def halves(self, transaction_id: str) -> Halves | None:
        """Read the durable halves of one transaction; None without any; 0 commits."""
        return self.halves_of([transaction_id]).get(transaction_id)

    def halves_of(self, transaction_ids: Sequence[str]) -> dict[str, Halves]:
        """Read the durable halves of each transaction that has any; 0 commits.

        Bodies are read only if a sequence appears twice, to tell a retried append from a conflict;
        memory holds one batch of them.
        """
        return self._halves(self.summaries(pa.array(transaction_ids, pa.string())), self._digests)

    def readable_halves_of(self, summaries: pa.Table) -> dict[str, Halves]:
        """Read as `halves_of`, from summaries that were read, by the files that can be read."""
        return self._halves(summaries, self._readable_digests)

    def _digests(self, transaction_ids: pa.Array) -> pa.Table:
        return self.table.search.rows_of(
            "transaction_id", transaction_ids, COMPARED_COLUMNS, digests
        )

    def _readable_digests(self, transaction_ids: pa.Array) -> pa.Table:
        return self.table.search.readable_rows_of(
            "transaction_id", transaction_ids, COMPARED_COLUMNS, digests
        )[0]

    def _halves(
        self, summaries: pa.Table, digests_of: Callable[[pa.Array], pa.Table]
    ) -> dict[str, Halves]:
        grouped = grouped_summaries(summaries)
        once = pc.and_(
            pc.equal(grouped["rows"], grouped["places"]),
            pc.equal(grouped["first_group"], grouped["last_group"]),
        )
        halves = {
            row["transaction_id"]: Halves(row["first_group"], row["message_count"], row["messages"])
            for row in python_rows(grouped.filter(once))
        }
        doubled = grouped.filter(pc.invert(once))
        for ids in _chunks(doubled):
            halves |= halves_by_id(digests_of(ids))
        return halves


def _chunks(grouped: pa.Table) -> Iterator[pa.Array]:
    """Yield the transactions in their order, some rows at a time, because each row is compared."""
    ends = np.cumsum(integers(grouped["rows"], 0)) // COMPARED_ROWS
    ids = grouped["transaction_id"].combine_chunks()
    for number in np.unique(ends):
        yield ids.filter(pa.array(ends == number))


def once_each(rows: pa.Table) -> pa.Table:
    """Return the first row of each message, in the order of the rows."""
    places = Groups.of(rows["transaction_id"]).place
    return only(rows, first_of_each(places, integers(rows["sequence"], NO_SEQUENCE)))


def is_delayed(rows: pa.Table) -> pa.ChunkedArray:
    """Tell of each half if it is a delayed message, which goes to the schedule after its commit."""
    return pc.or_(pc.is_valid(rows["delay_s"]), pc.is_valid(rows["deliver_timestamp"]))


def runs(rows: pa.Table, many_rows: int = MANY_ROWS) -> pa.Table:
    """Put rows of one transaction together whose sequences follow each other.

    So a transaction of millions of messages is a few rows. A head stands alone.

    Args:
        rows: SUMMARY_COLUMNS.
        many_rows: fewer rows stay as they are.

    Returns: the first row of each run, with the number of its rows in the column RUN_ROWS.
    """
    begins = _run_begins(rows) if rows.num_rows >= max(1, many_rows) else np.arange(rows.num_rows)
    counts = np.diff(np.append(begins, rows.num_rows))
    firsts = rows if len(begins) == rows.num_rows else rows.take(pa.array(begins))
    return firsts.append_column(RUN_ROWS, pa.array(counts, pa.int64()))


def _run_begins(rows: pa.Table) -> Integers:
    """Find the rows that do not follow the row before."""
    sequence = integers(rows["sequence"], NO_SEQUENCE)
    before = sequence[:-1]
    follows = (sequence[1:] - 1 == before) & (before > HEAD_SEQUENCE)
    if 2 * np.count_nonzero(follows) < rows.num_rows - 2:
        # Transactions of few messages: to compare their texts would cost more than it saves.
        return np.arange(rows.num_rows)
    for name in ("transaction_id", "producer_group", "real_topic"):
        values = rows[name].combine_chunks()
        is_same = pc.equal(values.slice(1), values.slice(0, len(values) - 1))
        follows &= flags(pc.fill_null(is_same, False))  # noqa: FBT003
    is_delayed_row = flags(pc.is_valid(rows["delay_s"]))
    is_head = integers(rows["message_count"], -1) >= 0
    follows &= (is_delayed_row[1:] == is_delayed_row[:-1]) & ~is_head[1:] & ~is_head[:-1]
    return np.flatnonzero(np.append([True], ~follows))


def grouped_summaries(summaries: pa.Table, ids: pa.Array | None = None) -> pa.Table:
    """Count the rows and messages of each transaction, and find its groups and its head.

    Args:
        summaries: as `runs`.
        ids: the rows of the result are those of these transactions, in this order; one without
            halves has counts of 0.

    Returns: one row for each transaction. `places` is `rows` if each sequence is there once, else
        less.
    """
    column = summaries["transaction_id"]
    if ids is None:
        groups = Groups.of(column)
    else:
        groups = Groups(ids, integers(pc.index_in(column, value_set=ids), -1))
    sequence = integers(summaries["sequence"], NO_SEQUENCE)
    run_rows = integers(summaries[RUN_ROWS], 1)
    rows = groups.total(run_rows)
    is_message = flags(pc.is_valid(summaries["real_topic"]))
    first_group, last_group = _producer_groups(groups, summaries["producer_group"])
    # Only the head has the number of messages.
    of_heads = np.where(sequence == HEAD_SEQUENCE, integers(summaries["message_count"], -1), -1)
    message_count = groups.largest(of_heads, -1)
    return pa.table(
        {
            "transaction_id": groups.keys,
            "rows": rows,
            "places": rows - _overlaps(groups, sequence, run_rows),
            "messages": groups.total(run_rows * is_message),
            "heads": groups.count(sequence == HEAD_SEQUENCE),
            "first_group": first_group,
            "last_group": last_group,
            "message_count": pa.array(message_count, mask=message_count < 0),
        }
    )


def _overlaps(groups: Groups, sequence: Integers, run_rows: Integers) -> Integers:
    """Count the runs of each transaction that begin before the run before them has ended."""
    if groups.count().max(initial=0) <= 1:
        return np.zeros(len(groups.keys), dtype=np.int64)
    order = np.lexsort((sequence, groups.place))
    # Other programs may write the smallest and the largest number that there is.
    place, begin = groups.place[order], np.maximum(sequence[order], NO_SEQUENCE)
    is_overlap = (place[1:] == place[:-1]) & (begin[1:] - run_rows[order][:-1] < begin[:-1])
    return np.bincount(place[1:][is_overlap], minlength=len(groups.keys)).astype(np.int64)


def _producer_groups(groups: Groups, column: pa.ChunkedArray) -> tuple[pa.Array, ...]:
    senders = Groups.of(pc.fill_null(column, ""))
    order = pc.array_sort_indices(senders.keys)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    names, ranks = senders.keys.take(order), rank[senders.place]
    first = groups.smallest(ranks, len(order))
    last = groups.largest(ranks, -1)
    has_none = last < 0
    return tuple(names.take(pa.array(place, mask=has_none)) for place in (first, last))


def digests(rows: pa.Table) -> pa.Table:
    """Return SUMMARY_COLUMNS of rows with COMPARED_COLUMNS, and a digest of what is compared."""
    values = [_digest(row) for row in python_rows(rows.select(list(COMPARED_COLUMNS)))]
    return rows.select(list(SUMMARY_COLUMNS)).append_column(DIGEST, pa.array(values, pa.binary()))


def _digest(row: Mapping[str, object]) -> bytes:
    body = row["body"]
    short = hashlib.sha256(body).digest() if isinstance(body, bytes) else None
    return hashlib.sha256(repr({**row, "body": short}).encode()).digest()


def halves_by_id(rows: pa.Table) -> dict[str, Halves]:
    """Return the halves of each transaction, from the digests of its rows."""
    grouped: dict[str, dict[int, dict[str, object]]] = {}
    conflicting: set[str] = set()
    heads: dict[str, int | None] = {}
    groups: dict[str, set[str]] = {}
    for row in python_rows(rows):
        transaction_id, sequence = row["transaction_id"], row["sequence"]
        seen = grouped.setdefault(transaction_id, {})
        if sequence in seen and seen[sequence][DIGEST] != row[DIGEST]:
            conflicting.add(transaction_id)
        seen.setdefault(sequence, row)
        groups.setdefault(transaction_id, set()).add(row["producer_group"] or "")
        if sequence == HEAD_SEQUENCE:
            heads[transaction_id] = row["message_count"]
    return {
        transaction_id: Halves(
            # Every reader must choose the same group, in whatever order it reads the files.
            min(groups[transaction_id]),
            heads.get(transaction_id),
            sum(row["real_topic"] is not None for row in seen.values()),
            transaction_id in conflicting or len(groups[transaction_id]) > 1,
        )
        for transaction_id, seen in grouped.items()
    }


# --- rows of a commit -----------------------------------------------------------------------------


def half_table(transactions: Iterable[HalfTransaction]) -> pa.Table:
    """Return the rows of HALF; the first row of each transaction is its head.

    Columns are built one after the other: row by row would cost more than the commit.
    """
    rows = _rows(list(transactions))
    columns = {**_of_origins(rows), **_of_messages(rows), **_of_heads(rows)}
    arrays = [_array(columns[field.name], field.type) for field in _FIELDS]
    return pa.table(arrays, schema=HALF.columns)


class _Rows(NamedTuple):
    """What the rows of a commit are made of; `heads` has None for rows that are no head."""

    origins: list[HalfOrigin]
    messages: list[Message | _HeadAlone]
    sequences: list[int]
    queues: list[int | None]
    heads: Sequence[HalfTransaction | None]


def _rows(transactions: Sequence[HalfTransaction]) -> _Rows:
    origins = [transaction.origin for transaction in transactions]
    if all(len(transaction.messages) == 1 for transaction in transactions):
        messages: list[Message | _HeadAlone] = [each.messages[0] for each in transactions]
        queues: list[int | None] = [each.queues[0] for each in transactions]
        return _Rows(origins, messages, [HEAD_SEQUENCE] * len(messages), queues, transactions)
    counts = [transaction.rows for transaction in transactions]
    heads = [
        head
        for transaction, count in zip(transactions, counts, strict=True)
        for head in (transaction, *[None] * (count - 1))
    ]
    return _Rows(
        [origin for origin, count in zip(origins, counts, strict=True) for _ in range(count)],
        [message for each in transactions for message in each.messages or (_HEAD_ALONE,)],
        [sequence for count in counts for sequence in range(HEAD_SEQUENCE, count)],
        [queue for each in transactions for queue in (each.queues if each.messages else (None,))],
        heads,
    )


class _HeadAlone:
    """Stands for the message in a head without one."""

    topic = tags = keys = body = properties = sharding_key = None
    delay_level = delay_s = deliver_timestamp = None


_HEAD_ALONE = _HeadAlone()


def _of_origins(rows: _Rows) -> dict[str, pa.Array | Sequence[object]]:
    ids = [origin.transaction_id for origin in rows.origins]
    return {
        "transaction_id": ids,
        "sequence": rows.sequences,
        "message_id": list(map(message_id, ids, rows.sequences)),
        "queue_id": [origin.queue_id for origin in rows.origins],
        "producer_group": [origin.producer_group for origin in rows.origins],
        "born_timestamp": [origin.born_timestamp_ms * 1000 for origin in rows.origins],
        "ordinary": [origin.ordinary for origin in rows.origins],
        "store_date": _days(ids),
    }


def _days(ids: Sequence[str]) -> list[int]:
    # Ids sort by their time, and most commits are of one day.
    first, last = (transaction_time_ms(each) // _DAY_MS for each in (min(ids), max(ids)))
    if first == last:
        return [first] * len(ids)
    return [transaction_time_ms(each) // _DAY_MS for each in ids]


def store_date(transaction_id: str) -> date:
    """Return the partition of a half: the UTC date of the time in its id, not of its append."""
    return _date(transaction_time_ms(transaction_id) // _DAY_MS)


@lru_cache(maxsize=64)
def _date(day: int) -> date:
    return timestamp(day * _DAY_MS).date()


def _of_messages(rows: _Rows) -> dict[str, pa.Array | Sequence[object]]:
    messages = rows.messages
    return {
        "real_topic": [message.topic for message in messages],
        "real_queue_id": rows.queues,
        "tags": [message.tags for message in messages],
        "keys": [message.keys for message in messages],
        "body": [message.body for message in messages],
        "properties": _properties([message.properties for message in messages]),
        "sharding_key": [message.sharding_key for message in messages],
        "delay_s": _delays_s(rows),
        "deliver_timestamp": [message.deliver_timestamp for message in messages],
    }


def _properties(properties: Sequence[Mapping[str, str] | None]) -> pa.Array:
    if any(properties) or None in properties:
        pairs = [None if values is None else list(values.items()) for values in properties]
        return pa.array(pairs, PROPERTIES)
    # A list for each message would cost Arrow and the garbage collector much work.
    return pa.MapArray.from_arrays(np.zeros(len(properties) + 1, np.int32), _NO_TEXTS, _NO_TEXTS)


def _delays_s(rows: _Rows) -> list[int | None]:
    if not any(message.delay_level or message.delay_s for message in rows.messages):
        return [None] * len(rows.messages)
    pairs = zip(rows.messages, rows.origins, strict=True)
    return [delay_after_commit_s(message, origin.delay_levels_s) for message, origin in pairs]


def delay_after_commit_s(
    message: Message | _HeadAlone, delay_levels_s: tuple[int, ...]
) -> int | None:
    """Return the delay of a message after its commit, by its level or in seconds, or None."""
    if message.delay_level:
        return delay_s_of(message.delay_level, delay_levels_s)
    return message.delay_s or None


def _of_heads(rows: _Rows) -> dict[str, Sequence[object]]:
    """Return the columns that only the head has."""
    heads = rows.heads
    return {
        "message_count": [head and head.message_count for head in heads],
        "check_immunity_time_s": [head and head.origin.check_immunity_time_s for head in heads],
        "client_id": [head and head.origin.client_id for head in heads],
    }


def _array(values: pa.Array | Sequence[object], kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)
