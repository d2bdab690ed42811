"""Two checkers that share no code find the same in stores with delayed messages."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.kit.delayed import (
    BUGS,
    DelayBug,
    delayed,
    delayed_store,
    deliver,
    ended,
    retained,
    shown,
)
from tests.kit.delayed import tomorrow as all_forgotten
from tests.kit.random_store import random_store
from tests.kit.stores import START, HandMadeStore
from txmq.message.names import SCHEDULE_TOPIC
from txmq.verify import VerifyReport, differences, verify, verify_by_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PLAIN, SPARK = "plain", "spark"


@pytest.fixture
def made(with_delays: HandMadeStore) -> HandMadeStore:
    return with_delays


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, quick: SparkSession) -> dict[str, VerifyReport]:
    """What both say of one store with every bug."""
    made = delayed_store(str(tmp_path_factory.mktemp("verify") / "ruined"))
    for bug in BUGS:
        bug.do(made)
    return both(made.location, quick)


def both(location: str, spark: SparkSession, *, drained: bool = True) -> dict[str, VerifyReport]:
    plain = verify(location, drained=drained)
    told = verify_by_spark(location, spark, drained=drained, versions=plain.versions)
    return {PLAIN: plain, SPARK: told}


def assert_sound(reports: dict[str, VerifyReport]) -> VerifyReport:
    assert differences(reports[PLAIN], reports[SPARK]) == ()
    for report in reports.values():
        assert report.is_clean, report.to_dict()
    return reports[SPARK]


@pytest.mark.parametrize("engine", [PLAIN, SPARK])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: DelayBug, engine: str, found: dict[str, VerifyReport]) -> None:
    for result in found[engine].results:
        if result.invariant in bug.breaks:
            ids = [violation.row_id for violation in result.violations]
            assert any(bug.subject in row_id for row_id in ids), f"{result.invariant} names {ids}"


def test_engines_agree_on_every_row_of_every_bug(found: dict[str, VerifyReport]) -> None:
    assert differences(found[PLAIN], found[SPARK]) == ()
    assert found[SPARK].violation_count > len(BUGS)


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

    assert assert_sound(both(made.location, quick)).counts["known_by_schedule_alone"] == 7


@pytest.mark.parametrize("taken", ["half", "nothing"])
def test_engines_agree_on_rows_that_nobody_would_write(
    taken: str, tmp_path: Path, quick: SparkSession
) -> None:
    made = random_store(str(tmp_path / "store"), Random(taken))
    if taken == "half":
        retained(made, "half", topic_begin={"orders": 2}, **all_forgotten())

    reports = both(made.location, quick, drained=taken == "nothing")

    assert differences(reports[PLAIN], reports[SPARK]) == ()
    assert reports[PLAIN].violation_count > 100
