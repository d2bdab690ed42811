"""The manifests of deploy/kubernetes: valid, restricted, and their commands do what they say."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kit.reading import wait_until
from tests.kit.stores import clean_store, fresh_store, transaction_id
from txmq.store.store import Store

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
# The oldest and the newest release that Kubernetes's own schemas are at hand for and people run.
RELEASES = ("1.29", "1.32", "1.35")
OVERLAYS = ("broker", "two-brokers", "nightly-verify")
ADDRESS = "127.0.0.1:9464"

Manifest = dict[str, Any]

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not there")


def manifests(folder: Path) -> list[Manifest]:
    files = [file for file in sorted(folder.glob("*.yaml")) if file.name != "kustomization.yaml"]
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


def pod_of(manifest: Manifest) -> Manifest:
    spec = manifest["spec"]
    template = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    pod: Manifest = template["template"]["spec"]
    return pod


def manifest_of(kind: str, overlay: str) -> Manifest:
    (manifest,) = (each for each in manifests(FOLDER / overlay) if each["kind"] == kind)
    return manifest


def container_of(kind: str, overlay: str) -> Manifest:
    (container,) = pod_of(manifest_of(kind, overlay))["containers"]
    result: Manifest = container
    return result


def built(overlay: str) -> list[Manifest]:
    command = ["kubectl", "kustomize", str(FOLDER / overlay)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", ["broker", "nightly-verify"])
def test_manifests_are_what_kubernetes_takes(overlay: str, release: str) -> None:
    for manifest in manifests(FOLDER / overlay):
        kubernetes_validate.validate(manifest, release, strict=True)


def test_a_misspelt_field_would_be_refused() -> None:
    manifest = manifest_of("Deployment", "broker")
    manifest["spec"]["replica"] = 1

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, RELEASES[0], strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds_what_kubernetes_takes(overlay: str) -> None:
    objects = built(overlay)

    for manifest in objects:
        kubernetes_validate.validate(manifest, RELEASES[-1], strict=True)
    assert {manifest["metadata"].get("namespace", "txmq") for manifest in objects} == {"txmq"}


@needs_kubectl
def test_two_brokers_are_two() -> None:
    counts = {
        overlay: next(each for each in built(overlay) if each["kind"] == "Deployment")["spec"][
            "replicas"
        ]
        for overlay in ("broker", "two-brokers")
    }

    assert counts == {"broker": 1, "two-brokers": 2}


@pytest.mark.parametrize(
    ("kind", "overlay"), [("Deployment", "broker"), ("CronJob", "nightly-verify")]
)
def test_pods_keep_the_restricted_standard(kind: str, overlay: str) -> None:
    pod = pod_of(manifest_of(kind, overlay))
    rights = container_of(kind, overlay)["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["readOnlyRootFilesystem"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert "limits" in container_of(kind, overlay)["resources"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store")


@pytest.fixture
def address() -> str:
    """A free port in place of the one of the manifest, which another test may hold."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def broker(store: Store, address: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [
        argument.replace(ADDRESS, address)
        for argument in container_of("Deployment", "broker")["args"]
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "txmq", *arguments],
        env={"TXMQ_LOCATION": store.location, "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def passes(probe: str, address: str) -> bool:
    command = container_of("Deployment", "broker")[probe]["exec"]["command"]
    assert command[0] == "python"
    code = [part.replace(ADDRESS, address) for part in command[1:]]
    return subprocess.run([sys.executable, *code], check=False, capture_output=True).returncode == 0


def test_probes_pass_with_a_broker_and_fail_without(
    broker: subprocess.Popen[bytes], address: str
) -> None:
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    for probe in probes:
        wait_until(lambda probe=probe: passes(probe, address))  # type: ignore[misc]

    broker.send_signal(signal.SIGTERM)

    assert broker.wait() == 0
    assert not any(passes(probe, address) for probe in probes)


def test_log_of_the_broker_is_an_object_a_line(broker: subprocess.Popen[bytes]) -> None:
    assert broker.stderr is not None
    first = json.loads(broker.stderr.readline())
    broker.send_signal(signal.SIGTERM)

    assert first["message"].startswith("serving ")


def nightly(store: Store) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "txmq", *container_of("CronJob", "nightly-verify")["args"]],
        env={"TXMQ_LOCATION": store.location, "PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
    )


def test_nightly_job_passes_until_a_message_is_lost(tmp_path: Path) -> None:
    made = clean_store(str(tmp_path / "store"))
    clean = nightly(made.store)
    made.remove("topics/orders", f"transaction_id = '{transaction_id(4)}'")
    broken = nightly(made.store)

    assert (clean.returncode, broken.returncode) == (0, 1)
    assert json.loads(clean.stdout) != json.loads(broken.stdout)
