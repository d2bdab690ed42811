"""Listeners that answer for many in one call, and settings that differ by group."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.kit.check_world import COMMIT, GROUP, ROLLBACK, UNKNOWN, CheckWorld
from txmq.check.claims import RoundResult
from txmq.check.open_transactions import OpenTransactions, dues_of
from txmq.check.recheck import RecheckJob, RecheckResult
from txmq.check.round import CheckRound
from txmq.errors import ListenerError
from txmq.message.lifecycle import ClaimKind, ClaimSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

INTERVAL_S = 31.0


class Orders:
    """Answers by one join with what it knows; everything else was never done."""

    def __init__(self, *done: list[str]) -> None:
        ids = [own_id for some in done for own_id in some]
        states = pa.repeat(pa.scalar("COMMIT"), len(ids))
        self.done = pa.table([pa.array(ids, pa.string()), states], ["transaction_id", "done"])
        self.asked: list[pa.Table] = []

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        self.asked.append(heads)
        ids = heads.select(["transaction_id"])
        joined = ids.join(self.done, "transaction_id", join_type="left outer")
        states = pc.coalesce(joined["done"], "ROLLBACK")
        return pa.table([joined["transaction_id"], states], ["transaction_id", "state"])

    def asked_ids(self) -> list[str]:
        return [own_id for heads in self.asked for own_id in heads["transaction_id"].to_pylist()]


class Says:
    """Answers as told."""

    def __init__(self, answer: Callable[[pa.Table], Any], *columns: str) -> None:
        self.check_local_transactions_arrow = answer
        if columns:
            self.head_columns = columns


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


@pytest.fixture
def checks() -> Iterator[Callable[..., CheckRound]]:
    made: list[CheckRound] = []

    def make(world: CheckWorld, **listeners: Any) -> CheckRound:
        made.append(CheckRound(world.store, listeners=listeners, clock=world.clock))
        return made[-1]

    yield make
    for check in made:
        check.close()


def recheck(world: CheckWorld, **listeners: Any) -> RecheckResult:
    return RecheckJob(world.store, listeners=listeners, clock=world.clock).run_once()


def one_round(world: CheckWorld, check: CheckRound) -> RoundResult:
    clock_ms = world.clock.now_ms()
    dues = dues_of(OpenTransactions(world.store, world.clock).read(clock_ms), clock_ms)
    done = check.run(dues, clock_ms=clock_ms, source=ClaimSource.RECHECK)
    assert done is not None
    return done


# --- the set form --------------------------------------------------------------------------------


def test_one_join_answers_a_whole_round(world: CheckWorld) -> None:
    done, undone = world.prepare(60), world.prepare(40)
    world.clock.advance(10)
    listener = Orders(done)

    result = recheck(world, orders=listener)

    assert len(listener.asked) == 1
    assert (result.checks.committed, result.checks.rolled_back) == (60, 40)
    ends = {row["transaction_id"]: row["kind"] for row in world.claims()}
    assert ends == {**dict.fromkeys(done, "COMMIT"), **dict.fromkeys(undone, "ROLLBACK")}


def test_round_of_any_size_makes_three_commits(world: CheckWorld) -> None:
    world.prepare(5_000)
    world.clock.advance(10)
    store = world.store
    tables = [
        store.tables.half_log().table,
        store.tables.op_log().table,
        store.tables.register("check_lease").table,
    ]
    before = [table.version for table in tables]

    recheck(world, orders=Orders())

    after = [table.refresh().version for table in tables]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 2]


def test_set_gets_heads_as_they_were_sent_without_bodies(world: CheckWorld) -> None:
    ids, listener = world.prepare(messages=3), Orders()
    world.clock.advance(10)
    recheck(world, orders=listener)

    (row,) = listener.asked[0].to_pylist()
    assert "body" not in row
    assert (row["transaction_id"], row["message_id"]) == (ids[0], f"{ids[0]}:0")
    assert (row["topic"], row["producer_group"], row["message_count"]) == ("paid", GROUP, 3)
    assert row["check_times"] == 0


def test_set_gets_the_columns_that_it_names(world: CheckWorld) -> None:
    seen: list[pa.Table] = []
    world.prepare(messages=2)
    world.clock.advance(10)
    listener = Says(seen.append, "body", "check_times")

    for _ in range(2):
        recheck(world, orders=listener)
        world.clock.advance(INTERVAL_S)

    assert [heads.column_names for heads in seen] == [["transaction_id", "body", "check_times"]] * 2
    assert [heads["check_times"].to_pylist() for heads in seen] == [[0], [1]]
    assert seen[0]["body"].to_pylist() == [b"secret-0"]


def test_headless_half_is_asked_by_its_lowest_message(world: CheckWorld) -> None:
    ids = world.prepare(messages=3, change=lambda rows: rows[1:])
    world.prepare(5)
    world.clock.advance(10)
    listener = Orders(ids)

    assert recheck(world, orders=listener).checks.committed == 1
    (row,) = [row for row in listener.asked[0].to_pylist() if row["transaction_id"] == ids[0]]
    assert (row["message_id"], row["message_count"]) == (f"{ids[0]}:1", 0)


def test_doubtful_answers_are_unknown_with_their_reason(world: CheckWorld) -> None:
    twice, missing, wrong, fine = world.prepare(4)
    world.clock.advance(10)
    rows = {
        "transaction_id": [twice, twice, wrong, fine, "nobody"],
        "state": ["COMMIT", "ROLLBACK", "done", "COMMIT", "COMMIT"],
        "reason": [None, None, None, "found in orders", None],
    }

    result = recheck(world, orders=Says(lambda _: rows))

    assert (result.checks.committed, result.checks.unknown) == (1, 3)
    assert {row["transaction_id"]: row["reason"] for row in world.claims()} == {
        twice: "CONTRADICTION",
        missing: "NO_ANSWER",
        wrong: "NO_STATE",
        fine: "found in orders",
    }
    assert {row["check_times"] for row in world.claims(ClaimKind.UNKNOWN)} == {1}


def raising(_: pa.Table) -> Any:
    raise ValueError("secret-0")


NO_TABLE = "the listener returned NoneType, not a table with transaction_id and state (TypeError)"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raising, "the listener raised ValueError"),
        (lambda _: None, NO_TABLE),
    ],
)
def test_set_that_fails_is_unknown_for_all_until_the_maximum(
    tmp_path: Path, answer: Any, reason: str
) -> None:
    world = CheckWorld(tmp_path, transaction_check_max=2)
    world.prepare(20)
    for _ in range(4):
        world.clock.advance(INTERVAL_S)
        recheck(world, orders=Says(answer))

    assert Counter(row["kind"] for row in world.claims()) == {"UNKNOWN": 40, "DISCARD": 20}
    assert {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)} == {reason}


def test_set_that_hangs_is_counted_and_its_late_ends_are_claims(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    ids, released = world.prepare(5), threading.Event()
    listener = Says(lambda heads: Orders(ids).check_local_transactions_arrow(heads)
                    if released.wait(30.0) else None)  # fmt: skip
    check = checks(world, orders=listener)
    world.clock.advance(10)

    assert one_round(world, check).unknown == 5
    assert {row["reason"] for row in world.claims()} == {"TIMEOUT"}

    released.set()
    empty = dues_of(OpenTransactions(world.store, world.clock).read(0), 0)
    while not world.claims(ClaimKind.COMMIT):
        check.run(empty, clock_ms=0, source=ClaimSource.CHECK)
    late = world.claims(ClaimKind.COMMIT)
    assert sorted(row["transaction_id"] for row in late) == sorted(ids)
    assert {row["reason"] for row in late} == {"LATE"}


def test_queue_of_rows_does_not_bound_a_set_but_its_own_size_does(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, check_queue_size=3, check_set_size=40)
    ids, listener = world.prepare(100), Orders()
    world.clock.advance(10)

    result = recheck(world, orders=listener)

    assert [heads.num_rows for heads in listener.asked] == [40, 40, 20]
    assert sorted(listener.asked_ids()) == sorted(ids)
    assert result.checks.rolled_back == 100


def test_set_beyond_its_size_is_armed_again_uncounted(
    tmp_path: Path, checks: Callable[..., CheckRound]
) -> None:
    world = CheckWorld(tmp_path, check_set_size=40)
    world.prepare(100)
    world.clock.advance(10)

    result = one_round(world, checks(world, orders=Orders()))

    assert (result.rolled_back, result.unasked) == (40, 60)
    assert {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)} == {"BUSY"}
    assert {row["check_times"] for row in world.claims(ClaimKind.UNKNOWN)} == {0}


def test_rows_and_sets_are_asked_in_the_same_round(world: CheckWorld) -> None:
    ours, theirs = world.prepare(5), world.prepare(5, group="billing")
    unheard = world.prepare(5, group="nobody")
    world.clock.advance(10)
    rows, sets = world.listener(COMMIT), Orders()
    before = world.store.tables.op_log().table.version

    result = recheck(world, orders=rows, billing=sets)

    assert world.store.tables.op_log().table.version == before + 1
    assert (sorted(rows.asked()), sorted(sets.asked_ids())) == (sorted(ours), sorted(theirs))
    assert (result.checks.committed, result.checks.rolled_back) == (5, 5)
    assert (result.checks.unasked, len(unheard)) == (5, 5)


def test_file_that_cannot_be_read_is_set_aside_in_sight(
    world: CheckWorld, checks: Callable[..., CheckRound]
) -> None:
    world.prepare()
    clock_ms = world.clock.now_ms() + 10_000
    dues = dues_of(OpenTransactions(world.store, world.clock).read(clock_ms), clock_ms)
    for file in (world.folder / "store" / "half").rglob("*.parquet"):
        file.write_bytes(b"no parquet")

    check = checks(world, orders=Orders())
    result = check.run(dues, clock_ms=clock_ms, source=ClaimSource.CHECK)

    assert result is not None
    assert (result.unasked, len(result.unreadable)) == (1, 1)
    assert [row["reason"] for row in world.claims()] == ["UNREADABLE"]


# --- with Spark ----------------------------------------------------------------------------------


class SparkOrders:
    """The form of the platform: DataFrame in, DataFrame out."""

    def __init__(self, done: list[str]) -> None:
        self.done = done
        self.columns: list[str] = []

    def check_local_transactions(self, heads: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sql

        self.columns = heads.columns
        session = heads.sparkSession
        done = session.createDataFrame(
            [(own_id, "COMMIT") for own_id in self.done], "id string, state string"
        )
        joined = heads.join(done, heads["transaction_id"] == done["id"], "left")
        state = sql.coalesce(done["state"], sql.lit("ROLLBACK")).alias("state")
        return joined.select("transaction_id", state, sql.lit("by a join").alias("reason"))


class Either(SparkOrders):
    """Asked one by one where there is no Spark."""

    def execute_local_transaction(self, message: object, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: object) -> Any:
        return UNKNOWN if message else None


def test_dataframe_answers_a_whole_round(tmp_path: Path, spark: SparkSession) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=60.0, check_lease_s=90.0)
    done, undone = world.prepare(30), world.prepare(20)
    world.clock.advance(10)
    listener = SparkOrders(done)
    job = RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock, spark=spark)

    result = job.run_once()

    assert (result.checks.committed, result.checks.rolled_back) == (30, len(undone))
    assert {row["reason"] for row in world.claims()} == {"by a join"}
    assert "properties" in listener.columns
    assert "body" not in listener.columns


def test_form_that_needs_spark_is_refused_without_it(world: CheckWorld) -> None:
    with pytest.raises(ListenerError, match="needs Spark; pass spark="):
        recheck(world, orders=SparkOrders([]))


def test_listener_of_both_forms_is_asked_one_by_one_without_spark(world: CheckWorld) -> None:
    world.prepare(3)
    world.clock.advance(10)

    assert recheck(world, orders=Either([])).checks.unknown == 3


# --- settings of a group -------------------------------------------------------------------------


def test_interval_and_maximum_differ_by_group(tmp_path: Path) -> None:
    groups = {"quick": {"transaction_check_interval_s": 1.0, "transaction_check_max": 2}}
    world = CheckWorld(tmp_path, transaction_check_max=3, groups=groups)
    slow, quick = world.prepare(), world.prepare(group="quick")
    listener = world.listener(UNKNOWN)
    for _ in range(4):
        world.clock.advance(8)
        recheck(world, orders=listener, quick=listener)

    kinds = Counter((row["transaction_id"], row["kind"]) for row in world.claims())
    assert kinds == {(slow[0], "UNKNOWN"): 1, (quick[0], "UNKNOWN"): 2, (quick[0], "DISCARD"): 1}


def test_half_without_a_usable_immunity_has_the_timeout_of_its_group(tmp_path: Path) -> None:
    from txmq.store.schemas import HALF

    place = HALF.columns.get_field_index("check_immunity_time_s")
    world = CheckWorld(tmp_path, groups={"patient": {"transaction_timeout_s": 60.0}})

    def unusable(rows: list[Any]) -> list[Any]:
        return [(*row[:place], None, *row[place + 1 :]) for row in rows]

    ours, theirs = world.prepare(change=unusable), world.prepare(group="patient", change=unusable)
    listener = world.listener()
    world.clock.advance(10)
    recheck(world, orders=listener, patient=listener)
    assert listener.asked() == ours

    world.clock.advance(51)
    recheck(world, orders=listener, patient=listener)
    assert theirs[0] in listener.asked()


def test_producer_writes_the_timeout_of_its_group_into_the_half(tmp_path: Path) -> None:
    from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
    from txmq.producer.producer import TransactionProducer

    world = CheckWorld(tmp_path, groups={"patient": {"transaction_timeout_s": 60.0}})
    for group, properties in [
        (GROUP, {}),
        ("patient", {}),
        ("patient", {CHECK_IMMUNITY_TIME_IN_SECONDS: "30"}),
        ("patient", {CHECK_IMMUNITY_TIME_IN_SECONDS: "90"}),
    ]:
        with TransactionProducer(world.store, producer_group=group) as producer:
            transaction = producer.begin_transaction()
            transaction.send(Message("paid", b"", properties=properties))
            transaction.prepare()

    half = world.store.tables.half_log().table
    rows = half.rows.read(half.files.all(), ["producer_group", "check_immunity_time_s"]).to_pylist()
    assert Counter(tuple(row.values()) for row in rows) == {
        (GROUP, 6.0): 1,
        ("patient", 60.0): 2,
        ("patient", 90.0): 1,
    }


def test_timeout_of_a_listener_differs_by_group(tmp_path: Path) -> None:
    groups = {"slow": {"listener_timeout_s": 20.0}}
    world = CheckWorld(tmp_path, listener_timeout_s=0.5, check_lease_s=30.0, groups=groups)
    world.prepare()
    world.prepare(group="slow")
    world.clock.advance(10)
    given_up = threading.Event()
    released = threading.Event()

    def slow(_: object) -> Any:
        # The other group's question is given up long before this one.
        given_up.wait(20.0)
        return COMMIT

    def hanging(_: object) -> Any:
        try:
            released.wait(3.0)
        finally:
            given_up.set()
        return COMMIT

    result = recheck(world, orders=world.listener(hanging), slow=world.listener(slow))
    released.set()

    assert result.checks.committed >= 1
    slow_ends = [row for row in world.claims() if row["producer_group"] == "slow"]
    assert [row["reason"] for row in slow_ends] == [None]


def test_group_with_many_due_starves_nobody_in_a_round(tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, groups={"crowd": {"check_queue_size": 5, "check_threads": 1}})
    crowd = world.prepare(200, group="crowd")
    ours = world.prepare(50)
    world.clock.advance(10)
    many = world.listener(UNKNOWN)
    seen: list[int] = []

    def answer(_: object) -> Any:
        seen.append(len(many.asked()))
        return COMMIT

    result = recheck(world, crowd=many, orders=world.listener(answer))

    assert result.checks.committed == len(ours)
    assert max(seen) <= 5
    assert sorted(many.asked()) == sorted(crowd)


def test_pause_of_an_unheard_group_grows_from_its_own_interval(tmp_path: Path) -> None:
    groups = {"quick": {"transaction_check_interval_s": 1.0}}
    world = CheckWorld(tmp_path, groups=groups)
    world.prepare(group="quick")
    pauses_s = []
    world.clock.advance(10)
    for _ in range(4):
        recheck(world)
        row = world.claims()[-1]
        pauses_s.append((row["next_check_timestamp"] - row["op_timestamp"]).total_seconds())
        world.clock.advance(pauses_s[-1])

    assert pauses_s == [1.0, 2.0, 4.0, 8.0]


def test_deadline_of_a_clock_that_was_ahead_is_judged_by_the_groups_interval(
    tmp_path: Path,
) -> None:
    groups = {"patient": {"transaction_check_interval_s": 600.0}}
    world = CheckWorld(tmp_path, groups=groups)
    ours, theirs = world.prepare(), world.prepare(group="patient")
    ahead_ms = world.clock.now_ms() + 300_000
    for group, ids in ((GROUP, ours), ("patient", theirs)):
        world.claim(
            ids, ClaimKind.UNKNOWN, group=group, life=0, check_times=1,
            op_timestamp_ms=ahead_ms, next_check_timestamp_ms=ahead_ms + 600_000,
        )  # fmt: skip
    listener = world.listener(ROLLBACK)
    recheck(world, orders=listener, patient=listener)

    assert listener.asked() == ours
