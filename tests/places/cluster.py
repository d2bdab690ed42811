"""A Spark cluster on loopback: a standalone master, and workers that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.kit.s3 import free_port
from tests.kit.spark_environment import spark_environment
from txmq.spark.jars import (
    cache_folder,
    fetch_jars,
    jar_folder,
    jar_paths,
    missing_jars,
    spark_home,
)
from txmq.spark.java import home_for_spark, require_java

PROJECT = Path(__file__).parents[2]
HOST = "127.0.0.1"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_START_S = 120.0
# Two applications of two cores each run beside each other.
WORKER_CORES, WORKER_MEMORY = 2, "2g"


@dataclass
class Cluster:
    """Its address for `spark-submit --master`, and what runs.

    Attributes:
        port, page_port: of the master, and of its page.
        folder: logs and the workers' folders.
        environment: of every process; an executor has Python by `environment["PYSPARK_PYTHON"]`.
    """

    port: int
    page_port: int
    folder: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """What `--master` takes."""
        return f"spark://{HOST}:{self.port}"

    def start_worker(self) -> None:
        """One more worker, on a host of its own; returns once the master has it."""
        number = len(self.workers)
        arguments = [
            "--host",
            f"127.0.0.{number + 1}",
            "--cores",
            str(WORKER_CORES),
            "--memory",
            WORKER_MEMORY,
        ]
        folder = ["--work-dir", str(self.folder / f"worker-{number}"), "--webui-port", "0"]
        self.workers.append(self._run(_WORKER, *arguments, *folder, self.address, name=f"{number}"))
        self._await(lambda: self.state()["aliveworkers"] >= self.running())

    def running(self) -> int:
        """The number of workers that were not killed."""
        return sum(worker.poll() is None for worker in self.workers)

    def state(self) -> dict[str, Any]:
        """What the master's page says of workers and applications."""
        with urllib.request.urlopen(f"http://{HOST}:{self.page_port}/json/", timeout=10) as page:
            state: dict[str, Any] = json.load(page)
        return state

    def kill_worker(self) -> None:
        """SIGKILL to the worker that has run longest, and to its executors."""
        oldest = next(worker for worker in self.workers if worker.poll() is None)
        os.killpg(oldest.pid, signal.SIGKILL)
        oldest.wait()

    def submit(
        self, program: Path, *arguments: str, options: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """spark-submit in client mode, with the jars from the cache in place of their download."""
        settings = {**_settings(), "spark.ui.enabled": "false", "spark.driver.host": HOST}
        command = [
            str(spark_home() / "bin" / "spark-submit"), "--master", self.address,
            "--total-executor-cores", "2", "--executor-memory", "1g",
            "--jars", ",".join(map(str, jar_paths(cache_folder()))),
            *(text for pair in settings.items() for text in ("--conf", "=".join(pair))),
            *options, str(program), *arguments,
        ]  # fmt: skip
        name = f"{program.stem}-{time.monotonic_ns()}.log"
        with (self.folder / name).open("w") as errors:
            return subprocess.Popen(
                command, env={**self.environment, "PYTHONPATH": str(PROJECT)},
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip

    def said(self, process: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
        """The last line of a program that ends, as JSON."""
        output, _ = process.communicate(timeout=limit_s)
        assert process.returncode == 0, output[-2000:] + self.logs()
        answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return answer

    def logs(self) -> str:
        """The end of each log."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def _run(self, main: str, *arguments: str, name: str) -> subprocess.Popen[bytes]:
        command = [str(spark_home() / "bin" / "spark-class"), main, *arguments]
        log = (self.folder / f"{main.rpartition('.')[2]}-{name}.log").open("w")
        with log:
            return subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def _await(self, is_there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            try:
                if is_there():
                    return
            # Its page may answer before it has anything to say.
            except (OSError, HTTPException, ValueError, KeyError):
                pass
            time.sleep(0.2)
        raise RuntimeError(f"the cluster did not start: {self.logs()}")


@contextmanager
def spark_cluster(
    folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A master and so many workers; all of them are killed in the end."""
    cache = cache_folder()
    java_home = home_for_spark(require_java(), cache)
    if missing_jars(jar_folder(cache)):
        fetch_jars(cache, java_home)
    given = {
        **spark_environment(),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        **(environment or {}),
    }
    cluster = Cluster(free_port(), free_port(), folder, given)
    ports = ["--port", str(cluster.port), "--webui-port", str(cluster.page_port)]
    master = cluster._run(_MASTER, "--host", HOST, *ports, name="0")
    try:
        cluster._await(lambda: cluster.state()["status"] == "ALIVE")
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, master):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _settings() -> dict[str, str]:
    """Those of conf/spark-defaults.conf but the download of the jars."""
    lines = (PROJECT / "conf" / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs if key != "spark.jars.packages"}
