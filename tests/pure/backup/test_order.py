"""Which table is newer than which: a cut in the right order has no fault, each other one has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from txmq.ops.backup.order import (
    LogSight,
    OrderFault,
    PublisherSight,
    SettledSight,
    StoreSight,
    TopicSight,
    order_faults,
)
from txmq.store.topic import TopicEnd


def fingerprint(version: int) -> int | None:
    """Of commit `version` of a log whose oldest commits were cleaned."""
    return 1_000 + version if version >= 3 else None


def cut(*moments: int) -> StoreSight:
    """A store in which everything was done at once at each moment, and read at these moments."""
    group, publisher, topic, settled, op, half = moments
    return StoreSight(
        LogSight(op, fingerprint),
        LogSight(half, fingerprint),
        SettledSight(settled, fingerprint(settled), settled, fingerprint(settled), settled),
        PublisherSight(
            publisher, fingerprint(publisher), {"paid": TopicEnd(0, publisher, publisher)}
        ),
        {"paid": TopicSight(TopicEnd(0, topic, topic), fingerprint(topic), {0: topic})},
        {"billing": {("paid", 0): group}},
        set_aside_count=half,
    )


@given(some.lists(some.integers(0, 20), min_size=6, max_size=6))
def test_what_is_read_in_the_right_order_has_no_fault(moments: list[int]) -> None:
    assert order_faults(cut(*sorted(moments))) == []


@given(some.lists(some.integers(3, 20), min_size=6, max_size=6, unique=True), some.data())
def test_two_neighbours_in_the_wrong_order_are_told(
    moments: list[int], data: some.DataObject
) -> None:
    moments.sort()
    # Progress says nothing of groups, and claims without halves are counted by their readers.
    place = data.draw(some.sampled_from([1, 2, 3]))
    moments[place], moments[place + 1] = moments[place + 1], moments[place]

    names = ["state/group_billing", "state/publisher", "topics/paid", "settled", "op", "half"]
    pairs = {(fault.newer, fault.older) for fault in order_faults(cut(*moments))}
    assert (names[place], names[place + 1]) in pairs


WHOLE = cut(5, 5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    ("sight", "newer", "older"),
    [
        (replace(WHOLE, settled=SettledSight(7, 1)), "settled", "op"),
        (replace(WHOLE, settled=SettledSight(7, None, 99)), "settled", "half"),
        (replace(WHOLE, settled=SettledSight(7, None, 9, 1)), "settled", "half"),
        (replace(WHOLE, set_aside_count=2), "settled", "state/set_aside"),
        (replace(WHOLE, claims_without_halves=1), "op", "half"),
        (replace(WHOLE, publisher=PublisherSight(7, 1)), "state/publisher", "op"),
        (
            replace(WHOLE, publisher=PublisherSight(5, None, {"gone": TopicEnd(0, 1, 1)})),
            "state/publisher",
            "topics/gone",
        ),
        (replace(WHOLE, groups={"g": {("paid", 0): 7}}), "state/group_g", "topics/paid"),
        (replace(WHOLE, groups={"g": {("gone", 1): 1}}), "state/group_g", "topics/gone"),
    ],
)
def test_each_fault_names_both_tables_and_a_way_out(
    sight: StoreSight, newer: str, older: str
) -> None:
    (fault,) = order_faults(sight)

    assert (fault.newer, fault.older) == (newer, older)
    assert fault.next_step
    assert str(fault).startswith(f"{newer} is newer than {older}: ")


def test_what_nobody_counts_is_no_fault() -> None:
    assert order_faults(replace(WHOLE, set_aside_count=None)) == []
    assert order_faults(replace(WHOLE, publisher=PublisherSight())) == []


def test_a_store_runs_on_with_a_topic_or_a_group_that_is_alone() -> None:
    faults: list[OrderFault] = order_faults(
        replace(
            WHOLE,
            publisher=PublisherSight(5, None, {"paid": TopicEnd(0, 9, 9)}),
            groups={"g": {("paid", 0): 7}},
        )
    )

    assert [fault.may_be_alone for fault in faults] == [True, True]
