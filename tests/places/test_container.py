"""The image of deploy/container/Dockerfile: built by buildah, its broker run as nobody."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from txmq import __version__

PROJECT = Path(__file__).parents[2]
DEPLOYMENT = PROJECT / "deploy" / "kubernetes" / "broker" / "deployment.yaml"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
NOBODY = "10001"
# The packages of Debian with Python; `make container` makes it.
BASE = os.environ.get("CONTAINER_BASE", "")

pytestmark = [
    pytest.mark.skipif(not BASE, reason="make container gives it a base, with root and buildah"),
    pytest.mark.timeout(900),
]


@dataclass(frozen=True)
class Builder:
    """Buildah with a storage of its own and no need of a daemon."""

    folder: Path

    def command(self, *arguments: str) -> list[str]:
        storage = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        return ["buildah", *storage, "--storage-driver", "vfs", *arguments]

    def __call__(self, *arguments: str) -> str:
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        command = self.command(*arguments)
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout.strip()

    def base(self) -> str:
        """An image of BASE that trusts the authorities that this machine trusts."""
        container = self("from", "scratch")
        self("add", container, BASE, "/")
        if AUTHORITIES.exists():
            self("add", container, str(AUTHORITIES), str(AUTHORITIES))
        self("commit", "--quiet", container, "base")
        return "localhost/base"


@dataclass(frozen=True)
class Container:
    """A container of the image, with a folder for stores."""

    builder: Builder
    name: str
    stores: Path

    def command(self, *arguments: str) -> list[str]:
        volume = ["--volume", f"{self.stores}:/stores"]
        return self.builder.command(
            "run", "--isolation", "chroot", *volume, self.name, "--", *arguments
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), check=False, capture_output=True, text=True)

    def passes(self, *arguments: str) -> bool:
        return self.run(*arguments).returncode == 0


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("images")
    yield Builder(folder)
    # Gigabytes, which pytest would keep for its next three runs.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def image(builder: Builder) -> str:
    file = str(PROJECT / "deploy" / "container" / "Dockerfile")
    argument = f"BASE={builder.base()}"
    builder("build", "--build-arg", argument, "--file", file, "--tag", "txmq", str(PROJECT))
    return "localhost/txmq"


@pytest.fixture
def container(builder: Builder, image: str, tmp_path: Path) -> Container:
    stores = tmp_path / "stores"
    stores.mkdir()
    stores.chmod(0o777)
    return Container(builder, builder("from", image), stores)


def test_image_runs_txmq_as_nobody(builder: Builder, image: str) -> None:
    settings = json.loads(builder("inspect", "--type", "image", image))["OCIv1"]["config"]

    assert settings["User"] == NOBODY
    assert settings["Entrypoint"] == ["txmq"]


def test_image_has_the_wheel_and_nothing_to_build_with(container: Container) -> None:
    assert container.run("txmq", "--version").stdout.strip().endswith(__version__)
    assert container.passes("python", "-c", "import txmq, prometheus_client")
    assert not container.passes("test", "-e", "/source")
    assert not container.passes("test", "-e", "/opt/build")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def probe(name: str) -> list[str]:
    command: list[str] = _pod_container()[name]["exec"]["command"]
    return command


def _pod_container() -> dict[str, dict[str, dict[str, list[str]]]]:
    manifest = yaml.safe_load(DEPLOYMENT.read_text())
    (pod_container,) = manifest["spec"]["template"]["spec"]["containers"]
    result: dict[str, dict[str, dict[str, list[str]]]] = pod_container
    return result


def end(location: str) -> None:
    """SIGTERM for the broker itself, as Kubernetes sends it: buildah would not hand it on."""
    # The newest process is the broker; those before it are buildah's.
    command = ["pkill", "-TERM", "--newest", "--uid", NOBODY, "--full", f"serve {location}"]
    subprocess.run(command, check=True)


def test_broker_of_the_manifest_serves_in_the_image_until_a_signal(container: Container) -> None:
    address, location = free_address(), "/stores/orders"
    assert container.passes("txmq", "init", location)
    arguments = ["--log-format", "json", "serve", location, "--no-spark", "--metrics", address]
    ready = [part.replace("127.0.0.1:9464", address) for part in probe("readinessProbe")]

    with subprocess.Popen(container.command("txmq", *arguments)) as broker:
        while not container.passes(*ready):
            assert broker.poll() is None
            time.sleep(0.5)
        end(location)
        assert broker.wait() == 0

    assert container.passes("txmq", "verify", location)
