"""One run of the mix, and what the journal says beside what the topics show."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.endurance.harness import started, stop
from tests.endurance.mix.sender import GROUP, SHOWN, TOPICS, Listener
from tests.kit.truth import run_until_all_is_done
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.broker import Broker
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

SENDERS, BROKERS = 2, 2
WITH, WITHOUT = "with", "without"
DRAIN_WAIT_S = 120.0
POLL_S = 0.05
SETTINGS = {"transaction_check_interval_s": 1.0, "recheck_interval_s": 5.0}


@dataclass(frozen=True)
class Outcome:
    """What a run came to; it is right where every list is empty."""

    messages: int
    kinds: Mapping[str, int]
    kills: int
    seconds: float
    lost: Sequence[str]
    doubled: Sequence[str]
    wrong: Sequence[str]
    early: Sequence[str]
    disordered: Sequence[str]
    verify_violations: int
    delivered: int
    lateness_p50_s: float
    lateness_p99_s: float
    lateness_max_s: float
    lateness_bar_s: float

    @property
    def is_right(self) -> bool:
        lists = (self.lost, self.doubled, self.wrong, self.early, self.disordered)
        return not any(lists) and not self.verify_violations

    @property
    def is_late(self) -> bool:
        """A figure of a quiet machine; a slice in CI does not ask."""
        return self.lateness_p99_s > self.lateness_bar_s

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_right": self.is_right, "is_late": self.is_late}


@dataclass
class Brokers:
    """One on Spark and one without; one of them is killed at random while the other serves."""

    folder: Path
    location: str
    spark: str
    draw: random.Random
    running: dict[int, tuple[subprocess.Popen[bytes], Path]] = field(default_factory=dict)
    kills: int = 0
    starts: int = 0

    def keep(self) -> None:
        for number in range(BROKERS):
            if number not in self.running or self.running[number][0].poll() is not None:
                self._start(number)

    def kill_one(self) -> None:
        """Never the last that serves: how long a start takes is not what is measured."""
        ready = [number for number, (_, mark) in self.running.items() if mark.exists()]
        if len(ready) == BROKERS:
            number = self.draw.choice(ready)
            self.running[number][0].kill()
            self.running[number][0].wait()
            self.running[number][1].unlink()
            self.kills += 1

    def is_serving(self) -> bool:
        return len(self.running) == BROKERS and all(
            mark.exists() for _, mark in self.running.values()
        )

    def stop(self) -> None:
        for process, mark in self.running.values():
            stop(process, mark.with_suffix(".log"))

    def _start(self, number: int) -> None:
        self.starts += 1
        mark = self.folder / f"broker-{self.starts}.ready"
        spark = self.spark if number == 0 else WITHOUT
        command = ["tests.endurance.mix.broker", self.location, str(mark), spark]
        with mark.with_suffix(".log").open("wb") as log:
            self.running[number] = started(command, log), mark


@dataclass(frozen=True)
class Plan:
    """How many messages are sent in how long, and how often a broker is killed meanwhile."""

    messages: int
    seconds: float
    kills: int
    seed: int = 1
    spark: str = WITH


def run(folder: Path, plan: Plan) -> Outcome:
    """Send, kill meanwhile, wait until all is due, and compare."""
    store = Store.create(folder / "store", Config(**SETTINGS))
    brokers = Brokers(folder, store.location, plan.spark, random.Random(plan.seed))
    journals = [folder / f"journal-{number}" for number in range(SENDERS)]
    begin_s = time.monotonic()
    with ExitStack() as stack:
        stack.callback(brokers.stop)
        wait_for(brokers)
        senders = [_sender(store, journal, plan) for journal in journals]
        for sender in senders:
            stack.callback(sender.kill)
        torment(brokers, senders, plan)
        assert [sender.wait() for sender in senders] == [0] * SENDERS
        # What is still to come comes by the brokers, or its lateness would say nothing.
        wait_until_delivered(store, brokers)
    broker = Broker(store, listeners={GROUP: Listener()})
    run_until_all_is_done(store, broker, DRAIN_WAIT_S)
    return compared(store, journals, brokers.kills, time.monotonic() - begin_s)


def _sender(store: Store, journal: Path, plan: Plan) -> subprocess.Popen[bytes]:
    seed, count = f"{plan.seed}-{journal.name}", str(plan.messages // SENDERS)
    command = [
        "tests.endurance.mix.sender",
        store.location,
        str(journal),
        seed,
        count,
        str(plan.seconds),
    ]
    return started(command, None)


def wait_for(brokers: Brokers) -> None:
    brokers.keep()
    while not brokers.is_serving():
        time.sleep(POLL_S)


def torment(brokers: Brokers, senders: Sequence[subprocess.Popen[bytes]], plan: Plan) -> None:
    """Kills at random over the time in which there are senders."""
    begun_s = time.monotonic()
    moments_s = sorted(brokers.draw.uniform(0, plan.seconds) for _ in range(plan.kills))
    while any(sender.poll() is None for sender in senders) or brokers.kills < plan.kills:
        brokers.keep()
        if brokers.kills < plan.kills and time.monotonic() > begun_s + moments_s[brokers.kills]:
            brokers.kill_one()
        time.sleep(POLL_S)


def wait_until_delivered(store: Store, brokers: Brokers) -> None:
    wait_for(brokers)
    deadline_s = time.monotonic() + DRAIN_WAIT_S
    while scheduled(store) and time.monotonic() < deadline_s:
        time.sleep(1)


def scheduled(store: Store) -> int:
    """Delayed messages that are neither delivered nor recalled."""
    table = store.tables.schedule_log().refresh().table
    total = sum(file.num_records for file in table.files.all())
    settled = store.tables.table_at("settled").refresh()
    rows = settled.rows.read(settled.files.all(), ("state", "sequences")).to_pylist()
    ended = sum(len(row["sequences"]) for row in rows if row["sequences"] is not None)
    return total - ended


# --- comparing ----------------------------------------------------------------------------------


def compared(store: Store, journals: Sequence[Path], kills: int, seconds: float) -> Outcome:
    noted = [json.loads(line) for path in journals for line in path.read_text("utf-8").splitlines()]
    shown = [row for topic in TOPICS for row in rows_of(store, topic)]
    counts = Counter(row["message_id"] for row in shown)
    expected = {note["id"]: note for note in noted if note["fate"] == SHOWN}
    sent = {own_id: (note["topic"], note["body"]) for own_id, note in expected.items()}
    content = {row["message_id"]: (row["topic"], row["body"].decode()) for row in shown}
    late_s, early = lateness(store, shown)
    percentiles = np.percentile(late_s, [50, 99, 100]).round(3).tolist() if late_s else [0.0] * 3
    config = store.config
    return Outcome(
        messages=len(noted),
        kinds=dict(Counter(f"{n['fate']}{', delayed' if n['delayed'] else ''}" for n in noted)),
        kills=kills,
        seconds=round(seconds, 1),
        lost=sorted(expected.keys() - counts.keys()),
        doubled=sorted(one for one, count in counts.items() if count > 1),
        wrong=sorted(one for one in counts if content[one] != sent.get(one)),
        early=early,
        disordered=disordered(expected, shown),
        verify_violations=verify(store.location).violation_count,
        delivered=len(late_s),
        lateness_p50_s=percentiles[0],
        lateness_p99_s=percentiles[1],
        lateness_max_s=percentiles[2],
        lateness_bar_s=2 * config.delay_trigger_interval_s + 1.0,
    )  # fmt: skip


def rows_of(store: Store, topic: str) -> list[dict[str, Any]]:
    if topic not in store.topics():
        return []
    table = store.tables.table_at(f"topics/{topic}")
    rows: list[dict[str, Any]] = table.rows.read(
        table.files.all(), [column.name for column in table.schema.columns]
    ).to_pylist()
    return rows


def lateness(store: Store, shown: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str]]:
    """How long after its time, or after its commit, each delayed message was stored."""
    due = {row["message_id"]: row["deliver_timestamp"] for row in rows_of(store, SCHEDULE_TOPIC)}
    settled = store.tables.table_at("settled")
    facts = settled.rows.read(settled.files.all(), ("transaction_id", "state", "settled_timestamp"))
    committed = {
        row["transaction_id"]: row["settled_timestamp"]
        for row in facts.to_pylist()
        if row["state"] == "COMMITTED"
    }
    late_s, early = [], []
    for row in shown:
        if row["message_id"] in due:
            moment = due[row["message_id"]]
            if row["store_timestamp"] < moment:
                early.append(row["message_id"])
            since = max(moment, committed[row["transaction_id"]])
            late_s.append((row["store_timestamp"] - since).total_seconds())
    return late_s, early


def disordered(
    expected: Mapping[str, Mapping[str, Any]], shown: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Messages of a key that stand before an older one, or in another queue."""
    by_key: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in shown:
        note = expected.get(row["message_id"])
        if note and note["key"] and not note["delayed"]:
            by_key.setdefault((row["topic"], note["key"]), []).append(row)
    wrong = []
    for rows in by_key.values():
        ordered = sorted(rows, key=lambda row: row["queue_offset"])
        bodies = [row["body"] for row in ordered]
        queues = {row["queue_id"] for row in rows}
        if bodies != sorted(bodies) or len(queues) != 1:
            wrong.append(str(rows[0]["sharding_key"]))
    return wrong
