"""What the order of queues is judged by: a few numbers for each row of a topic, of all ranges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.deliveries import DELIVERED_NUMBER
from txmq.verify.digests import ABSENT, Flags, Integers, integers, ranks, taken
from txmq.verify.fold import COMMITTED, DISCARDED, EXPIRED
from txmq.verify.picture import Picture
from txmq.verify.schedule import messages_of
from txmq.verify.store import RowIds, addresses_in, is_dead_letters, is_schedule
from txmq.verify.tables import TOPIC_COLUMNS

# --- placed:

ADDRESS = ("transaction_id", "sequence", "life")


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """The rows of a table in the order of its queues.

    Attributes:
        rows: all their columns but the transaction_id.
        place: the number of the message of each row, ABSENT without one.
        known: rows that show a message.
        forgotten: rows whose halves retention took.
        forgotten_rows: ADDRESS of those, in any order.
        numbers: the transaction of each known row, ABSENT for the others.
        late: rows of transactions that were set aside; they have no place in the order.
        by_schedule: known rows of messages that only the schedule still holds.
    """

    name: str
    rows: pa.Table
    place: Integers
    known: Flags
    forgotten: Flags
    forgotten_rows: pa.Table
    numbers: Integers
    by_schedule: Flags
    late: Flags

    @classmethod
    def of(cls, name: str, picture: Picture) -> PlacedRows:
        """Read a table; its content becomes digests."""
        rows, halves = _read(name, picture), picture.halves
        order = _queue_order(rows)
        place = messages_of(rows, halves)
        known = np.append(halves.carries, [False])[place]
        by_schedule = np.append(halves.by_schedule, [False])[halves.owners(place)]
        if is_dead_letters(name):
            # The schedule tells nothing of an earlier life.
            known &= ~by_schedule
        forgotten = ~known & picture.forgotten(rows["transaction_id"])
        forgotten_rows = rows.select(list(ADDRESS)).filter(pa.array(forgotten))
        late_ids = pa.array(sorted(picture.pinned.late), pa.string())
        late = pc.is_in(rows["transaction_id"], value_set=late_ids).to_numpy()
        # From here on `numbers` says whose they are.
        rows = taken(rows.drop_columns(["transaction_id"]), order)
        numbers = np.where(known, halves.owners(place), ABSENT)
        return cls(
            name, rows, place[order], known[order], forgotten[order], forgotten_rows,
            numbers[order], (known & by_schedule)[order], late[order],
        )  # fmt: skip

    @property
    def row_ids(self) -> RowIds:
        """Makes topic/queue/offset and the message_id of a row, for the few rows that are shown."""
        return addresses_in(self.name, self.rows)

    def column(self, name: str) -> Integers:
        """A column as numbers; null is ABSENT."""
        return integers(self.rows[name])


def _read(name: str, picture: Picture) -> pa.Table:
    # The schedule is in memory already: the picture needs it.
    if is_schedule(name):
        return picture.schedule
    return picture.pinned.topics[name].rows(TOPIC_COLUMNS, content=True)


def _queue_order(rows: pa.Table) -> Integers:
    """By queue and offset; of equal ones by message, so that every reader names the same one."""
    queues, offsets = integers(rows["queue_id"]), integers(rows["queue_offset"])
    order: Integers = np.lexsort((offsets, queues))
    same = (np.diff(offsets[order]) == 0) & (np.diff(queues[order]) == 0)
    if same.any():
        order = np.lexsort((ranks(rows["message_id"]), offsets, queues))
    return order


# --- queue_rows:

Columns = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one topic, sorted by queue and offset.

    Attributes:
        queue, offset, op_version, sequence: as the rows say; ABSENT for null.
        ordinal: the place in its commit of the claim that led to the row; ABSENT where unknown.
        has_place: rows that have a place in the order of the ends.
        keyed: places of the rows with a sharding key, in no order.
        key, commit_version, commit_ordinal: of those rows, their key as a number and the COMMIT of
            their transaction.
    """

    queue: Integers
    offset: Integers
    op_version: Integers
    sequence: Integers
    ordinal: Integers
    has_place: Flags
    keyed: Integers
    key: Integers
    commit_version: Integers
    commit_ordinal: Integers


_OF_A_ROW = ("queue", "offset", "op_version", "sequence", "ordinal", "has_place")
_OF_A_KEYED_ROW = ("keyed", "key", "commit_version", "commit_ordinal")


class QueueLog:
    """Collects the rows of one topic, range after range; about 40 bytes for each."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._columns: dict[str, list[npt.NDArray[np.generic]]] = {
            name: [] for name in (*_OF_A_ROW, *_OF_A_KEYED_ROW)
        }
        self._row_count = 0

    def add(self, placed: PlacedRows, ordinals: Integers, picture: Picture) -> None:
        """The rows of one range, in the order of `placed`."""
        columns = {
            **_numbers(placed, ordinals), **_keys(placed, ordinals, picture, self._row_count)
        }  # fmt: skip
        for name, values in columns.items():
            self._columns[name].append(values)
        self._row_count += len(ordinals)

    def merged(self) -> QueueRows:
        """All rows; they leave the log, so that memory holds them once."""
        columns = {name: np.concatenate(self._columns.pop(name)) for name in [*self._columns]}
        # Stable: of rows with one offset those of the smaller message_id come first.
        order = np.lexsort((columns["offset"], columns["queue"]))
        for name in _OF_A_ROW:
            columns[name] = columns[name][order]
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        columns["keyed"] = place[columns["keyed"]]
        return QueueRows(**columns)


def ordinals_of(placed: PlacedRows, picture: Picture) -> Integers:
    """The place in its commit of the claim that each row names; ABSENT if it names none."""
    if is_dead_letters(placed.name):
        return _of_transactions(placed, picture, DISCARDED, EXPIRED)
    commits = _of_transactions(placed, picture, COMMITTED)
    if is_schedule(placed.name):
        return commits
    return np.where(picture.halves.waits(placed.place), _of_messages(placed, picture), commits)


def _of_transactions(placed: PlacedRows, picture: Picture, *states: str) -> Integers:
    keys = ["transaction", "op_version", "life"]
    facts = pa.concat_tables([picture.fates.facts_in(state) for state in states])
    first = facts.group_by(keys).aggregate([("ordinal", "min")])
    rows = pa.table([placed.numbers, placed.rows["op_version"], placed.rows["life"]], names=keys)
    rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    matches = rows.join(first, keys, join_type="inner")
    ordinals = np.full(rows.num_rows, ABSENT, dtype=np.int64)
    ordinals[matches["row"].to_numpy()] = matches["ordinal_min"].to_numpy()
    return ordinals


def _of_messages(placed: PlacedRows, picture: Picture) -> Integers:
    """Those of the DELIVER claims."""
    ended = picture.deliveries
    same = ended.state[placed.place] == DELIVERED_NUMBER
    same &= placed.column("op_version") == ended.op_version[placed.place]
    same &= placed.column("life") == picture.fates.life[placed.numbers]
    return np.where(same & placed.known, ended.ordinal[placed.place], ABSENT)


def _numbers(placed: PlacedRows, ordinals: Integers) -> dict[str, npt.NDArray[np.generic]]:
    # Rows that no claim led to are reported elsewhere and have no place in the order.
    has_place = (placed.known & (ordinals != ABSENT)) | placed.forgotten | placed.by_schedule
    has_place &= ~placed.late
    return {
        "queue": placed.column("queue_id").astype(np.int32),
        "offset": placed.column("queue_offset"),
        "op_version": placed.column("op_version"),
        "sequence": placed.column("sequence"),
        "ordinal": ordinals,
        "has_place": has_place,
    }


def _keys(
    placed: PlacedRows, ordinals: Integers, picture: Picture, first: int
) -> dict[str, npt.NDArray[np.generic]]:
    is_keyed = pc.is_valid(placed.rows["sharding_key"]).to_numpy()
    rows = np.flatnonzero(placed.known & ~placed.late & (ordinals != ABSENT) & is_keyed)
    numbers = placed.numbers[rows]
    return {
        "keyed": rows + first,
        "key": _key_numbers(placed.rows["sharding_key"].take(pa.array(rows))),
        "commit_version": picture.fates.op_version[numbers],
        "commit_ordinal": picture.fates.ordinal[numbers],
    }


def _key_numbers(keys: pa.ChunkedArray) -> Integers:
    """The same number for the same key in every range: 64 bits of its SHA-256."""
    encoded = keys.combine_chunks().dictionary_encode()
    digests = b"".join(
        hashlib.sha256(key.encode()).digest()[:8] for key in encoded.dictionary.to_pylist()
    )
    numbers: Integers = np.frombuffer(digests, dtype=np.int64)[encoded.indices.to_numpy()]
    return numbers
