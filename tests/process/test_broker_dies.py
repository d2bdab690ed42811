"""A whole broker, Python and JVM, dies and comes back; its checkpoints may be lost or old."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kit.books import SETTINGS, Books, sell
from tests.kit.reading import log_rows, topic_rows, wait_until
from tests.kit.steps import REPOSITORY
from tests.kit.truth import assert_topics_tell_the_truth, drain
from txmq.store.config import Config
from txmq.store.store import Store

START_S = 120.0
pytestmark = [pytest.mark.needs_spark, pytest.mark.timeout(4 * START_S)]
# Nobody may be asked about an order whose producer still works on it.
IMMUNITY_S = 5.0
ORPHAN_S = 10.0
# Faster sales would only be more to do for the broker that comes back.
SALES_INTERVAL_S = 0.3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    settings = {**SETTINGS, "transaction_timeout_s": IMMUNITY_S, "publish_drain_s": 0.5}
    return Store.create(tmp_path / "store", Config(**settings))


@contextmanager
def broker(store: Store, books: Books) -> Iterator[subprocess.Popen[bytes]]:
    """A broker that works; afterwards nothing of its process group is left."""
    ready = Path(store.location).with_name("ready")
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.process.broker_process", store.location, books.path]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    complaints = ready.with_name("complaints")
    with complaints.open("w") as file:
        process = subprocess.Popen(
            [*command, str(ready)], env=environment, start_new_session=True, stderr=file
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, START_S)
        assert process.poll() is None
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def sales(store: Store, books: Books) -> Iterator[None]:
    """Orders come in all the time."""
    stopped = threading.Event()

    def go_on() -> None:
        first = 0
        while not stopped.wait(SALES_INTERVAL_S):
            sell(store, books, 5, first)
            first += 5

    seller = threading.Thread(target=go_on)
    seller.start()
    try:
        yield
    finally:
        stopped.set()
        seller.join()


def wait_for_more(store: Store) -> None:
    """Return when the broker has shown more than there was."""
    before = len(topic_rows(store))
    wait_until(lambda: len(topic_rows(store)) > before + 5)


def java_of(process: subprocess.Popen[bytes]) -> int:
    """The JVM in the process group of a broker."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = folder.joinpath("stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0].endswith("(java") and int(fields[2].split()[2]) == process.pid:
            return int(folder.name)
    pytest.fail("the broker has no JVM")


def runs(process_id: int) -> bool:
    """Whether it is there and does not only wait to be buried."""
    try:
        fields = Path("/proc", str(process_id), "stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[2].split()[0] != "Z"


def test_broker_that_is_killed_loses_and_doubles_nothing(store: Store, books: Books) -> None:
    """As a whole, and its Python or its Java alone; its checkpoints are gone, or older ones."""
    checkpoints = Path(store.location, "checkpoints")
    older = checkpoints.with_name("older-checkpoints")

    with sales(store, books):
        with broker(store, books):
            wait_for_more(store)
            # Files may go while they are copied, as with any backup of a folder in use.
            subprocess.run(["/bin/cp", "-r", checkpoints, older], check=False)
            wait_for_more(store)
        shutil.rmtree(checkpoints)
        with broker(store, books) as process:
            wait_for_more(store)
            java = java_of(process)
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: not runs(java), ORPHAN_S)
        shutil.rmtree(checkpoints)
        older.rename(checkpoints)
        with broker(store, books) as process:
            wait_for_more(store)
            os.kill(java_of(process), signal.SIGKILL)
            wait_until(lambda: process.poll() is not None, ORPHAN_S)
        assert process.returncode == 1
        complaints = Path(store.location).with_name("complaints").read_text()
        assert "EnvironmentProblemError: Spark's Java process has ended." in complaints
    drain(store, books)

    assert_topics_tell_the_truth(store, books)
    assert {row["source"] for row in log_rows(store, "op")} > {"producer"}
