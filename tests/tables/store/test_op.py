from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.builders import GROUP, ids, op_row, transaction_id
from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource
from txmq.store.op import OpRow, claims_of_table, op_table
from txmq.store.schemas import OP
from txmq.store.store import Store
from txmq.testing import START_MS

APP = "writer"
FULL = OpRow(
    transaction_id(1), ClaimKind.UNKNOWN, GROUP, ClaimSource.CHECK, START_MS,
    life=2, check_times=3, next_check_timestamp_ms=START_MS + 1500, reason="TIMEOUT",
)  # fmt: skip


def claims(store: Store, after: int = 0) -> list[Claim]:
    op = store.tables.op_log()
    return sorted(
        claims_of_table(op.between(after, op.table.version)),
        key=lambda claim: (claim.op_version, claim.ordinal),
    )


def appended_by_a_stranger(store: Store, **values: Any) -> None:
    """A row that txmq itself would not write."""
    row = {**op_table([op_row(1)], 0).to_pylist()[0], **values}
    table = pa.Table.from_pylist([row], schema=OP.columns)
    store.tables.op_log().table.writer.append(table, app_id=f"stranger-{values}", number=1)


def test_claim_comes_back_with_its_place_in_the_order(store: Store) -> None:
    op = store.tables.op_log()
    op.append([op_row(1), FULL], 3, app_id=APP, number=1)
    op.append([op_row(2, ClaimKind.ROLLBACK)], 3, app_id=APP, number=2)

    found = claims(store)

    assert [(c.op_version, c.ordinal, c.kind) for c in found] == [
        (1, 0, ClaimKind.COMMIT), (1, 1, ClaimKind.UNKNOWN), (2, 0, ClaimKind.ROLLBACK)
    ]  # fmt: skip


def test_every_field_of_a_claim_survives(store: Store) -> None:
    store.tables.op_log().append([FULL], 0, app_id=APP, number=1)

    assert claims(store) == [
        Claim(
            FULL.transaction_id, FULL.kind, GROUP, 1, 0, ClaimSource.CHECK,
            life=2, check_times=3, next_check_timestamp_ms=START_MS + 1500, reason="TIMEOUT",
        )
    ]  # fmt: skip


def test_claims_after_a_version_up_to_another(store: Store) -> None:
    op = store.tables.op_log()
    for number in range(1, 5):
        op.append([op_row(number)], 0, app_id=APP, number=number)

    found = claims_of_table(op.between(1, 3))

    assert sorted(claim.op_version for claim in found) == [2, 3]
    assert claims_of_table(op.between(4, 4)) == []


def test_claims_about_some_transactions_are_theirs_alone(store: Store) -> None:
    op = store.tables.op_log()
    op.append([op_row(1), op_row(2), op_row(1, ClaimKind.ROLLBACK)], 0, app_id=APP, number=1)

    found = claims_of_table(op.judged_between(0, 1, [transaction_id(1), transaction_id(9)]).counted)

    assert {claim.transaction_id for claim in found} == {transaction_id(1)}
    assert [claim.kind for claim in found] == [ClaimKind.COMMIT, ClaimKind.ROLLBACK]


def test_rows_about_a_transaction_are_found_in_every_queue(store: Store) -> None:
    op = store.tables.op_log()
    for queue in range(3):
        op.append([op_row(1), op_row(queue + 5)], queue, app_id=APP, number=queue + 1)

    rows = op.rows_about(ids(transaction_id(1)))

    assert rows.num_rows == 3
    assert set(rows["transaction_id"].to_pylist()) == {transaction_id(1)}


def test_rows_of_one_commit_share_a_day_and_so_a_file() -> None:
    rows = op_table([op_row(1, op_timestamp_ms=START_MS - 1), op_row(2)], 0)

    assert set(rows["store_date"].to_pylist()) == {date(2025, 12, 31)}
    assert rows["op_timestamp"][1].as_py() == datetime(2026, 1, 1, tzinfo=UTC)


def test_table_of_no_rows_has_the_columns_of_the_log() -> None:
    assert op_table([], 0).schema == OP.columns


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "PREPARE_TWICE"}, {"kind": None}, {"kind": "commit"}, {"source": "nobody"},
        {"source": None}, {"transaction_id": None}, {"ordinal": None}, {"producer_group": None},
    ],
    ids=str,
)  # fmt: skip
def test_row_of_a_stranger_does_not_stop_the_log(store: Store, values: dict[str, object]) -> None:
    appended_by_a_stranger(store, **values)
    store.tables.op_log().append([op_row(2)], 0, app_id=APP, number=1)

    assert [claim.transaction_id for claim in claims(store)] == [transaction_id(2)]


def test_commit_without_a_life_keeps_none(store: Store) -> None:
    store.tables.op_log().append([op_row(1)], 0, app_id=APP, number=1)

    assert (claims(store)[0].life, claims(store)[0].check_times) == (None, None)
