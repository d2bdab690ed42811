"""Rows of a DataFrame are refused for what a Message is refused for."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import InvalidBodyError, InvalidMessageError, MessageError
from txmq.ground.clock import milliseconds
from txmq.message.body_schema import BodySchema
from txmq.message.message import MAX_FIELD_BYTES, Message
from txmq.producer.frame_rows import (
    PLACE,
    ROW_COLUMNS,
    ROWS_OF_PARTITION,
    WRONG_BODY,
    FrameRows,
    check_refusals,
    merge,
)
from txmq.producer.routing import SendLimits, _checked_message
from txmq.store.config import Config

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MAX_S = 3_456_000.0
LIMITS = SendLimits(50, 60, 4, MAX_S, milliseconds(NOW))
CONFIG = Config(max_message_size_bytes=50, max_properties_size_bytes=60)
KINDS = pa.schema(
    [
        (PLACE, pa.int64()), ("body", pa.binary()), ("tags", pa.binary()), ("keys", pa.binary()),
        ("sharding_key", pa.binary()), ("properties", pa.map_(pa.binary(), pa.binary())),
        ("delay_s", pa.int64()), ("deliver_timestamp", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def pairs(values: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(values.items())


octets = st.one_of(
    st.text(alphabet="aé |\x01\x7f\t\u2003\u00a0", max_size=4).map(str.encode),
    st.sampled_from([b"", b" ", b"\xff", b"a\xc3", b"x" * 61, b"y" * 30, b"5", b"05", b"5\n"]),
)
names = st.one_of(
    octets, st.sampled_from([b"KEYS", b"__TxMq_x", b"__other", b"CHECK_IMMUNITY_TIME_IN_SECONDS"])
)
moments = st.sampled_from(
    [NOW, NOW + timedelta(seconds=MAX_S), NOW + timedelta(seconds=MAX_S, microseconds=1)]
)
texts = st.one_of(st.none(), st.sampled_from([b"a", "é ü".encode(), b"VIP"]))
sound_rows = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=5),
        "tags": texts,
        "keys": texts,
        "sharding_key": texts,
        "properties": st.one_of(
            st.none(), st.dictionaries(st.sampled_from([b"a", b"b"]), st.just(b"c")).map(pairs)
        ),
        "delay_s": st.one_of(st.none(), st.sampled_from([0, 1, 3_456_000])),
        "deliver_timestamp": st.none(),
    }
)
wild_values = st.fixed_dictionaries(
    {},
    optional={
        "body": st.sampled_from([None, b"z" * 50, b"z" * 51]),
        "tags": octets,
        "keys": octets,
        "sharding_key": octets,
        "properties": st.dictionaries(names, st.one_of(st.none(), octets), max_size=3).map(pairs),
        "delay_s": st.sampled_from([-1, 3_456_001]),
        "deliver_timestamp": moments,
    },
)
message_rows = st.builds(lambda row, wild: {**row, **wild}, sound_rows, wild_values)


def is_message(row: dict[str, Any]) -> bool:
    """Whether the same values make a message that a producer takes."""
    try:
        texts = {name: _text(row[name]) for name in ("tags", "keys", "sharding_key")}
        properties = {_text(name): _text(value) for name, value in row["properties"] or ()}
        message = Message(
            "order-paid", row["body"], **texts, properties=properties, delay_s=row["delay_s"],
            deliver_timestamp=row["deliver_timestamp"],
        )  # fmt: skip
        _checked_message(message, CONFIG, milliseconds(NOW))
    except (MessageError, UnicodeDecodeError):
        return False
    return True


def _text(value: bytes | None) -> Any:
    return None if value is None else value.decode()


def frame(rows: list[dict[str, Any]], first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{PLACE: first + place, **row} for place, row in enumerate(rows)], schema=KINDS
    )


def rows_of(schema: Any = None) -> FrameRows:
    return FrameRows(LIMITS, schema, 1)


def refused(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    frame_rows = rows_of()
    frame_rows.halves(frame(rows))
    return frame_rows.refusals


@given(message_rows)
def test_row_is_refused_if_and_only_if_its_message_is(row: dict[str, Any]) -> None:
    assert bool(refused([row])) is not is_message(row)


@given(st.lists(message_rows, min_size=1, max_size=6))
def test_rows_are_counted_each_for_itself(rows: list[dict[str, Any]]) -> None:
    by_row: dict[str, tuple[int, int]] = {}
    for place, row in enumerate(rows):
        merge(by_row, dict.fromkeys(refused([row]), (1, place)))

    assert refused(rows) == by_row


@given(st.lists(sound_rows, min_size=1, max_size=6), st.integers(0, 3))
def test_halves_hold_what_the_rows_hold(rows: list[dict[str, Any]], first: int) -> None:
    # A batch that is a part of a larger one has offsets into its texts and properties.
    batch = frame([*[dict.fromkeys(KINDS.names[1:])] * first, *rows], -first).slice(first)
    halves = rows_of().halves(batch)

    assert halves is not None
    assert halves.schema.names == list(ROW_COLUMNS)
    for place, (half, row) in enumerate(zip(halves.to_pylist(), rows, strict=True)):
        assert half["sequence"] == place + 1
        assert half["body"] == row["body"]
        assert [half[name] for name in ("tags", "keys", "sharding_key")] == [
            _text(row[name]) for name in ("tags", "keys", "sharding_key")
        ]
        properties = [(_text(name), _text(value)) for name, value in row["properties"] or ()]
        assert half["properties"] == properties
        assert half["delay_s"] == (row["delay_s"] or None)
        assert half["deliver_timestamp"] == row["deliver_timestamp"]
        key, queue = row["sharding_key"], half["real_queue_id"]
        assert queue == (half["sequence"] if key is None else zlib.crc32(key)) % LIMITS.queue_count


def test_text_above_the_limit_of_a_field_is_refused() -> None:
    limits = LIMITS.__class__(50, 1_000_000, 4, MAX_S, milliseconds(NOW))
    long = b"x" * (MAX_FIELD_BYTES + 1)
    empty = {"body": b""}
    for row in ({**empty, "keys": long}, {**empty, "properties": [(b"a", long)]}):
        rows = FrameRows(limits, None, 1)
        assert rows.halves(frame([row])) is None
        assert [problem.endswith("above 16,384 bytes") for problem in rows.refusals] == [True]


def test_property_that_a_row_has_twice_is_refused() -> None:
    twice = {"body": b"", "properties": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}
    once = {"body": b"", "properties": [(b"a", b"1")]}

    assert refused([once, twice, once]) == {"a property twice": (1, 1)}


def test_null_with_entries_behind_it_has_no_properties() -> None:
    entries = pa.array([b"a", b"b"])
    column = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), entries, entries, mask=pa.array([True, False])
    )
    halves = rows_of().halves(
        pa.RecordBatch.from_pydict(
            {PLACE: pa.array([0, 1]), "body": pa.array([b"", b""]), "properties": column}
        )
    )

    assert halves is not None
    assert halves["properties"].to_pylist() == [[], [("b", "b")]]


def test_time_before_year_1_is_refused() -> None:
    first_us = -62_135_596_800_000_000
    for time_us, is_refused in ((first_us - 1, True), (first_us, False)):
        batch = pa.RecordBatch.from_pydict(
            {
                PLACE: pa.array([0]),
                "body": pa.array([b""]),
                "deliver_timestamp": pa.array([time_us]),
            }
        )
        rows = rows_of()
        rows.halves(batch)
        assert bool(rows.refusals) is is_refused


def test_body_without_the_schema_of_its_topic_is_counted() -> None:
    schema = BodySchema.parse(
        {
            "encoding": "json",
            "schema": {
                "type": "record",
                "name": "Order",
                "fields": [{"name": "id", "type": "long"}],
            },
        }
    )
    rows = rows_of(schema)
    rows.halves(frame([{"body": b'{"id": 1}'}, {"body": b"{}"}, {"body": b"no JSON"}]))

    assert rows.refusals == {WRONG_BODY: (2, 1)}
    with pytest.raises(InvalidBodyError, match="2 rows, first row 1 of partition 0"):
        check_refusals(rows.refusals)


def test_the_first_place_of_all_tasks_is_told() -> None:
    refusals: dict[str, tuple[int, int]] = {}
    merge(refusals, {"body is null": (2, 3 * ROWS_OF_PARTITION + 7)})
    merge(refusals, {"body is null": (1, 2 * ROWS_OF_PARTITION + 1)})

    with pytest.raises(InvalidMessageError, match="3 rows, first row 1 of partition 2"):
        check_refusals(refusals)


def test_nothing_refused_is_no_error() -> None:
    check_refusals({})
