"""Twenty producers in processes of their own, two brokers, and readers, with kills among them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.writers.actors import TOPIC, acknowledged, main
from tests.kit.forked import Forked
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

SECONDS = {Scale.FULL: 600.0, Scale.SLICE: 15.0}
PRODUCERS = {Scale.FULL: 20, Scale.SLICE: 6}
BROKERS = 2
KILL_EVERY_S = 3.0
# A reader ends after a look at all rows, which takes minutes on a busy machine.
END_S = 1_800
# Readers that are slower than this would find a commit gone that they have listed.
SETTINGS = {"log_reserved_time_s": 120.0, "maintenance_interval_s": 5.0}


@dataclass
class Field:
    """The processes, by name; who is killed comes back under another name."""

    location: str
    folder: Path
    draw: random.Random
    running: dict[str, Forked]
    begun: int = 0

    def start(self, role: str) -> None:
        """One more of a role."""
        self.begun += 1
        name, log = f"{role} {self.begun}", self.folder / f"{role}-{self.begun}.log"
        arguments = role, self.location, str(self.folder), str(self.begun)
        self.running[name] = Forked(main, *arguments, faults="", log=log)

    def kill_one(self) -> None:
        """SIGKILL to a producer or a broker, and another one in its place."""
        names = [name for name in self.running if name.startswith(("producer", "broker"))]
        name = self.draw.choice(names)
        self.running.pop(name).kill()
        self.start(name.split()[0])

    def end(self, role: str, *roles: str) -> None:
        """Let the processes of these roles end by themselves."""
        self.folder.joinpath(f"stop {role}s").touch()
        for name in [name for name in self.running if name.startswith((role, *roles))]:
            process = self.running.pop(name)
            assert process.wait(END_S) == 0, f"{name} failed: {process.complaint()}"


def tell(folder: Path, options: Options) -> Result:
    """Write and read for the time of the scale; then each acknowledged number is there once."""
    folder.mkdir(parents=True, exist_ok=True)
    store = Store.create(folder / "store", Config(**SETTINGS))
    kills = 0
    with field(store.location, folder, options) as actors:
        end_s = time.monotonic() + (options.seconds or SECONDS[options.scale])
        while time.monotonic() < end_s:
            time.sleep(KILL_EVERY_S)
            actors.kill_one()
            kills += 1
        actors.end("producer")
        actors.end("reader", "delta-rs", "spark")
        actors.end("broker")
    Publisher(store).run_once()
    numbers = {"kills": kills, **judged(store, folder)}
    return Result(is_right(numbers, options), numbers)


@contextmanager
def field(location: str, folder: Path, options: Options) -> Iterator[Field]:
    """All processes; none outlives the block."""
    readers = ("delta-rs", "spark") if options.with_spark else ("delta-rs",)
    actors = Field(location, folder, random.Random(options.seed), {})
    try:
        for role in ("broker",) * BROKERS + readers + ("producer",) * PRODUCERS[options.scale]:
            actors.start(role)
        yield actors
    finally:
        for process in actors.running.values():
            process.kill()


def judged(store: Store, folder: Path) -> dict[str, Any]:
    """What became of the numbers, and what readers met."""
    sent = acknowledged(folder)
    looks = [
        json.loads(line)
        for path in folder.glob("reads-*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return {
        "acknowledged": len(sent),
        **{f"{name}_{key}": count for name, path in (("half", "half"), ("topic", f"topics/{TOPIC}"))
           for key, count in compared(store, path, sent).items()},
        "commits": store.tables.table_at("half").version,
        "looks": Counter(f"{look['table']}" for look in looks if "rows" in look),
        "looks_missing": sum(look.get("missing", 0) for look in looks),
        "looks_doubled": sum(look.get("doubled", 0) for look in looks),
        "errors": Counter(look["error"] for look in looks if "error" in look),
        "verify_violations": verify(store.location).violation_count,
    }  # fmt: skip


def compared(store: Store, path: str, sent: Any) -> dict[str, int]:
    """Acknowledged numbers that a table lacks, and numbers that it has twice."""
    table = store.tables.table_at(path)
    bodies = table.rows.read(table.files.all(), ("body",))["body"].to_pylist()
    numbers = np.array([int(body) for body in bodies], np.int64)
    return {
        "lost": len(np.setdiff1d(sent, numbers)),
        "doubled": len(numbers) - len(np.unique(numbers)),
    }


def is_right(numbers: dict[str, Any], options: Options) -> bool:
    """Nothing lost, doubled or unreadable, and there was something to see."""
    wrong = ("half_lost", "half_doubled", "topic_lost", "topic_doubled", "looks_missing",
             "looks_doubled", "errors", "verify_violations")  # fmt: skip
    has_looked = len(numbers["looks"]) == 2 and numbers["acknowledged"] > PRODUCERS[options.scale]
    return has_looked and not any(numbers[key] for key in wrong)


WRITERS = Story("writers", "twenty producers, two brokers, and other engines that read", tell)
