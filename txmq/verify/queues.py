"""The checker's look at the queues of a topic: rows, offsets, marks, order (I3, I14, I21, I23).

`PlacedRows` are the rows of one range of transactions. A `QueueLog` collects a few numbers of each
row; when every range was read, `QueueChecks` judges how the rows follow one another.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.ground.columns import python_values
from txmq.verify.arrays import ABSENT, Flags, Integers, changes, integers, ranks, repeats, taken
from txmq.verify.deliveries import DELIVERED_NUMBER
from txmq.verify.fold import COMMITTED, DISCARDED, EXPIRED
from txmq.verify.picture import Picture, RowIds, addresses_in, addresses_of
from txmq.verify.report import SHOWN_ROWS, Findings
from txmq.verify.schedule import messages_of
from txmq.verify.store import PinnedStore, is_dead_letters, is_schedule
from txmq.verify.tables import TOPIC_COLUMNS, PinnedTable

ADDRESS = ("transaction_id", "sequence", "life")
_ADDRESS_COLUMNS = ("queue_id", "queue_offset", "message_id")
_OF_A_ROW = ("queue", "offset", "op_version", "sequence", "ordinal", "has_place")
_OF_A_KEYED_ROW = ("keyed", "key", "commit_version", "commit_ordinal")


# --- the rows of a range -----------------------------------------------------------------------


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
        """Make topic/queue/offset and the message_id of a row, for the few rows that are shown."""
        return addresses_in(self.name, self.rows)

    def column(self, name: str) -> Integers:
        """Return a column as numbers; null is ABSENT."""
        return integers(self.rows[name])


def _read(name: str, picture: Picture) -> pa.Table:
    # The schedule is in memory already: the picture needs it.
    if is_schedule(name):
        return picture.schedule
    return picture.pinned.topics[name].rows(TOPIC_COLUMNS, content=True)


def _queue_order(rows: pa.Table) -> Integers:
    """Order rows by queue and offset, equal ones by message: every reader names the same one."""
    queues, offsets = integers(rows["queue_id"]), integers(rows["queue_offset"])
    order: Integers = np.lexsort((offsets, queues))
    same = (np.diff(offsets[order]) == 0) & (np.diff(queues[order]) == 0)
    if same.any():
        order = np.lexsort((ranks(rows["message_id"]), offsets, queues))
    return order


def ordinals_of(placed: PlacedRows, picture: Picture) -> Integers:
    """Find the place in its commit of the claim that each row names; ABSENT if it names none."""
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
    """Find the places of the DELIVER claims."""
    ended = picture.deliveries
    same = ended.state[placed.place] == DELIVERED_NUMBER
    same &= placed.column("op_version") == ended.op_version[placed.place]
    same &= placed.column("life") == picture.fates.life[placed.numbers]
    return np.where(same & placed.known, ended.ordinal[placed.place], ABSENT)


# --- the rows of all ranges --------------------------------------------------------------------


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


class QueueLog:
    """Collects the rows of one topic, range after range; about 40 bytes for each."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._columns: dict[str, list[npt.NDArray[np.generic]]] = {
            name: [] for name in (*_OF_A_ROW, *_OF_A_KEYED_ROW)
        }
        self._row_count = 0

    def add(self, placed: PlacedRows, ordinals: Integers, picture: Picture) -> None:
        """Add the rows of one range, in the order of `placed`."""
        columns = {
            **_numbers(placed, ordinals), **_keys(placed, ordinals, picture, self._row_count)
        }  # fmt: skip
        for name, values in columns.items():
            self._columns[name].append(values)
        self._row_count += len(ordinals)

    def merged(self) -> QueueRows:
        """Return all rows; they leave the log, so that memory holds them once."""
        columns = {name: np.concatenate(self._columns.pop(name)) for name in [*self._columns]}
        # Stable: of rows with one offset those of the smaller message_id come first.
        order = np.lexsort((columns["offset"], columns["queue"]))
        for name in _OF_A_ROW:
            columns[name] = columns[name][order]
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        columns["keyed"] = place[columns["keyed"]]
        return QueueRows(**columns)


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
    """Give the same key the same number in every range: 64 bits of SHA-256."""
    # By their bytes: a row by hand may hold a key that is no text.
    encoded = keys.combine_chunks().cast(pa.binary()).dictionary_encode()
    digests = b"".join(hashlib.sha256(key).digest()[:8] for key in encoded.dictionary.to_pylist())
    numbers: Integers = np.frombuffer(digests, dtype=np.int64)[encoded.indices.to_numpy()]
    return numbers


# --- how they follow one another ---------------------------------------------------------------


class QueueChecks:
    """Judges how the rows of one topic follow one another."""

    def __init__(self, pinned: PinnedStore, findings: Findings, name: str, rows: QueueRows) -> None:
        """Take the rows; nothing is judged yet."""
        self._pinned, self._findings = pinned, findings
        self._name, self._rows = name, rows
        self._addresses = TopicAddresses(name, pinned.topics[name], rows.queue, rows.offset)
        # Whole due dates leave holes everywhere, and so does retention among late repairs.
        dates_gone = is_schedule(name) and pinned.schedule_forgotten_before_date
        self._has_holes = bool(dates_gone) or name in pinned.topic_begin

    def run(self) -> None:
        """Run every check."""
        self._check_offsets()
        self._check_order()
        if not (is_dead_letters(self._name) or is_schedule(self._name)):
            self._check_keys()

    # --- offsets -------------------------------------------------------------------------------

    def _check_offsets(self) -> None:
        """Report offsets that do not rise by one, or that no mark follows (I3, I21, I23)."""
        queue, offset = self._rows.queue, self._rows.offset
        same_queue, steps = queue[1:] == queue[:-1], offset[1:] - offset[:-1]
        gap = same_queue & (steps > 1) & (not self._has_holes)
        later = np.arange(1, max(1, len(queue)))
        self._report("I3", later[same_queue & (steps == 0)], "has an offset that is taken")
        self._report("I23", later[gap], "comes after a gap of offsets")
        starts, last = _first_and_last(queue)
        for begin, end in zip(starts.tolist(), last.tolist(), strict=True):
            self._check_queue(begin, end)

    def _check_queue(self, begin: int, end: int) -> None:
        queue, (first, last) = (
            int(self._rows.queue[begin]),
            self._rows.offset[[begin, end]].tolist(),
        )
        row_id = f"{self._name}/{queue}"
        if first != 0 and not self._has_holes:
            self._findings.add("I23", 1, [row_id], f"begins at offset {first}, not at 0")
        following = self._pinned.topics[self._name].mark(f"txmq-offset/{queue}")
        if following != last + 1 and not (self._has_holes and following > last):
            detail = f"next offset is kept as {following}, the last row has {last}"
            self._findings.add("I21", 1, [row_id], detail)

    # --- order ---------------------------------------------------------------------------------

    def _check_order(self) -> None:
        """Report rows of a queue that do not follow (op_version, ordinal, sequence) (I14)."""
        rows, places = self._rows, np.flatnonzero(self._rows.has_place)
        queue, offset, ordinal = (c[places] for c in (rows.queue, rows.offset, rows.ordinal))
        columns = [rows.op_version[places], ordinal, rows.sequence[places]]
        behind = (queue[1:] == queue[:-1]) & (offset[1:] > offset[:-1])
        falls = _falls(columns, known=ordinal != ABSENT)
        self._report("I14", places[1:][behind & falls], "stands behind one that ended later")

    def _check_keys(self) -> None:
        """Report sharding keys that came back to a queue that they had left (I14)."""
        rows = self._rows
        queue = rows.queue[rows.keyed]
        several = np.flatnonzero(_has_several(rows.key, queue))
        places, key, queue = rows.keyed[several], rows.key[several], queue[several]
        # By COMMIT, for the queue of a delayed message was chosen before that too.
        commit = (rows.commit_ordinal[several], rows.commit_version[several])
        order = np.lexsort((rows.offset[places], queue, rows.sequence[places], *commit, key))
        places, key, queue = places[order], key[order], queue[order]
        moved = changes(key) | changes(queue)
        back = repeats(key[moved], queue[moved])
        detail = "its key came back to a queue that it had left"
        self._report("I14", np.sort(places[moved][back]), detail)

    def _report(self, invariant: str, places: Integers, detail: str) -> None:
        """Report that the rows in these places break a promise."""
        if len(places):
            shown = self._addresses.row_ids(places[:SHOWN_ROWS])
            self._findings.add(invariant, len(places), shown, detail)


def _has_several(keys: Integers, queues: Integers) -> Flags:
    """Flag rows whose key lies in more than one queue."""
    order = np.lexsort((queues, keys))
    key, queue = keys[order], queues[order]
    is_first = changes(key)
    is_other = changes(queue) & ~is_first
    number = np.cumsum(is_first) - 1
    flags = np.empty(len(order), dtype=bool)
    flags[order] = np.bincount(number, weights=is_other, minlength=1)[number] > 0
    return flags


def _falls(columns: Sequence[Integers], known: Flags) -> Flags:
    """Flag rows that are smaller than the one before, compared column by column.

    If the place in its commit is not `known` of one of both, the commit alone decides.
    """
    falls = np.zeros(max(0, len(columns[0]) - 1), dtype=bool)
    equal = ~falls
    both = known[1:] & known[:-1]
    for column in columns:
        falls |= equal & (column[1:] < column[:-1])
        equal &= (column[1:] == column[:-1]) & both
    return falls


def _first_and_last(values: Integers) -> tuple[Integers, Integers]:
    """Return where each run of equal values begins and ends."""
    if len(values) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begins = np.flatnonzero(changes(values))
    return begins, np.append(begins[1:], len(values)) - 1


@dataclass(frozen=True, slots=True)
class TopicAddresses:
    """Names rows of a topic whose message_id was not kept; reads the topic once more for them.

    Attributes:
        queue, offset: of all rows of the topic, sorted by them.
    """

    topic: str
    table: PinnedTable
    queue: Integers
    offset: Integers

    def row_ids(self, places: Integers) -> list[str]:
        """Return the ids of these rows, as `addresses_in` does."""
        rows = self._rows_at(self.queue[places], self.offset[places])
        return [rows[self._key(place)][self._equal_before(place)] for place in places.tolist()]

    def _rows_at(self, queues: Integers, offsets: Integers) -> dict[tuple[int, int], list[str]]:
        """Read the addresses of all rows in these places, those of the smaller message_id first."""
        rows: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
        for batch in self.table.batches(_ADDRESS_COLUMNS):
            queue, offset = integers(batch["queue_id"]), integers(batch["queue_offset"])
            near = np.flatnonzero(np.isin(queue, queues) & np.isin(offset, offsets))
            shown = pa.Table.from_batches([batch.take(pa.array(near))])
            message_ids = python_values(pc.fill_null(shown["message_id"], ""))
            named = zip(message_ids, addresses_of(self.topic, shown), strict=True)
            for key, name in zip(zip(queue[near], offset[near], strict=True), named, strict=True):
                rows[key].append(name)
        return {key: [address for _, address in sorted(names)] for key, names in rows.items()}

    def _key(self, place: int) -> tuple[int, int]:
        return int(self.queue[place]), int(self.offset[place])

    def _equal_before(self, place: int) -> int:
        first = place
        while first and self._key(first - 1) == self._key(place):
            first -= 1
        return place - first
