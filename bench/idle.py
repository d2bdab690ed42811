"""What a broker costs that has nothing to do, and what the first line of a program costs."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bench.messages import GROUP, TOPIC
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

BROKERS = {"with Spark": "--spark", "without Spark": "--no-spark"}
BROKER_BAR, IMPORT_BAR = Bar(3.0, at_most=True), Bar(0.25, at_most=True)
# Services look less often after 30 s without a commit.
QUIET_AFTER_S = 45.0
LOOK_S = 0.1
IMPORTS = 5
TXMQ, NOTHING = "import txmq", "pass"


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Processor time of an idle broker with its Java, and of `import txmq`."""
    brokers = [_of_broker(name, sizes, folder) for name in BROKERS]
    # The first one may compile modules.
    _processor_s(TXMQ)
    imports = [_processor_s(TXMQ) - _processor_s(NOTHING) for _ in range(IMPORTS)]
    name = "processor time of `import txmq`"
    return [*brokers, Outcome("idle", name, "s", imports, (), IMPORT_BAR)]


def _of_broker(name: str, sizes: Sizes, folder: Path) -> Outcome:
    location = fresh_folder(folder, "idle") / "store"
    with TransactionProducer(Store.create(location), producer_group=GROUP) as producer:
        producer.send(Message(TOPIC, b"body"))
    command = [sys.executable, "-m", "txmq", "serve", str(location), BROKERS[name]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
        try:
            _wait_until_published(location, broker)
            time.sleep(QUIET_AFTER_S)
            percents = [_percent(broker.pid, sizes.idle_s) for _ in range(sizes.rounds)]
            facts = {"resident_mib": round(_resident_mib(broker.pid))}
        finally:
            broker.terminate()
    measure = f"a broker {name} that has nothing to do"
    return Outcome("idle", measure, "% of a core", percents, (), BROKER_BAR, facts)


def _wait_until_published(location: Path, broker: subprocess.Popen[bytes]) -> None:
    topic = Store.open(location).tables.table_at(f"topics/{TOPIC}")
    while not topic.exists() or not topic.refresh().files.all():
        if broker.poll() is not None:
            raise RuntimeError(f"the broker ended with {broker.returncode}")
        time.sleep(LOOK_S)


def _percent(pid: int, seconds: float) -> float:
    begun_s, used_s = time.monotonic(), _used_s(pid)
    time.sleep(seconds)
    return (_used_s(pid) - used_s) / (time.monotonic() - begun_s) * 100


def _used_s(pid: int) -> float:
    """Processor time of a process and of those that it has started, while they live."""
    times = [process.cpu_times() for process in _members(pid)]
    return sum(one.user + one.system for one in times)


def _resident_mib(pid: int) -> float:
    return sum(process.memory_info().rss for process in _members(pid)) / 1024**2


def _members(pid: int) -> list[psutil.Process]:
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def _processor_s(code: str) -> float:
    """Of a new process that runs this line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
