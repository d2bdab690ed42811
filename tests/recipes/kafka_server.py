"""A Kafka of one process in KRaft mode, from the jars of Maven Central; needs Java 17 and mvn."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "4.3.1"
START_S = 120.0
_POM = f"""\
<project><modelVersion>4.0.0</modelVersion>
<groupId>txmq</groupId><artifactId>recipes</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
<version>2.0.17</version></dependency>
</dependencies></project>
"""
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/logs
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def running_kafka(cache: Path) -> Iterator[str | None]:
    """The address of a Kafka while the block runs; None where it cannot be had."""
    jars = _jars(cache)
    if jars is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="txmq-kafka-") as folder:
        port, controller = _free_ports()
        settings = Path(folder, "server.properties")
        text = _SETTINGS.format(port=port, controller=controller, folder=folder)
        settings.write_text(text, encoding="utf-8")
        java = [str(shutil.which("java")), "-Xmx512m", "-cp", f"{jars}/*"]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        subprocess.run([*java, *formatted], check=True, capture_output=True)
        with Path(folder, "server.log").open("w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT
            )
            try:
                _wait_for(port, server)
                yield f"127.0.0.1:{port}"
            finally:
                server.terminate()
                server.wait()


def _jars(cache: Path) -> Path | None:
    """The folder of the jars, downloaded once."""
    jars = cache / f"jars-{VERSION}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "pom.xml").write_text(_POM, encoding="utf-8")
    part = cache / "part"
    copied = subprocess.run(
        [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"],
        cwd=cache, check=False, capture_output=True,
    )  # fmt: skip
    if copied.returncode:
        return None
    return part.rename(jars)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            raise RuntimeError(f"Kafka ended with {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
            continue
        return
    raise RuntimeError(f"Kafka does not answer after {START_S:g} s")
