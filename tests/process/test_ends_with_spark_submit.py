"""Python processes end with the Java process that started them, which is all that signals reach.

`Gateway` stands for Java where a test needs no Spark: a process holds a connection to it, which
breaks when it ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kit.forked import Forked, forked
from tests.kit.reading import wait_until
from tests.process.test_jobs import environment, run_with_python, submit
from txmq.check.service import CheckService
from txmq.consumer.pull import PullConsumer
from txmq.errors import EnvironmentProblemError
from txmq.ground import handles
from txmq.ground.handles import GATEWAY_PORT, end_with_spark_submit
from txmq.job import run_broker_job, run_plain_job
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.store.config import Config
from txmq.store.store import Store

__all__ = ["environment"]
LIMIT_S = 90.0
GROUP = "orders"
ASKED, STATE = "TESTS_ASKED", "TESTS_STATE"
SETTINGS = Config(transaction_timeout_s=1.0, check_trigger_interval_s=0.1)


class Gateway:
    """The port at which Java listens."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._held: list[socket.socket] = []

    def wait_for(self) -> None:
        self._server.settimeout(LIMIT_S)
        self._held.append(self._server.accept()[0])

    def close(self) -> None:
        for open_socket in (self._server, *self._held):
            open_socket.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with closing(Gateway()) as gateway:
        yield gateway


@pytest.fixture
def started(tmp_path: Path, gateway: Gateway) -> Iterator[Callable[..., Forked]]:
    """Starts a function of a store in a process that Java has started, so to speak."""
    processes: list[Forked] = []
    location = Store.create(tmp_path / "store", SETTINGS).location

    def start(function: Callable[..., None]) -> Forked:
        processes.append(forked(as_of_java, location, str(gateway.port), function.__name__))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def as_of_java(location: str, port: str, name: str) -> None:
    os.environ[GATEWAY_PORT] = port
    globals()[name](location)


def delay_job(location: str) -> None:
    run_plain_job("delay", DelayService, [location])


def broker_job(location: str) -> None:
    run_broker_job([location, "--no-spark"])


def services_of_a_script(location: str) -> None:
    with Broker(Store.open(location)).start() as services:
        services.wait()


def script_that_waits_for_nothing(location: str) -> None:
    handles.STOP_LIMIT_S = 1.0
    CheckService(Store.open(location)).start()
    while True:
        time.sleep(LIMIT_S)


def member(location: str) -> None:
    handles.STOP_LIMIT_S = 1.0
    store = Store.open(location)
    with PullConsumer(store, consumer_group="billing", topics="order-paid") as consumer:
        while True:
            consumer.poll(timeout_s=0.2)


def producer_that_answers_checks(location: str) -> None:
    handles.STOP_LIMIT_S = 1.0
    store = Store.open(location)
    with TransactionProducer(store, producer_group=GROUP, listener=Asked()) as producer:
        producer.answer_checks()
        threading.Event().wait()


def stop_that_hangs(location: str) -> None:
    handles.STOP_LIMIT_S = 1.0
    Hanging().begin()
    run_plain_job("delay", DelayService, [location])


class Hanging(handles.ThreadHandle):
    """A service whose turn never ends."""

    def __init__(self) -> None:
        super().__init__("hanging", 0.0)

    def _turn(self) -> None:
        threading.Event().wait()


class Asked:
    """A listener that leaves the number of its process in a file, then answers or hangs."""

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> object:
        raise NotImplementedError

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        with Path(os.environ[ASKED]).open("a", encoding="utf-8") as asked:
            asked.write(f"{os.getpid()}\n")
        if os.environ[STATE] == "busy":
            threading.Event().wait()
        return LocalTransactionState.COMMIT


@pytest.mark.parametrize(
    "role",
    [
        delay_job, broker_job, services_of_a_script, script_that_waits_for_nothing, member,
        producer_that_answers_checks, stop_that_hangs,
    ],
)  # fmt: skip
def test_a_process_ends_with_the_java_process_that_started_it(
    role: Callable[[str], None], started: Callable[..., Forked], gateway: Gateway
) -> None:
    process = started(role)
    gateway.wait_for()

    gateway.close()

    process.wait(LIMIT_S)
    assert "Java process has ended" in process.complaint()


def test_a_process_whose_java_has_ended_already_does_not_start(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GATEWAY_PORT, str(gateway.port))
    gateway.close()

    with pytest.raises(EnvironmentProblemError, match="Java process has ended"):
        end_with_spark_submit()


def test_a_process_of_a_shell_outlives_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(GATEWAY_PORT, raising=False)
    gateway.close()

    end_with_spark_submit()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a grandchild as Linux can")
@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGTERM, "resting"), (signal.SIGKILL, "busy")]
)
def test_a_check_service_ends_with_its_spark_submit(
    number: int, state: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    store, asked = Store.create(tmp_path / "store", SETTINGS), tmp_path / "asked"
    told = {"TXMQ_LISTENERS": f"{{{GROUP}: '{__name__}:Asked'}}", ASKED: str(asked), STATE: state}
    leave_open(store)
    job = submit({**environment, **told}, "check_service.py", store.location)
    try:
        wait_until(lambda: asked.exists() and asked.read_text().endswith("\n"), LIMIT_S)
        python = int(asked.read_text())
        its_end = os.pidfd_open(python)
        job.send_signal(number)
        job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()

    assert python != job.pid
    ended, _, _ = select.select([its_end], [], [], LIMIT_S)
    assert ended, f"process {python} of {sys.executable} outlives its spark-submit"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for Java as on Linux")
def test_a_check_service_ends_when_its_own_java_was_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    store, asked = Store.create(tmp_path / "store", SETTINGS), tmp_path / "asked"
    told = {"TXMQ_LISTENERS": f"{{{GROUP}: '{__name__}:Asked'}}", ASKED: str(asked), STATE: ""}
    leave_open(store)
    job = run_with_python({**environment, **told}, "check_service.py", store.location)
    try:
        wait_until(lambda: asked.exists() and asked.read_text().endswith("\n"), LIMIT_S)
        (java,) = children(job.pid)
        os.kill(java, signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()

    assert job.returncode == 1
    assert "EnvironmentProblemError: Spark's Java process has ended" in said


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(stat.parent.name))
    return found


def leave_open(store: Store) -> None:
    """Prepare a transaction whose producer is gone."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
