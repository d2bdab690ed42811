"""Tables whose features delta-rs cannot write, usual on other platforms, are refused at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from tests.kit.stores import fresh_store
from txmq.delta.failures import failed_write
from txmq.delta.features import WRITABLE_FEATURES
from txmq.delta.pinned import PinnedTable
from txmq.errors import UnsupportedTableError
from txmq.user_data.delta_inbox import DeltaInbox
from txmq.user_data.delta_marker import MarkedTable
from txmq.user_data.local_transaction import LocalTransaction

OWN_ID = "019b76da-a800-7000-8000-000000000001"
# Features that readers must know as well.
OF_READERS = ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint",
              "vacuumProtocolCheck", "variantType")  # fmt: skip
OF_WRITERS = ("appendOnly", "changeDataFeed", "checkConstraints", "clustering", "domainMetadata",
              "generatedColumns", "icebergCompatV1", "icebergCompatV2", "identityColumns",
              "inCommitTimestamp", "invariants", "rowTracking")  # fmt: skip
USUAL = ("clustering", "inCommitTimestamp", "rowTracking")


def demand(location: str, features: Sequence[str]) -> None:
    """A commit by another program that raises the protocol of the table."""
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [name for name in features if name in OF_READERS],
        "writerFeatures": [*features],
    }
    version = DeltaTable(location).version() + 1
    path = Path(location) / "_delta_log" / f"{version:020d}.json"
    path.write_text(json.dumps({"protocol": protocol}) + "\n")


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


@pytest.mark.parametrize("feature", USUAL)
def test_a_fence_on_such_a_table_is_refused_by_name(location: str, feature: str) -> None:
    demand(location, [feature])

    with pytest.raises(UnsupportedTableError, match=f"user's table.*{feature}") as caught:
        MarkedTable("user's table", location).fence([OWN_ID])

    assert caught.value.features == (feature,)
    assert not caught.value.retryable
    assert DeltaTable(location).version() == 1


@pytest.mark.parametrize("feature", ["columnMapping", "deletionVectors", "v2Checkpoint"])
def test_a_fence_needs_no_rows_and_so_none_of_their_features(location: str, feature: str) -> None:
    demand(location, [feature])

    assert MarkedTable("user's table", location).fence([OWN_ID]) == {OWN_ID: 2}


@pytest.mark.parametrize("feature", USUAL)
def test_a_local_transaction_hears_of_it_before_it_begins(location: str, feature: str) -> None:
    demand(location, [feature])
    local = LocalTransaction(OWN_ID)

    with pytest.raises(UnsupportedTableError, match=feature):
        local.delta_options(location)
    with pytest.raises(UnsupportedTableError, match=feature), local.delta_rs(location):
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
        table.commit_marks({"app": 1})
