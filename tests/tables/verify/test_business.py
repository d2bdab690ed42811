"""I12 by rows that a test wrote: every end beside every marker, and who is named for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.kit.planted import Filled, clean_log, forget
from tests.kit.stores import GROUP, Half, HandMadeStore, Op, Settled, halves, transaction_id
from txmq.errors import ConfigError, EnvironmentProblemError, StorageError, StoreNotFoundError
from txmq.verify import (
    BusinessResult,
    DatabaseMarkers,
    DeltaMarkers,
    Fault,
    Problem,
    VerifyReport,
    marker_places,
    markers,
    verify,
    verify_business,
)
from txmq.verify.markers import DeltaMarkerLog, _newest_checkpoint, _seconds

DONE, FENCED = 1, 2
STATES = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK", "EXPIRE": "EXPIRED"}
RETENTION = "delta.setTransactionRetentionDuration"
TOMORROW = datetime.now(UTC) + timedelta(days=1)
SECRET = "correct-horse"  # noqa: S105 - of nobody


class Orders:
    """A user's Delta table and the markers in its log."""

    def __init__(self, location: str, properties: Mapping[str, str] | None = None) -> None:
        self.location = location
        write_deltalake(location, pa.table({"id": [0]}))
        if properties:
            DeltaTable(location).alter.set_table_properties(dict(properties))

    def mark(self, marks: Mapping[str, int]) -> None:
        """One commit of markers."""
        made = [Transaction(name, number, 1) for name, number in marks.items()]
        properties = CommitProperties(app_transactions=made)
        write_deltalake(
            self.location, pa.table({"id": [1]}), mode="append", commit_properties=properties
        )


@pytest.fixture
def made(tmp_path: Path) -> HandMadeStore:
    return HandMadeStore(str(tmp_path / "store"))


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(str(tmp_path / "orders"))


def opened(made: HandMadeStore, number: int, *, group: str = GROUP, **changes: Any) -> str:
    """Halves without an end."""
    head = Half(number, 0, "orders", 1, group, changes=changes)
    made.prepare(head)
    return transaction_id(number)


def late(number: int, kind: str, **fields: Any) -> Op:
    """A claim that is later than every immunity."""
    return Op(number, kind, changes={"op_timestamp": TOMORROW}, **fields)


def ended(
    made: HandMadeStore, number: int, kind: str = "COMMIT", source: str = "producer", **changes: Any
) -> str:
    """A transaction with its end, settled and published."""
    own_id = opened(made, number, **changes)
    half = Half(number, 0, "orders", 1, changes=changes)
    expires = kind == "EXPIRE"
    version = made.claim(late(number, kind, source=source, life=0 if expires else None))
    made.settle(Settled(number, STATES[kind], version), mark=version)
    if kind == "COMMIT":
        made.publish("orders", half, op_version=version)
    if expires:
        made.bury(half, op_version=version)
    return own_id


def compared(made: HandMadeStore, orders: Orders) -> VerifyReport:
    report = verify(made.location, business={GROUP: DeltaMarkers(orders.location)})
    assert report.is_txmq_clean, report.to_dict()
    return report


def result_of(report: VerifyReport) -> BusinessResult:
    assert report.business is not None
    (result,) = report.business.results
    return result


# --- every end beside every marker ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mark", "problem"),
    [
        ("COMMIT", None, Problem.PUBLISHED_WITHOUT_MARKER),
        ("COMMIT", DONE, None),
        ("COMMIT", FENCED, Problem.PUBLISHED_THOUGH_FENCED),
        ("COMMIT", 7, Problem.PUBLISHED_WITHOUT_MARKER),
        ("ROLLBACK", None, None),
        ("ROLLBACK", DONE, Problem.ROLLED_BACK_THOUGH_DONE),
        ("ROLLBACK", FENCED, None),
        ("EXPIRE", None, None),
        ("EXPIRE", DONE, Problem.EXPIRED_THOUGH_DONE),
        ("EXPIRE", FENCED, None),
    ],
)
def test_end_is_compared_with_the_marker(
    made: HandMadeStore, orders: Orders, kind: str, mark: int | None, problem: Problem | None
) -> None:
    own_id = ended(made, 1, kind)
    if mark is not None:
        orders.mark({own_id: mark})

    report = compared(made, orders)

    found = [(one.transaction_id, one.problem) for one in result_of(report).violations]
    assert found == ([] if problem is None else [(own_id, problem)])
    assert (report.is_clean, report.is_business_clean) == (problem is None, problem is None)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("producer", (Fault.PRODUCER, "the producer's fault (producer, op 1/0)")),
        ("check", (Fault.LISTENER, "the listener's fault (check, op 1/0)")),
        ("recheck", (Fault.LISTENER, "the listener's fault (recheck, op 1/0)")),
        ("operator", (Fault.OPERATOR, "the operator's fault (operator, op 1/0)")),
        ("delay", (Fault.UNKNOWN, "it is not known who ended it (delay, op 1/0)")),
    ],
)
@pytest.mark.parametrize("ending", [("COMMIT", FENCED), ("ROLLBACK", DONE)])
def test_who_ended_it_is_named(
    made: HandMadeStore, orders: Orders, ending: tuple[str, int], source: str, told: tuple[str, str]
) -> None:
    kind, mark = ending
    orders.mark({ended(made, 1, kind, source): mark})

    (violation,) = result_of(compared(made, orders)).violations

    assert (violation.fault, violation.source) == (told[0], source)
    assert violation.detail.endswith(told[1])


def test_expired_one_is_no_listener_s_fault(made: HandMadeStore, orders: Orders) -> None:
    orders.mark({ended(made, 1, "EXPIRE", "maintenance"): DONE})

    assert result_of(compared(made, orders)).fault_counts == {Fault.RETENTION: 1}


def test_only_the_end_that_took_effect_is_blamed(made: HandMadeStore, orders: Orders) -> None:
    opened(made, 1)
    version = made.claim(
        Op(1, "COMMIT", group="strangers", source="operator"),
        late(1, "COMMIT", source="recheck"), Op(1, "COMMIT"), Op(1, "ROLLBACK"),
    )  # fmt: skip
    made.settle(Settled(1, "COMMITTED", version, 1), mark=version)
    made.publish("orders", *halves(1, "orders"), op_version=version)

    (violation,) = result_of(compared(made, orders)).violations

    assert (violation.source, violation.ordinal) == ("recheck", 1)


def test_done_and_open_is_counted_and_no_violation(made: HandMadeStore, orders: Orders) -> None:
    waiting, discarded = opened(made, 1), opened(made, 2)
    version = made.claim(
        late(2, "UNKNOWN", source="check", life=0, check_times=1), late(2, "DISCARD", life=0)
    )
    made.settle(Settled(2, "DISCARDED", version, 1), mark=version)
    made.bury(*halves(2, "orders"), op_version=version)
    orders.mark({waiting: DONE, discarded: DONE})

    report = compared(made, orders)

    assert report.is_clean
    counts = result_of(report).counts
    assert (counts["done_and_open"], counts["done_and_discarded"]) == (1, 1)


def test_ordinary_message_has_no_local_transaction(made: HandMadeStore, orders: Orders) -> None:
    ended(made, 1, ordinary=True)

    report = compared(made, orders)

    assert report.is_clean
    assert result_of(report).counts["transactions"] == 0


def test_markers_of_other_programs_are_ignored(made: HandMadeStore, orders: Orders) -> None:
    orders.mark({ended(made, 1): DONE})
    orders.mark({transaction_id(99): DONE, "query-17": 312, "": 1, 'a"b': 2})

    report = compared(made, orders)

    assert report.is_clean
    assert result_of(report).counts["done"] == 1


def test_other_groups_are_left_alone_and_named(made: HandMadeStore, orders: Orders) -> None:
    orders.mark({ended(made, 1): DONE})
    opened(made, 2, group="billing")

    report = compared(made, orders)

    assert report.is_clean
    assert report.business is not None
    assert report.business.unnamed_groups == ("billing",)
    assert "billing" in report.not_checked["I12"]


def test_many_are_shown_in_part_and_counted_whole(made: HandMadeStore, orders: Orders) -> None:
    numbers = range(1, 151)
    made.prepare(*(half for number in numbers for half in halves(number, "orders")))
    version = made.claim(*(late(number, "COMMIT", source="check") for number in numbers))
    facts = [Settled(number, "COMMITTED", version, number - 1) for number in numbers]
    made.settle(*facts, mark=version)
    made.publish("orders", *(halves(n, "orders")[0] for n in numbers), op_version=version)

    result = result_of(compared(made, orders))

    assert (result.violation_count, len(result.violations)) == (150, 100)
    assert result.fault_counts == {Fault.LISTENER: 150}


def test_without_the_option_the_promise_is_not_checked(made: HandMadeStore) -> None:
    report = verify(made.location)

    assert report.business is None
    assert "--business" in report.not_checked["I12"]


def test_report_is_json_with_a_section_of_its_own(made: HandMadeStore, orders: Orders) -> None:
    own_id = ended(made, 1, source="check")

    values = json.loads(json.dumps(compared(made, orders).to_dict()))

    assert (values["is_clean"], values["is_txmq_clean"], values["is_business_clean"]) == (
        False, True, False,
    )  # fmt: skip
    assert values["violation_count"] == 0
    assert values["business"]["violation_count"] == 1
    assert values["business"]["faults"] == {"listener": 1}
    (group,) = values["business"]["groups"]
    assert group["violations"][0]["transaction_id"] == own_id
    assert "I12" not in values["not_checked"]


def test_alone_it_says_the_same(made: HandMadeStore, orders: Orders) -> None:
    ended(made, 1, source="check")

    alone = verify_business(made.location, {GROUP: DeltaMarkers(orders.location)})

    assert alone == compared(made, orders).business


# --- what cannot be judged ------------------------------------------------------------------------


def test_marker_that_may_be_forgotten_is_not_missed(made: HandMadeStore, tmp_path: Path) -> None:
    orders = Orders(str(tmp_path / "short"), {RETENTION: "interval 2 days"})
    now = datetime.now(UTC)
    ended(made, 1, born_timestamp=now - timedelta(days=2))
    young = ended(made, 2, born_timestamp=now - timedelta(days=1))

    result = result_of(compared(made, orders))

    assert [one.transaction_id for one in result.violations] == [young]
    assert result.counts["not_judged_marker_may_be_forgotten"] == 1


def test_marker_that_is_there_is_believed_however_old(made: HandMadeStore, tmp_path: Path) -> None:
    orders = Orders(str(tmp_path / "short"), {RETENTION: "interval 2 days"})
    own_id = ended(made, 1, "ROLLBACK", born_timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    orders.mark({own_id: DONE})

    assert result_of(compared(made, orders)).violation_count == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("interval 30 days", 2_592_000), ("INTERVAL 1 week", 604_800), ("3 hours", 10_800),
     ("interval 1 day 12 hours", 129_600), ("interval 2 moons", 0), ("", 0), ("7", 0)],
)  # fmt: skip
def test_retention_is_read_as_delta_writes_it(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


def test_what_retention_took_is_counted_and_not_judged(made: HandMadeStore, orders: Orders) -> None:
    ended(made, 1)
    half = halves(2, "orders")[0]
    forget(Filled(made.location), date(2026, 1, 2))
    made.settle(Settled(1, "COMMITTED", 1), mark=2)
    made.prepare(half)

    business = verify_business(made.location, {GROUP: DeltaMarkers(orders.location)})

    (result,) = business.results
    assert result.counts["not_judged_older_than_the_store_keeps"] == 2
    assert (result.counts["transactions"], result.violation_count) == (0, 0)


def test_source_comes_from_the_settled_log_where_claims_are_gone(
    made: HandMadeStore, orders: Orders
) -> None:
    ended(made, 1, source="check")
    ended(made, 2, source="check")
    clean_log(Filled(made.location), "op")

    business = verify_business(made.location, {GROUP: DeltaMarkers(orders.location)})

    # The test's settled rows all say "producer".
    sources = {one.transaction_id: one.source for one in business.results[0].violations}
    assert sources == {transaction_id(1): "producer", transaction_id(2): "check"}


# --- the log of a Delta table ---------------------------------------------------------------------


def outcomes(orders: Orders, *ids: str) -> dict[str, int]:
    return DeltaMarkerLog(DeltaMarkers(orders.location)).outcomes(ids)


def remove_log_file(orders: Orders, name: str) -> None:
    Path(orders.location, "_delta_log", name).unlink()


def checkpoint(orders: Orders) -> None:
    DeltaTable(orders.location).create_checkpoint()


def clean(orders: Orders) -> None:
    clean_log(Filled(str(Path(orders.location).parent)), Path(orders.location).name)


@pytest.mark.parametrize(
    "change", [lambda _: None, checkpoint, clean], ids=["commits", "checkpoint", "cleaned"]
)
def test_markers_are_found_wherever_the_log_has_them(
    orders: Orders, change: Callable[[Orders], None]
) -> None:
    orders.mark({"first": DONE, "second": DONE})
    orders.mark({"second": FENCED, "third": FENCED})
    change(orders)
    orders.mark({"last": DONE})

    found = outcomes(orders, "first", "second", "third", "last", "never")

    assert found == {"first": DONE, "second": FENCED, "third": FENCED, "last": DONE}


def test_a_later_commit_is_not_read(orders: Orders) -> None:
    orders.mark({"first": DONE})
    log = DeltaMarkerLog(DeltaMarkers(orders.location))
    orders.mark({"second": DONE})

    assert log.outcomes(["first", "second"]) == {"first": DONE}


@pytest.mark.parametrize("found", [(-1, ["cleaned.parquet"]), (-5, [])], ids=["gone", "gap"])
def test_a_log_cleaned_meanwhile_is_asked_one_by_one(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, found: tuple[int, list[str]]
) -> None:
    orders.mark({"first": DONE})
    log = DeltaMarkerLog(DeltaMarkers(orders.location))
    monkeypatch.setattr(markers, "_newest_checkpoint", lambda *_: found)

    assert log.outcomes(["first", "second"]) == {"first": DONE}


def test_newest_whole_checkpoint_is_taken() -> None:
    def name(version: int, rest: str) -> str:
        return f"{version:020d}.checkpoint{rest}"

    single, named = name(3, ".parquet"), name(5, f".{'0' * 8}-1111-2222-3333-{'4' * 12}.json")
    parts = [name(7, f".000000000{part}.0000000002.parquet") for part in (1, 2)]
    others = ["_last_checkpoint", f"{4:020d}.json", name(6, ".0000000001.0000000003.parquet")]

    assert _newest_checkpoint(others, 9) == (-1, [])
    assert _newest_checkpoint([*others, single], 9) == (3, [single])
    assert _newest_checkpoint([*others, single, named], 9) == (5, [named])
    assert _newest_checkpoint([*others, single, named, *parts], 9) == (7, parts)
    assert _newest_checkpoint([*others, single, named, *parts], 6) == (5, [named])


def test_nothing_is_written(made: HandMadeStore, orders: Orders, tmp_path: Path) -> None:
    ended(made, 1)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    compared(made, orders)

    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_uri_is_the_same_table(made: HandMadeStore, orders: Orders, prefix: str) -> None:
    orders.mark({ended(made, 1): DONE})

    place = DeltaMarkers(f"{prefix}{orders.location}")

    assert verify(made.location, business={GROUP: place}).is_clean


# --- bad input ------------------------------------------------------------------------------------


def test_unknown_group_is_refused_with_those_that_are_known(
    made: HandMadeStore, orders: Orders
) -> None:
    ended(made, 1)

    with pytest.raises(ConfigError, match=f"no transaction of group ordres.*groups: {GROUP}"):
        verify(made.location, business={"ordres": DeltaMarkers(orders.location)})


def test_table_that_is_not_there_is_refused(made: HandMadeStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"delta:.*nowhere: is not there") as caught:
        verify(made.location, business={GROUP: DeltaMarkers(str(tmp_path / "nowhere"))})

    assert not isinstance(caught.value, StoreNotFoundError)


def test_table_whose_log_is_garbage_is_refused(made: HandMadeStore, orders: Orders) -> None:
    log = Path(orders.location, "_delta_log")
    (log / f"{1:020d}.json").write_text("{garbage", encoding="utf-8")

    with pytest.raises(StorageError, match="cannot be read"):
        verify(made.location, business={GROUP: DeltaMarkers(orders.location)})


def test_location_is_shown_without_its_credentials() -> None:
    place = DeltaMarkers(f"s3://user:{SECRET}@bucket/orders?sig={SECRET}", {"key": SECRET})

    assert str(place) == "delta:s3://bucket/orders"
    assert str(DeltaMarkers("abfss://box@account.example/orders")).endswith(
        "box@account.example/orders"
    )
    assert SECRET not in str(place)


def test_places_are_read_from_the_command_line() -> None:
    found = marker_places([
        "orders=delta:/data/orders", "stock=database:STOCK_DB", "bills=database:B_DB:billing.marks",
        "far=delta:s3://bucket/a=b",
    ])  # fmt: skip

    assert found == {
        "orders": DeltaMarkers("/data/orders"),
        "stock": DatabaseMarkers("STOCK_DB"),
        "bills": DatabaseMarkers("B_DB", "billing.marks"),
        "far": DeltaMarkers("s3://bucket/a=b"),
    }


@pytest.mark.parametrize(
    "text",
    ["", "orders", "orders=", "orders=delta", "orders=delta:", "=delta:/x", "orders=kafka:x",
     "orders=database:", f"orders=postgresql://me:{SECRET}@host/db", "a b=delta:/x",
     f"orders=database:postgresql://me:{SECRET}@host/db", f"postgresql://me:{SECRET}@h/db?a=b",
     f"orders=database:VARIABLE:{SECRET}; DROP TABLE x"],
)  # fmt: skip
def test_another_form_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        marker_places([text])

    assert "business" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_place_that_is_only_a_text_is_refused(made: HandMadeStore) -> None:
    text: Any = f"postgresql://me:{SECRET}@host/db"

    with pytest.raises(ConfigError, match="give DeltaMarkers or DatabaseMarkers") as caught:
        verify(made.location, business={GROUP: text})

    assert SECRET not in str(caught.value)


def test_a_group_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="orders is named twice"):
        marker_places(["orders=delta:/a", "orders=delta:/b"])


def test_a_url_in_place_of_its_variable_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="not its value") as caught:
        DatabaseMarkers(f"sqlite:///{SECRET}")

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (None, "ORDERS_DB is not set"),
        ("", "ORDERS_DB is not set"),
        (f"{SECRET}", "the database URL in ORDERS_DB cannot be used"),
        (f"nosuch://me:{SECRET}@host/db", "the database URL in ORDERS_DB cannot be used"),
        (f"postgresql+nosuch://me:{SECRET}@host/db", "cannot be used"),
        (f"postgresql+psycopg://me@host:{SECRET}/db", "cannot be used"),
    ],
)
def test_variable_without_a_usable_url_is_refused_and_not_shown(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch, url: str | None, told: str
) -> None:
    monkeypatch.delenv("ORDERS_DB", raising=False)
    if url is not None:
        monkeypatch.setenv("ORDERS_DB", url)

    with pytest.raises(EnvironmentProblemError, match=told) as caught:
        verify(made.location, business={GROUP: DatabaseMarkers("ORDERS_DB")})

    assert SECRET not in str(caught.value)
