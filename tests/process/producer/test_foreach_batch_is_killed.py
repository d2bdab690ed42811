"""A foreachBatch job that is killed again and again: each micro-batch counts once in the end.

FOREACH_BATCH_KILLS says how often (2), FOREACH_BATCH_SEED which moments are drawn (1).
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.books import SETTINGS
from tests.kit.jobs import exit_code_of
from tests.kit.reading import are_gap_free, log_rows, publish, rows_of, topic_rows, wait_until
from tests.kit.truth import run_until_all_is_done
from tests.process.producer.foreach_batch_process import GROUP, TOPIC
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint
from txmq.listeners.delta import DeltaListener
from txmq.ops.broker import Broker
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

KILLS = int(os.environ.get("FOREACH_BATCH_KILLS", "2"))
SEED = int(os.environ.get("FOREACH_BATCH_SEED", "1"))
MODULE = "tests.process.producer.foreach_batch_process"
LIMIT_S = 240
pytestmark = [
    pytest.mark.needs_spark,
    pytest.mark.timeout(LIMIT_S * (KILLS + 2)),
]
POINTS = (
    FailPoint.FRAMES_COMMITTED, FailPoint.END_READY, FailPoint.FRAMES_WRITTEN,
    FailPoint.END_COMMITTED, FailPoint.END_CONFIRMED,
)  # fmt: skip
CYCLE = 2 * len(POINTS)
# One batch may be a replay that passes no point, the second one after it is the last.
WAITING_FILES = 4
PAYMENTS_OF_A_FILE = 3
LONGEST_LIFE_S = 2.5


@dataclass
class Business:
    """Payments that come in, one file a micro-batch, and the table that they are booked in."""

    store: Store
    folder: Path
    files: dict[str, list[str]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return str(self.folder / "booked")

    @property
    def listener(self) -> DeltaListener:
        return DeltaListener(self.table)

    def receive(self) -> None:
        """As many files as a run needs."""
        booked = {row["file"] for row in rows_of(self.table)}
        while len(self.files) < len(booked) + WAITING_FILES:
            name = f"file-{len(self.files):03d}"
            payments = [f"{name}/{number}" for number in range(PAYMENTS_OF_A_FILE)]
            lines = "\n".join(json.dumps({"payment": each, "file": name}) for each in payments)
            (self.folder / "payments" / f"{name}.json").write_text(lines)
            self.files[name] = payments

    def run_job(self, *arguments: str, faults: str = "") -> int:
        """A process with Java of its own; its exit code, when nothing of either is left."""
        places = self.store.location, str(self.folder)
        return exit_code_of(MODULE, *places, *arguments, limit_s=LIMIT_S, faults=faults)

    def run_job_until_it_dies(self, number: int, drawn: random.Random) -> None:
        """At the steps of its transaction in turn, and then as often anywhere."""
        place = number % CYCLE
        if place < len(POINTS):
            point = POINTS[place]
            code = self.run_job(faults=f"{point}=kill@{drawn.randint(1, 2)}")
        else:
            code = self.run_job(f"{drawn.uniform(0, LONGEST_LIFE_S):.3f}")
        assert code == -signal.SIGKILL

    def check(self) -> None:
        """The check is there before the job is back: it answers by the table, or fences."""
        recheck = RecheckJob(self.store, listeners={GROUP: self.listener})
        wait_until(lambda: recheck.run_once().open_transactions == 0)


@pytest.fixture
def business(tmp_path: Path) -> Business:
    made = Business(Store.create(tmp_path / "store", Config(**SETTINGS)), tmp_path)
    (tmp_path / "payments").mkdir()
    empty = pa.array([], pa.string())
    write_deltalake(made.table, pa.table({"payment": empty, "file": empty}))
    return made


def test_each_micro_batch_counts_once_however_often_its_job_is_killed(business: Business) -> None:
    drawn = random.Random(SEED)
    for number in range(KILLS):
        business.receive()
        business.run_job_until_it_dies(number, drawn)
        # In every other cycle the job is back before the check.
        if number // CYCLE % 2 == 0:
            business.check()
        if drawn.random() < 0.5:
            publish(business.store)

    assert_each_file_counts_once_in_the_end(business)
    if KILLS > 1:
        claims = log_rows(business.store, "op")
        assert {row["kind"] for row in claims if row["source"] == "recheck"} == {
            "COMMIT", "ROLLBACK",
        }  # fmt: skip


def test_each_micro_batch_counts_once_however_often_java_alone_is_killed(
    business: Business,
) -> None:
    drawn = random.Random(SEED)
    for number in range(KILLS):
        business.receive()
        code = business.run_job(f"{drawn.uniform(0, LONGEST_LIFE_S):.3f}", "java")
        assert code not in (0, -signal.SIGKILL)
        if number % 2:
            business.check()

    assert_each_file_counts_once_in_the_end(business)


def assert_each_file_counts_once_in_the_end(business: Business) -> None:
    assert business.run_job() == 0
    run_until_all_is_done(
        business.store, Broker(business.store, listeners={GROUP: business.listener})
    )
    assert_each_file_counts_once(business)


def assert_each_file_counts_once(business: Business) -> None:
    payments = sorted(each for file in business.files.values() for each in file)
    messages = topic_rows(business.store, TOPIC)
    assert sorted(row["payment"] for row in rows_of(business.table)) == payments
    assert sorted(row["body"].decode() for row in messages) == payments
    assert are_gap_free(messages)
    transactions: dict[str, set[str]] = defaultdict(set)
    for row in messages:
        transactions[row["tags"]].add(row["transaction_id"])
    assert [len(each) for each in transactions.values()] == [1] * len(business.files)
    committed = {row["transaction_id"] for row in log_rows(business.store, "settled")
                 if row["state"] == "COMMITTED"}  # fmt: skip
    assert committed == set().union(*transactions.values())
    report = verify(business.store.location)
    assert report.is_clean, report
