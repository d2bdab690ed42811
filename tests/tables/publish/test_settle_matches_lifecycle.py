"""Settle decides plain ends by columns; here it is held against the fold, claim by claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import GROUP, halves, messages, transaction_id
from txmq.delta.reading import Shrink
from txmq.delta.table import Table
from txmq.ground.clock import timestamp
from txmq.message.lifecycle import (
    DELIVERY_STATES,
    Claim,
    ClaimKind,
    ClaimSource,
    Halves,
    TransactionState,
    fold,
    fold_deliveries,
)
from txmq.message.message import Message
from txmq.publish.settle import Waiting, settle
from txmq.store.half import HalfLog, HalfOrigin, HalfTransaction, half_table
from txmq.store.op import CLAIM_COLUMNS, SIGNATURE_BYTES
from txmq.store.schemas import HALF, MICROSECONDS_UTC, OP, SETTLED, SIGNATURE
from txmq.store.set_aside import after_their_facts
from txmq.store.settled import SettledLog, last_facts
from txmq.testing import START_MS

OTHERS = "others"
COMMITS = 6
# Plain ends are what the columns decide, so they must be common here.
KINDS = [
    *ClaimKind, *4 * [ClaimKind.COMMIT], *2 * [ClaimKind.ROLLBACK],
    *3 * [ClaimKind.DELIVER], *2 * [ClaimKind.RECALL],
]  # fmt: skip


class MemoryTable:
    """The ways in which settle reads half and settled, over rows in memory."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.search = rows, self

    def rows_of(
        self,
        column: str,
        values: pa.Array,
        columns: Sequence[str],
        reduce: Callable[[pa.Table], pa.Table] | Shrink = lambda rows: rows,
    ) -> pa.Table:
        wanted = pc.is_in(self.rows[column], value_set=values)
        reduce = reduce.keep if isinstance(reduce, Shrink) else reduce
        return reduce(self.rows.filter(wanted).select(list(columns)))

    def readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str], *reduce: Any
    ) -> tuple[pa.Table, tuple[()]]:
        return self.rows_of(column, values, columns, *reduce), ()


def half_log(rows: Sequence[pa.Table]) -> HalfLog:
    table = pa.concat_tables(rows) if rows else HALF.columns.empty_table()
    return HalfLog(cast("Table", MemoryTable(table)))


def settled_log(rows: pa.Table) -> SettledLog:
    return SettledLog(cast("Table", MemoryTable(rows)), "op-id")


# --- what may lie in the half log -------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Rows of one transaction, and what they come to; no rows: None."""

    name: str
    rows: tuple[pa.Table, ...]
    expected: Halves | None
    delayed: frozenset[int] = frozenset()


def without_sequence(rows: pa.Table, sequence: int) -> pa.Table:
    return rows.filter(pc.not_equal(rows["sequence"], sequence))


def with_column(rows: pa.Table, name: str, value: Any) -> pa.Table:
    place = rows.schema.get_field_index(name)
    field = rows.schema.field(name)
    return rows.set_column(place, field, pa.array([value] * rows.num_rows, field.type))


def replace_delay(message: Message, number: int) -> Message:
    """By a pause, not at all, by a time."""
    delays: list[dict[str, Any]] = [
        {"delay_s": 5}, {}, {"deliver_timestamp": timestamp(START_MS + 60_000)}
    ]  # fmt: skip
    return Message(message.topic, message.body, **delays[number])


@cache
def half_cases(number: int) -> list[Case]:
    one, three = halves(number), halves(number, messages(3))
    again = with_column(
        with_column(three, "queue_id", 3), "born_timestamp", timestamp(START_MS + 9)
    )
    origin = HalfOrigin(transaction_id(number), GROUP, 0, 6.0, START_MS)
    head = half_table([HalfTransaction(origin, (), (), 3)])
    payload = without_sequence(halves(number, messages(4)), 0)
    late = [replace_delay(message, n) for n, message in enumerate(messages(3))]
    delayed, some = halves(number, late), frozenset({0, 2})
    return [
        Case("one", (one,), Halves(GROUP, 1, 1)),
        Case("three", (three,), Halves(GROUP, 3, 3)),
        Case("written twice", (three, again), Halves(GROUP, 3, 3)),
        Case("one row twice", (three, three.slice(1, 1)), Halves(GROUP, 3, 3)),
        Case("one lost, another twice", (without_sequence(three, 1), three.slice(2, 1)),
             Halves(GROUP, 3, 2)),
        Case("one lost", (without_sequence(three, 1),), Halves(GROUP, 3, 2)),
        Case("head lost", (without_sequence(three, 0),), Halves(GROUP, None, 2)),
        Case("too many", (halves(number, messages(3), message_count=2),), Halves(GROUP, 2, 3)),
        Case("conflict", (one, with_column(one, "body", b"other")), Halves(GROUP, 1, 1, True)),  # noqa: FBT003
        Case("of a dataframe", (payload, head), Halves(GROUP, 3, 3)),
        Case("head alone", (head,), Halves(GROUP, 3, 0)),
        Case("of two groups", (three, halves(number, producer_group=OTHERS)),
             Halves(GROUP, 3, 3, True)),  # noqa: FBT003
        Case("each row of another group", (without_sequence(three, 1),
             with_column(three.slice(1, 1), "producer_group", OTHERS)),
             Halves(GROUP, 3, 3, True)),  # noqa: FBT003
        Case("delayed", (delayed,), Halves(GROUP, 3, 3), some),
        Case("delayed, written twice", (delayed, delayed), Halves(GROUP, 3, 3), some),
        Case("delayed, one lost", (without_sequence(delayed, 1),), Halves(GROUP, 3, 2), some),
        Case("nothing", (), None),
    ]  # fmt: skip


# --- histories ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """Claims in order about a few transactions, and what the half log has of these."""

    claims: tuple[Claim, ...]
    cases: tuple[Case, ...]

    def expected(self) -> list[tuple[Any, ...]]:
        facts = []
        for number, case in enumerate(self.cases):
            own = [claim for claim in self.claims if claim.transaction_id == transaction_id(number)]
            if case.expected is not None:
                facts += all_facts(own, case)
        rows = [
            (
                fact.claim.op_version, fact.claim.ordinal, fact.claim.transaction_id,
                fact.state.value, life, fact.reason, fact.claim.source.value,
                fact.claim.producer_group, sequences,
            )
            for fact, life, sequences in facts
        ]  # fmt: skip
        return sorted(rows, key=lambda row: row[:2])


def all_facts(claims: Sequence[Claim], case: Case) -> list[tuple[Any, int, Any]]:
    """Facts about the transaction, then about its delayed messages once it is committed."""
    assert case.expected is not None
    _, ends = fold(claims, case.expected)
    found: list[tuple[Any, int, Any]] = [(fact, fact.life, None) for fact in ends]
    for end in ends:
        if end.state is TransactionState.COMMITTED:
            _, deliveries = fold_deliveries(claims, end.claim, case.delayed, {})
            found += [
                (replace(end, claim=one.claim, state=one.state, reason=one.claim.reason),
                 end.life, list(one.sequences))
                for one in deliveries
            ]  # fmt: skip
    return found


def half_case(number: int) -> st.SearchStrategy[Case]:
    whole, *others = half_cases(number)
    return st.just(whole) | st.sampled_from(others)


@st.composite
def delivery_histories(draw: st.DrawFn) -> History:
    """Committed transactions with delayed messages, that many claims contend for."""
    count = draw(st.integers(1, 2))
    cases = tuple(case for n in range(count) for case in half_cases(n) if case.name == "delayed")
    kinds = st.sampled_from([ClaimKind.DELIVER, ClaimKind.RECALL])
    commits = draw(
        st.lists(st.lists(claims(count, kinds), max_size=4), min_size=1, max_size=COMMITS)
    )
    for number in range(count):
        end = Claim(transaction_id(number), ClaimKind.COMMIT, GROUP, 0, 0)
        commit = draw(st.sampled_from(commits))
        commit.insert(draw(st.integers(0, len(commit))), end)
    return History(placed(commits), cases)


def placed(commits: Sequence[Sequence[Claim]]) -> tuple[Claim, ...]:
    return tuple(
        replace(claim, op_version=version, ordinal=ordinal)
        for version, commit in enumerate(commits)
        for ordinal, claim in enumerate(commit)
    )


def any_histories() -> st.SearchStrategy[History]:
    return plain_histories() | delivery_histories()


@st.composite
def plain_histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 3))
    cases = tuple(draw(half_case(number)) for number in range(count))
    kinds = st.sampled_from(KINDS)
    commits = draw(
        st.lists(st.lists(claims(count, kinds), min_size=1, max_size=3), max_size=COMMITS)
    )
    return History(placed(commits), cases)


@st.composite
def claims(draw: st.DrawFn, transactions: int, kinds: st.SearchStrategy[ClaimKind]) -> Claim:
    kind = draw(kinds)
    is_end = kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
    has_life = not is_end or draw(st.booleans())
    return Claim(
        transaction_id(draw(st.integers(0, transactions - 1))),
        kind,
        draw(st.sampled_from([GROUP, GROUP, OTHERS])),
        op_version=0,
        ordinal=0,
        source=draw(st.sampled_from(list(ClaimSource))),
        life=draw(st.integers(0, 2)) if has_life else None,
        check_times=draw(st.integers(1, 3)) if kind is ClaimKind.UNKNOWN else None,
        sequences=draw(sequences()) if kind in DELIVERY_STATES else None,
        reason=draw(st.sampled_from([None, "because"])),
    )


def sequences() -> st.SearchStrategy[tuple[int, ...] | None]:
    """All, none, and some that are no delayed messages or none at all; in any order, also twice."""
    return st.none() | st.lists(st.integers(0, 4), max_size=4).map(tuple)


def claim_table(claims: Sequence[Claim]) -> pa.Table:
    schema = pa.schema([OP.columns.field(name) for name in CLAIM_COLUMNS])
    rows = [
        {
            "transaction_id": claim.transaction_id,
            "ordinal": claim.ordinal,
            "kind": claim.kind.value,
            "source": claim.source.value,
            "producer_group": claim.producer_group,
            "life": claim.life,
            "check_times": claim.check_times,
            "reason": claim.reason,
            "op_timestamp": timestamp(START_MS + 1000 * claim.op_version + claim.ordinal),
            "sequences": claim.sequences,
        }
        for claim in claims
    ]
    versions = pa.array([claim.op_version for claim in claims], pa.int64())
    return pa.Table.from_pylist(rows, schema).append_column("_commit_version", versions)


def seen(facts: pa.Table) -> list[tuple[Any, ...]]:
    names = ["op_version", "ordinal", "transaction_id", "state", "life", "reason", "source",
             "producer_group", "sequences"]  # fmt: skip
    return [tuple(row[name] for name in names) for row in facts.to_pylist()]


def settled_at_once(history: History) -> pa.Table:
    half = half_log([rows for case in history.cases for rows in case.rows])
    claims = claim_table(history.claims)
    return settle(claims, half, settled_log(SETTLED.columns.empty_table()), START_MS).facts


def settled_in_pieces(history: History, cuts: Sequence[int]) -> pa.Table:
    half = half_log([rows for case in history.cases for rows in case.rows])
    facts = SETTLED.columns.empty_table()
    borders = [0, *sorted(cuts), COMMITS]
    for begin, end in pairwise(borders):
        piece = [c for c in history.claims if begin <= c.op_version < end]
        more = settle(claim_table(piece), half, settled_log(facts), START_MS).facts
        facts = pa.concat_tables([facts, more])
    return facts


# --- the statements -----------------------------------------------------------------------------


@given(any_histories())
def test_settle_equals_the_fold(history: History) -> None:
    assert seen(settled_at_once(history)) == history.expected()


@pytest.mark.parametrize("case", half_cases(0), ids=lambda case: case.name)
@pytest.mark.parametrize("kind", [ClaimKind.COMMIT, ClaimKind.ROLLBACK])
@pytest.mark.parametrize("group", [GROUP, OTHERS])
def test_plain_end_equals_the_fold(case: Case, kind: ClaimKind, group: str) -> None:
    history = History((Claim(transaction_id(0), kind, group, 0, 0),), (case,))

    assert seen(settled_at_once(history)) == history.expected()


@given(any_histories(), st.just(range(COMMITS)) | st.lists(st.integers(0, COMMITS)))
def test_settling_in_pieces_equals_settling_at_once(history: History, cuts: Sequence[int]) -> None:
    pieces = settled_in_pieces(history, cuts)

    assert seen(pieces) == seen(settled_at_once(history))
    assert pieces.equals(settled_at_once(history))


@given(any_histories())
def test_every_claim_is_counted_as_fact_or_as_without_effect(history: History) -> None:
    half = half_log([rows for case in history.cases for rows in case.rows])
    claims = claim_table(history.claims)

    result = settle(claims, half, settled_log(SETTLED.columns.empty_table()), START_MS)

    assert result.claims == len(history.claims)
    assert result.facts.num_rows + result.without_effect == len(history.claims)


@given(any_histories(), st.randoms(use_true_random=False))
def test_the_order_in_which_rows_are_read_does_not_matter(history: History, random: Any) -> None:
    rows = [rows for case in history.cases for rows in case.rows]
    shuffled = list(history.claims)
    random.shuffle(rows)
    random.shuffle(shuffled)

    nothing = settled_log(SETTLED.columns.empty_table())
    facts = settle(claim_table(shuffled), half_log(rows), nothing, START_MS).facts

    assert facts.equals(settled_at_once(history))


@given(any_histories())
def test_fact_carries_the_time_of_its_own_claim(history: History) -> None:
    for row in settled_at_once(history).to_pylist():
        assert row["op_timestamp"] == timestamp(
            START_MS + 1000 * row["op_version"] + row["ordinal"]
        )
        assert row["settled_timestamp"] == timestamp(START_MS)


def test_facts_have_the_types_of_their_table() -> None:
    history = History(
        (Claim(transaction_id(0), ClaimKind.COMMIT, GROUP, 0, 0),), (half_cases(0)[0],)
    )

    facts = settled_at_once(history)

    assert facts.schema == SETTLED.columns
    assert facts.schema.field("settled_timestamp").type == MICROSECONDS_UTC


# --- claims of keys that are not known ------------------------------------------------------------


def signed(claims: Sequence[Claim]) -> pa.Table:
    rows = claim_table(claims)
    field = OP.columns.field(SIGNATURE)
    return rows.append_column(field, pa.array([b"k" * SIGNATURE_BYTES] * rows.num_rows, field.type))


@given(any_histories(), st.data())
def test_what_waited_for_a_key_is_decided_as_if_it_had_not_waited(
    history: History, data: st.DataObject
) -> None:
    """A publisher without some keys, and then one that has all of them."""
    half = half_log([rows for case in history.cases for rows in case.rows])
    unknown, known = list[Claim](), list[Claim]()
    for claim in history.claims:
        is_unknown = claim.kind is not ClaimKind.UNKNOWN and data.draw(st.booleans())
        (unknown if is_unknown else known).append(claim)

    first = settle(
        signed(known), half, settled_log(SETTLED.columns.empty_table()), START_MS,
        waiting=Waiting(unknown=signed(unknown)),
    )  # fmt: skip
    waited = pa.concat_tables(first.undecided)
    settled = settled_log(first.facts)
    last = last_facts(settled.facts_of(pc.unique(waited["transaction_id"])))
    second = settle(after_their_facts(waited, last), half, settled, START_MS)

    facts = [*seen(first.facts), *seen(second.facts)]
    assert sorted(facts, key=lambda row: row[:2]) == history.expected()
    assert first.problems.keys() == {*waited["transaction_id"].to_pylist()}
