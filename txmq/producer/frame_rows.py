"""Rows of a DataFrame as messages: which of them can be some, and the columns of their halves.

The rules are those of a Message, over batches of Arrow. Whoever has the rows calls them: a task on
an executor, or this process. Rows without a body get one, of their other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import InvalidBodyError, InvalidMessageError
from txmq.ground.columns import Flags, Integers, flags, integers
from txmq.message.body_schema import BodySchema
from txmq.message.message import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    CONTROL,
    MAX_FIELD_BYTES,
    RESERVED_PROPERTIES,
    WHOLE_SECONDS,
)
from txmq.message.packed_body import packer, python_column
from txmq.producer.routing import SendLimits, queue_of_key
from txmq.store.schemas import MICROSECONDS_UTC, PROPERTIES

TEXTS = ("tags", "keys", "sharding_key")
MESSAGE_COLUMNS = ("body", *TEXTS, "properties", "delay_s", "deliver_timestamp")
# The place of a row in its DataFrame, as Spark's monotonically_increasing_id counts.
PLACE = "place"
ROWS_OF_PARTITION = 1 << 33
# The columns of a half that each row has for itself.
ROW_COLUMNS = ("sequence", "real_queue_id", *MESSAGE_COLUMNS)
WRONG_BODY = "body without the schema of its topic"
UNPACKED = "a value that the body cannot hold, such as NaN"
# Python has no earlier time; in a zone east of UTC such a row may look like year 1.
_YEAR_1_US = -62_135_596_800_000_000
_NEVER = 1 << 62

# Of each problem: how many rows have it, and the place of the first of them.
Refusals = Mapping[str, tuple[int, int]]


@dataclass(slots=True)
class FrameRows:
    """Turns rows of a DataFrame into rows of halves, and counts those that cannot be messages.

    Attributes:
        limits: what a row of this topic may hold.
        body_schema: of a typed topic.
        first_sequence: that of the row at place 0.
        refusals: what was refused so far.
    """

    limits: SendLimits
    body_schema: BodySchema | None
    first_sequence: int
    refusals: dict[str, tuple[int, int]] = field(default_factory=dict)

    def halves(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return ROW_COLUMNS of the rows; None as soon as one was refused.

        Args:
            batch: PLACE, and those columns of a message that there are. Without `body` all other
                columns are packed into it.
        """
        if "body" not in batch.schema.names:
            batch = self._packed(batch)
        rows = _MessageRows.of(batch)
        for problem, is_wrong in problems(rows, self.limits, self.body_schema):
            self._note(problem, rows.place[is_wrong])
        if self.refusals:
            return None
        return _half_columns(rows, self.first_sequence, self.limits.queue_count)

    def _packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of a message, with a body of all other columns."""
        others = [name for name in batch.schema.names if name not in (*MESSAGE_COLUMNS, PLACE)]
        bodies, is_wrong = _bodies(batch.select(others), self.body_schema)
        self._note(UNPACKED, integers(batch[PLACE], 0)[is_wrong])
        own = [name for name in batch.schema.names if name not in others]
        columns = [*(batch[name] for name in own), bodies]
        return pa.RecordBatch.from_arrays(columns, [*own, "body"])

    def _note(self, problem: str, places: Integers) -> None:
        if len(places):
            merge(self.refusals, {problem: (len(places), int(places.min()))})


def merge(refusals: dict[str, tuple[int, int]], others: Refusals) -> None:
    """Add what other tasks refused."""
    for problem, (count, first) in others.items():
        count_before, first_before = refusals.get(problem, (0, first))
        refusals[problem] = count_before + count, min(first_before, first)


def check_refusals(refusals: Refusals) -> None:
    """Raise InvalidMessageError, or InvalidBodyError, if rows were refused."""
    if not refusals:
        return
    texts = [
        f"{problem}: {count:,} rows, first row {first % ROWS_OF_PARTITION:,} of partition "
        f"{first // ROWS_OF_PARTITION:,}"
        for problem, (count, first) in refusals.items()
    ]
    kind = InvalidBodyError if WRONG_BODY in refusals else InvalidMessageError
    raise kind("dataframe", "has rows that cannot be sent; " + "; ".join(texts))


def _bodies(columns: pa.RecordBatch, schema: BodySchema | None) -> tuple[pa.Array, Flags]:
    """Pack columns; tell which rows have a value that no body can hold. Theirs are empty."""
    pack, is_wrong = packer(schema), np.zeros(columns.num_rows, dtype=bool)
    names, bodies = columns.schema.names, list[bytes]()
    for number, values in enumerate(zip(*_python_columns(columns, is_wrong), strict=True)):
        try:
            bodies.append(b"" if is_wrong[number] else pack(dict(zip(names, values, strict=True))))
        except ValueError:
            is_wrong[number] = True
            bodies.append(b"")
    return pa.array(bodies, pa.binary()), is_wrong


def _python_columns(columns: pa.RecordBatch, is_wrong: Flags) -> Iterator[list[Any]]:
    """Yield each column as values of Python; texts that are no UTF-8 are noted as wrong."""
    for column in columns.columns:
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            yield python_column(column)
            continue
        texts = _Texts.of(column)
        is_wrong |= texts.is_invalid
        yield texts.values.to_pylist()


# --- what rows hold -------------------------------------------------------------------------------


class _Texts(NamedTuple):
    """A column of texts.

    Attributes:
        values: null where the bytes are no UTF-8.
        sizes_bytes: 0 for null.
        is_invalid: whether the bytes are no UTF-8.
    """

    values: pa.StringArray
    sizes_bytes: Integers
    is_invalid: Flags

    @classmethod
    def of(cls, column: pa.Array) -> _Texts:
        """Read a column of texts or bytes."""
        # A cast from bytes tells whether all of them are texts.
        octets = _as_binary(column)
        sizes_bytes = integers(pc.binary_length(octets), 0)
        try:
            return cls(octets.cast(pa.string()), sizes_bytes, np.zeros(len(octets), dtype=bool))
        except pa.ArrowInvalid:
            values = [_decoded(each.as_py()) for each in octets]
        texts = pa.array(values, pa.string())
        return cls(texts, sizes_bytes, flags(texts.is_null()) & flags(octets.is_valid()))

    @property
    def is_blank(self) -> Flags:
        """Whether nothing is left without the spaces around it."""
        return _true(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(self.values)), 0))

    @property
    def has_control_characters(self) -> Flags:
        """Whether RocketMQ could not decode it (R21)."""
        return _true(pc.match_substring_regex(self.values, CONTROL.pattern))


class _Properties(NamedTuple):
    """Properties, one after the other, and the row of each."""

    row: Integers
    names: _Texts
    values: _Texts
    rows: int

    @classmethod
    def of(cls, column: pa.MapArray) -> _Properties:
        if column.null_count:
            # A null may have entries behind it.
            column = pa.array(column.to_pylist(), column.type)
        offsets = column.offsets.to_numpy()
        begin, count = offsets[0], offsets[-1] - offsets[0]
        row = np.repeat(np.arange(len(column)), np.diff(offsets))
        names, values = (each.slice(begin, count) for each in (column.keys, column.items))
        return cls(row, _Texts.of(names), _Texts.of(values), len(column))

    def any_in_row(self, is_so: Flags) -> Flags:
        """Tell of each row whether one of its properties is so."""
        return np.bincount(self.row, is_so, self.rows) > 0

    @property
    def is_again(self) -> Flags:
        """Whether its row has its name before."""
        names = self.names.values.dictionary_encode()
        pairs = self.row * (len(names.dictionary) + 1) + integers(names.indices, -1)
        first = np.unique(pairs, return_index=True)[1]
        return np.isin(np.arange(len(pairs)), first, invert=True)

    def column(self) -> pa.MapArray:
        """Return the column, without nulls."""
        ends = np.cumsum(np.bincount(self.row, minlength=self.rows))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.MapArray.from_arrays(offsets, self.names.values, self.values.values)


@dataclass(frozen=True, slots=True)
class _MessageRows:
    """The columns of a batch; what the DataFrame lacks is None."""

    place: Integers
    body: pa.BinaryArray
    texts: Mapping[str, _Texts]
    properties: _Properties | None
    delay_s: pa.Int64Array | None
    due: pa.TimestampArray | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _MessageRows:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        properties = columns.get("properties")
        delay_s, due = columns.get("delay_s"), columns.get("deliver_timestamp")
        return cls(
            integers(columns[PLACE], 0),
            _as_binary(columns["body"]),
            {name: _Texts.of(columns[name]) for name in TEXTS if name in columns},
            None if properties is None else _Properties.of(properties),
            None if delay_s is None else delay_s.cast(pa.int64()),
            None if due is None else due.cast(MICROSECONDS_UTC),
        )


def _as_binary(column: pa.Array) -> pa.BinaryArray:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _decoded(octets: bytes | None) -> str | None:
    try:
        return None if octets is None else octets.decode()
    except UnicodeDecodeError:
        return None


def _true(values: Any) -> Flags:
    """Return where a column is true; null is not."""
    return flags(pc.fill_null(values, False))  # noqa: FBT003


# --- which rows can be messages -------------------------------------------------------------------


def problems(
    rows: _MessageRows, limits: SendLimits, body_schema: BodySchema | None
) -> Iterator[tuple[str, Flags]]:
    """Yield each problem that a row may have, and the rows that have it."""
    yield from _body_problems(rows.body, limits, body_schema)
    texts = list(rows.texts.values())
    if texts:
        yield from _text_problems(rows.texts)
    if rows.properties is not None:
        yield from _property_problems(rows.properties)
    if rows.delay_s is not None or rows.due is not None:
        yield from _delay_problems(rows, limits)
    sizes_bytes = sum((each.sizes_bytes for each in texts), np.zeros(len(rows.place), np.int64))
    if rows.properties is not None:
        of_each = rows.properties.names.sizes_bytes + rows.properties.values.sizes_bytes
        sizes_bytes = sizes_bytes + np.bincount(rows.properties.row, of_each, len(rows.place))
    limit = limits.max_properties_size_bytes
    yield f"properties above {limit:,} bytes", sizes_bytes > limit


def _body_problems(
    body: pa.BinaryArray, limits: SendLimits, schema: BodySchema | None
) -> Iterator[tuple[str, Flags]]:
    limit = limits.max_message_size_bytes
    yield "body is null", flags(body.is_null())
    yield f"body above {limit:,} bytes", integers(pc.binary_length(body), 0) > limit
    if schema is not None:
        octets = (each.as_py() for each in body)
        is_wrong = (each is not None and schema.problem(each) is not None for each in octets)
        yield WRONG_BODY, np.fromiter(is_wrong, dtype=bool, count=len(body))


def _text_problems(texts: Mapping[str, _Texts]) -> Iterator[tuple[str, Flags]]:
    def any_of(is_so: Callable[[_Texts], Flags]) -> Flags:
        return np.asarray(np.any([is_so(text) for text in texts.values()], axis=0))

    names = "keys, tags or sharding_key"
    yield "control characters in a text", any_of(lambda text: text.has_control_characters)
    too_long = any_of(lambda text: text.sizes_bytes > MAX_FIELD_BYTES)
    yield f"{names} above {MAX_FIELD_BYTES:,} bytes", too_long
    yield f"{names} blank", any_of(lambda text: text.is_blank)
    yield f"{names} not valid UTF-8", any_of(lambda text: text.is_invalid)
    if "tags" in texts:
        yield "tags with |", _true(pc.match_substring(texts["tags"].values, "|"))


def _property_problems(properties: _Properties) -> Iterator[tuple[str, Flags]]:
    names, values, any_in_row = properties.names, properties.values, properties.any_in_row
    is_null = flags(values.values.is_null()) & ~values.is_invalid
    is_reserved = flags(pc.is_in(names.values, pa.array(sorted(RESERVED_PROPERTIES))))
    is_own = _true(pc.starts_with(pc.utf8_lower(names.values), "__txmq"))
    is_blank = names.is_blank | values.is_blank
    has_control_characters = names.has_control_characters | values.has_control_characters
    is_too_long = np.maximum(names.sizes_bytes, values.sizes_bytes) > MAX_FIELD_BYTES
    is_immunity = _true(pc.equal(names.values, CHECK_IMMUNITY_TIME_IN_SECONDS))
    are_seconds = _true(pc.match_substring_regex(values.values, f"^(?:{WHOLE_SECONDS.pattern})$"))
    yield "a property without a value", any_in_row(is_null)
    yield "a property that is blank or reserved", any_in_row(is_blank | is_reserved | is_own)
    yield "a property not valid UTF-8", any_in_row(names.is_invalid | values.is_invalid)
    yield "control characters in a property", any_in_row(has_control_characters)
    yield "a property twice", any_in_row(properties.is_again)
    yield f"a property above {MAX_FIELD_BYTES:,} bytes", any_in_row(is_too_long)
    yield (
        f"{CHECK_IMMUNITY_TIME_IN_SECONDS} that is no number of whole seconds",
        any_in_row(is_immunity & ~are_seconds),
    )


def _delay_problems(rows: _MessageRows, limits: SendLimits) -> Iterator[tuple[str, Flags]]:
    none = pa.nulls(len(rows.place), pa.int64())
    delay_s = integers(none if rows.delay_s is None else rows.delay_s, 0)
    due_us = none if rows.due is None else rows.due.cast(pa.int64())
    max_s = limits.timer_max_delay_s
    latest_us = limits.now_ms * 1000 + int(max_s * 1_000_000)
    yield "deliver_timestamp before year 1 in UTC", integers(due_us, _NEVER) < _YEAR_1_US
    yield "delay_s below 0", delay_s < 0
    # A delay of 0 s is no delay, as in a Message.
    yield "both delay_s and deliver_timestamp", (delay_s != 0) & flags(due_us.is_valid())
    yield (
        f"a delay above timer_max_delay_s ({max_s:,.0f} s)",
        (delay_s > max_s) | (integers(due_us, -_NEVER) > latest_us),
    )


# --- their halves ---------------------------------------------------------------------------------


def _half_columns(rows: _MessageRows, first_sequence: int, queue_count: int) -> pa.RecordBatch:
    count, sequence = len(rows.place), rows.place + first_sequence
    texts = {
        name: rows.texts[name].values if name in rows.texts else pa.nulls(count, pa.string())
        for name in TEXTS
    }
    properties = (
        pa.array([[]] * count, PROPERTIES) if rows.properties is None else rows.properties.column()
    )
    delay_s = pa.nulls(count, pa.int64()) if rows.delay_s is None else rows.delay_s
    due = pa.nulls(count, MICROSECONDS_UTC) if rows.due is None else rows.due
    values = {
        "sequence": pa.array(sequence),
        "real_queue_id": _queues(texts["sharding_key"], sequence, queue_count),
        **texts,
        "body": rows.body,
        "properties": properties,
        "delay_s": pc.if_else(pc.equal(delay_s, 0), pa.scalar(None, pa.int64()), delay_s),
        "deliver_timestamp": due,
    }
    return pa.RecordBatch.from_pydict({name: values[name] for name in ROW_COLUMNS})


def _queues(keys: pa.StringArray, sequence: Integers, queue_count: int) -> pa.Int32Array:
    """Choose the queue of each row by its sharding key, as for single messages, or its sequence."""
    by_place = sequence % queue_count
    if keys.null_count == len(keys):
        return pa.array(by_place, pa.int32())
    encoded = keys.dictionary_encode()
    by_key = [queue_of_key(key, queue_count) for key in encoded.dictionary.to_pylist()]
    place = integers(encoded.indices, -1)
    # The last one stands for rows without a key.
    chosen = np.array([*by_key, 0])[place]
    return pa.array(np.where(place < 0, by_place, chosen), pa.int32())
