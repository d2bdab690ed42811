"""Processes of txmq 0.1, by its own code from the history of the repository, beside today's."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.kit.old_stores import unpack, unpacked
from tests.kit.reading import log_rows, topic_rows
from txmq.ops.admin.upgrade import upgrade
from txmq.ops.broker import Broker
from txmq.store.store import Store
from txmq.verify import verify

GIT = shutil.which("git") or "git"
COMMIT = "5698c28"
REPOSITORY = Path(__file__).parents[3]
REFUSED = "by IncompatibleVersionError"
_PROGRAM = """
import os
import sys
from txmq import *
def say(error):
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    print(type(error).__name__, "by", type(cause).__name__, flush=True)
try:
    store = Store.open(sys.argv[1])
    producer = TransactionProducer(store, producer_group="orders")
    consumer = PullConsumer(store, consumer_group="reader", topics="paid")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            if line.strip() == "send":
                producer.send(Message("paid", b"by 0.1"))
            else:
                consumer.poll(max_messages=100, timeout_s=5.0)
                consumer.commit()
            print("done", flush=True)
        except TxmqError as error:
            say(error)
except TxmqError as error:
    say(error)
os._exit(0)
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was."""
    archive = subprocess.run(
        [GIT, "-C", str(REPOSITORY), "archive", COMMIT, "txmq"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of the repository has no {COMMIT} here")
    folder = tmp_path_factory.mktemp("0.1")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        unpack(files, folder)
    return folder


class OldProcess:
    """A producer, a member and a broker of 0.1 in one process, which does as it is told."""

    def __init__(self, code: Path, location: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, location],
            cwd=code, env={"PYTHONPATH": str(code), "PATH": "/usr/bin:/bin"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.began = self._line()

    def told(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate()


def test_what_0_1_runs_beside_today_s_and_is_refused_by_name_after_the_upgrade(
    code: Path, tmp_path: Path
) -> None:
    location, truth = unpacked("0.1", tmp_path)
    store = Store.open(location)
    old = OldProcess(code, store.location)

    # Before the upgrade its producers and members go on beside a broker of today.
    assert [old.began, old.told("send")] == ["ready", "done"]
    Broker(store).run_once()
    assert old.told("read") == "done"
    assert [row["body"] for row in topic_rows(store, "paid")].count(b"by 0.1") == 1

    upgrade(store, apply=True)

    # A producer that runs, and whatever starts.
    assert old.told("send").endswith(REFUSED)
    new = OldProcess(code, store.location)
    assert new.began.endswith(REFUSED)
    for process in (old, new):
        process.stop()
    Broker(store).run_once()
    sent = [row for row in log_rows(store, "half") if row["body"] == b"by 0.1"]
    assert len(sent) == 1
    shown = [row["transaction_id"] for row in topic_rows(store, "paid")]
    assert {*truth["committed"], truth["unsettled"]} <= set(shown)
    report = verify(store.location)
    assert report.is_clean, report.results
