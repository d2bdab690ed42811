"""What operators do by hand: shown first, signed, written once, and told what became of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.builders import GROUP, halves, messages, op_row, table_versions, transaction_id
from tests.kit.commits import after_commit
from tests.kit.reading import log_rows, publish, topic_rows
from txmq.errors import (
    AlreadyResolvedError,
    ClaimWithoutEffectError,
    IncompleteTransactionError,
    InvalidMessageError,
    InvalidReasonError,
    StorageError,
    TransactionNotFoundError,
    TxmqError,
)
from txmq.message import reasons
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState
from txmq.message.reasons import MAX_REASON_CHARACTERS
from txmq.ops.admin.operator import Operator, OperatorResult
from txmq.store.schemas import HALF
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock, before_commit, failing_commits
from txmq.verify import verify

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
KIND, STATE = ClaimKind, TransactionState
REASON = "asked the shop"

# Halves become due by the times of files, which are those of the machine.
LONG_DUE_MS = START_MS + 100 * 365 * 24 * 3_600_000

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _known_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "_os_user", lambda: "ada")


@pytest.fixture
def operator(store: Store, clock: ManualClock) -> Operator:
    return Operator(store, clock=clock)


def prepare(store: Store, *tables: pa.Table) -> None:
    rows = pa.concat_tables(tables)
    store.tables.half_log().table.writer.append(rows, app_id="test", number=next(_numbers))


def claim(store: Store, number: int, kind: ClaimKind, **fields: Any) -> None:
    row = op_row(number, kind, **fields)
    store.tables.op_log().append([row], 0, app_id="test", number=next(_numbers))


def discard(store: Store, number: int, life: int = 0, **fields: Any) -> None:
    """All questions that are allowed and the DISCARD, in one commit."""
    fields = {"source": ClaimSource.CHECK, "life": life, **fields}
    asked = {**fields, "op_timestamp_ms": LONG_DUE_MS}
    times = range(1, store.config.transaction_check_max + 1)
    rows = [op_row(number, KIND.UNKNOWN, check_times=each, **asked) for each in times]
    rows.append(op_row(number, KIND.DISCARD, **{"reason": "CHECK_MAX", **fields}))
    store.tables.op_log().append(rows, 0, app_id="test", number=next(_numbers))


def head_only(number: int) -> pa.Table:
    """The first of two messages; the second one is lost."""
    return halves(number, messages(1), message_count=2)


def lost_message(number: int) -> pa.Table:
    return halves(number, messages(2)).slice(1)


def written(store: Store) -> list[dict[str, Any]]:
    rows = log_rows(store, "op")
    return [row for row in rows if row["source"] == ClaimSource.OPERATOR.value]


# --- ends ---------------------------------------------------------------------------------------


def test_commit_makes_the_messages_visible(store: Store, operator: Operator) -> None:
    prepare(store, halves(1, messages(2)))

    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)
    publish(store)

    assert (result.state_before, result.state_after) == (STATE.PENDING, STATE.COMMITTED)
    assert result.is_written
    assert [row["body"] for row in topic_rows(store)] == [b"body-0", b"body-1"]
    assert verify(store.location).is_clean


def test_rollback_shows_nothing(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))

    result = operator.resolve(transaction_id(1), ROLLBACK, reason=REASON, apply=True)
    publish(store)

    assert result.state_after is STATE.ROLLED_BACK
    assert topic_rows(store) == []
    assert verify(store.location).is_clean


def test_row_is_signed_and_in_the_name_of_the_half_s_group(
    store: Store, operator: Operator, clock: ManualClock
) -> None:
    prepare(store, halves(1, producer_group="billing"))
    clock.advance(5)

    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    (row,) = written(store)
    assert (row["kind"], row["producer_group"], row["life"]) == ("COMMIT", "billing", None)
    assert row["reason"] == result.reason == "by ada: asked the shop"
    assert row["op_timestamp"].timestamp() * 1000 == START_MS + 5_000
    assert result.op_version == store.tables.op_log().table.version


def test_reason_is_kept_with_the_fact(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))

    operator.resolve(transaction_id(1), ROLLBACK, reason=REASON, apply=True)
    publish(store)

    (fact,) = log_rows(store, "settled")
    assert (fact["source"], fact["reason"]) == ("operator", "by ada: asked the shop")


def test_incomplete_transaction_can_be_rolled_back(store: Store, operator: Operator) -> None:
    prepare(store, head_only(1))
    claim(store, 1, KIND.COMMIT)
    publish(store)

    result = operator.resolve(transaction_id(1), ROLLBACK, reason=REASON, apply=True)
    publish(store)

    assert (result.state_before, result.state_after) == (STATE.INCOMPLETE, STATE.ROLLED_BACK)
    assert verify(store.location).is_clean


@pytest.mark.parametrize("settled", [True, False])
def test_same_end_again_is_no_error_and_writes_nothing(
    store: Store, operator: Operator, *, settled: bool
) -> None:
    prepare(store, halves(1))
    claim(store, 1, KIND.COMMIT)
    if settled:
        publish(store)
    before = table_versions(store)

    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    assert not result.is_needed
    assert not result.is_written
    assert (result.state_after, result.source) == (STATE.COMMITTED, "producer")
    assert table_versions(store) == before


def test_end_fits_a_resumed_life_too(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    discard(store, 1)
    operator.resume(transaction_id(1), reason=REASON, apply=True)

    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)
    publish(store)

    assert (result.state_after, result.life) == (STATE.COMMITTED, 1)
    assert [row["life"] for row in topic_rows(store)] == [1]
    assert verify(store.location).is_clean


# --- resume -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False])
def test_discarded_transaction_is_open_again_in_its_next_life(
    store: Store, operator: Operator, *, settled: bool
) -> None:
    prepare(store, halves(1))
    claim(store, 1, KIND.UNKNOWN, life=0, check_times=15, source=ClaimSource.CHECK)
    discard(store, 1)
    if settled:
        publish(store)

    result = operator.resume(transaction_id(1), reason=REASON, apply=True)

    assert (result.state_before, result.state_after) == (STATE.DISCARDED, STATE.PENDING)
    assert [row["life"] for row in written(store)] == [result.life] == [1]
    (found,) = operator.open_transactions()
    assert (found.state, found.life, found.check_times) == (STATE.PENDING, 1, 0)
    assert found.is_due


def test_each_discard_may_be_resumed(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    for life in range(3):
        discard(store, 1, life)
        publish(store)
        assert operator.resume(transaction_id(1), reason=REASON, apply=True).life == life + 1
    publish(store)

    assert verify(store.location).is_clean


def test_incomplete_transaction_is_resumed_after_repair(store: Store, operator: Operator) -> None:
    prepare(store, halves(1, messages(2)).slice(0, 1))
    claim(store, 1, KIND.COMMIT)
    publish(store)
    assert operator.resume(transaction_id(1), reason=REASON).problem == "MISSING"
    prepare(store, lost_message(1))

    resumed = operator.resume(transaction_id(1), reason=REASON, apply=True)
    operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)
    publish(store)

    assert (resumed.state_before, resumed.problem) == (STATE.INCOMPLETE, None)
    assert len(topic_rows(store)) == 2
    assert verify(store.location).is_clean


def test_resumed_transaction_that_ended_meanwhile_is_told(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    discard(store, 1)

    def resume_and_end() -> None:
        claim(store, 1, KIND.RESUME, life=1, source=ClaimSource.OPERATOR)
        claim(store, 1, KIND.COMMIT)

    with before_commit(resume_and_end, table="op"):
        result = operator.resume(transaction_id(1), reason=REASON, apply=True)

    assert (result.life, result.state_after, result.source) == (1, STATE.COMMITTED, "producer")


def test_two_operators_open_one_life(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    discard(store, 1)

    def resume_first() -> None:
        Operator(store).resume(transaction_id(1), reason=REASON, apply=True)

    with before_commit(resume_first, table="op"):
        result = operator.resume(transaction_id(1), reason=REASON, apply=True)
    publish(store)

    assert len(written(store)) == 2
    assert result.life == 1
    assert verify(store.location).is_clean


# --- dry ----------------------------------------------------------------------------------------


def planned_end(operator: Operator) -> OperatorResult:
    return operator.resolve(transaction_id(1), COMMIT, reason=REASON)


def planned_resume(operator: Operator) -> OperatorResult:
    return operator.resume(transaction_id(2), reason=REASON)


@pytest.mark.parametrize("plan", [planned_end, planned_resume])
def test_without_apply_nothing_is_written(
    store: Store, operator: Operator, plan: Callable[[Operator], OperatorResult]
) -> None:
    prepare(store, halves(1), halves(2))
    discard(store, 2)
    before = table_versions(store)

    result = plan(operator)

    assert table_versions(store) == before
    assert result.is_needed
    assert not result.is_written


def test_plan_says_what_would_follow(store: Store, operator: Operator) -> None:
    sent = [*messages(2), *messages(1, topic="stock")]
    prepare(store, halves(1, sent))
    # A retried append wrote the same rows once more.
    prepare(store, halves(1, sent, queue_id=3))

    plan = operator.resolve(transaction_id(1), COMMIT, reason=REASON)
    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    assert plan.messages == {"order-paid": 2, "stock": 1}
    assert (plan.kind, plan.producer_group) == (KIND.COMMIT, GROUP)
    assert (plan.state_before, plan.state_after) == (result.state_before, result.state_after)
    assert plan.reason == result.reason


def test_result_is_json_without_a_body(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))

    text = json.dumps(operator.resolve(transaction_id(1), COMMIT, reason=REASON).to_dict())

    assert json.loads(text)["state_after"] == "COMMITTED"
    assert json.loads(text)["is_written"] is False
    assert "body" not in text


# --- refusals -----------------------------------------------------------------------------------


def resolve_unknown(operator: Operator) -> None:
    operator.resolve(transaction_id(99), COMMIT, reason=REASON, apply=True)


def resolve_no_id(operator: Operator) -> None:
    operator.resolve("' OR '1'='1", COMMIT, reason=REASON, apply=True)


def resume_unknown(operator: Operator) -> None:
    operator.resume(transaction_id(99), reason=REASON, apply=True)


def commit_rolled_back(operator: Operator) -> None:
    operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)


def resume_rolled_back(operator: Operator) -> None:
    operator.resume(transaction_id(1), reason=REASON, apply=True)


def rollback_expired(operator: Operator) -> None:
    operator.resolve(transaction_id(6), ROLLBACK, reason=REASON, apply=True)


def commit_discarded(operator: Operator) -> None:
    operator.resolve(transaction_id(2), COMMIT, reason=REASON, apply=True)


def rollback_discarded(operator: Operator) -> None:
    operator.resolve(transaction_id(2), ROLLBACK, reason=REASON, apply=True)


def resume_open(operator: Operator) -> None:
    operator.resume(transaction_id(3), reason=REASON, apply=True)


def commit_missing(operator: Operator) -> None:
    operator.resolve(transaction_id(4), COMMIT, reason=REASON, apply=True)


def commit_incomplete(operator: Operator) -> None:
    operator.resolve(transaction_id(5), COMMIT, reason=REASON, apply=True)


def end_as_unknown(operator: Operator) -> None:
    operator.resolve(transaction_id(3), LocalTransactionState.UNKNOWN, reason=REASON, apply=True)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (resolve_unknown, TransactionNotFoundError, "has no half message"),
        (resolve_no_id, TransactionNotFoundError, "has no half message"),
        (resume_unknown, TransactionNotFoundError, "has no half message"),
        (commit_rolled_back, AlreadyResolvedError, "already ROLLED_BACK"),
        (resume_rolled_back, AlreadyResolvedError, "already ROLLED_BACK"),
        (rollback_expired, AlreadyResolvedError, "already EXPIRED"),
        (commit_discarded, ClaimWithoutEffectError, "is DISCARDED.*resume it first"),
        (rollback_discarded, ClaimWithoutEffectError, "is DISCARDED.*resume it first"),
        (resume_open, ClaimWithoutEffectError, "is PENDING.*only a DISCARDED or INCOMPLETE"),
        (commit_missing, IncompleteTransactionError, "1 of 2 messages"),
        (commit_incomplete, IncompleteTransactionError, "1 of 2 messages"),
        (end_as_unknown, InvalidMessageError, "COMMIT or ROLLBACK"),
    ],
)
def test_claim_that_does_not_fit_is_refused_before_anything_is_written(  # noqa: PLR0913
    store: Store,
    operator: Operator,
    call: Callable[[Operator], None],
    error: type[TxmqError],
    said: str,
    *,
    settled: bool,
) -> None:
    prepare(store, *map(halves, (1, 2, 3, 6)), head_only(4), head_only(5))
    claim(store, 1, KIND.ROLLBACK)
    discard(store, 2)
    claim(store, 5, KIND.COMMIT)
    claim(store, 6, KIND.EXPIRE, life=0, source=ClaimSource.MAINTENANCE)
    if settled:
        publish(store)
    before = table_versions(store)

    with pytest.raises(error, match=said):
        call(operator)

    assert table_versions(store) == before


def test_repaired_incomplete_transaction_is_resumed_before_it_is_committed(
    store: Store, operator: Operator
) -> None:
    prepare(store, halves(1, messages(2)).slice(0, 1))
    claim(store, 1, KIND.COMMIT)
    publish(store)
    prepare(store, lost_message(1))

    with pytest.raises(ClaimWithoutEffectError, match=r"INCOMPLETE.*resume it first"):
        operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)


def test_messages_that_contradict_each_other_are_not_committed(
    store: Store, operator: Operator
) -> None:
    prepare(store, halves(1, messages(1)))
    prepare(store, halves(1, messages(1, topic="stock")))

    with pytest.raises(IncompleteTransactionError):
        operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)


def test_claim_of_a_stranger_does_not_end_it(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    claim(store, 1, KIND.ROLLBACK, producer_group="strangers")

    result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    assert result.state_after is STATE.COMMITTED


# --- others at the same time --------------------------------------------------------------------


def test_other_end_that_was_first_is_told(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    rival = op_row(1, KIND.ROLLBACK, source=ClaimSource.CHECK, op_timestamp_ms=LONG_DUE_MS)

    def end_first() -> None:
        store.tables.op_log().append([rival], 0, app_id="rival", number=1)

    with (
        before_commit(end_first, table="op"),
        pytest.raises(AlreadyResolvedError, match=r"ROLLED_BACK \(ended by check\)"),
    ):
        operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)
    publish(store)

    assert len(written(store)) == 1
    assert topic_rows(store) == []
    assert verify(store.location).is_clean


def test_version_is_that_of_the_claim_where_others_commit_right_after_it(
    store: Store, operator: Operator
) -> None:
    prepare(store, halves(1))

    def append_others() -> None:
        for number in (1, 2):
            rows = [op_row(6 + number)]
            store.tables.op_log().append(rows, 0, app_id="rival", number=number)

    with after_commit(append_others):
        result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    (row,) = store.tables.op_log().between(0, 1).to_pylist()
    assert (row["transaction_id"], row["source"]) == (transaction_id(1), "operator")
    assert (result.op_version, store.tables.op_log().table.version) == (1, 3)


def test_discard_that_was_first_is_told(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))

    with (
        before_commit(lambda: discard(store, 1), table="op"),
        pytest.raises(ClaimWithoutEffectError, match="resume it first"),
    ):
        operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)


def test_same_end_by_another_is_fine(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))

    with before_commit(lambda: claim(store, 1, KIND.COMMIT, source=ClaimSource.CHECK), table="op"):
        result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)
    publish(store)

    assert (result.state_after, result.source) == (STATE.COMMITTED, "check")
    assert len(topic_rows(store)) == 1


@pytest.mark.parametrize("after_commit", [True, False])
def test_row_is_there_once_whatever_answer_was_lost(
    store: Store, operator: Operator, *, after_commit: bool
) -> None:
    prepare(store, halves(1))

    with failing_commits(1, after_commit=after_commit, table="op"):
        result = operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    assert result.is_written
    assert len(written(store)) == 1


def test_row_that_cannot_be_written_changes_nothing(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    before = table_versions(store)

    with (
        failing_commits(1, error=OSError("broken disk"), table="op"),
        pytest.raises(StorageError, match="cannot be written"),
    ):
        operator.resolve(transaction_id(1), COMMIT, reason=REASON, apply=True)

    assert table_versions(store) == before


# --- reasons ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason",
    [
        "", "   ", None, 42, b"bytes", "x" * (MAX_REASON_CHARACTERS + 1), "two\nlines",
        "a\x1b[31mred", "nul\x00", "tab\there", "c1\x9bcontrol", "line\u2028separator",
        "\ud800 lone",
    ],
)  # fmt: skip
@pytest.mark.parametrize("apply", [True, False])
def test_reason_that_cannot_be_kept_is_refused(
    store: Store, operator: Operator, reason: Any, *, apply: bool
) -> None:
    prepare(store, halves(1))
    before = table_versions(store)

    with pytest.raises(InvalidReasonError):
        operator.resolve(transaction_id(1), COMMIT, reason=reason, apply=apply)

    assert table_versions(store) == before


@pytest.mark.parametrize("reason", ["x" * MAX_REASON_CHARACTERS, "vérifié par le dépôt ✓"])
def test_reason_is_kept_as_it_is(store: Store, operator: Operator, reason: str) -> None:
    prepare(store, halves(1))

    operator.resolve(transaction_id(1), COMMIT, reason=reason, apply=True)

    assert [row["reason"] for row in written(store)] == [f"by ada: {reason}"]


def test_user_is_the_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")

    assert "somebody-else" not in reasons.signed_reason("x")


def test_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("os.getuid", lambda: 1_234_567)

    assert reasons.signed_reason("x") == "by uid 1234567: x"


# --- lists --------------------------------------------------------------------------------------


def test_open_transactions_are_oldest_first(store: Store, operator: Operator) -> None:
    prepare(store, *map(halves, (3, 1, 2, 4)))
    claim(store, 4, KIND.COMMIT)
    discard(store, 2)

    found = operator.open_transactions()

    assert [(one.transaction_id, one.state) for one in found] == [
        (transaction_id(1), STATE.PENDING),
        (transaction_id(2), STATE.DISCARDED),
        (transaction_id(3), STATE.PENDING),
    ]


def test_open_transaction_tells_its_age_checks_and_next_check(
    store: Store, operator: Operator, clock: ManualClock
) -> None:
    prepare(store, halves(1))
    next_ms = START_MS + 30_000
    checked = {"life": 0, "check_times": 2, "next_check_timestamp_ms": next_ms}
    claim(store, 1, KIND.UNKNOWN, source=ClaimSource.CHECK, **checked)
    clock.advance(12)

    (found,) = operator.open_transactions()

    assert (found.age_s, found.check_times, found.is_due) == (12.0, 2, False)
    assert found.next_check is not None
    assert found.next_check.timestamp() * 1000 == next_ms
    assert found.to_dict()["next_check"] == "2026-01-01T00:00:30+00:00"


def test_nobody_asks_about_a_discarded_one(store: Store, operator: Operator) -> None:
    prepare(store, halves(1))
    discard(store, 1)

    (found,) = operator.open_transactions()

    assert (found.next_check, found.is_due) == (None, False)


def test_problems_are_named(store: Store, operator: Operator) -> None:
    prepare(store, head_only(1), halves(2), halves(3))
    prepare(store, halves(2, messages(1, topic="stock")))
    claim(store, 2, KIND.COMMIT)
    publish(store)

    assert [one.problem for one in operator.open_transactions()] == ["MISSING", "CONFLICT", None]


def test_lists_may_be_of_one_group(store: Store, operator: Operator) -> None:
    prepare(store, halves(1), halves(2, producer_group="billing"))
    discard(store, 1)
    discard(store, 2, producer_group="billing")

    found = operator.open_transactions(producer_group="billing")
    dropped = operator.discarded(producer_group="billing")

    assert [one.transaction_id for one in found] == [transaction_id(2)]
    assert [one.transaction_id for one in dropped] == [transaction_id(2)]


@pytest.mark.parametrize("settled", [True, False])
def test_discarded_transactions_say_when_why_and_after_how_many_checks(
    store: Store, operator: Operator, *, settled: bool
) -> None:
    prepare(store, halves(1), halves(2), halves(3))
    claim(store, 1, KIND.UNKNOWN, life=0, check_times=15, source=ClaimSource.CHECK)
    discard(store, 1, op_timestamp_ms=START_MS + 1_000)
    # Two services may write it; the second one has no effect.
    discard(store, 1, op_timestamp_ms=START_MS + 9_000)
    discard(store, 2)
    operator.resume(transaction_id(2), reason=REASON, apply=True)
    if settled:
        publish(store)

    (found,) = operator.discarded()

    assert (found.transaction_id, found.producer_group, found.life) == (transaction_id(1), GROUP, 0)
    assert (found.check_times, found.reason) == (15, "CHECK_MAX")
    assert found.to_dict()["discarded_at"] == "2026-01-01T00:00:01+00:00"


def test_store_without_anything_open(operator: Operator) -> None:
    assert operator.open_transactions() == ()
    assert operator.discarded() == ()


def test_half_with_anything_as_its_id_is_listed(store: Store, operator: Operator) -> None:
    place = HALF.columns.get_field_index("transaction_id")
    strange = halves(1).set_column(place, HALF.columns.field(place), pa.array(["no id at all"]))
    prepare(store, strange)

    (found,) = operator.open_transactions()

    assert (found.transaction_id, found.age_s) == ("no id at all", None)
