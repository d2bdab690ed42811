"""A small HTTP server for those who may look: its address, its limits, and what it answers.

`Answers` shows figures and health (/metrics, /healthz, /readyz); the dashboard has an application
of its own.

It is the server of Python's library with bounds: for all of a request, for requests at once, and
for the TLS handshake, which happens in the thread of the request. The library cheroot (11.1) shakes
hands where it accepts, so that one silent client stops all others, and has a time for each read
only, so that a client that sends drop by drop keeps its thread.
"""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, ClassVar, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from txmq.errors import ConfigError, EnvironmentProblemError, shown
from txmq.ground.handles import ThreadHandle

logger = logging.getLogger(__name__)

PORT_MAX = 65_535
LOCAL_NAME = "localhost"
# Who is slower gives its place to another.
REQUEST_S = 10.0
REQUESTS_MAX = 16
POLL_S = 0.2

Environment = Mapping[str, Any]
StartResponse = Callable[..., object]
Application = Callable[[Environment, StartResponse], Iterable[bytes]]
Answer = tuple[HTTPStatus, str, bytes]


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
        """Return the endpoint that options name; None without an address.

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
        return self.host == LOCAL_NAME or ipaddress.ip_address(self.host).is_loopback

    def tls(self) -> ssl.SSLContext | None:
        """Make the TLS context; None without a certificate.

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


# --- the server


class ServerHandle(ThreadHandle):
    """A thread that answers until it is stopped."""

    def __init__(self, endpoint: Endpoint, answers: Application) -> None:
        """Listen at once.

        Raises: EnvironmentProblemError where the address cannot be had; ConfigError for its files.
        """
        super().__init__(f"{endpoint.purpose} endpoint", 0.0)
        try:
            self._server = _Server(endpoint)
        except OSError as error:
            cannot = f"cannot be listened on ({error.strerror or error})"
            what = f"{endpoint.purpose}: {endpoint.address} {cannot}"
            raise EnvironmentProblemError(
                what, "Choose another port, or stop who has it"
            ) from error
        self._server.timeout = POLL_S
        self._server.set_app(answers)
        self._endpoint = endpoint
        self.begin()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    @property
    def address(self) -> str:
        """Where clients find it: scheme, host and port."""
        scheme = "http" if self._endpoint.certificate is None else "https"
        host = self._endpoint.address.rpartition(":")[0]
        return f"{scheme}://{host}:{self.port}"

    def _turn(self) -> None:
        self._server.handle_request()

    def _end(self) -> None:
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    """Answers a bounded number of requests at once."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, endpoint: Endpoint) -> None:
        if ":" in endpoint.host:
            self.address_family = socket.AF_INET6
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__((endpoint.host, endpoint.port), _Handler)
        tls = endpoint.tls()
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def server_bind(self) -> None:
        """Bind without asking who the host is: that may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a place, or refuse."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread was begun that would give it back.
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log at debug level: a client that goes away, or speaks no TLS, is no failure of ours."""
        logger.debug("a request of %s failed: %r", client_address, sys.exc_info()[1])


class _Handler(WSGIRequestHandler):
    """One request: its head has an end, the handshake with it, and each write of the answer."""

    timeout = REQUEST_S

    def setup(self) -> None:
        """Shake hands here, not where all wait for the next connection."""
        reader = TimedReader(self.request, REQUEST_S)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(REQUEST_S)
            self.request.do_handshake()
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(reader)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - the library's name
        """Write to the log of this package."""
        logger.debug(format, *values)


class TimedReader(io.RawIOBase):
    """Reads a socket until a deadline for all of it: who sends drop by drop ends too.

    Args:
        connection: its timeout is what is left before each read, and all of it for writes.
        limit_s: from now on.
        now_s: a clock that only goes forward.
    """

    def __init__(
        self, connection: socket.socket, limit_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin the time."""
        self._connection, self._limit_s, self._now_s = connection, limit_s, now_s
        self._end_s = now_s() + limit_s

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read once into the buffer; return how many bytes came. Raises: TimeoutError."""
        self._connection.settimeout(self.left())
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._limit_s)

    def left(self) -> float:
        """Return the seconds that are left. Raises: TimeoutError."""
        left_s = self._end_s - self._now_s()
        if left_s <= 0:
            raise TimeoutError(f"the request took longer than {self._limit_s:g} s")
        return left_s


# --- what it answers


class Answers:
    """What each path shows.

    Args:
        metrics: the body of /metrics by the headers of the request.
        health: the services that run (true) or have ended (false).
        readiness: what is not ready yet; empty where all is.
        is_local: whether only names of this machine are taken for the host.
    """

    def __init__(
        self,
        metrics: Callable[[Environment, StartResponse], Iterable[bytes]],
        health: Callable[[], Mapping[str, bool]],
        readiness: Callable[[], list[str]],
        *,
        is_local: bool,
    ) -> None:
        """Keep them."""
        self._metrics, self._is_local = metrics, is_local
        self._paths: Mapping[str, Callable[[], Answer]] = {
            "/healthz": lambda: _health(health()),
            "/readyz": lambda: _readiness(readiness()),
        }

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request, as WSGI asks for it."""
        path = environment.get("PATH_INFO", "")
        refused = refused_request(environment, is_local=self._is_local)
        if refused is not None:
            return sent(start, refused)
        if path == "/metrics":
            return self._metrics(environment, start)
        answer = self._paths.get(path)
        if answer is None:
            paths = "/metrics, /healthz, /readyz"
            return sent(start, refusal(HTTPStatus.NOT_FOUND, f"there are {paths}"))
        return sent(start, answer())


def _health(services: Mapping[str, bool]) -> Answer:
    is_healthy = all(services.values())
    status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
    words = {name: "runs" if is_up else "has ended" for name, is_up in services.items()}
    return status, "application/json", json.dumps({"services": words}).encode()


def _readiness(missing: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
    return status, "application/json", json.dumps({"waits_for": missing}).encode()


def refused_request(environment: Environment, *, is_local: bool) -> Answer | None:
    """Refuse a foreign Host header and all methods but GET and HEAD; return None for all others.

    Args:
        environment: of the request, as WSGI has it.
        is_local: whether only names of this machine are taken for the host.
    """
    if is_local and not is_local_host(environment.get("HTTP_HOST", "")):
        return refusal(HTTPStatus.MISDIRECTED_REQUEST, "ask for 127.0.0.1")
    if environment.get("REQUEST_METHOD") not in {"GET", "HEAD"}:
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
    return None


def is_local_host(header: str) -> bool:
    """Tell whether a Host header names this machine; a page of a foreign name could read along."""
    host = header if header.endswith("]") else header.rpartition(":")[0] or header
    try:
        return host == LOCAL_NAME or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(status: HTTPStatus, text: str) -> Answer:
    """Make an answer that says in one line why there is no other."""
    return status, "text/plain; charset=utf-8", f"{status.phrase}: {text}\n".encode()


def sent(
    start: StartResponse, answer: Answer, more: Sequence[tuple[str, str]] = ()
) -> Iterable[bytes]:
    """Send an answer, with more headers than all answers have."""
    status, kind, body = answer
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("X-Content-Type-Options", "nosniff"),
        *more,
    ]
    start(f"{status.value} {status.phrase}", headers)
    return [body]
