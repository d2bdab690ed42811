from __future__ import annotations

import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.check_world import CheckWorld, wait_until
from tests.kit.reading import delta_rs
from txmq.ground.clock import AffineClock, milliseconds, timestamp
from txmq.message.lifecycle import ClaimKind
from txmq.spark.deadline_join import (
    due_transactions,
    dues_of,
    early_by_s,
    horizon_s,
    join_session,
    trigger_ms,
    versions_now,
)
from txmq.store.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 240.0
STOPPED = "stopped by its test"


class Watched:
    """The join over a world, and what came out of it."""

    def __init__(self, spark: SparkSession, world: CheckWorld, clock: AffineClock) -> None:
        self.clock = clock
        self.out: list[dict[str, Any]] = []
        self.batches = 0
        self.dropped = 0
        self._seen = -1
        self._spark, self._world = spark, world
        self._versions = versions_now(world.store)
        self._checkpoint = str(world.folder / f"checkpoint-{uuid.uuid4()}")
        self.begin()

    def begin(self) -> None:
        """Start a query over the same checkpoint."""
        self._is_stopping = False
        session = join_session(self._spark)
        due = due_transactions(session, self._world.store, self.clock, self._versions)
        self.query = (
            due.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime=f"{trigger_ms(self._world.store.config)} milliseconds")
            .start()
        )

    def _keep(self, batch: DataFrame, number: int) -> None:
        if self._is_stopping:
            # Nothing of this batch is kept; the next query begins with it.
            raise RuntimeError(STOPPED)
        threading.Event().wait(early_by_s(dues_of(batch)[1], self.clock))
        now_ms = self.clock.now_ms()
        rows = batch.toArrow().to_pylist()
        self.out += [{**row, "now_ms": now_ms, "batch": number} for row in rows]
        self.batches += 1

    def wait_batches(self, count: int) -> None:
        """Wait until `count` more micro-batches have ended."""
        goal = self.batches + count
        self.wait(lambda: self.batches >= goal, f"{count} batches")

    def wait(self, holds: Any, what: str) -> None:
        def checked() -> bool:
            assert self.query.exception() is None, self.query.exception()
            self._count_dropped()
            return bool(holds())

        wait_until(checked, what, PATIENCE_S)

    def ids(self) -> list[str]:
        return [row["transaction_id"] for row in self.out]

    def watermark_ms(self) -> int:
        progress = self.query.lastProgress
        shown = "1970" if progress is None else progress.eventTime.get("watermark", "1970")
        return 0 if shown.startswith("1970") else milliseconds(datetime.fromisoformat(shown))

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        """What is written meanwhile arrives in one batch, however slow the machine is."""
        self.stop()
        yield
        self.begin()

    def watermarks_ms(self) -> dict[int, int]:
        """The watermark of each micro-batch, by its number."""
        return {
            one.batchId: milliseconds(datetime.fromisoformat(one.eventTime["watermark"]))
            for one in self.query.recentProgress
        }

    def foreseen_ms(self) -> dict[int, int]:
        """The trigger after each micro-batch with ticks began, by the clock."""
        interval_ms = trigger_ms(self._world.store.config)
        began_ms = {
            one.batchId: milliseconds(datetime.fromisoformat(one.timestamp))
            for one in self.query.recentProgress
            if one.sources[-1].numInputRows
        }
        return {
            number: self.clock.at(at_ms - at_ms % interval_ms + interval_ms)
            for number, at_ms in began_ms.items()
        }

    def arrival(self) -> int:
        """The number of the micro-batch that read the halves."""
        progress = self.query.recentProgress
        return next(one.batchId for one in progress if one.sources[0].numInputRows)

    def state_rows(self) -> int:
        """How many rows the join holds, ticks and all."""
        progress = self.query.lastProgress
        return 0 if progress is None else sum(one.numRowsTotal for one in progress.stateOperators)

    def stop(self) -> None:
        """Stop at the begin of a batch; on a slow machine there is no pause between two."""
        self._is_stopping = True
        wait_until(lambda: not self.query.isActive, "the end of the query", PATIENCE_S)
        assert STOPPED in str(self.query.exception())

    def _count_dropped(self) -> None:
        progress = self.query.lastProgress
        if progress is not None and progress.batchId > self._seen:
            self._seen = progress.batchId
            self.dropped += sum(one.numRowsDroppedByWatermark for one in progress.stateOperators)


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path, check_trigger_interval_s=0.5)


@pytest.fixture
def watched(spark: SparkSession, world: CheckWorld) -> Iterator[Watched]:
    watching = Watched(spark, world, AffineClock.from_now(speed=20.0))
    watching.wait_batches(1)
    yield watching
    watching.stop()


def test_of_1600_transactions_exactly_the_150_unanswered_come_out_once(
    world: CheckWorld, watched: Watched
) -> None:
    with watched.one_batch():
        ids = [key for _ in range(4) for key in world.prepare(400, immunity_s=60.0)]
        world.claim(ids[:800], ClaimKind.COMMIT)
        world.claim(ids[800:1_440], ClaimKind.ROLLBACK)
        world.claim(ids[1_440:1_450], ClaimKind.DISCARD, life=0)
    unanswered = ids[1_450:]

    watched.wait(lambda: len(watched.out) >= 150, "all that are due")
    watched.wait_batches(3)

    assert sorted(watched.ids()) == sorted(unanswered)
    assert watched.dropped == 0


def test_no_row_comes_out_before_its_deadline(world: CheckWorld, watched: Watched) -> None:
    for immunity_s in (6.0, 60.0, 100.0):
        world.prepare(20, immunity_s=immunity_s)
    watched.wait(lambda: len(watched.out) >= 60, "all that are due")

    assert all(milliseconds(row["deadline"]) <= row["now_ms"] for row in watched.out)
    assert all(row["deadline"] <= row["event_time"] for row in watched.out)


def test_row_comes_out_at_the_first_trigger_after_its_deadline(
    world: CheckWorld, watched: Watched
) -> None:
    with watched.one_batch():
        for immunity_s in range(60, 110, 2):
            world.prepare(immunity_s=float(immunity_s))
    watched.wait(lambda: len(watched.out) >= 25, "all that are due")
    watched.wait_batches(1)

    watermarks_ms = watched.watermarks_ms()
    # Those before it may have been planned by the query that was stopped.
    arrival = watched.arrival()
    for row in watched.out:
        before_ms, now_ms = (watermarks_ms[row["batch"] - past] for past in (1, 0))
        assert milliseconds(row["deadline"]) <= now_ms
        was_late = milliseconds(row["deadline"]) < watermarks_ms[arrival + 1]
        assert was_late or before_ms <= milliseconds(row["deadline"])
    for number, foreseen_ms in watched.foreseen_ms().items():
        is_planned_now = number >= arrival and number + 1 in watermarks_ms
        assert not is_planned_now or watermarks_ms[number + 1] >= foreseen_ms


def test_deadline_is_the_time_of_the_commit_file_and_the_immunity(
    world: CheckWorld, watched: Watched
) -> None:
    world.prepare(immunity_s=6.0)
    watched.wait(lambda: watched.out, "the half")

    times_ms = world.store.tables.half_log().table.folder.commit_times_ms()
    (row,) = watched.out
    assert milliseconds(row["deadline"]) == watched.clock.at(times_ms[1]) + 6_000


def test_watermark_moves_without_any_row(watched: Watched) -> None:
    watched.wait_batches(2)
    before_ms = watched.watermark_ms()
    watched.wait_batches(3)

    assert watched.watermark_ms() > before_ms
    assert watched.out == []


def test_state_forgets_what_lies_behind_the_horizon(world: CheckWorld, watched: Watched) -> None:
    with watched.one_batch():
        world.claim(world.prepare(500, immunity_s=60.0), ClaimKind.COMMIT)

    watched.wait(lambda: watched.state_rows() >= 1_000, "heads and ends")
    watched.wait(lambda: watched.state_rows() < 500, "neither")
    assert watched.out == []


def test_rearmed_row_comes_out_with_its_count_and_life(world: CheckWorld, watched: Watched) -> None:
    ids = world.prepare(immunity_s=100_000.0)
    next_ms = watched.clock.now_ms() + 30_000
    world.claim(ids, ClaimKind.UNKNOWN, life=2, check_times=3, next_check_timestamp_ms=next_ms)
    watched.wait(lambda: watched.out, "the re-armed row")

    (row,) = watched.out
    assert (row["check_times"], row["life"], row["armed_version"]) == (3, 2, 1)
    assert row["deadline"] == timestamp(next_ms)


# --- many stories in one query --------------------------------------------------------------------


@dataclass(frozen=True)
class Stories:
    """Transactions by what happened to them, and the ids that came out."""

    ids: dict[str, list[str]]
    out: list[str]
    dropped: int

    def came_out(self, name: str) -> list[str]:
        return [key for key in self.ids[name] for _ in range(self.out.count(key))]


UNUSABLE = {repr(value): value for value in (float("nan"), float("inf"), -1.0, 0.0)}
YEAR_MS = 365 * 86_400_000


@pytest.fixture(scope="module")
def stories(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stories:
    """Each is of transactions of its own, so one query serves them all."""
    folder = tmp_path_factory.mktemp("stories")
    world = CheckWorld(folder, check_trigger_interval_s=0.5)
    watched = Watched(spark, world, AffineClock.from_now(speed=20.0))
    with watched.one_batch():
        ids = written(world, watched.clock)
    due = ("plain", "resumed", "claimed by thieves", "of many messages")
    watched.wait(lambda: len(watched.out) >= sum(len(ids[name]) for name in due), "all due")
    watched.wait_batches(3)
    watched.stop()
    return Stories(ids, watched.ids(), watched.dropped)


def written(world: CheckWorld, clock: AffineClock) -> dict[str, list[str]]:
    ids = {name: world.prepare(immunity_s=value) for name, value in UNUSABLE.items()}
    ids["far"] = world.prepare(immunity_s=horizon_s(world.store.config) + 1_000.0)
    ids["of many messages"] = world.prepare(3, messages=50, immunity_s=6.0)
    ids["claimed by thieves"] = world.prepare(immunity_s=60.0)
    world.claim(ids["claimed by thieves"], ClaimKind.COMMIT, group="thieves")
    for name, off_ms in (("fast", YEAR_MS), ("slow", -YEAR_MS)):
        ids[name] = world.prepare(immunity_s=60.0)
        said_ms = world.clock.now_ms() + off_ms
        world.claim(ids[name], ClaimKind.COMMIT, op_timestamp_ms=said_ms)
    both = world.prepare(2, immunity_s=100_000.0)
    soon_ms = clock.now_ms() + 60_000
    world.claim(both, ClaimKind.DISCARD, life=0)
    world.claim(both, ClaimKind.RESUME, life=1, next_check_timestamp_ms=soon_ms)
    world.claim(both[1:], ClaimKind.COMMIT)
    ids["resumed"], ids["resumed and committed"] = both[:1], both[1:]
    ids["plain"] = world.prepare(immunity_s=60.0)
    return ids


def test_claim_from_before_a_resume_does_not_answer_what_it_armed(stories: Stories) -> None:
    assert stories.came_out("resumed") == stories.ids["resumed"]
    assert stories.came_out("resumed and committed") == []


def test_claim_of_another_group_answers_nothing(stories: Stories) -> None:
    assert stories.came_out("claimed by thieves") == stories.ids["claimed by thieves"]


@pytest.mark.parametrize("clock", ["fast", "slow"])
def test_clock_of_a_producer_does_not_matter(clock: str, stories: Stories) -> None:
    assert stories.came_out(clock) == []
    assert stories.dropped == 0


def test_only_the_first_message_of_a_transaction_is_watched(stories: Stories) -> None:
    assert stories.came_out("of many messages") == stories.ids["of many messages"]


@pytest.mark.parametrize("immunity", UNUSABLE)
def test_half_with_an_unusable_immunity_is_left_out_and_stops_nothing(
    immunity: str, stories: Stories
) -> None:
    assert stories.came_out(immunity) == []
    assert stories.came_out("plain") == stories.ids["plain"]


def test_deadline_beyond_the_horizon_is_left_to_the_recheck(stories: Stories) -> None:
    assert stories.came_out("far") == []


# --- the rest has a query for each ----------------------------------------------------------------


def test_rows_that_retention_deletes_are_not_rows_of_now(
    world: CheckWorld, watched: Watched
) -> None:
    with watched.one_batch():
        ids = world.prepare(20, immunity_s=60.0)
        delta_rs(world.store.tables.half_log().table.folder).delete()
        ids += world.prepare(immunity_s=60.0)
    watched.wait(lambda: len(watched.out) >= 21, "all that were appended")
    watched.wait_batches(2)

    assert Counter(watched.ids()) == Counter(ids)


def test_compaction_brings_nothing_out(world: CheckWorld, watched: Watched) -> None:
    with watched.one_batch():
        for _ in range(3):
            world.claim(world.prepare(10, immunity_s=60.0), ClaimKind.COMMIT)
        delta_rs(world.store.tables.half_log().table.folder).optimize.compact()
        delta_rs(world.store.tables.op_log().table.folder).optimize.compact()
        near = world.prepare(immunity_s=60.0)
    watched.wait(lambda: watched.out, "the near one")
    watched.wait_batches(3)

    assert watched.ids() == near


def test_restart_over_its_checkpoint_goes_on_where_it_was(
    world: CheckWorld, watched: Watched
) -> None:
    ids = world.prepare(5, immunity_s=100.0)
    watched.wait_batches(1)
    with watched.one_batch():
        ids += world.prepare(5, immunity_s=60.0)
    watched.wait(lambda: len(watched.out) >= 10, "those before and after the restart")
    watched.wait_batches(2)

    assert Counter(watched.ids()) == Counter(ids)


def test_clock_that_is_set_back_shows_as_dropped_rows(
    spark: SparkSession, world: CheckWorld
) -> None:
    watching = Watched(spark, world, AffineClock.from_now(speed=1.0, ahead_ms=3_600_000))
    watching.wait_batches(3)
    watching.stop()
    assert watching.dropped == 0

    watching.clock = AffineClock.from_now(speed=1.0)
    watching.begin()
    watching.wait(lambda: watching.dropped > 0, "dropped ticks")
    watching.stop()


def test_settings_of_the_callers_session_are_left_alone(spark: SparkSession) -> None:
    key = "spark.sql.constraintPropagation.enabled"
    before = spark.conf.get(key)
    session = join_session(spark)

    assert session.conf.get(key) == "false"
    assert spark.conf.get(key) == before


def test_horizon_is_beyond_the_next_check_of_any_settings() -> None:
    slow = Config(transaction_check_interval_s=600.0, transaction_timeout_s=60.0)

    assert horizon_s(slow) > 600.0


@pytest.mark.parametrize("key", ["transaction_check_interval_s", "transaction_timeout_s"])
def test_horizon_is_beyond_the_next_check_of_any_group(key: str) -> None:
    assert horizon_s(Config(groups={"patient": {key: 600.0}})) > 600.0
