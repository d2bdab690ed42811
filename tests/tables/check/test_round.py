from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.kit.check_world import COMMIT, GROUP, ROLLBACK, UNKNOWN, CheckWorld, wait_until
from tests.kit.reading import delta_rs
from txmq.check.claims import RoundResult
from txmq.check.round import CheckLease, CheckRound
from txmq.check.standing import DueRow, due_table
from txmq.errors import StoreFullError
from txmq.listeners.threads import HUNG_PER_THREAD
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.ops.admin.operator import Operator
from txmq.testing import failing_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from txmq.listeners.protocol import HalfMessage

SECRET = "secret-0"  # noqa: S105 - the body of every half here


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


@pytest.fixture
def checks(world: CheckWorld) -> Iterator[Callable[..., CheckRound]]:
    made: list[CheckRound] = []

    def make(**listeners: Any) -> CheckRound:
        made.append(CheckRound(world.store, listeners=listeners, clock=world.clock))
        return made[-1]

    yield make
    for check in made:
        check.close()


def dues(world: CheckWorld, ids: Sequence[str], **fields: Any) -> list[DueRow]:
    return [DueRow(key, GROUP, world.clock.now_ms(), **fields) for key in ids]


def run(world: CheckWorld, check: CheckRound, rows: Sequence[DueRow]) -> RoundResult:
    done = check.run(due_table(rows), clock_ms=world.clock.now_ms(), source=ClaimSource.CHECK)
    assert done is not None
    return done


def log_length(world: CheckWorld) -> tuple[int, int, int]:
    store = world.store
    lease = store.tables.register("check_lease").table
    return store.tables.half_log().table.version, store.tables.op_log().table.version, lease.version


@pytest.mark.parametrize(
    ("answer", "kind"), [(COMMIT, ClaimKind.COMMIT), (ROLLBACK, ClaimKind.ROLLBACK)]
)
def test_end_that_a_listener_names_becomes_a_claim(
    world: CheckWorld, checks: Callable[..., CheckRound], answer: Any, kind: ClaimKind
) -> None:
    ids = world.prepare(2)

    result = run(world, checks(orders=world.listener(answer)), dues(world, ids))

    assert result.asked == 2
    assert {(row["transaction_id"], row["kind"], row["source"]) for row in world.claims()} == {
        (key, kind.value, "check") for key in ids
    }


def test_unknown_is_counted_and_armed_one_interval_later(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids = world.prepare()

    run(world, checks(orders=world.listener()), dues(world, ids))

    (row,) = world.claims()
    assert (row["kind"], row["check_times"], row["life"]) == ("UNKNOWN", 1, 0)
    assert (row["next_check_timestamp"] - row["op_timestamp"]).total_seconds() == 30.0


def test_listener_sees_the_head_as_it_was_sent(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    seen: list[HalfMessage] = []
    ids = world.prepare(messages=3)
    listener = world.listener(lambda half: seen.append(half) or UNKNOWN)

    run(world, checks(orders=listener), dues(world, ids))

    (half,) = seen
    assert half.transaction_id == ids[0]
    assert (half.body, half.topic, half.message_id) == (b"secret-0", "paid", f"{ids[0]}:0")
    assert (half.message_count, half.check_times, half.producer_group) == (3, 0, GROUP)


def test_round_makes_three_commits_and_no_half_row(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids = world.prepare(100)
    half, op, lease = log_length(world)

    run(world, checks(orders=world.listener()), dues(world, ids))

    assert log_length(world) == (half, op + 1, lease + 2)
    assert world.half_rows() == 100


def test_round_without_due_rows_makes_no_commit(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    before = log_length(world)

    assert run(world, checks(orders=world.listener()), []) == RoundResult()
    assert log_length(world) == before


@pytest.mark.parametrize("kind", [ClaimKind.COMMIT, ClaimKind.ROLLBACK])
def test_transaction_that_ended_before_the_row_came_out_is_not_asked(
    world: CheckWorld, checks: Callable[..., CheckRound], kind: ClaimKind
) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, kind)

    assert run(world, checks(orders=listener), dues(world, ids)) == RoundResult(dropped=1)
    assert listener.asked() == []


def test_end_of_another_group_ends_nothing(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.COMMIT, group="thieves")

    assert run(world, checks(orders=listener), dues(world, ids)).asked == 1


def test_row_of_an_earlier_check_asks_nobody(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    check = checks(orders=listener)
    run(world, check, dues(world, ids))
    world.clock.advance(31)

    assert run(world, check, dues(world, ids, check_times=0)) == RoundResult(dropped=1)
    assert run(world, check, dues(world, ids, check_times=1)).asked == 1


def test_same_transaction_twice_in_a_round_is_asked_once(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()

    run(world, checks(orders=listener), dues(world, ids * 3))

    assert listener.asked() == ids


def test_reached_maximum_is_discarded_and_not_asked(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.UNKNOWN, life=0, check_times=15)

    result = run(world, checks(orders=listener), dues(world, ids, check_times=15))

    assert result == RoundResult(discarded=1)
    assert listener.asked() == []
    (row,) = world.claims(ClaimKind.DISCARD)
    assert (row["life"], row["check_times"], row["reason"]) == (0, 15, "CHECK_MAX")


def test_check_count_written_twice_counts_once(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    for _ in range(2):
        world.claim(ids, ClaimKind.UNKNOWN, life=0, check_times=1)

    run(world, checks(orders=listener), dues(world, ids, check_times=1))

    assert listener.check_times() == [1]


def test_checks_of_another_group_or_life_do_not_count(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.UNKNOWN, group="thieves", life=0, check_times=14)
    world.claim(ids, ClaimKind.UNKNOWN, life=7, check_times=14)

    run(world, checks(orders=listener), dues(world, ids))

    assert listener.check_times() == [0]


def test_resumed_transaction_begins_to_count_again(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.UNKNOWN, life=0, check_times=15)
    world.claim(ids, ClaimKind.DISCARD, life=0)
    world.claim(ids, ClaimKind.RESUME, life=1)

    result = run(world, checks(orders=listener), dues(world, ids, life=1))

    assert result.unknown == 1
    assert listener.check_times() == [0]
    assert world.claims()[-1]["life"] == 1


def test_group_without_listener_is_armed_again_uncounted_with_growing_pause(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, check = world.prepare(), checks()
    pauses_s = []
    for _ in range(6):
        result = run(world, check, dues(world, ids))
        assert result == RoundResult(unasked=1, unheard_groups=frozenset([GROUP]))
        row = world.claims()[-1]
        assert (row["check_times"], row["reason"]) == (0, "NO_LISTENER")
        pauses_s.append((row["next_check_timestamp"] - row["op_timestamp"]).total_seconds())
        world.clock.advance(pauses_s[-1])

    assert pauses_s == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]


def test_no_listener_never_leads_to_a_discard(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, check = world.prepare(), checks()
    for _ in range(20):
        run(world, check, dues(world, ids))
        world.clock.advance(600)

    assert {row["kind"] for row in world.claims()} == {"UNKNOWN"}


def test_counted_check_makes_the_pause_short_again(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids = world.prepare()
    for _ in range(4):
        run(world, checks(), dues(world, ids))
        world.clock.advance(600)
    run(world, checks(orders=world.listener()), dues(world, ids))
    world.clock.advance(30)
    run(world, checks(), dues(world, ids, check_times=1))

    row = world.claims()[-1]
    assert (row["next_check_timestamp"] - row["op_timestamp"]).total_seconds() == 30.0


def raising(half: HalfMessage) -> Any:
    raise ValueError(half.body)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raising, "the listener raised ValueError"),
        (lambda _: None, "the listener returned NoneType, not a LocalTransactionState"),
        (lambda _: 42, "the listener returned int, not a LocalTransactionState"),
        (lambda _: "commit", "the listener returned str, not a LocalTransactionState"),
        (lambda _: True, "the listener returned bool, not a LocalTransactionState"),
    ],
)
def test_nonsense_counts_as_unknown_until_the_maximum(
    world: CheckWorld, checks: Callable[..., CheckRound], answer: Any, reason: str
) -> None:
    ids, listener = world.prepare(), world.listener(answer)
    check = checks(orders=listener)
    for times in range(16):
        run(world, check, dues(world, ids, check_times=times))
        world.clock.advance(31)

    assert len(listener.asked()) == 15
    assert [row["kind"] for row in world.claims()] == ["UNKNOWN"] * 15 + ["DISCARD"]
    assert {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)} == {reason}


def test_body_is_in_no_claim_and_no_log_line(
    world: CheckWorld, checks: Callable[..., CheckRound], caplog: pytest.LogCaptureFixture
) -> None:
    ids = world.prepare()
    with caplog.at_level("DEBUG"):
        run(world, checks(orders=world.listener(raising)), dues(world, ids))

    assert SECRET not in str(world.claims())
    assert SECRET not in caplog.text


def test_hanging_listener_is_counted_and_its_late_end_is_a_claim(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, released = world.prepare(), threading.Event()
    listener = world.listener(lambda _: COMMIT if released.wait(30.0) else UNKNOWN)
    check = checks(orders=listener)

    assert run(world, check, dues(world, ids)).unknown == 1
    assert world.claims()[-1]["reason"] == "TIMEOUT"

    released.set()
    wait_until(lambda: run(world, check, []) == RoundResult() and len(world.claims()) == 2, "late")
    late = world.claims()[-1]
    assert (late["kind"], late["reason"], late["source"]) == ("COMMIT", "LATE", "check")


def test_late_end_after_a_discard_changes_nothing_but_is_kept(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, released = world.prepare(), threading.Event()
    check = checks(orders=world.listener(lambda _: COMMIT if released.wait(30.0) else UNKNOWN))
    run(world, check, dues(world, ids))
    world.claim(ids, ClaimKind.DISCARD, life=0)
    released.set()
    wait_until(lambda: bool(run(world, check, [])) and len(world.claims()) == 3, "late answer")

    world.clock.advance(31)
    assert run(world, check, dues(world, ids, check_times=1)) == RoundResult(dropped=1)


def test_listeners_that_hang_raise_or_are_slow_hold_up_nobody(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    released, begun = threading.Event(), threading.Event()
    zoo = {
        "hangs": world.listener(lambda _: released.wait(30.0)),
        "raises": world.listener(raising),
        "slow": world.listener(lambda _: begun.wait(30.0) and COMMIT),
    }
    rows = [
        DueRow(key, group, world.clock.now_ms())
        for group in ("hangs", "raises", "slow")
        for key in world.prepare(10, group=group)
    ]
    fine = world.prepare(100)
    listener = world.listener(lambda _: begun.set() or COMMIT)

    result = run(world, checks(orders=listener, **zoo), [*rows, *dues(world, fine)])
    released.set()

    assert sorted(listener.asked()) == sorted(fine)
    assert result.committed >= 100
    ended = {row["transaction_id"] for row in world.claims()}
    assert ended == {*fine, *(row.transaction_id for row in rows)}


def test_one_listener_call_that_hangs_among_a_thousand_holds_up_none(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=3.0, check_lease_s=30.0)
    ids, released = world.prepare(1_000), threading.Event()
    listener = world.listener(
        lambda half: released.wait(60.0) if half.transaction_id == ids[500] else COMMIT
    )
    check = CheckRound(world.store, listeners={GROUP: listener}, clock=world.clock)

    result = run(world, check, dues(world, ids))
    released.set()
    check.close()

    assert result == RoundResult(committed=999, unknown=1)
    assert sorted(listener.asked()) == sorted(ids)
    (row,) = world.claims(ClaimKind.UNKNOWN)
    assert (row["transaction_id"], row["reason"]) == (ids[500], "TIMEOUT")


def test_group_whose_threads_all_hang_waits_uncounted_and_in_sight(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=0.5, check_threads=1)
    stuck, released = world.prepare(HUNG_PER_THREAD), threading.Event()
    late = world.prepare()
    listener = world.listener(lambda _: released.wait(60.0))
    check = CheckRound(world.store, listeners={GROUP: listener}, clock=world.clock)
    for each in stuck:
        run(world, check, dues(world, [each]))
    pauses_s = []
    for _ in range(3):
        assert run(world, check, dues(world, late)) == RoundResult(unasked=1)
        row = world.claims()[-1]
        pauses_s.append((row["next_check_timestamp"] - row["op_timestamp"]).total_seconds())
        world.clock.advance(pauses_s[-1])

    operator = Operator(world.store, clock=world.clock)
    shown = {one.transaction_id: one for one in operator.open_transactions()}
    released.set()
    check.close()
    assert pauses_s == [30.0, 60.0, 120.0]
    assert (shown[late[0]].reason, shown[late[0]].check_times) == ("BUSY", 0)
    assert shown[late[0]].next_check == row["next_check_timestamp"]
    assert (shown[stuck[0]].reason, shown[stuck[0]].check_times) == ("TIMEOUT", 1)


def test_questions_beyond_the_queue_are_armed_again_uncounted(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, check_queue_size=3)
    ids, listener = world.prepare(5), world.listener(COMMIT)
    check = CheckRound(world.store, listeners={GROUP: listener}, clock=world.clock)

    result = run(world, check, dues(world, ids))
    check.close()

    assert (result.committed, result.unasked) == (3, 2)
    assert {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)} == {"BUSY"}
    assert {row["check_times"] for row in world.claims(ClaimKind.UNKNOWN)} == {0}


def test_held_lease_asks_nobody(world: CheckWorld, checks: Callable[..., CheckRound]) -> None:
    ids, listener = world.prepare(), world.listener()
    other = CheckLease(world.store.tables.register("check_lease"), "other", 30.0)
    other.take(world.clock.now_ms())

    check = checks(orders=listener)
    now_ms = world.clock.now_ms()
    due = due_table(dues(world, ids))
    assert check.run(due, clock_ms=now_ms, source=ClaimSource.CHECK) is None
    assert listener.asked() == []


def test_lease_of_a_service_that_died_is_taken_over(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    CheckLease(world.store.tables.register("check_lease"), "dead", 1.0).take(world.clock.now_ms())
    world.clock.advance(1.0)

    assert run(world, checks(orders=listener), dues(world, ids)).asked == 1


def test_answers_that_could_not_be_written_are_written_before_anybody_is_asked_again(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    check = checks(orders=listener)
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full, table="op"), pytest.raises(StoreFullError):
        run(world, check, dues(world, ids))

    assert run(world, check, dues(world, ids)) == RoundResult(dropped=1)
    assert len(listener.asked()) == 1
    assert [row["check_times"] for row in world.claims()] == [1]


def test_answers_that_landed_while_their_round_was_broken_off_are_not_written_again(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(2), world.listener()
    check, interrupt = checks(orders=listener), KeyboardInterrupt()
    with (
        failing_commits(1, error=interrupt, after_commit=True, table="op"),  # type: ignore[arg-type]
        pytest.raises(KeyboardInterrupt),
    ):
        run(world, check, dues(world, ids[:1]))

    assert run(world, check, dues(world, ids[1:])).asked == 1
    assert [row["transaction_id"] for row in world.claims()] == ids


def test_commit_that_lost_a_race_is_made_again_without_asking_again(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener()
    with failing_commits(3, table="op"):
        run(world, checks(orders=listener), dues(world, ids))

    assert len(listener.asked()) == 1
    assert len(world.claims()) == 1


def test_half_without_its_head_is_asked_by_its_lowest_message(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    seen: list[HalfMessage] = []
    ids = world.prepare(messages=3, change=lambda rows: rows[1:])
    listener = world.listener(lambda half: seen.append(half) or ROLLBACK)

    assert run(world, checks(orders=listener), dues(world, ids)).rolled_back == 1
    assert seen[0].message_id == f"{ids[0]}:1"


def test_half_file_that_cannot_be_read_does_not_stop_the_others(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    broken = world.prepare()
    _break_newest_file(world)
    fine = world.prepare()
    listener = world.listener(COMMIT)

    result = run(world, checks(orders=listener), dues(world, [*broken, *fine]))

    assert listener.asked() == fine
    assert result == RoundResult(committed=1, unasked=1, unreadable=tuple(broken))
    (row,) = world.claims(ClaimKind.UNKNOWN)
    assert (row["transaction_id"], row["reason"]) == (broken[0], "UNREADABLE")


def test_half_row_that_cannot_be_parsed_does_not_stop_the_others(
    world: CheckWorld, checks: Callable[..., CheckRound], monkeypatch: pytest.MonkeyPatch
) -> None:
    import txmq.listeners.heads as module

    ids, listener = world.prepare(2), world.listener(COMMIT)
    original = module.half_message

    def parse(row: dict[str, Any]) -> HalfMessage:
        if row["transaction_id"] == ids[0]:
            raise ValueError(SECRET)
        return original(row)

    monkeypatch.setattr(module, "half_message", parse)

    assert run(world, checks(orders=listener), dues(world, ids)).unreadable == (ids[0],)
    assert listener.asked() == ids[1:]


def test_head_of_a_huge_transaction_is_read_without_its_messages(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(messages=20_000), world.listener(COMMIT)

    assert run(world, checks(orders=listener), dues(world, ids)).committed == 1
    assert listener.asked() == ids


def test_ordinary_message_without_its_commit_is_rolled_back_unasked(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, listener = world.prepare(), world.listener(COMMIT)

    result = run(world, checks(orders=listener), dues(world, ids, ordinary=True))

    assert result == RoundResult(never_acknowledged=1)
    assert listener.asked() == []
    assert world.claims()[-1]["kind"] == "ROLLBACK"


def _break_newest_file(world: CheckWorld) -> None:
    table = world.store.tables.half_log().table
    actions = pa.table(delta_rs(table.folder).get_add_actions(flatten=True)).to_pylist()
    newest = max(actions, key=lambda action: action["modification_time"])
    folder = world.folder / "store" / "half"
    (folder / newest["path"]).write_bytes(b"no parquet")
