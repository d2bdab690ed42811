"""A store read in many ranges of transactions has the report of a store read at once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from tests.kit import planted
from tests.kit.delayed import BUGS, delayed_store, retained, tomorrow
from tests.kit.random_store import random_store
from tests.kit.stores import GROUP, HandMadeStore, transaction_id
from txmq.verify import DeltaMarkers, tables, verify
from txmq.verify.store import PinnedStore

AT_ONCE, EACH_ALONE = 10**9, 1


@pytest.fixture
def ranged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many rows a range holds."""

    def set_rows(rows: int) -> None:
        monkeypatch.setattr(tables, "RANGE_ROWS", rows)
        monkeypatch.setattr(tables, "SAMPLE_ROWS", 1)

    return set_rows


def assert_same_in_ranges(ranged: Any, location: str, **options: Any) -> dict[str, Any]:
    """The report of the store at once; that of each transaction in a range of its own is equal."""
    reports = []
    for rows in (AT_ONCE, EACH_ALONE):
        ranged(rows)
        report = verify(location, **options).to_dict()
        reports.append({name: value for name, value in report.items() if name != "duration_s"})
    assert reports[1] == reports[0]
    return reports[0]


def count_ranges(ranged: Any, location: str, rows: int) -> int:
    ranged(rows)
    return len(PinnedStore.open(location, {}).id_ranges())


def test_small_store_is_one_range_and_each_transaction_can_be_one(
    clean: HandMadeStore, ranged: Any
) -> None:
    numbers = [count_ranges(ranged, clean.location, rows) for rows in (AT_ONCE, EACH_ALONE)]

    # Eleven transactions, and one that only a claim names.
    assert numbers == [1, 12]


@pytest.mark.parametrize("drained", [True, False])
def test_every_kind_of_life(clean: HandMadeStore, ranged: Any, *, drained: bool) -> None:
    assert assert_same_in_ranges(ranged, clean.location, drained=drained)["is_clean"]


@pytest.mark.parametrize("drained", [True, False])
def test_every_life_of_a_delayed_message(
    with_delays: HandMadeStore, ranged: Any, *, drained: bool
) -> None:
    report = assert_same_in_ranges(ranged, with_delays.location, drained=drained)

    assert report["is_clean"]
    assert report["lateness"]["delivered"] > 1


@pytest.mark.parametrize(("taken", "drained"), [("half", False), ("op", True), (None, True)])
def test_rows_that_nobody_would_write(
    taken: str | None, tmp_path: Path, ranged: Any, *, drained: bool
) -> None:
    # Few enough that a report names every violation.
    made = random_store(str(tmp_path / "store"), Random(taken), 9)
    if taken:
        retained(made, taken, topic_begin={"orders": 2}, **tomorrow())

    report = assert_same_in_ranges(ranged, made.location, drained=drained)

    assert report["violation_count"] > 50
    assert max(result["violation_count"] for result in report["invariants"]) <= 100


def test_every_planted_bug(tmp_path: Path, ranged: Any) -> None:
    made = planted.filled(str(tmp_path / "lives"))
    for bug in planted.BUGS:
        bug.do(made)
    delayed = delayed_store(str(tmp_path / "delayed"))
    for bug_of_delays in BUGS:
        bug_of_delays.do(delayed)

    for location in (made.location, delayed.location):
        assert assert_same_in_ranges(ranged, location)["violation_count"] > len(BUGS)


def test_claims_that_are_gone(tmp_path: Path, ranged: Any) -> None:
    made = planted.filled(str(tmp_path / "store"))
    planted.clean_log(made, "op")

    report = assert_same_in_ranges(ranged, made.location)

    assert report["is_clean"]
    assert report["notes"] == ["32 transactions judged by the settled log alone"]


def test_local_transactions(clean: HandMadeStore, tmp_path: Path, ranged: Any) -> None:
    orders = str(tmp_path / "orders")
    marks = [Transaction(transaction_id(number), version) for number, version in ((1, 1), (2, 1))]
    write_deltalake(
        orders, pa.table({"id": [1]}), commit_properties=CommitProperties(app_transactions=marks)
    )

    report = assert_same_in_ranges(ranged, clean.location, business={GROUP: DeltaMarkers(orders)})

    (group,) = report["business"]["groups"]
    assert group["violation_count"] > 2
    assert {violation["problem"] for violation in group["violations"]} == {
        "PUBLISHED_WITHOUT_MARKER", "ROLLED_BACK_THOUGH_DONE"
    }  # fmt: skip
