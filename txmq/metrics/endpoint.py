"""Where figures, health and the dashboard are shown: an address, and who may look at it."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import ClassVar, Self

from txmq.errors import ConfigError, shown

PORT_MAX = 65_535
LOCAL_NAME = "localhost"


@dataclass(frozen=True)
class Endpoint:
    """An address to listen on; errors begin with its `purpose`.

    Args:
        address: `HOST:PORT`, such as `127.0.0.1:9464` or `[::1]:9464`; port 0 takes a free one.
        certificate: the file of the server's certificate; with it the endpoint speaks TLS.
        key: the file of its private key.
        client_authority: the file of the authority whose clients may look; all others are refused.

    Raises:
        ConfigError: the address cannot be read; others could reach it, and it has no TLS and no
            rights; or one of `certificate` and `key` is missing.
    """

    address: str
    certificate: str | None = None
    key: str | None = None
    client_authority: str | None = None

    purpose: ClassVar[str] = "endpoint"
    usual: ClassVar[str] = "127.0.0.1:9464"

    def __post_init__(self) -> None:
        """Check all of it."""
        problems = self._problems_of_address() or self._problems_of_rights()
        if problems:
            raise ConfigError([f"{self.purpose}: {problem}" for problem in problems])

    @classmethod
    def of(
        cls, address: str | None, certificate: str | None, key: str | None, authority: str | None
    ) -> Self | None:
        """The endpoint that options name; None without an address.

        Raises: ConfigError, as the class; or files are given without an address.
        """
        if address is not None:
            return cls(address, certificate, key, authority)
        if certificate or key or authority:
            problem = "certificate, key and client authority need an address"
            raise ConfigError([f"{cls.purpose}: {problem}"])
        return None

    @property
    def host(self) -> str:
        """The host without its port."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.address.rpartition(":")[2])

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == LOCAL_NAME or _is_loopback(self.host)

    def tls(self) -> ssl.SSLContext | None:
        """How it speaks TLS; None without a certificate.

        Raises: ConfigError where a file cannot be read.
        """
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._authority())
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            files = f"{shown(self.certificate)} and {shown(self.key)}"
            problem = f"{self.purpose}: {files} are no certificate and key: {error}"
            raise ConfigError([problem]) from error
        if self.client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _authority(self) -> str | None:
        try:
            ssl.create_default_context(cafile=self.client_authority)
        except OSError as error:
            name = shown(self.client_authority)
            problem = f"{self.purpose}: {name} has no certificates: {error}"
            raise ConfigError([problem]) from error
        return self.client_authority

    def _problems_of_address(self) -> list[str]:
        host, _, port = self.address.rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) <= PORT_MAX
        if is_port and host and (host == LOCAL_NAME or _is_address(host.strip("[]"))):
            return []
        return [f"{shown(self.address)} must be HOST:PORT, such as {self.usual}"]

    def _problems_of_rights(self) -> list[str]:
        if (self.certificate is None) != (self.key is None):
            return ["give both a certificate and its key, or none"]
        if self.client_authority is not None and self.certificate is None:
            return ["a client authority needs a certificate and its key"]
        if not self.is_local and self.client_authority is None:
            step = "give a certificate, its key and a client authority, or listen on 127.0.0.1"
            return [f"others reach {shown(self.address)}: {step}"]
        return []


class MetricsEndpoint(Endpoint):
    """Where figures and health are shown.

    Args:
        address: `HOST:PORT`, such as `127.0.0.1:9464` or `[::1]:9464`; port 0 takes a free one.
        certificate: the file of the server's certificate; with it the endpoint speaks TLS.
        key: the file of its private key.
        client_authority: the file of the authority whose clients may look; all others are refused.

    Raises:
        ConfigError: the address cannot be read; others could reach it, and it has no TLS and no
            rights; or one of `certificate` and `key` is missing.
    """

    purpose = "metrics"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
