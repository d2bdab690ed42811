"""`python -m bench.check_latency`: how late is one asked, under spark-submit?

`jobs/check_service.py` runs as a user submits it. Three of four transactions are ended by their
producer, the fourth by nobody. Measured from the deadline, six seconds after the store received the
half, to the question: while the deadline join takes over, and afterwards. Beside it: which road
asked, the lines of the job's log, and its processor time.

`--project` names another checkout, for a comparison in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import STDOUT, Popen

import psutil

from bench.machine import machine_facts
from txmq.listeners.protocol import HalfMessage
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.spark.jars import cache_folder, jar_paths, spark_home
from txmq.spark.java import home_for_spark, require_java
from txmq.store.store import Store

REPOSITORY = Path(__file__).parents[1]
GROUP = "bench"
OF_ONE_LEFT = 4
# A transaction that is ended is two commits, one that is left is one.
COMMITS_OF_FOUR = 7
START_LIMIT_S = 180.0
LOOK_S = 0.2
LAST_QUESTION_S = 45.0
LOG_S = 180.0


class Journal:
    """Commits every transaction that it is asked about, and writes down when that was."""

    def __init__(self, path: str) -> None:
        """Nothing was asked yet; the questions are lines of the file `path`."""
        self._path = Path(path)

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Not used here."""
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """COMMIT."""
        with self._path.open("a", encoding="utf-8") as journal:
            journal.write(f"{message.transaction_id} {time.time()}\n")
        return LocalTransactionState.COMMIT


def main() -> int:
    """Exit with 1 where somebody was asked early, never, twice, or although it had ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=REPOSITORY, help="whose job is measured")
    parser.add_argument("--take-over-s", type=float, default=150.0, help="sending at first")
    parser.add_argument("--send-s", type=float, default=180.0, help="sending afterwards")
    parser.add_argument("--commits-per-s", type=float, default=5.0)
    parser.add_argument("--keep-log", type=Path, help="where the job's log is left")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts = _measure(Path(folder), options)
    sys.stdout.write(json.dumps({**machine_facts(), **facts}, indent=2) + "\n")
    return 0 if facts["is_as_promised"] else 1


@dataclass(frozen=True, slots=True)
class Question:
    """One orphan, its deadline by the store's time, and when it was asked about; None: never."""

    deadline_s: float
    asked_s: float | None
    source: str
    count: int

    @property
    def late_s(self) -> float:
        """How long after the deadline the question came."""
        return float("inf") if self.asked_s is None else self.asked_s - self.deadline_s


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    store = Store.create(str(folder / "store"))
    journal, log = folder / "journal", options.keep_log or folder / "log"
    journal.touch()
    with _submitted(store, options.project, journal, log) as (job, begun_s):
        left, ended = _send(store, options.take_over_s, options.commits_per_s)
        taken_over_s, used_s = time.time(), _used_s(job)
        more_left, more_ended = _send(store, options.send_s, options.commits_per_s)
        cores = (_used_s(job) - used_s) / (time.time() - taken_over_s)
        time.sleep(LAST_QUESTION_S)
        is_alive = job.poll() is None
        lines, log_s = log.read_text("utf-8").count("\n"), time.time() - begun_s
    left, ended = left | more_left, ended | more_ended
    asked = _asked(journal)
    questions = _questions(store, left, asked)
    settled_s = taken_over_s + store.config.transaction_timeout_s
    after = [one for one in questions if one.deadline_s >= settled_s]
    before = [one for one in questions if one.deadline_s < settled_s]
    return {
        "load_1_5_15": [round(value, 1) for value in os.getloadavg()],
        "transactions": len(left) + len(ended),
        "while_the_join_takes_over": _summary(before),
        "afterwards": _summary(after),
        "log_lines_in_three_minutes": round(lines * LOG_S / log_s),
        "job_cores": round(cores, 3),
        "is_as_promised": (
            is_alive
            and asked.keys() == left
            and all(one.count == 1 and one.late_s >= 0 for one in questions)
        ),
    }


@contextmanager
def _submitted(
    store: Store, project: Path, journal: Path, log: Path
) -> Iterator[tuple[Popen[bytes], float]]:
    """Run the job of `project` until it has asked about a first orphan, then for the block."""
    listeners = {GROUP: {"class": "bench.check_latency:Journal", "path": str(journal)}}
    java_home = home_for_spark(require_java(), cache_folder())
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(project),
        "TXMQ_LISTENERS": json.dumps(listeners),
    }
    job = str(project / "jobs" / "check_service.py")
    command = [str(spark_home() / "bin" / "spark-submit"), *_options(project), job, store.location]
    begun_s = time.time()
    with (
        log.open("wb") as output,
        Popen(command, env=environment, stdout=output, stderr=STDOUT) as process,
    ):
        try:
            _await_question(store, journal)
            yield process, begun_s
        finally:
            process.terminate()


def _options(project: Path) -> list[str]:
    """What users pass, but with the jars from the cache in the place of their download."""
    lines = (project / "conf" / "spark-defaults.conf").read_text("utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    settings = [f"{key}={value}" for key, value in pairs if key != "spark.jars.packages"]
    jars = ",".join(map(str, jar_paths(cache_folder())))
    each = (part for setting in settings for part in ("--conf", setting))
    return ["--master", "local[2]", "--jars", jars, *each]


def _await_question(store: Store, journal: Path) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        _prepare(producer)
    deadline_s = time.monotonic() + START_LIMIT_S
    while not journal.stat().st_size:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the job asked nobody in {START_LIMIT_S:.0f} s")
        time.sleep(LOOK_S)
    journal.write_text("")


def _send(store: Store, send_s: float, commits_per_s: float) -> tuple[set[str], set[str]]:
    """Ids of the transactions that were left open and of those that were ended."""
    left: set[str] = set()
    ended: set[str] = set()
    begun_s = time.monotonic()
    pause_s = COMMITS_OF_FOUR / OF_ONE_LEFT / commits_per_s
    with TransactionProducer(store, producer_group=GROUP) as producer:
        number = 0
        while time.monotonic() - begun_s < send_s:
            is_left = number % OF_ONE_LEFT == 0
            (left if is_left else ended).add(_prepare(producer, commits=not is_left))
            number += 1
            time.sleep(max(0.0, begun_s + number * pause_s - time.monotonic()))
    return left, ended


def _prepare(producer: TransactionProducer, *, commits: bool = False) -> str:
    """Prepare a transaction, which nothing refers to afterwards: nobody renews it."""
    transaction = producer.begin_transaction()
    transaction.send(Message("bench", b"body"))
    transaction.prepare()
    if commits:
        transaction.commit()
    return transaction.id


def _asked(journal: Path) -> dict[str, list[float]]:
    asked_s: dict[str, list[float]] = {}
    for line in journal.read_text("utf-8").splitlines():
        key, at_s = line.split()
        asked_s.setdefault(key, []).append(float(at_s))
    return asked_s


def _questions(store: Store, left: set[str], asked: dict[str, list[float]]) -> list[Question]:
    half, op = store.tables.half_log().table, store.tables.op_log()
    times_ms = half.folder.commit_times_ms()
    rows = half.changes.read(0, half.version, ("transaction_id",)).to_pylist()
    stored_s = {row["transaction_id"]: times_ms[row["_commit_version"]] / 1000 for row in rows}
    claims = op.between(-1, op.table.version).to_pylist()
    sources = {
        row["transaction_id"]: row["source"]
        for row in claims
        if row["kind"] == ClaimKind.COMMIT.value and row["source"] != ClaimSource.PRODUCER.value
    }
    timeout_s = store.config.transaction_timeout_s
    return [
        Question(
            stored_s[key] + timeout_s,
            min(asked.get(key, []), default=None),
            sources.get(key, "nobody"),
            len(asked.get(key, [])),
        )
        for key in left
    ]


def _summary(questions: list[Question]) -> dict[str, object]:
    late_s = sorted(one.late_s for one in questions)
    return {
        "unanswered": len(questions),
        "late_s": {
            "min": round(late_s[0], 2),
            "p50": round(median(late_s), 2),
            "p99": round(late_s[int(len(late_s) * 0.99)], 2),
            "max": round(late_s[-1], 2),
        },
        "asked_by": dict(Counter(one.source for one in questions)),
    }


def _used_s(job: Popen[bytes]) -> float:
    """Processor time of the job's Java and Python."""
    first = psutil.Process(job.pid)
    times = [one.cpu_times() for one in [first, *first.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    sys.exit(main())
