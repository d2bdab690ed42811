"""`verify` and its oracle find the same: nothing in sound stores, every planted bug."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.kit.planted import BUGS, GROUP, Filled, assert_named, clean_log, copied, filled, forget
from tests.oracle.agreement import both_reports, differences
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.verify import VerifyReport, verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.kit.stores import HandMadeStore

Reports = tuple[VerifyReport, VerifyReport]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled(str(tmp_path_factory.mktemp("verify") / "sound"))


def assert_sound(reports: Reports) -> None:
    assert differences(*reports) == ()
    for report in reports:
        assert report.is_clean, report.to_dict()


# --- bugs -----------------------------------------------------------------------------------------


# That `verify` catches each is in tests/tables/verify/test_planted.py.
def test_both_agree_on_every_row_of_every_bug(
    sound: Filled, tmp_path: Path, quick: SparkSession
) -> None:
    # One store with every bug: each has a transaction or a topic of its own.
    made = copied(sound, tmp_path / "ruined")
    for bug in BUGS:
        bug.do(made)

    reports = both_reports(made.location, quick)

    assert differences(*reports) == ()
    assert reports[0].violation_count > len(BUGS)
    for bug in BUGS:
        assert_named(bug.subject_in(made), bug.breaks, reports[1])


# --- sound stores ---------------------------------------------------------------------------------


def test_every_outcome_is_sound(sound: Filled, tmp_path: Path, quick: SparkSession) -> None:
    made = copied(sound, tmp_path / "copy")
    rows = quick.range(5).selectExpr("cast(cast(id AS STRING) AS BINARY) AS body")
    with TransactionProducer(made.store, producer_group=GROUP) as producer:
        sent = producer.begin_transaction()
        sent.send_dataframe(rows, topic="frames")
        sent.prepare()
        sent.commit()
    Publisher(made.store).run_once()

    reports = both_reports(made.location, quick)

    assert_sound(reports)
    counts = reports[1].counts
    assert counts["visible_messages"] == 30
    for state in ("committed", "rolled_back", "discarded", "incomplete", "pending"):
        assert counts[state] > 0


def test_every_life_of_a_delayed_message_is_sound_while_running(
    with_delays: HandMadeStore, quick: SparkSession
) -> None:
    reports = both_reports(with_delays.location, quick, drained=False)

    assert_sound(reports)
    by_oracle = reports[1]
    assert (by_oracle.lateness.max_s, by_oracle.counts["delivered"]) == (65.0, 6)


def test_what_retention_took_is_history_and_claims_that_are_gone_are_judged_by_the_settled_log(
    sound: Filled, tmp_path: Path, quick: SparkSession
) -> None:
    made = copied(sound, tmp_path / "copy")
    clean_log(made, "op")
    by_settled = verify(made.location)
    forget(made, datetime.now(tz=UTC).date() + timedelta(days=2))

    reports = both_reports(made.location, quick)

    assert by_settled.is_clean
    assert by_settled.notes == ("32 transactions judged by the settled log alone",)
    assert_sound(reports)
    assert reports[0].counts["forgotten_messages"] == 32
