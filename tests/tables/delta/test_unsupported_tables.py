"""Tables whose features delta-rs cannot write, usual on other platforms: fenced, or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from tests.kit.stores import fresh_store
from txmq.delta.failures import failed_write
from txmq.delta.pinned import PinnedTable
from txmq.delta.snapshot import MARKABLE_FEATURES, WRITABLE_FEATURES
from txmq.errors import (
    CommitRefusedError,
    StorageError,
    UnsupportedPlaceError,
    UnsupportedTableError,
)
from txmq.listeners.delta import DeltaListener
from txmq.user_data.delta_inbox import DeltaInbox
from txmq.user_data.delta_marker import MarkedTable
from txmq.user_data.local_transaction import LocalTransaction

OWN_ID = "019b76da-a800-7000-8000-000000000001"
OTHER_ID = "019b76da-a800-7000-8000-000000000002"
# Features that readers must know as well.
OF_READERS = ("catalogManaged", "columnMapping", "deletionVectors", "timestampNtz",
              "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck",
              "variantType")  # fmt: skip
OF_WRITERS = ("appendOnly", "changeDataFeed", "checkConstraints", "clustering", "domainMetadata",
              "generatedColumns", "icebergCompatV1", "icebergCompatV2", "identityColumns",
              "inCommitTimestamp", "invariants", "rowTracking")  # fmt: skip
# A catalog or a coordinator makes the commits, or nobody knows what they ask of one.
BEYOND_MARKS = ("catalogManaged", "coordinatedCommits-preview", "inventedLater")
USUAL = ("clustering", "inCommitTimestamp", "rowTracking")


def demand(location: str, features: Sequence[str]) -> None:
    """A commit by another program that raises the protocol of the table."""
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [name for name in features if name in OF_READERS],
        "writerFeatures": [*features],
    }
    commit(location, {"protocol": protocol})


def commit(location: str, *actions: dict[str, Any]) -> None:
    """A commit by another program, which knows its features."""
    lines = [json.dumps(action) + "\n" for action in actions]
    log_file(location, newest(location) + 1).write_text("".join(lines))


def newest(location: str) -> int:
    return len(list(Path(location, "_delta_log").glob("*.json"))) - 1


def log_file(location: str, version: int) -> Path:
    return Path(location, "_delta_log", f"{version:020d}.json")


def lines_of(location: str, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file(location, version).read_text().splitlines()]


def times_in_commits(location: str, first_ms: int) -> list[dict[str, Any]]:
    """The actions that turn them on."""
    (metadata,) = (line for line in lines_of(location, 0) if "metaData" in line)
    metadata["metaData"]["configuration"] = {"delta.enableInCommitTimestamps": "true"}
    return [{"commitInfo": {"inCommitTimestamp": first_ms}}, metadata]


@pytest.fixture
def location(tmp_path: Path) -> str:
    write_deltalake(str(tmp_path / "orders"), pa.table({"number": [1]}))
    return str(tmp_path / "orders")


def commit_of_delta_rs(location: str) -> Exception | None:
    properties = CommitProperties(app_transactions=[Transaction("app", 1, 1)])
    try:
        table = DeltaTable(location)
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    except DeltaError as error:
        return error
    return None


@pytest.mark.parametrize("feature", sorted({*OF_READERS, *OF_WRITERS}))
def test_the_features_that_are_known_are_those_that_delta_rs_writes(
    location: str, feature: str
) -> None:
    demand(location, [feature])

    error = commit_of_delta_rs(location)

    assert (error is None) is (feature in WRITABLE_FEATURES)
    if error is not None:
        assert isinstance(failed_write("orders", error), UnsupportedTableError)


@pytest.mark.parametrize("feature", sorted(MARKABLE_FEATURES - WRITABLE_FEATURES))
def test_a_fence_is_put_where_delta_rs_cannot_commit(location: str, feature: str) -> None:
    demand(location, [feature])
    marked = MarkedTable("user's table", location)

    assert marked.fence([OWN_ID, OTHER_ID]) == {OWN_ID: 2, OTHER_ID: 2}

    assert DeltaTable(location).version() == 2
    assert DeltaTable(location).transaction_version(OWN_ID) == 2
    assert marked.fence([OWN_ID]) == {OWN_ID: 2}
    assert DeltaTable(location).version() == 2, "a fence that is there is found"


def test_a_fence_on_a_table_of_old_writers_with_identity_columns(location: str) -> None:
    commit(location, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 6}})

    assert MarkedTable("user's table", location).fence([OWN_ID]) == {OWN_ID: 2}


def test_times_in_commits_rise_with_a_fence(location: str) -> None:
    demand(location, ["inCommitTimestamp"])
    ahead_ms = 4_102_444_800_000
    commit(location, *times_in_commits(location, ahead_ms))
    marked = MarkedTable("user's table", location).refresh()
    # Another writer comes first, which the fence follows.
    commit(location, {"commitInfo": {"inCommitTimestamp": ahead_ms + 10}})

    marked.commit_marks({OWN_ID: 2})

    first, *others = lines_of(location, DeltaTable(location).version())
    assert first["commitInfo"]["inCommitTimestamp"] == ahead_ms + 11
    assert first["commitInfo"]["tags"] == {"delta.rowTracking.preserved": "true"}
    assert [[*line] for line in others] == [["txn"]]


def test_a_time_that_is_none_is_passed_by_the_next_commit(location: str) -> None:
    demand(location, ["inCommitTimestamp"])
    commit(location, *times_in_commits(location, 100))
    marked = MarkedTable("user's table", location).refresh()
    commit(location, {"commitInfo": {"inCommitTimestamp": "abc"}})

    marked.commit_marks({OWN_ID: 2})

    first, *_ = lines_of(location, DeltaTable(location).version())
    assert first["commitInfo"]["inCommitTimestamp"] == 101
    commit(location, {"commitInfo": {"inCommitTimestamp": "abc"}})
    with pytest.raises(StorageError, match="commit 5 names no time"):
        MarkedTable("user's table", location).fence([OTHER_ID])


def test_a_commit_without_its_time_is_named_and_not_followed(location: str) -> None:
    demand(location, ["inCommitTimestamp"])
    _, metadata = times_in_commits(location, 1)
    commit(location, metadata)

    with pytest.raises(StorageError, match="commit 2 names no time"):
        MarkedTable("user's table", location).fence([OWN_ID])


def test_a_marker_that_comes_first_is_found_by_the_fence(location: str) -> None:
    demand(location, ["rowTracking"])
    marked = MarkedTable("user's table", location).refresh()
    commit(location, {"txn": {"appId": OWN_ID, "version": 1, "lastUpdated": 1}})

    with pytest.raises(CommitRefusedError, match=OWN_ID):
        marked.commit_marks({OWN_ID: 2, OTHER_ID: 2})
    assert marked.fence([OWN_ID, OTHER_ID]) == {OWN_ID: 1, OTHER_ID: 2}


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have left a session, which could put the fence."""
    for module in ("txmq.listeners.delta", "txmq.user_data.local_transaction"):
        monkeypatch.setattr(f"{module}.active_session", lambda: None)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("feature", BEYOND_MARKS)
def test_a_fence_that_a_feature_forbids_is_refused_by_name(location: str, feature: str) -> None:
    demand(location, [feature])
    marked, version = MarkedTable("user's table", location), newest(location)

    with pytest.raises(UnsupportedTableError, match=f"user's table.*{feature}") as caught:
        marked.fence([OWN_ID])
    with pytest.raises(UnsupportedTableError, match="QueryListener"):
        LocalTransaction(OWN_ID).delta_options(location)

    assert caught.value.features == (feature,)
    assert not caught.value.retryable
    assert newest(location) == version


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("name", ["main.sales.orders", "sales.orders", "`main`.sales.`orders`"])
def test_a_name_in_a_catalog_is_refused_with_the_way_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedPlaceError, match=r"spark=.*DESCRIBE DETAIL"):
        DeltaListener(name).is_marked(OWN_ID)
    with pytest.raises(UnsupportedPlaceError, match="give its location"):
        LocalTransaction(OWN_ID).delta_options(name)

    write_deltalake(f"./{name}", pa.table({"number": [1]}))
    assert MarkedTable("orders", name).fence([OWN_ID]) == {OWN_ID: 2}


@pytest.mark.parametrize("feature", ["columnMapping", "deletionVectors", "v2Checkpoint"])
def test_a_fence_needs_no_rows_and_so_none_of_their_features(location: str, feature: str) -> None:
    demand(location, [feature])

    assert MarkedTable("user's table", location).fence([OWN_ID]) == {OWN_ID: 2}


@pytest.mark.parametrize("feature", USUAL)
def test_a_local_transaction_by_delta_rs_hears_of_it_before_it_begins(
    location: str, feature: str
) -> None:
    demand(location, [feature])
    local = LocalTransaction(OWN_ID)

    assert local.delta_options(location)["txnAppId"] == OWN_ID
    by_spark = pytest.raises(UnsupportedTableError, match=f"{feature}.*by Spark")
    with by_spark, local.delta_rs(location):
        pytest.fail("the block was entered")


def test_the_options_for_a_table_that_is_not_there_yet_are_given(tmp_path: Path) -> None:
    assert LocalTransaction(OWN_ID).delta_options(str(tmp_path / "new"))["txnAppId"] == OWN_ID


@pytest.mark.parametrize("feature", USUAL)
def test_an_inbox_refuses_before_the_effect_is_computed(location: str, feature: str) -> None:
    demand(location, [feature])
    inbox = DeltaInbox("billing", location)

    with pytest.raises(UnsupportedTableError, match=feature):
        inbox.apply([], lambda _: pytest.fail("the effect was computed"))


@pytest.mark.parametrize("feature", ["clustering", "rowTracking"])
def test_marks_of_such_a_table_can_be_read(location: str, feature: str) -> None:
    properties = CommitProperties(app_transactions=[Transaction(OWN_ID, 1, 1)])
    write_deltalake(location, pa.table({"number": [2]}), mode="append",
                    commit_properties=properties)  # fmt: skip
    demand(location, [feature])

    assert MarkedTable("user's table", location).markers([OWN_ID]) == {OWN_ID: 1}


@pytest.mark.parametrize("feature", [*USUAL, "columnMapping", "deletionVectors"])
def test_a_table_of_txmq_with_such_a_feature_is_not_opened(tmp_path: Path, feature: str) -> None:
    store = fresh_store(tmp_path / "store")
    table = store.tables.table_at("half")
    demand(table.location, [feature])

    with pytest.raises(UnsupportedTableError, match=f"half: .*{feature}"):
        table.refresh()


def test_an_open_handle_notices_a_feature_that_comes_later(tmp_path: Path) -> None:
    store = fresh_store(tmp_path / "store")
    half = store.tables.table_at("half").refresh()
    demand(half.location, ["rowTracking"])

    with pytest.raises(UnsupportedTableError, match="rowTracking"):
        half.refresh()


def test_a_feature_that_nobody_listed_is_told_by_delta_rs_s_own_text(location: str) -> None:
    table = PinnedTable("orders", location)
    demand(location, ["rowTracking", "inventedLater"])

    with pytest.raises(UnsupportedTableError, match="inventedLater, rowTracking"):
        table.append_rows(pa.table({"number": [1]}), {"app": 1})
