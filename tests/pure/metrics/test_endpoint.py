"""Who may look at the figures: this machine, or clients of a named authority."""

from __future__ import annotations

import pytest

from txmq.errors import ConfigError
from txmq.ops.metrics.server import MetricsEndpoint, is_local_host


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "[::1]:9464", "localhost:0"])
def test_this_machine_needs_no_rights(address: str) -> None:
    assert MetricsEndpoint(address).is_local


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "[::]:9464", "10.0.0.7:9464"])
@pytest.mark.parametrize("files", [{}, {"certificate": "tls.crt", "key": "tls.key"}])
def test_others_need_rights(address: str, files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"others reach.*client authority"):
        MetricsEndpoint(address, **files)


def test_rights_open_an_address_to_others() -> None:
    endpoint = MetricsEndpoint("0.0.0.0:9464", "tls.crt", "tls.key", "clients.pem")

    assert (endpoint.host, endpoint.port, endpoint.is_local) == ("0.0.0.0", 9464, False)  # noqa: S104


@pytest.mark.parametrize(
    "address", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "evil.org:80"]
)
def test_address_that_cannot_be_read_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        MetricsEndpoint(address)


def test_certificate_and_key_come_together() -> None:
    with pytest.raises(ConfigError, match="both a certificate and its key"):
        MetricsEndpoint("127.0.0.1:1", certificate="tls.crt")
    with pytest.raises(ConfigError, match="needs a certificate"):
        MetricsEndpoint("127.0.0.1:1", client_authority="clients.pem")


def test_files_need_an_address() -> None:
    assert MetricsEndpoint.of(None, None, None, None) is None
    with pytest.raises(ConfigError, match="need an address"):
        MetricsEndpoint.of(None, "tls.crt", "tls.key", None)


def test_file_that_is_no_certificate_is_an_error() -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0", "/nowhere/tls.crt", "/nowhere/tls.key")

    with pytest.raises(ConfigError, match="no certificate and key"):
        endpoint.tls()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9464", "localhost:1", "[::1]:5", "[::1]"])
def test_names_of_this_machine_are_taken(host: str) -> None:
    assert is_local_host(host)


@pytest.mark.parametrize("host", ["", "evil.org", "evil.org:9464", "10.0.0.1:80", "127.0.0.1.evil"])
def test_foreign_names_are_refused(host: str) -> None:
    assert not is_local_host(host)
