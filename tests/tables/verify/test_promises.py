"""What `verify` says of COMMITs, delayed messages and offsets that came to nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.kit.delayed import DUE, committed, delayed, waits_long_after_its_time
from tests.kit.stores import LONG_AFTER, Half, HandMadeStore, Op, Settled
from txmq.errors import StorageError
from txmq.verify import VerifyReport, verify


@pytest.fixture
def made(tmp_path: Path) -> HandMadeStore:
    return HandMadeStore(str(tmp_path / "store"))


def broken(made: HandMadeStore) -> tuple[str, ...]:
    return verify(made.location).broken


def details(report: VerifyReport, invariant: str) -> list[str]:
    return [
        violation.detail
        for result in report.results
        for violation in result.violations
        if result.invariant == invariant
    ]


def incomplete(made: HandMadeStore, source: str) -> None:
    """A COMMIT that finds one of two messages."""
    made.prepare(Half(1, 0, "orders", 2))
    version = made.claim(Op(1, "COMMIT", source=source, changes={"op_timestamp": LONG_AFTER}))
    made.settle(Settled(1, "INCOMPLETE", version, reason="MISSING"), mark=version)


# --- COMMITs --------------------------------------------------------------------------------------


def test_a_producer_s_commit_that_found_halves_missing_is_a_violation(made: HandMadeStore) -> None:
    incomplete(made, "producer")

    assert broken(made) == ("I28",)


def test_a_listener_s_commit_that_found_halves_missing_was_acknowledged_to_nobody(
    made: HandMadeStore,
) -> None:
    incomplete(made, "check")

    assert broken(made) == ()


def test_a_rollback_by_an_operator_settles_a_commit_that_came_to_nothing(
    made: HandMadeStore,
) -> None:
    incomplete(made, "producer")
    version = made.claim(Op(1, "ROLLBACK", source="operator"))
    made.settle(Settled(1, "ROLLED_BACK", version), mark=version)

    assert broken(made) == ()


def taken(made: HandMadeStore, *logs: str) -> None:
    for log in logs:
        made.remove(log, "true")
    made.maintenance_state(forgotten_before_date="2030-01-01")


def test_a_commit_after_retention_took_the_transaction_is_a_violation(made: HandMadeStore) -> None:
    made.prepare(Half(1, 0, "orders", 1))
    version = made.claim(Op(1, "ROLLBACK"))
    made.settle(Settled(1, "ROLLED_BACK", version), mark=version)
    taken(made, "half", "op")
    late = made.claim(Op(1, "COMMIT"))
    made.settle(mark=late)

    assert broken(made) == ("I28",)


def test_a_commit_whose_halves_retention_took_after_it_was_published_is_right(
    made: HandMadeStore,
) -> None:
    half = Half(1, 0, "orders", 1)
    made.prepare(half)
    version = made.claim(Op(1, "COMMIT"))
    made.settle(Settled(1, "COMMITTED", version), mark=version)
    made.publish("orders", half, op_version=version)
    taken(made, "half")

    assert broken(made) == ()


def test_a_commit_that_came_behind_another_end_was_refused_and_is_right(
    made: HandMadeStore,
) -> None:
    made.prepare(Half(1, 0, "orders", 1))
    version = made.claim(Op(1, "ROLLBACK"), Op(1, "COMMIT"))
    made.settle(Settled(1, "ROLLED_BACK", version), mark=version)
    taken(made, "half")

    assert broken(made) == ()


# --- delayed messages -----------------------------------------------------------------------------


def test_a_delayed_message_that_waits_long_after_its_time_names_the_limit(
    made: HandMadeStore,
) -> None:
    waits_long_after_its_time(made, 1)

    report = verify(made.location)

    assert report.broken == ("I27",)
    assert details(report, "I27") == ["still waits, more than 1,800 s after its time"]
    assert report.lateness.overdue_limit_s == 1_800.0


def test_one_clock_that_is_ahead_makes_no_message_overdue(made: HandMadeStore) -> None:
    committed(made, *delayed(1, "orders"))
    ahead = {"op_timestamp": DUE + timedelta(days=1)}
    made.settle(mark=made.claim(Op(1, "UNKNOWN", changes=ahead)))

    assert broken(made) == ()


def test_a_message_that_the_delay_service_says_it_claimed_must_be_claimed(
    made: HandMadeStore,
) -> None:
    version = committed(made, *delayed(1, "orders"))
    made.delay_state(version, DUE - timedelta(milliseconds=1))
    assert broken(made) == ()

    made.delay_state(version, DUE)
    assert broken(made) == ("I27",)


# --- offsets of groups ----------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "expected"), [(1, ()), (2, ("I29",))])
def test_a_group_whose_next_offset_lies_beyond_its_topic_is_a_violation(
    offset: int, expected: tuple[str, ...], made: HandMadeStore
) -> None:
    half = Half(1, 0, "orders", 1)
    made.prepare(half)
    version = made.claim(Op(1, "COMMIT"))
    made.settle(Settled(1, "COMMITTED", version), mark=version)
    made.publish("orders", half, op_version=version)

    made.group_state("readers", {"orders": {"0": offset}})

    assert broken(made) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"offsets": 5}, {"offsets": {"": {"orders": [1]}}},
        {"offsets": {"": {"orders": {"0": "1"}}}},
        {"attempts": {"orders": {"0": 7}}}, {"attempts": {"orders": {"0": [1, [], 2]}}},
        {"attempts": [1]}, {"attempts": {"orders": {"0": [None, []]}}},
    ],
)  # fmt: skip
def test_a_group_of_another_program_is_told_by_its_name(
    value: dict[str, object], made: HandMadeStore
) -> None:
    made._register("group_readers", value)

    with pytest.raises(StorageError, match=r"state/group_readers.*no offsets of a consumer group"):
        broken(made)
