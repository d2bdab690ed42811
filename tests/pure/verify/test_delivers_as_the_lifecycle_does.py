"""Two readings of DELIVER and RECALL, written apart, come to the same for every list of claims."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource, Halves, TransactionState, fold
from txmq.message.lifecycle import fold_deliveries as expected_deliveries
from txmq.verify.arrays import DIGEST
from txmq.verify.deliveries import deliveries_of
from txmq.verify.fates import SETTLED_STATES, fates_of
from txmq.verify.halves import halves_of
from txmq.verify.tables import CLAIM_COLUMNS, FACT_COLUMNS, HALF_COLUMNS

DELAYED = {0, 2}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = ("transaction_id", "message_id", "producer_group", "real_topic", "kind", "source", "reason",
         "state")  # fmt: skip
MOMENTS = ("born_timestamp", "deliver_timestamp", "settled_timestamp", "op_timestamp",
           "next_check_timestamp")  # fmt: skip
# A claim may name what is not there, or one message twice.
NAMED = st.none() | st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    """Claims of several commits, each in a place of its own."""
    kinds = (ClaimKind.COMMIT, ClaimKind.DELIVER, ClaimKind.DELIVER, ClaimKind.RECALL)
    places = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), unique=True))
    return [
        Claim(
            "transaction",
            kind := draw(st.sampled_from(kinds)),
            draw(st.sampled_from(("group", "group", "group", "strangers"))),
            version,
            ordinal,
            ClaimSource.DELAY,
            sequences=None if kind is ClaimKind.COMMIT else draw(NAMED),
        )
        for version, ordinal in places
    ]


def claim(kind: ClaimKind, version: int, *sequences: int) -> Claim:
    return Claim("transaction", kind, "group", version, 0, sequences=sequences or None)


def found_deliveries(written: list[Claim]) -> set[tuple[int, int, str, int]]:
    """By the checker: op version, ordinal, state and sequence of each."""
    none = table([], HALF_COLUMNS, *DIGEST)
    halves = halves_of(
        table([half(sequence) for sequence in range(3)], HALF_COLUMNS, *DIGEST), none
    )
    rows, settled = table([row(one) for one in written], CLAIM_COLUMNS), table([], FACT_COLUMNS)
    commits = table([], ("transaction_id", "op_version", "life"))
    fates = fates_of(rows, halves, settled, None, 0, commits)  # type: ignore[arg-type]
    facts = deliveries_of(rows, halves, fates, settled, 0).facts.to_pylist()
    return {
        (fact["op_version"], fact["ordinal"], SETTLED_STATES[fact["state"]], fact["sequence"])
        for fact in facts
    }


def table(rows: list[dict[str, Any]], columns: tuple[str, ...], *more: str) -> pa.Table:
    fields = [(name, kind_of(name)) for name in (*columns, *more)]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def kind_of(name: str) -> pa.DataType:
    if name == "sequences":
        return pa.list_(pa.int64())
    if name in TEXTS:
        return pa.string()
    if name in MOMENTS:
        return pa.timestamp("us", "UTC")
    return {"ordinary": pa.bool_(), "check_immunity_time_s": pa.float64()}.get(name, pa.int64())


def half(sequence: int) -> dict[str, Any]:
    return {
        "transaction_id": "transaction", "sequence": sequence, "producer_group": "group",
        "real_topic": "orders", "message_count": None if sequence else 3,
        "delay_s": 60 if sequence in DELAYED else None, "digest_high": 0, "digest_low": 0,
    }  # fmt: skip


def row(one: Claim) -> dict[str, Any]:
    return {
        "transaction_id": one.transaction_id, "ordinal": one.ordinal, "kind": one.kind.value,
        "sequences": one.sequences, "source": one.source.value, "op_timestamp": MOMENT,
        "producer_group": one.producer_group, "_commit_version": one.op_version,
    }  # fmt: skip


@example(written=[claim(ClaimKind.DELIVER, 1), claim(ClaimKind.COMMIT, 2)])
@example(
    written=[
        claim(ClaimKind.COMMIT, 1),
        claim(ClaimKind.RECALL, 2, 2, 1),
        claim(ClaimKind.DELIVER, 3),
        claim(ClaimKind.RECALL, 4),
    ]
)
@given(written=claims())
def test_each_delayed_message_ends_as_the_lifecycle_says(written: list[Claim]) -> None:
    _, ends = fold(written, Halves("group", message_count=3, found=3))
    committed = [fact.claim for fact in ends if fact.state is TransactionState.COMMITTED]
    expected = expected_deliveries(written, committed[0], DELAYED, {})[1] if committed else ()

    assert found_deliveries(written) == {
        (fact.claim.op_version, fact.claim.ordinal, fact.state.value, sequence)
        for fact in expected
        for sequence in fact.sequences
    }
