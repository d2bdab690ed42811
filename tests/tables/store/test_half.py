from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from itertools import permutations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import GROUP, halves, ids, messages, transaction_id
from txmq.delta.file_rows import FileRows
from txmq.delta.reading import Shrink
from txmq.message.lifecycle import CONFLICT, MISSING, Halves
from txmq.message.message import Message
from txmq.publish.settle import complete_group
from txmq.store.half import (
    SUMMARY_COLUMNS,
    HalfOrigin,
    HalfTransaction,
    digests,
    grouped_summaries,
    half_table,
    halves_by_id,
    runs,
    store_date,
)
from txmq.store.schemas import HALF
from txmq.store.store import Store
from txmq.testing import START_MS

APP = "producer"


def append(store: Store, *tables: pa.Table) -> None:
    log = store.tables.half_log()
    for number, table in enumerate(tables, 1):
        log.table.writer.append(table, app_id=f"{APP}-{number}", number=1)


def changed(rows: pa.Table, place: int, **values: Any) -> pa.Table:
    """The same rows but for some values of one of them."""
    listed = rows.to_pylist()
    listed[place] = {**listed[place], **values}
    return pa.Table.from_pylist(listed, schema=HALF.columns)


# --- rows -------------------------------------------------------------------------------------


def test_rows_of_a_transaction_have_the_columns_of_the_log() -> None:
    rows = halves(1, messages(3))

    assert rows.schema == HALF.columns
    assert rows["sequence"].to_pylist() == [0, 1, 2]
    assert rows["message_id"].to_pylist() == [f"{transaction_id(1)}:{n}" for n in range(3)]


def test_only_the_head_says_how_many_messages_there_are() -> None:
    rows = halves(1, messages(3))

    assert rows["message_count"].to_pylist() == [3, None, None]
    assert rows["check_immunity_time_s"].to_pylist() == [6.0, None, None]


def test_day_of_a_half_is_that_of_its_id_whoever_appends_it_and_when() -> None:
    before_midnight, midnight = START_MS - 1, START_MS

    assert store_date(transaction_id(1, before_midnight)) == date(2025, 12, 31)
    assert store_date(transaction_id(1, midnight)) == date(2026, 1, 1)
    assert halves(1, born_ms=START_MS + 86_400_000)["store_date"][0].as_py() == date(2026, 1, 1)


def test_head_of_a_dataframe_transaction_carries_no_message() -> None:
    origin = HalfOrigin(transaction_id(1), GROUP, 2, 6.0, START_MS)

    rows = half_table([HalfTransaction(origin, (), (), 1_000_000)])

    row = rows.to_pylist()[0]
    assert row["message_count"] == 1_000_000
    assert (row["real_topic"], row["body"]) == (None, None)


def test_empty_body_is_kept_apart_from_no_body(store: Store) -> None:
    append(store, halves(1, [Message("orders", b"")]))

    assert store.tables.half_log().rows(ids(transaction_id(1)))["body"].to_pylist() == [b""]


# --- what is durable --------------------------------------------------------------------------


def test_unknown_transaction_has_no_halves(store: Store) -> None:
    assert store.tables.half_log().halves(transaction_id(1)) is None

    append(store, halves(1))

    assert store.tables.half_log().halves(transaction_id(2)) is None


def test_whole_transaction_is_complete(store: Store) -> None:
    append(store, halves(1, messages(3)), halves(2))

    found = store.tables.half_log().halves(transaction_id(1))

    assert found == Halves(GROUP, message_count=3, found=3)
    assert found.problem is None


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0, 1], Halves(GROUP, 3, 2)),
        ([1, 2], Halves(GROUP, None, 2)),
        ([0], Halves(GROUP, 3, 1)),
    ],
    ids=["tail lost", "head lost", "only head left"],
)
def test_lost_half_is_missing(store: Store, kept: list[int], expected: Halves) -> None:
    append(store, halves(1, messages(3)).take(kept))

    found = store.tables.half_log().halves(transaction_id(1))

    assert found == expected
    assert expected.problem == MISSING


def test_append_made_twice_counts_once(store: Store) -> None:
    append(store, halves(1, messages(2)), halves(1, messages(2)))

    assert store.tables.half_log().halves(transaction_id(1)) == Halves(GROUP, 2, 2)


def test_retried_append_may_differ_in_time_and_queue(store: Store) -> None:
    append(store, halves(1), halves(1, queue_id=3, born_ms=START_MS + 9))

    assert store.tables.half_log().halves(transaction_id(1)) == Halves(GROUP, 1, 1)


@pytest.mark.parametrize(
    "difference",
    [
        {"body": b"other"}, {"body": None}, {"real_topic": "other"}, {"keys": "k"},
        {"properties": [("a", "b")]}, {"sharding_key": "s"}, {"real_queue_id": 5},
        {"message_count": 2}, {"tags": "t"}, {"ordinary": True}, {"check_immunity_time_s": 9.0},
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_one_place_that_differ_are_a_conflict(
    store: Store, difference: dict[str, object]
) -> None:
    append(store, halves(1), changed(halves(1), 0, **difference))

    found = store.tables.half_log().halves(transaction_id(1))

    assert found is not None
    assert found.problem == CONFLICT


def test_halves_of_two_groups_are_a_conflict_that_all_readers_see_alike() -> None:
    tables = [halves(1, producer_group=group) for group in ("zebra", "ant", "mole")]

    seen = {
        halves_by_id(digests(pa.concat_tables(order)))[transaction_id(1)]
        for order in permutations(tables)
    }

    assert {(found.producer_group, found.problem) for found in seen} == {("ant", CONFLICT)}


def test_second_group_in_another_place_is_a_conflict(store: Store) -> None:
    foreign = changed(halves(1, messages(2)), 1, producer_group="thief")
    append(store, foreign)

    found = store.tables.half_log().halves(transaction_id(1))

    assert found is not None
    assert found.problem == CONFLICT


def test_conflict_of_one_transaction_does_not_touch_another(store: Store) -> None:
    append(store, halves(1), changed(halves(1), 0, body=b"other"), halves(2))

    found = store.tables.half_log().halves_of([transaction_id(1), transaction_id(2)])

    assert found[transaction_id(1)].conflicting
    assert not found[transaction_id(2)].conflicting


def test_comparing_holds_some_bodies_and_never_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    body_bytes, tries = 1_000_000, 40
    append(store, *[halves(1, [Message("orders", b"x" * body_bytes)])] * tries)
    held: list[int] = []
    read = FileRows.batches

    def watched(self: FileRows, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(self, *args):
            held.append(pa.total_allocated_bytes() - before)
            yield batch

    monkeypatch.setattr(FileRows, "batches", watched)
    log, before = store.tables.half_log(), pa.total_allocated_bytes()

    assert log.halves(transaction_id(1)) == Halves(GROUP, 1, 1)
    assert len(held) == tries
    assert max(held) < 8 * body_bytes


# --- columns against rows ----------------------------------------------------------------------

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.integers(1, 3),
            "sequence": st.integers(0, 2),
            "producer_group": st.sampled_from([GROUP, GROUP, GROUP, "ant"]),
            "real_topic": st.sampled_from(["orders", "orders", None]),
            "message_count": st.none() | st.integers(1, 3),
            "body": st.sampled_from([b"x", b"x", b"x", b"y"]),
        }
    ),
    max_size=7,
)


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    listed = [
        {
            **{k: v for k, v in row.items() if k != "number"},
            "transaction_id": transaction_id(row["number"]),
        }
        for row in rows
    ]
    return pa.Table.from_pylist(listed, schema=HALF.columns)


class Held:
    """A half log whose rows are in memory."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.search = rows, self

    def rows_of(
        self,
        column: str,
        values: pa.Array,
        columns: list[str],
        reduce: Callable[[pa.Table], pa.Table] | Shrink = lambda rows: rows,
    ) -> pa.Table:
        reduce = reduce.keep if isinstance(reduce, Shrink) else reduce
        wanted = set(values.to_pylist())
        keep = [value in wanted for value in self.rows[column].to_pylist()]
        return reduce(self.rows.filter(pa.array(keep, pa.bool_())).select(list(columns)))


@given(ROWS)
def test_quick_look_sees_what_a_look_at_every_row_sees(rows: list[dict[str, Any]]) -> None:
    from txmq.store.half import HalfLog

    table = as_table(rows)
    log = HalfLog(Held(table))  # type: ignore[arg-type]

    assert log.halves_of([transaction_id(n) for n in (1, 2, 3)]) == halves_by_id(digests(table))


@given(ROWS)
def test_complete_by_columns_is_complete_by_rows(rows: list[dict[str, Any]]) -> None:
    table = as_table(rows)
    places = table.select(["transaction_id", "sequence"]).to_pylist()

    by_rows = halves_by_id(digests(table))
    # The last one has no halves.
    ids = [*by_rows, transaction_id(9)]
    groups = complete_group(runs(table.select(list(SUMMARY_COLUMNS))), pa.array(ids)).to_pylist()

    found = {name: group for name, group in zip(ids, groups, strict=True) if group is not None}
    for name, group in found.items():
        assert (by_rows[name].problem, by_rows[name].producer_group) == (None, group)
    # Columns leave out only what was appended twice, which the rows then decide.
    for name, seen in by_rows.items():
        own = [tuple(place.values()) for place in places if place["transaction_id"] == name]
        assert (name in found) == (seen.problem is None and len(own) == len(set(own)))


def test_summaries_of_nothing_are_empty() -> None:
    empty = runs(HALF.columns.empty_table().select(list(SUMMARY_COLUMNS)))

    assert grouped_summaries(empty).num_rows == 0
    assert halves_by_id(digests(HALF.columns.empty_table())) == {}


# --- runs --------------------------------------------------------------------------------------

LARGEST = 2**63 - 1
PARTS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.integers(1, 2),
            "sequence": st.sampled_from([0, 0, 1, 1, 2, 5, 9, -1, LARGEST - 2]) | st.none(),
            "rows": st.integers(1, 6),
            "producer_group": st.sampled_from([GROUP, GROUP, GROUP, "ant", None]),
            "real_topic": st.sampled_from(["orders", "orders", "bills", None]),
            "message_count": st.none() | st.integers(1, 9),
            "delay_s": st.none() | st.just(1),
        }
    ),
    max_size=6,
)


def spread(parts: list[dict[str, Any]]) -> pa.Table:
    """Rows whose sequences follow each other, and only the first has the values of a head."""
    rows = []
    for part in parts:
        first, count = part["sequence"], part.pop("rows")
        for place in range(count):
            of_row = dict(part) if place == 0 else {**part, "message_count": None}
            sequence = None if first is None else min(first + place, LARGEST)
            rows.append({**of_row, "sequence": sequence, "body": b"x"})
    return as_table(rows).select(list(SUMMARY_COLUMNS))


@given(PARTS)
def test_runs_of_halves_come_to_the_same_as_their_rows(parts: list[dict[str, Any]]) -> None:
    rows = spread(parts)

    by_run, by_row = (grouped_summaries(runs(rows, many)) for many in (0, 1_000))

    for one in (by_run, by_row):
        assert (pc.less_equal(one["places"], one["rows"])).combine_chunks().false_count == 0
    # Of places only that they are all the rows counts.
    columns = [name for name in by_row.column_names if name != "places"]
    assert by_run.select(columns) == by_row.select(columns)
    assert pc.equal(by_run["places"], by_run["rows"]) == pc.equal(by_row["places"], by_row["rows"])
    assert pc.sum(runs(rows, 0)["rows"]).as_py() == (rows.num_rows or None)


def test_a_large_transaction_is_a_few_runs() -> None:
    rows = halves(1, messages(5_000)).select(list(SUMMARY_COLUMNS))

    assert runs(rows)["sequence"].to_pylist() == [0, 1]
    assert runs(rows)["rows"].to_pylist() == [1, 4_999]
    assert runs(rows.slice(0, 500)).num_rows == 500
