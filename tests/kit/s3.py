"""S3 servers of this machine: moto in memory, versitygw over files, a proxy that loses answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY_ID, SECRET, REGION = "txmqkey", "txmqsecret123", "us-east-1"
BUCKET = "lake"
_START_S = 60.0


@dataclass(frozen=True)
class S3:
    """A running server with one bucket."""

    port: int
    address_variable = "AWS_ENDPOINT_URL"
    secret = SECRET

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What clients find in their environment."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    @staticmethod
    def location(bucket: str, folder: str) -> str:
        """A folder of a bucket."""
        return f"s3://{bucket}/{folder}"


@dataclass(frozen=True)
class Proxied(S3):
    """A proxy before a server, and the log of its requests."""

    log: Path

    def requests(self) -> list[str]:
        """A line for each request so far."""
        return self.log.read_text(encoding="utf-8").splitlines()

    def fates(self) -> Counter[str]:
        """How many requests were passed, throttled, slow, lost."""
        return Counter(line.partition(" ")[0] for line in self.requests())


@contextmanager
def moto(log: Path) -> Iterator[S3]:
    """A server in memory, with an empty bucket."""
    port = free_port()
    command = [_command("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, log, {}):
        bucket = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket, timeout=_START_S).close()  # noqa: S310 - this machine
        yield S3(port)


@contextmanager
def versitygw(program: str, root: Path, log: Path) -> Iterator[S3]:
    """A server over the files of `root`, in which the bucket is a folder."""
    port = free_port()
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    command = [program, "--port", f"127.0.0.1:{port}", "--region", REGION, "posix", str(root)]
    keys = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    with running(command, port, log, keys):
        yield S3(port)


@contextmanager
def proxy(server: S3, log: Path, *, seed: int = 1, **rates: float) -> Iterator[Proxied]:
    """A proxy that throttles, loses and slows down these shares of the requests."""
    script = Path(__file__).with_name("s3_proxy.py")
    options = [text for name, rate in rates.items() for text in (f"--{name}", str(rate))]
    command = [sys.executable, str(script), str(server.port), str(log), "--seed", str(seed)]
    log.touch()
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Proxied(int(process.stdout.readline()), log)
        finally:
            process.kill()


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """A server that listens, until the end of the block."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        ) as process,
    ):
        try:
            _await_port(port, process, log)
            yield
        finally:
            process.kill()


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen: {log.read_text()[-500:]}")


def free_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def versitygw_program() -> str:
    """The server over files, which `make object-store` builds."""
    return os.environ.get("VERSITYGW") or _command("versitygw")


def _command(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed; run make ready")
    return found
