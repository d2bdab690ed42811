"""The endpoint as a browser, a scraper and a stranger meet it: real sockets, real TLS."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.kit.reading import wait_until
from tests.kit.stores import fresh_store
from txmq.errors import EnvironmentProblemError
from txmq.ops.broker import Broker
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics import server as module
from txmq.ops.metrics.figures import Latencies
from txmq.ops.metrics.server import MetricsEndpoint
from txmq.ops.metrics.service import MetricsHandle, MetricsService
from txmq.store.store import Store

HERE = "127.0.0.1:0"


@dataclass
class StagedBroker:
    """A broker whose services a test starts and ends."""

    running: dict[str, bool] = field(default_factory=dict)

    def counts(self) -> BrokerCounts:
        return BrokerCounts()

    def latencies(self) -> Latencies:
        return Latencies()

    def services(self) -> Mapping[str, bool]:
        return self.running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store")


@pytest.fixture
def broker() -> StagedBroker:
    return StagedBroker()


@pytest.fixture
def handle(store: Store, broker: StagedBroker) -> Iterator[MetricsHandle]:
    with MetricsService(store, MetricsEndpoint(HERE), broker=broker).start() as handle:
        yield handle


def asked(
    handle: MetricsHandle, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", handle.port, timeout=60)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_ready(handle: MetricsHandle) -> bool:
    return asked(handle, "/readyz")[0] == 200


def test_broker_is_ready_once_it_runs_and_its_store_is_counted(
    handle: MetricsHandle, broker: StagedBroker
) -> None:
    status, text = asked(handle, "/readyz")
    assert status == 503
    assert "the start of the broker" in json.loads(text)["waits_for"]

    broker.running["publisher"] = True

    wait_until(lambda: is_ready(handle), 60, "readiness")
    assert json.loads(asked(handle, "/readyz")[1]) == {"waits_for": []}


def test_service_that_ended_is_no_health(handle: MetricsHandle, broker: StagedBroker) -> None:
    broker.running.update({"publisher": True, "maintenance": True})
    assert asked(handle, "/healthz")[0] == 200

    broker.running["maintenance"] = False

    status, text = asked(handle, "/healthz")
    assert status == 503
    words = {"publisher": "runs", "maintenance": "has ended"}
    assert json.loads(text) == {"services": words}
    assert 'txmq_service_up{service="maintenance"} 0.0' in asked(handle, "/metrics")[1]


def test_page_of_a_foreign_name_reads_nothing(handle: MetricsHandle) -> None:
    for path in ("/metrics", "/healthz", "/readyz"):
        status, text = asked(handle, path, host="evil.example:9464")
        assert (status, "txmq_" in text) == (421, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(handle: MetricsHandle, method: str) -> None:
    assert asked(handle, "/metrics", method=method)[0] == 405


def test_unknown_path_names_the_known_ones(handle: MetricsHandle) -> None:
    status, text = asked(handle, "/etc/passwd")
    assert status == 404
    assert "/metrics, /healthz, /readyz" in text


def test_clients_that_say_nothing_do_not_stop_others(handle: MetricsHandle) -> None:
    silent = [socket.create_connection(("127.0.0.1", handle.port)) for _ in range(5)]

    assert asked(handle, "/healthz")[0] == 200

    for connection in silent:
        connection.close()


def test_too_many_requests_at_once_are_refused_and_the_next_is_answered(
    handle: MetricsHandle,
) -> None:
    silent = [
        socket.create_connection(("127.0.0.1", handle.port)) for _ in range(module.REQUESTS_MAX)
    ]
    wait_until(lambda: _is_refused(handle), 60, "a refusal")

    for connection in silent:
        connection.close()

    wait_until(lambda: not _is_refused(handle), 60, "an answer")


def _is_refused(handle: MetricsHandle) -> bool:
    try:
        return asked(handle, "/healthz")[0] != 200
    except (OSError, http.client.HTTPException):
        return True


def test_address_that_another_has_is_an_error(store: Store, handle: MetricsHandle) -> None:
    with pytest.raises(EnvironmentProblemError, match=r"cannot be listened on.*Choose another"):
        MetricsService(store, MetricsEndpoint(f"127.0.0.1:{handle.port}")).start()


def test_stop_frees_the_port(store: Store) -> None:
    handle = MetricsService(store, MetricsEndpoint(HERE)).start()
    handle.stop()

    assert not handle.is_alive
    assert handle.exception is None
    MetricsService(store, MetricsEndpoint(f"127.0.0.1:{handle.port}")).start().stop()


def test_broker_shows_what_its_services_do(store: Store) -> None:
    with Broker(store, metrics=MetricsEndpoint(HERE)).start() as running:
        port = running.metrics_port
        assert port is not None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        services = json.loads(connection.getresponse().read())["services"]
        connection.close()

    assert set(services.values()) == {"runs"}
    assert {"publisher", "check service", "delay service", "maintenance"} <= set(services)


# --- TLS ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """A server's certificate, and two authorities of clients: ours and a foreign one."""

    folder: Path
    ours: trustme.CA
    foreign: trustme.CA

    def endpoint(self) -> MetricsEndpoint:
        server = self.ours.issue_cert("127.0.0.1")
        files = [self.folder / name for name in ("tls.crt", "tls.key", "clients.pem")]
        server.cert_chain_pems[0].write_to_path(files[0])
        server.private_key_pem.write_to_path(files[1])
        self.ours.cert_pem.write_to_path(files[2])
        return MetricsEndpoint(HERE, *map(str, files))

    def context(self, authority: trustme.CA | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ours.configure_trust(context)
        if authority is not None:
            authority.issue_cert("prometheus.example").configure_cert(context)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path, trustme.CA(), trustme.CA())


def asked_over_tls(handle: MetricsHandle, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", handle.port, context=context, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


def test_client_of_the_authority_reads_and_nobody_else(
    store: Store, certificates: Certificates
) -> None:
    service = MetricsService(store, certificates.endpoint())
    with service.start() as handle:
        assert asked_over_tls(handle, certificates.context(certificates.ours)) == 200
        for stranger in (None, certificates.foreign):
            with pytest.raises((ssl.SSLError, OSError)):
                asked_over_tls(handle, certificates.context(stranger))
        with pytest.raises((OSError, http.client.HTTPException)):
            asked(handle, "/metrics")


def test_client_that_does_not_shake_hands_stops_nobody(
    store: Store, certificates: Certificates
) -> None:
    with MetricsService(store, certificates.endpoint()).start() as handle:
        silent = socket.create_connection(("127.0.0.1", handle.port))

        assert asked_over_tls(handle, certificates.context(certificates.ours)) == 200
        silent.close()
