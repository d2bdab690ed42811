"""txmq on a Spark cluster of several processes, as docs/places.md says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.kit import s3
from tests.kit.reading import bodies
from tests.places.cluster import PROJECT, Cluster, spark_cluster
from tests.places.on_cluster import COPY, TOPIC, TYPED
from txmq.errors import TxmqError
from txmq.maintenance.orphans import sweep
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

PROGRAM = Path(__file__).with_name("on_cluster.py")
BROKER = PROJECT / "jobs" / "broker.py"
# Most of its time goes into the check afterwards: 1,000,000 take eight minutes.
MESSAGES = int(os.environ.get("CLUSTER_MESSAGES", "100000"))
LIMIT_S = 600.0
COUNTS = ("rows", "bodies", "by_format", "expected")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts brokers by spark-submit; none of them outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(location: str, *options: str) -> subprocess.Popen[str]:
        started.append(cluster.submit(BROKER, location, options=options))
        return started[-1]

    yield start
    for broker in started:
        if broker.poll() is None:
            os.killpg(broker.pid, signal.SIGKILL)
        broker.communicate()


def visible(store: Store, topic: str = TOPIC) -> int:
    """The messages that the topic shows; 0 before it has a table."""
    try:
        return sum(
            file.num_records for file in store.tables.table_at(f"topics/{topic}").files.all()
        )
    except TxmqError:
        return 0


def await_that(is_so: Callable[[], bool], cluster: Cluster) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, cluster.logs()
        time.sleep(0.5)


def terminate(broker: subprocess.Popen[str]) -> None:
    """The clean stop: spark-submit's own process is Java, which ends at once with this code."""
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=LIMIT_S)
    assert broker.returncode == 143


def test_messages_come_once_though_workers_and_drivers_are_killed(
    cluster: Cluster, tmp_path: Path, brokers: Callable[..., subprocess.Popen[str]]
) -> None:
    config = Config(payload_engine="spark", publish_batch_rows=max(1, MESSAGES // 10))
    store = Store.create(tmp_path / "store", config)
    broker = brokers(store.location)
    sender = cluster.submit(PROGRAM, "send", store.location, str(MESSAGES))
    await_that(lambda: len(cluster.state()["activeapps"]) == 2, cluster)

    cluster.kill_worker()
    cluster.start_worker()
    cluster.said(sender, LIMIT_S)
    os.killpg(broker.pid, signal.SIGKILL)
    broker = brokers(store.location)
    await_that(lambda: visible(store) == MESSAGES, cluster)
    terminate(broker)

    told = cluster.said(cluster.submit(PROGRAM, "check", store.location, str(MESSAGES)), LIMIT_S)
    assert told == {"violations": 0, **dict.fromkeys(COUNTS, MESSAGES)}


def test_stream_by_its_format_carries_each_message_once_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path, brokers: Callable[..., subprocess.Popen[str]]
) -> None:
    store = Store.create(tmp_path / "store")
    broker = brokers(store.location)
    cluster.said(cluster.submit(PROGRAM, "write", store.location, str(MESSAGES)), LIMIT_S)
    await_that(lambda: visible(store) == MESSAGES, cluster)

    forward = cluster.submit(PROGRAM, "forward", store.location, str(MESSAGES))
    await_that(lambda: visible(store, COPY) > 0, cluster)
    cluster.kill_worker()
    cluster.start_worker()
    cluster.said(forward, LIMIT_S)
    await_that(lambda: visible(store, COPY) == MESSAGES, cluster)
    terminate(broker)

    assert not any(result.violation_count for result in verify(store.location).results)
    copies = DeltaTable(f"{store.location}/topics/{COPY}").to_pyarrow_table(
        columns=["queue_offset", "sharding_key", "keys"]
    )
    # `sharding_key` is the queue that each was read from, and `keys` its offset there.
    read = copies.append_column("read", pc.cast(copies["keys"], pa.int64()))
    in_turn = read.sort_by([("sharding_key", "ascending"), ("queue_offset", "ascending")])
    for queue in pc.unique(in_turn["sharding_key"]):
        offsets = in_turn.filter(pc.equal(in_turn["sharding_key"], queue))["read"].to_pylist()
        assert offsets == list(range(len(offsets)))


def test_broker_on_a_cluster_serves_a_store_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.moto(tmp_path / "moto.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = Store.create(f"s3://{s3.BUCKET}/cluster", Config(payload_engine="spark"))
        with spark_cluster(tmp_path, 1, server.environment) as cluster:
            options = s3_options(server)
            sent = cluster.submit(PROGRAM, "send", store.location, "1000", options=options)
            cluster.said(sent, LIMIT_S)
            with TransactionProducer(store, producer_group="orders") as producer:
                producer.send(Message(TOPIC, b'{"order": 1000}'))
            once = cluster.submit(BROKER, store.location, "--once", options=options)
            output, _ = once.communicate(timeout=LIMIT_S)
            assert once.returncode == 0, output + cluster.logs()
            checked = cluster.submit(PROGRAM, "check", store.location, "1001", options=options)
            told = cluster.said(checked, LIMIT_S)

    assert told == {"violations": 0, **dict.fromkeys(COUNTS, 1001)}


def s3_options(server: s3.S3) -> list[str]:
    from txmq import s3_log_store_jar

    lines = (PROJECT / "conf" / "spark-s3.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    settings = {
        **{key: value.strip() for key, value in pairs},
        "spark.hadoop.fs.s3a.endpoint": server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": s3.REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    flags = [text for pair in settings.items() for text in ("--conf", "=".join(pair))]
    return ["--jars", str(s3_log_store_jar()), *flags]


# --- tasks that run more than once ----------------------------------------------------------------

# Spark copies a task to another host that takes longer than a second.
SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "50ms",
    "spark.speculation.task.duration.threshold": "1s",
}  # fmt: skip


@pytest.mark.parametrize("work", ["send", "write"])
def test_tasks_that_run_again_after_they_wrote_double_nothing(tmp_path: Path, work: str) -> None:
    attempts, messages = tmp_path / "attempts", 10_000
    attempts.mkdir()
    store = Store.create(tmp_path / "store", Config(payload_engine="spark"))
    unlucky = f"{PROGRAM.with_name('unlucky')}{os.pathsep}{PROJECT}"
    environment = {"PYTHONPATH": unlucky, "ATTEMPTS": str(attempts)}
    flags = [text for pair in SPECULATION.items() for text in ("--conf", "=".join(pair))]
    # A copy runs on a host that has had no attempt of its task.
    with spark_cluster(tmp_path, 3, environment) as cluster:
        options = ["--total-executor-cores", "3", *flags]
        sender = cluster.submit(PROGRAM, work, store.location, str(messages), options=options)
        cluster.said(sender, LIMIT_S)
        once = cluster.submit(BROKER, store.location, "--once", options=options)
        once.communicate(timeout=LIMIT_S)
        assert once.returncode == 0, cluster.logs()

    expected = sorted(b'{"order": %d}' % number for number in range(messages))
    assert sorted(bodies(store, TOPIC)) == expected
    assert not any(result.violation_count for result in verify(store.location).results)
    names = [path.name.split(".") for path in attempts.iterdir()]
    for name, path in (("half", "half"), (TOPIC, f"topics/{TOPIC}")):
        numbers = Counter(number for kind, _, _, number in names if kind == name)
        assert numbers.keys() == {"0", "1", "2"}
        assert sweep(store.tables.table_at(path), lambda _: True) == numbers.total() - numbers["0"]


# --- executors that need txmq --------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with txmq, packed by the commands of the page."""
    folder = tmp_path_factory.mktemp("packed")
    steps = [
        [sys.executable, "-m", "venv", str(folder / "environment")],
        [str(folder / "environment/bin/pip"), "install", "-q", f"{PROJECT}[avro]", "venv-pack"],
        [
            str(folder / "environment/bin/venv-pack"),
            *("-p", str(folder / "environment"), "-o", str(folder / "environment.tar.gz")),
        ],
    ]
    for step in steps:
        subprocess.run(step, check=True, capture_output=True)
    return folder / "environment.tar.gz"


def test_executors_find_txmq_in_an_archive(tmp_path: Path, packed: Path) -> None:
    store = Store.create(tmp_path / "store")
    python = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    with spark_cluster(tmp_path, 1, python) as cluster:
        archive = ["--archives", f"{packed}#environment"]
        sent = cluster.submit(PROGRAM, "send-typed", store.location, "1000", options=archive)
        cluster.said(sent, LIMIT_S)
        once = cluster.submit(BROKER, store.location, "--once")
        once.communicate(timeout=LIMIT_S)
        assert once.returncode == 0, cluster.logs()

    assert visible(store, TYPED) == 1000
