from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.kit.check_world import COMMIT, GROUP, ROLLBACK, UNKNOWN, CheckWorld
from tests.kit.reading import delta_rs
from txmq.check.open_transactions import open_transactions
from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.check.round import CheckLease
from txmq.errors import ListenerError
from txmq.ground.clock import AffineClock, SystemClock
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource, Fact, TransactionState
from txmq.store.op import OpRow, op_table
from txmq.store.schemas import MICROSECONDS_UTC, OP
from txmq.store.settled import settled_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY_S = 86_400.0


class NamedListener:
    """A listener that settings can name."""

    def execute_local_transaction(self, message: object, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: object) -> Any:
        return COMMIT if message else UNKNOWN


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


def recheck(world: CheckWorld, **listeners: Any) -> RecheckResult:
    return RecheckJob(world.store, listeners=listeners, clock=world.clock).run_once()


def settle(world: CheckWorld, ids: Sequence[str], state: TransactionState, *, through: int) -> None:
    """What the publisher would write about claims of version `through`."""
    op = world.store.tables.op_log().table
    log = world.store.tables.settled_log(op.log.table_id)
    claims = [Claim(key, ClaimKind.COMMIT, GROUP, through, n) for n, key in enumerate(ids)]
    facts = [Fact(claim, state, 0, None) for claim in claims]
    rows = settled_table(facts, world.clock.now_ms(), [None] * len(facts))
    log.table.refresh()
    log.swap(rows, through)


def states(world: CheckWorld) -> dict[str, str]:
    rows = open_transactions(world.store, clock=world.clock).to_pylist()
    return {row["transaction_id"]: row["state"] for row in rows}


# --- when ------------------------------------------------------------------------------------


def test_empty_store_is_no_problem(world: CheckWorld) -> None:
    result = recheck(world, orders=world.listener())

    assert (result.open_transactions, result.checks.asked, result.is_complete) == (0, 0, True)
    assert open_transactions(world.store).num_rows == 0


def test_half_inside_immunity_time_is_not_checked(world: CheckWorld) -> None:
    listener = world.listener()
    world.prepare(immunity_s=60.0)
    world.clock.advance(55)

    assert recheck(world, orders=listener).open_transactions == 1
    assert listener.asked() == []


def test_half_past_immunity_time_is_checked(world: CheckWorld) -> None:
    listener = world.listener()
    ids = world.prepare(immunity_s=60.0)
    world.clock.advance(61)

    recheck(world, orders=listener)

    assert listener.asked() == ids


def test_immunity_of_each_half_counts_from_its_own_commit(world: CheckWorld) -> None:
    listener = world.listener()
    long, short = world.prepare(immunity_s=600.0), world.prepare(immunity_s=6.0)
    world.clock.advance(30)
    recheck(world, orders=listener)
    assert listener.asked() == short

    world.clock.advance(600)
    recheck(world, orders=listener)
    assert sorted(listener.asked()) == sorted([*short, *short, *long])


def test_immunity_counts_from_the_stores_clock_and_not_from_the_id(world: CheckWorld) -> None:
    listener = world.listener()
    _prepare_with_old_id(world)
    world.clock.advance(5)

    recheck(world, orders=listener)

    assert listener.asked() == []


def test_half_older_than_the_kept_log_is_due(world: CheckWorld) -> None:
    listener, ids = world.listener(), world.prepare(immunity_s=60.0)
    for commit in (world.folder / "store" / "half" / "_delta_log").glob("*1.json"):
        _checkpoint(world)
        commit.unlink()

    recheck(world, orders=listener)

    assert listener.asked() == ids


def test_half_whose_commit_was_cleaned_from_the_log_is_still_immune(world: CheckWorld) -> None:
    listener, ids = world.listener(), world.prepare(immunity_s=600.0)
    for _ in range(3):
        world.prepare(immunity_s=6.0)
    _checkpoint(world)
    for commit in (world.folder / "store" / "half" / "_delta_log").glob("*[012].json"):
        commit.unlink()

    world.clock.advance(590)
    recheck(world, orders=listener)
    assert ids[0] not in listener.asked()
    world.clock.advance(11)
    recheck(world, orders=listener)
    assert listener.asked().count(ids[0]) == 1


def test_immunity_of_20_minutes_is_neither_counted_nor_discarded(tmp_path: Path) -> None:
    """RocketMQ counts each look and so discards it after 3 s (W4)."""
    world = CheckWorld(tmp_path, transaction_check_interval_s=1.0, transaction_check_max=3)
    listener, version = world.listener(), world.store.tables.half_log().table.version
    world.prepare(immunity_s=1_200.0)
    for _ in range(40):
        world.clock.advance(29.9)
        recheck(world, orders=listener)
    assert (listener.asked(), world.claims()) == ([], [])

    for _ in range(7):
        world.clock.advance(2)
        recheck(world, orders=listener)
    assert listener.check_times() == [0, 1, 2]
    assert [row["kind"] for row in world.claims()] == ["UNKNOWN"] * 3 + ["DISCARD"]
    assert world.store.tables.half_log().table.version == version + 1


def test_rocketmqs_settings_ask_between_6_and_36_seconds(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, transaction_timeout_s=6.0, transaction_check_interval_s=30.0)
    listener, ids = world.listener(), world.prepare(immunity_s=6.0)
    asked_s = None
    for second in range(1, 37):
        world.clock.advance(1)
        recheck(world, orders=listener)
        asked_s = asked_s or (second if listener.asked() else None)

    assert asked_s is not None
    assert 6 <= asked_s <= 36
    assert listener.asked() == ids


def test_question_is_repeated_each_interval_up_to_the_maximum(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, transaction_check_max=3)
    listener = world.listener()
    world.prepare()
    asked_s, second = [], 0
    while not world.claims(ClaimKind.DISCARD):
        second += 5
        assert second < 300
        world.clock.advance(5)
        before = len(listener.asked())
        recheck(world, orders=listener)
        asked_s += [second] * (len(listener.asked()) - before)

    assert asked_s == [10, 40, 70]
    assert second == 100


def test_clock_of_another_speed_shows_the_stores_times_as_its_own(world: CheckWorld) -> None:
    listener = world.listener()
    clock = AffineClock.from_now(speed=3600.0)
    ids = world.prepare(immunity_s=1800.0)
    deadline_s = time.monotonic() + 30.0
    job = RecheckJob(world.store, listeners={GROUP: listener}, clock=clock)
    while not listener.asked():
        assert time.monotonic() < deadline_s
        job.run_once()

    assert set(listener.asked()) == set(ids)


# --- clocks that go wrong ----------------------------------------------------------------------


def test_clock_set_back_a_day_does_not_silence_a_transaction(world: CheckWorld) -> None:
    listener = world.listener()
    world.clock.advance(DAY_S)
    world.prepare()
    recheck(world, orders=listener)
    assert listener.check_times() == [0]

    world.clock.advance(-DAY_S + 31)
    recheck(world, orders=listener)
    assert listener.check_times() == [0, 1]


def test_clock_set_back_asks_once_and_then_keeps_the_interval(world: CheckWorld) -> None:
    listener = world.listener()
    world.clock.advance(DAY_S)
    world.prepare()
    recheck(world, orders=listener)
    world.clock.advance(-DAY_S + 31)
    for _ in range(5):
        recheck(world, orders=listener)

    assert listener.check_times() == [0, 1]


def test_clock_set_back_a_little_asks_nobody_early(world: CheckWorld) -> None:
    listener = world.listener()
    world.prepare()
    world.clock.advance(10)
    recheck(world, orders=listener)
    world.clock.advance(-5)
    recheck(world, orders=listener)

    assert listener.check_times() == [0]


def test_clock_that_jumps_forward_discards_nothing_unasked(world: CheckWorld) -> None:
    world.prepare(5)
    world.clock.advance(10 * DAY_S)
    recheck(world, orders=world.listener())

    assert {row["kind"] for row in world.claims()} == {"UNKNOWN"}
    assert {row["check_times"] for row in world.claims()} == {1}


# --- who ---------------------------------------------------------------------------------------


def test_none_of_ten_thousand_finished_transactions_is_asked(world: CheckWorld) -> None:
    listener = world.listener()
    committed, rolled_back = world.prepare(6_000), world.prepare(4_000)
    unanswered = world.prepare(3)
    world.claim(committed[:3_000], ClaimKind.COMMIT)
    settle(world, committed[:3_000], TransactionState.COMMITTED, through=1)
    world.claim(committed[3_000:], ClaimKind.COMMIT)
    world.claim(rolled_back, ClaimKind.ROLLBACK)
    world.clock.advance(3600)

    result = recheck(world, orders=listener)

    assert sorted(listener.asked()) == sorted(unanswered)
    assert result.open_transactions == 3


def test_half_log_is_the_same_after_all_checks(world: CheckWorld) -> None:
    world.prepare(20)
    version = world.store.tables.half_log().table.version
    for _ in range(17):
        world.clock.advance(31)
        recheck(world, orders=world.listener())

    assert len(world.claims(ClaimKind.DISCARD)) == 20
    assert world.half_rows() == 20
    assert world.store.tables.half_log().table.version == version


def test_end_of_another_group_does_not_hide_a_transaction(world: CheckWorld) -> None:
    listener, ids = world.listener(), world.prepare()
    world.claim(ids, ClaimKind.ROLLBACK, group="thieves")
    world.clock.advance(10)

    recheck(world, orders=listener)

    assert listener.asked() == ids


@pytest.mark.parametrize("kind", [ClaimKind.COMMIT, ClaimKind.DISCARD, ClaimKind.EXPIRE])
def test_claim_settled_before_its_half_exists_does_not_hide_a_transaction(
    world: CheckWorld, kind: ClaimKind
) -> None:
    listener, early = world.listener(), new_transaction_id(world.clock.now_ms())
    world.claim([early], kind, life=0)
    settle(world, [], TransactionState.COMMITTED, through=world.store.tables.op_log().table.version)
    world.prepare(change=lambda rows: [(early, *row[1:]) for row in rows])
    world.clock.advance(10)

    recheck(world, orders=listener)

    assert listener.asked() == [early]
    assert states(world) == {early: "PENDING"}


def test_groups_are_asked_by_their_own_listeners(world: CheckWorld) -> None:
    orders, billing = world.listener(COMMIT), world.listener(ROLLBACK)
    ours, theirs = world.prepare(2), world.prepare(3, group="billing")
    world.clock.advance(10)

    recheck(world, orders=orders, billing=billing)

    assert sorted(orders.asked()) == sorted(ours)
    assert sorted(billing.asked()) == sorted(theirs)


def test_listener_that_the_settings_name_is_asked(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listeners={GROUP: f"{__name__}:NamedListener"})
    world.prepare()
    world.clock.advance(10)

    assert recheck(world).checks.committed == 1


def test_listener_that_is_passed_in_goes_before_the_settings(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listeners={GROUP: "no.such.module:Listener"})
    world.prepare()
    world.clock.advance(10)

    assert recheck(world, orders=world.listener(ROLLBACK)).checks.rolled_back == 1


def test_listener_that_cannot_be_loaded_is_refused_at_start(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listeners={GROUP: "no.such.module:Listener"})

    with pytest.raises(ListenerError):
        RecheckJob(world.store)


# --- states ------------------------------------------------------------------------------------


def test_states_of_open_transactions_are_shown(world: CheckWorld) -> None:
    pending, discarded, resumed = world.prepare(3)
    world.claim([discarded, resumed], ClaimKind.DISCARD, life=0)
    world.claim([resumed], ClaimKind.RESUME, life=1)

    assert states(world) == {pending: "PENDING", discarded: "DISCARDED", resumed: "PENDING"}


def test_resumed_transaction_is_due_at_once_or_when_its_row_says(world: CheckWorld) -> None:
    listener = world.listener()
    now, later = world.prepare(2)
    world.claim([now, later], ClaimKind.DISCARD, life=0)
    world.claim([now], ClaimKind.RESUME, life=1)
    next_ms = world.clock.now_ms() + 100_000
    world.claim([later], ClaimKind.RESUME, life=1, next_check_timestamp_ms=next_ms)

    recheck(world, orders=listener)
    assert listener.asked() == [now]
    world.clock.advance(101)
    recheck(world, orders=listener)
    assert listener.asked().count(later) == 1


def test_half_without_its_head_is_seen_asked_and_named(world: CheckWorld) -> None:
    listener = world.listener()
    fine = world.prepare()
    ids = world.prepare(messages=3, change=lambda rows: rows[1:])
    world.clock.advance(10)

    result = recheck(world, orders=listener)

    assert result.incomplete == tuple(ids)
    assert sorted(listener.asked()) == sorted([*fine, *ids])
    rows = open_transactions(world.store, clock=world.clock).to_pylist()
    (row,) = [row for row in rows if row["transaction_id"] == ids[0]]
    assert (row["found"], row["message_count"], row["problem"]) == (2, None, "MISSING")


def test_half_that_lost_a_message_is_named(world: CheckWorld) -> None:
    ids = world.prepare(messages=3, change=lambda rows: rows[:2])

    assert recheck(world, orders=world.listener()).incomplete == tuple(ids)


def test_half_that_was_appended_twice_is_one(world: CheckWorld) -> None:
    world.prepare(messages=2, change=lambda rows: [*rows, *rows])

    (row,) = open_transactions(world.store, clock=world.clock).to_pylist()
    assert (row["found"], row["message_count"], row["problem"]) == (2, 2, None)


def test_settled_incomplete_is_shown_and_not_asked(world: CheckWorld) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.COMMIT)
    settle(world, ids, TransactionState.INCOMPLETE, through=1)
    world.clock.advance(60)

    recheck(world, orders=listener)

    assert states(world) == {ids[0]: "INCOMPLETE"}
    assert listener.asked() == []


def test_settled_incomplete_that_was_resumed_is_asked(world: CheckWorld) -> None:
    ids, listener = world.prepare(), world.listener()
    world.claim(ids, ClaimKind.COMMIT)
    settle(world, ids, TransactionState.INCOMPLETE, through=1)
    world.claim(ids, ClaimKind.RESUME, life=1)
    world.clock.advance(60)

    recheck(world, orders=listener)

    assert listener.asked() == ids


@pytest.mark.parametrize("immunity_s", [None, float("nan"), float("inf"), 1e300, -5.0, 0.0])
def test_unusable_immunity_is_the_timeout(world: CheckWorld, immunity_s: float | None) -> None:
    from txmq.store.schemas import HALF

    place = HALF.columns.get_field_index("check_immunity_time_s")
    listener = world.listener()
    world.prepare(change=lambda rows: [(*r[:place], immunity_s, *r[place + 1 :]) for r in rows])
    world.clock.advance(4)
    recheck(world, orders=listener)
    assert listener.asked() == []

    world.clock.advance(3)
    recheck(world, orders=listener)
    assert len(listener.asked()) == 1


def test_file_that_cannot_be_read_does_not_stop_the_others(world: CheckWorld) -> None:
    world.prepare()
    for file in (world.folder / "store" / "half").rglob("*.parquet"):
        file.write_bytes(b"no parquet")
    fine, listener = world.prepare(), world.listener()
    world.clock.advance(10)

    recheck(world, orders=listener)

    assert listener.asked() == fine


@pytest.mark.parametrize("bent", [{"kind": "EXPLODE"}, {"source": "stranger"}, {"ordinal": None}])
def test_claim_that_no_txmq_writes_does_not_stop_the_check(
    world: CheckWorld, bent: dict[str, Any]
) -> None:
    ids, listener = world.prepare(), world.listener()
    row = OpRow(ids[0], ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, world.clock.now_ms())
    rows = pa.Table.from_pylist([op_table([row], 0).to_pylist()[0] | bent], OP.columns)
    world.store.tables.op_log().table.writer.append(rows, app_id="stranger", number=1)
    world.clock.advance(10)

    recheck(world, orders=listener)

    assert listener.asked() == ids


def test_claim_whose_time_no_python_can_show_counts_as_none(world: CheckWorld) -> None:
    (bent,) = world.prepare()
    fine, listener = world.prepare(), world.listener()
    row = OpRow(bent, ClaimKind.UNKNOWN, GROUP, ClaimSource.CHECK, world.clock.now_ms(), life=0)
    rows = op_table([row], 0)
    place = rows.schema.get_field_index("next_check_timestamp")
    far = pa.array([2**62], MICROSECONDS_UTC)
    rows = rows.set_column(place, OP.columns.field(place), far)
    world.store.tables.op_log().table.writer.append(rows, app_id="stranger", number=1)
    world.clock.advance(10)

    recheck(world, orders=listener)

    assert sorted(listener.asked()) == sorted([bent, *fine])
    shown = open_transactions(world.store, clock=world.clock).to_pylist()
    assert {row["transaction_id"] for row in shown} == {bent, *fine}


def test_last_reason_is_shown_with_an_open_transaction(world: CheckWorld) -> None:
    unheard, unseen = world.prepare(), world.prepare(immunity_s=600.0)
    world.clock.advance(10)
    recheck(world)

    rows = open_transactions(world.store, clock=world.clock).to_pylist()
    assert {row["transaction_id"]: (row["reason"], row["check_times"]) for row in rows} == {
        unheard[0]: ("NO_LISTENER", 0),
        unseen[0]: (None, 0),
    }


# --- draining ----------------------------------------------------------------------------------


def test_one_call_asks_everything_that_is_due_once(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, check_queue_size=10)
    ids, listener = world.prepare(35), world.listener()
    world.clock.advance(10)

    result = recheck(world, orders=listener)

    assert sorted(listener.asked()) == sorted(ids)
    assert result.checks.unknown == 35
    assert result.checks.unasked == 0


def test_claims_of_a_recheck_say_so(world: CheckWorld) -> None:
    world.prepare()
    world.clock.advance(10)
    recheck(world, orders=world.listener())

    assert {row["source"] for row in world.claims()} == {ClaimSource.RECHECK.value}


def test_without_due_transactions_nothing_is_written(world: CheckWorld) -> None:
    world.prepare()
    lease = world.store.tables.register("check_lease").table
    before = (world.store.tables.op_log().table.version, lease.version)

    recheck(world, orders=world.listener())

    lease.refresh()
    assert (world.store.tables.op_log().table.version, lease.version) == before


def test_lease_that_is_not_given_back_ends_the_call_incomplete(world: CheckWorld) -> None:
    listener = world.listener()
    world.prepare()
    world.clock.advance(10)
    CheckLease(world.store.tables.register("check_lease"), "other", 1.0).take(world.clock.now_ms())

    result = recheck(world, orders=listener)

    assert not result.is_complete
    assert listener.asked() == []


def test_rechecks_at_the_same_time_ask_each_transaction_once(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, check_lease_s=60.0, listener_timeout_s=30.0, check_queue_size=7)
    ids, listener = world.prepare(40), world.listener()
    world.clock.advance(10)
    jobs = [
        RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock) for _ in range(4)
    ]
    workers = [threading.Thread(target=job.run_once) for job in jobs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert sorted(listener.asked()) == sorted(ids)
    assert {row["check_times"] for row in world.claims()} == {1}


def test_real_clock_works_too(world: CheckWorld) -> None:
    listener = world.listener(UNKNOWN)
    world.prepare(immunity_s=0.001)
    deadline_s = time.monotonic() + 20.0
    job = RecheckJob(world.store, listeners={GROUP: listener}, clock=SystemClock())
    while not listener.asked():
        assert time.monotonic() < deadline_s
        job.run_once()

    assert len(listener.asked()) == 1


def _checkpoint(world: CheckWorld) -> None:
    delta_rs(world.store.tables.half_log().table.folder).create_checkpoint()


def _prepare_with_old_id(world: CheckWorld) -> None:
    import tests.kit.check_world as module

    original = module.new_transaction_id
    module.new_transaction_id = lambda now_ms: original(now_ms - 3_600_000)
    try:
        world.prepare()
    finally:
        module.new_transaction_id = original
