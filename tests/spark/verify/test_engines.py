"""Two checkers that share no code find the same: nothing in sound stores, every planted bug."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from tests.kit.planted import BUGS, GROUP, Bug, Filled, clean_log, filled, forget
from txmq.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.verify import VerifyReport, differences, verify, verify_by_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.kit.stores import HandMadeStore

PLAIN, SPARK = "plain", "spark"
IDS = [bug.name for bug in BUGS]
# Also those without Spark in its worker, so that the store is filled once.
pytestmark = pytest.mark.xdist_group("spark-2")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled(str(tmp_path_factory.mktemp("verify") / "sound"))


@pytest.fixture
def copy(sound: Filled, tmp_path: Path) -> Filled:
    return copied(sound, tmp_path / "copy")


@pytest.fixture(scope="module")
def ruined(sound: Filled, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """One store with every bug: each has a transaction or a topic of its own."""
    made = copied(sound, tmp_path_factory.mktemp("verify") / "ruined")
    for bug in BUGS:
        bug.do(made)
    return made


@pytest.fixture(scope="module")
def found(ruined: Filled, quick: SparkSession) -> dict[str, VerifyReport]:
    return both(ruined.location, quick)


def copied(made: Filled, folder: Path) -> Filled:
    shutil.copytree(made.location, folder)
    return dataclasses.replace(made, location=str(folder))


def both(location: str, spark: SparkSession, *, drained: bool = True) -> dict[str, VerifyReport]:
    plain = verify(location, drained=drained)
    told = verify_by_spark(location, spark, drained=drained, versions=plain.versions)
    return {PLAIN: plain, SPARK: told}


def row_ids(report: VerifyReport, invariant: str) -> list[str]:
    (result,) = [result for result in report.results if result.invariant == invariant]
    return [violation.row_id for violation in result.violations]


def assert_sound(reports: dict[str, VerifyReport]) -> None:
    assert differences(reports[PLAIN], reports[SPARK]) == ()
    for report in reports.values():
        assert report.is_clean, report.to_dict()


# --- bugs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [PLAIN, SPARK])
@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_planted_bug_is_caught(
    bug: Bug, engine: str, ruined: Filled, found: dict[str, VerifyReport]
) -> None:
    subject = bug.subject_in(ruined)

    for invariant in bug.breaks:
        ids = row_ids(found[engine], invariant)
        assert any(subject in row_id for row_id in ids), f"{invariant} names {ids}"


@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_bug_alone_breaks_just_what_it_should(bug: Bug, copy: Filled) -> None:
    bug.do(copy)

    assert set(verify(copy.location).broken) == {*bug.breaks, *bug.also}


def test_engines_agree_on_every_row_of_every_bug(found: dict[str, VerifyReport]) -> None:
    assert differences(found[PLAIN], found[SPARK]) == ()
    assert found[SPARK].violation_count > len(BUGS)


# --- sound stores ---------------------------------------------------------------------------------


def test_command_finds_every_outcome_sound(
    sound: Filled, tmp_path: Path, quick: SparkSession
) -> None:
    made = copied(sound, tmp_path / "copy")
    rows = quick.range(5).selectExpr("cast(cast(id AS STRING) AS BINARY) AS body")
    with TransactionProducer(made.store, producer_group=GROUP) as producer:
        sent = producer.begin_transaction()
        sent.send_dataframe(rows, topic="frames")
        sent.prepare()
        sent.commit()
    Publisher(made.store).run_once()

    result = CliRunner().invoke(app, ["verify", made.location, "--engine", "both", "--json"])

    values = json.loads(result.stdout)
    assert (result.exit_code, values["is_clean"]) == (0, True), values
    counts = values[SPARK]["counts"]
    assert counts["visible_messages"] == 30
    for state in ("committed", "rolled_back", "discarded", "incomplete", "pending"):
        assert counts[state] > 0


def test_every_life_of_a_delayed_message_is_sound_while_running_and_one_engine_compares_business(
    with_delays: HandMadeStore, tmp_path: Path, quick: SparkSession
) -> None:
    orders = str(tmp_path / "orders")
    write_deltalake(orders, pa.table({"id": [1]}))
    assert quick.version

    result = CliRunner().invoke(
        app,
        ["verify", with_delays.location, "--running", "--engine", "both", "--json", "--business",
         f"group=delta:{orders}"],
    )  # fmt: skip

    values = json.loads(result.stdout)
    assert (result.exit_code, values["differences"]) == (3, []), values
    assert (values["is_txmq_clean"], values["is_business_clean"]) == (True, False)
    assert values[PLAIN]["business"]["faults"] == {"producer": 8}
    told = values[SPARK]
    assert told["business"] is None
    assert (told["lateness"]["max_s"], told["counts"]["delivered"]) == (65.0, 6)


def test_what_nobody_forgot_is_missed(copy: Filled) -> None:
    forget(copy, date(2020, 1, 1))

    assert {"I4", "I17"} <= set(verify(copy.location).broken)


def test_what_retention_took_is_history_and_claims_that_are_gone_are_judged_by_the_settled_log(
    sound: Filled, tmp_path: Path, quick: SparkSession
) -> None:
    made = copied(sound, tmp_path / "copy")
    clean_log(made, "op")
    by_settled = verify(made.location)
    forget(made, datetime.now(tz=UTC).date() + timedelta(days=2))

    reports = both(made.location, quick)

    assert by_settled.is_clean
    assert by_settled.notes == ("32 transactions judged by the settled log alone",)
    assert_sound(reports)
    assert reports[PLAIN].counts["forgotten_messages"] == 32
