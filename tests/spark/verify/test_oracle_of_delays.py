"""`verify` and its oracle find the same in stores with delayed messages."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.kit.delayed import (
    BUGS,
    delayed,
    deliver,
    ended,
    retained,
    shown,
)
from tests.kit.delayed import tomorrow as all_forgotten
from tests.kit.planted import assert_named
from tests.kit.random_store import random_store
from tests.kit.stores import START, HandMadeStore
from tests.oracle.agreement import both_reports, differences
from txmq.message.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def made(with_delays: HandMadeStore) -> HandMadeStore:
    return with_delays


# That `verify` catches each is in tests/tables/verify/test_delayed.py.
def test_both_agree_on_every_row_of_every_bug(made: HandMadeStore, quick: SparkSession) -> None:
    for bug in BUGS:
        bug.do(made)

    reports = both_reports(made.location, quick)

    assert differences(*reports) == ()
    assert reports[0].violation_count > len(BUGS)
    for bug in BUGS:
        assert_named(bug.subject, bug.breaks, reports[1])


def test_what_retention_took_is_history_and_the_schedule_stands_for_halves_that_are_gone(
    made: HandMadeStore, quick: SparkSession
) -> None:
    day = (START + timedelta(days=-1)).date()
    retained(made, "half", "op", "topics/stock", topic_begin={"orders": 3, "stock": 99},
             schedule_forgotten_before_date=(day + timedelta(days=1)).isoformat(),
             **all_forgotten())  # fmt: skip
    made.remove(f"topics/{SCHEDULE_TOPIC}", f"due_date = '{day}'")
    version = ended(made, deliver(3, 1))
    shown(made, delayed(3, "orders", "orders")[1], version)

    verified, by_oracle = both_reports(made.location, quick)

    assert differences(verified, by_oracle) == ()
    assert verified.is_clean
    assert verified.counts["known_by_schedule_alone"] == 7


@pytest.mark.parametrize("taken", ["half", "nothing"])
def test_both_agree_on_rows_that_nobody_would_write(
    taken: str, tmp_path: Path, quick: SparkSession
) -> None:
    made = random_store(str(tmp_path / "store"), Random(taken))
    if taken == "half":
        retained(made, "half", topic_begin={"orders": 2}, **all_forgotten())

    reports = both_reports(made.location, quick, drained=taken == "nothing")

    assert differences(*reports) == ()
    assert reports[0].violation_count > 100
