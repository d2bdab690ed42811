from __future__ import annotations

from collections import Counter

import pyarrow as pa

from txmq.check.standing import DUE, DueRow, due_row, due_table, milliseconds_of, rounds_of
from txmq.ground.columns import place_in_group


def row(number: int, group: str = "orders", deadline_ms: int = 0) -> DueRow:
    return DueRow(f"{group}-{number:06}", group, deadline_ms)


def test_rows_survive_the_way_through_columns() -> None:
    rows = [row(1), DueRow("b", "billing", 7, check_times=2, life=1, ordinary=True)]

    assert [due_row(each) for each in due_table(rows).to_pylist()] == rows


def test_no_rows_are_a_table_too() -> None:
    assert due_table([]).schema == DUE
    assert list(rounds_of(due_table([]), lambda _: 3)) == []


def test_round_takes_of_each_group_what_its_limit_allows() -> None:
    dues = due_table([row(n) for n in range(7)] + [row(n, "billing") for n in range(3)])

    rounds = [*rounds_of(dues, {"orders": 3, "billing": 2}.__getitem__)]

    assert [Counter(each["producer_group"].to_pylist()) for each in rounds] == [
        {"orders": 3, "billing": 2},
        {"orders": 3, "billing": 1},
        {"orders": 1},
    ]


def test_group_with_many_due_takes_no_place_of_another() -> None:
    many = [row(n, "crowd", deadline_ms=0) for n in range(20_000)]
    last = row(1, "orders", deadline_ms=10**12)

    first_round = next(rounds_of(due_table([*many, last]), lambda _: 2_000))

    assert Counter(first_round["producer_group"].to_pylist()) == {"crowd": 2_000, "orders": 1}


def test_most_urgent_come_first() -> None:
    rows = [row(1, deadline_ms=30), row(2, deadline_ms=10), row(3, deadline_ms=20)]

    found = [each["deadline_ms"].to_pylist() for each in rounds_of(due_table(rows), lambda _: 2)]

    assert found == [[10, 20], [30]]


def test_every_row_is_in_one_round() -> None:
    dues = due_table([row(n, f"group-{n % 7}") for n in range(500)])

    found = pa.concat_tables(rounds_of(dues, lambda group: 1 + len(group) + int(group[-1])))

    assert sorted(found["transaction_id"].to_pylist()) == sorted(dues["transaction_id"].to_pylist())


def test_place_in_group_counts_in_the_order_of_the_rows() -> None:
    assert place_in_group(pa.array(list("abacba"))).tolist() == [0, 0, 1, 0, 1, 2]


def test_milliseconds_of_any_time_that_a_table_can_hold() -> None:
    micros = [0, 1_499, 1_500, 2_500, -(2**62), 2**62, None]
    moments = pa.array(micros, pa.timestamp("us", "UTC"))

    found = milliseconds_of(moments).to_pylist()

    assert found[:4] == [0, 1, 2, 2]
    assert found[6] is None
    assert abs(found[5] - 2**62 // 1000) < 1_000
