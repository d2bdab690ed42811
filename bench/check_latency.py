"""`python -m bench.check_latency`: in real time and with RocketMQ's settings, when is one asked?

Three of four transactions are ended by their producer, the fourth by nobody. Measured from the
store's time of the half to the question; and what the deadline join costs while nothing happens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median

from bench.machine import machine_facts
from txmq.check.service import CheckService
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.spark.session import local_session
from txmq.store.store import Store

GROUP = "bench"
PAUSE_S = 0.5
LAST_QUESTION_S = 40.0
IDLE_S = 60.0
WARM_UP_S = 30.0


class Journal:
    """Commits every transaction that it is asked about, and remembers when that was."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.asked_s: dict[str, float] = {}
        self.questions: Counter[str] = Counter()
        self._lock = threading.Lock()

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Not used here."""
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """COMMIT."""
        with self._lock:
            self.asked_s.setdefault(message.transaction_id, time.time())
            self.questions[message.transaction_id] += 1
        return LocalTransactionState.COMMIT


def main() -> int:
    """Exit with 1 where somebody was asked early, late, twice, or although it had ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--send-s", type=float, default=120.0, help="how long to send")
    send_s = parser.parse_args().send_s
    with tempfile.TemporaryDirectory() as folder:
        facts = _measure(Store.create(str(Path(folder) / "store")), send_s)
    sys.stdout.write(json.dumps({**machine_facts(), **facts}, indent=2) + "\n")
    return 0 if facts["is_as_promised"] else 1


def _measure(store: Store, send_s: float) -> dict[str, object]:
    journal, config = Journal(), store.config
    handle = CheckService(store, spark=local_session(), listeners={GROUP: journal}).start()
    time.sleep(WARM_UP_S)
    left, ended = _send(store, send_s)
    time.sleep(LAST_QUESTION_S)
    waited_s = _waited_s(store, journal, left)
    cpu_s, idle_s = _cpu_s(), time.monotonic()
    time.sleep(IDLE_S)
    idle_cores = (_cpu_s() - cpu_s) / (time.monotonic() - idle_s)
    handle.stop()
    earliest_s = config.transaction_timeout_s
    latest_s = earliest_s + config.transaction_check_interval_s
    return {
        "transactions": len(left) + len(ended),
        "unanswered": len(left),
        "asked_after_s": {
            "min": round(min(waited_s), 2),
            "p50": round(median(waited_s), 2),
            "p99": round(waited_s[int(len(waited_s) * 0.99)], 2),
            "max": round(max(waited_s), 2),
        },
        "asked_although_ended": len(ended & journal.questions.keys()),
        "asked_twice": sum(count > 1 for count in journal.questions.values()),
        "never_asked": len(left - journal.questions.keys()),
        "idle_cores": round(idle_cores, 3),
        "is_as_promised": (
            waited_s[0] >= earliest_s
            and waited_s[-1] <= latest_s
            and set(journal.questions) == left
            and max(journal.questions.values()) == 1
        ),
    }


def _send(store: Store, send_s: float) -> tuple[set[str], set[str]]:
    """Ids of the transactions that were left open and of those that were ended."""
    left: set[str] = set()
    ended: set[str] = set()
    deadline_s = time.monotonic() + send_s
    with TransactionProducer(store, producer_group=GROUP) as producer:
        while time.monotonic() < deadline_s:
            for place in range(4):
                transaction = producer.begin_transaction()
                transaction.send(Message("bench", b"body"))
                transaction.prepare()
                if place:
                    transaction.commit()
                (ended if place else left).add(transaction.id)
            time.sleep(PAUSE_S)
    return left, ended


def _waited_s(store: Store, journal: Journal, left: set[str]) -> list[float]:
    """From the store's time of each half to its question, in order."""
    half = store.tables.half_log().table
    times_ms = half.folder.commit_times_ms()
    rows = half.changes.read(0, half.version, ("transaction_id",)).to_pylist()
    stored_ms = {row["transaction_id"]: times_ms[row["_commit_version"]] for row in rows}
    asked_s = {key: journal.asked_s[key] for key in left & journal.asked_s.keys()}
    return sorted(at_s - stored_ms[key] / 1000 for key, at_s in asked_s.items())


def _cpu_s() -> float:
    """Processor time of this process and of its children that run."""
    own = os.times()
    ticks = os.sysconf("SC_CLK_TCK")
    total_s = own.user + own.system
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total_s += (int(fields[11]) + int(fields[12])) / ticks
    return total_s


if __name__ == "__main__":
    sys.exit(main())
