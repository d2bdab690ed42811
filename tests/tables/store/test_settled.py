from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import claim, ids, transaction_id
from txmq.errors import CommitRefusedError
from txmq.ground.clock import timestamp
from txmq.message.lifecycle import ClaimKind, Fact, Standing, TransactionState
from txmq.store.schemas import SETTLED
from txmq.store.settled import FACT_COLUMNS, NOTHING, SettledLog, last_facts, mark_id, settled_table
from txmq.store.store import Store
from txmq.testing import START_MS

if TYPE_CHECKING:
    import pyarrow as pa

OP_ID = "op-table"
STATE = TransactionState


def fact(
    number: int, version: int, state: STATE = STATE.COMMITTED, *, ordinal: int = 0, life: int = 0
) -> Fact:
    own = claim(ClaimKind.COMMIT, version, ordinal, transaction_id=transaction_id(number))
    return Fact(own, state, life, None)


def facts_table(*facts: Fact) -> pa.Table:
    return settled_table(facts, START_MS, [timestamp(START_MS)] * len(facts))


@pytest.fixture
def log(store: Store) -> SettledLog:
    return store.tables.settled_log(OP_ID)


def test_new_log_has_no_mark(log: SettledLog) -> None:
    assert log.mark == NOTHING
    assert NOTHING < 0


def test_mark_zero_is_not_no_mark(log: SettledLog) -> None:
    log.swap(facts_table(), 0)

    assert log.mark == 0


def test_mark_counts_the_versions_of_one_op_log_only(log: SettledLog, store: Store) -> None:
    log.swap(facts_table(), 41)

    assert store.tables.settled_log(OP_ID).mark == 41
    assert store.tables.settled_log("made-anew").mark == NOTHING
    assert mark_id(OP_ID) != mark_id("made-anew")


def test_facts_and_mark_are_one_commit(log: SettledLog) -> None:
    before = log.table.version

    log.swap(facts_table(fact(1, 3), fact(2, 4)), 4)

    assert log.table.refresh().version == before + 1
    assert log.mark == 4
    assert log.between(NOTHING, 4).num_rows == 2


def test_of_two_settlers_the_second_is_refused(log: SettledLog, store: Store) -> None:
    rival = store.tables.settled_log(OP_ID)
    assert log.mark == rival.mark == NOTHING

    rival.swap(facts_table(fact(1, 1)), 1)

    with pytest.raises(CommitRefusedError):
        log.swap(facts_table(fact(1, 1)), 1)


@pytest.mark.parametrize(
    ("after", "through", "expected"),
    [(NOTHING, 9, [1, 2, 3]), (1, 3, [2, 3]), (1, 2, [2]), (3, 9, []), (2, 1, [])],
)
def test_facts_after_a_version_up_to_another(
    log: SettledLog, after: int, through: int, expected: list[int]
) -> None:
    for version in (1, 2, 3):
        log.table.reopen()
        log.swap(facts_table(fact(version, version)), version)

    found = log.between(after, through)

    assert sorted(found["op_version"].to_pylist()) == expected
    assert found.column_names == list(FACT_COLUMNS)


def test_standing_is_that_of_the_last_fact(log: SettledLog) -> None:
    story = [
        fact(1, 1, STATE.DISCARDED),
        fact(1, 5, STATE.PENDING, life=1),
        fact(1, 9, STATE.COMMITTED, life=1),
        fact(2, 7, STATE.ROLLED_BACK),
    ]
    log.swap(facts_table(*reversed(story)), 9)

    found = log.standings(ids(transaction_id(1), transaction_id(2), transaction_id(3)))

    assert found == {
        transaction_id(1): Standing(STATE.COMMITTED, life=1),
        transaction_id(2): Standing(STATE.ROLLED_BACK),
    }


def test_table_of_no_facts_has_the_columns_of_the_log() -> None:
    assert facts_table().schema == SETTLED.columns
    assert last_facts(facts_table().select(list(FACT_COLUMNS))).num_rows == 0


FACTS = st.lists(
    st.builds(
        lambda number, version, ordinal: fact(number, version, ordinal=ordinal),
        st.integers(1, 4), st.integers(0, 12), st.integers(0, 12),
    ),
    max_size=15,
    unique_by=lambda one: (one.claim.op_version, one.claim.ordinal),
)  # fmt: skip


@given(FACTS)
def test_last_facts_are_those_of_a_naive_loop(facts: list[Fact]) -> None:
    newest: dict[str, tuple[int, int]] = {}
    for one in facts:
        place = (one.claim.op_version, one.claim.ordinal)
        name = one.claim.transaction_id
        newest[name] = max(place, newest.get(name, place))

    found = last_facts(facts_table(*facts)).to_pylist()

    assert {r["transaction_id"]: (r["op_version"], r["ordinal"]) for r in found} == newest
    assert len(found) == len(newest)
