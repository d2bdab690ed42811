"""A Unity Catalog that lends credentials for seconds, and an S3 server that takes no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.kit import s3
from tests.kit.s3_proxy import Handler

TEST_PATH = "/of-the-test"
PATH = "/api/2.1/unity-catalog/temporary-path-credentials"
# Of two principals, so that a test can tell who asked.
TOKENS = TOKEN, TOKEN_OF_BROKER = ("dapi-secret-of-the-test", "dapi-secret-of-the-broker")
_KEY_ID = re.compile(r"Credential=([^/]+)/")
_KEYS = re.compile("<Key>([^<]*)</Key>")
_ERROR = "<Error><Code>{code}</Code><Message>{text}</Message><Token-0>{token}</Token-0></Error>"


@dataclass
class Credentials:
    """What was lent once, and what the storage saw of it."""

    number: int
    token_of: str
    url: str
    operation: str
    end_s: float
    used: int = 0
    refused: int = 0

    @property
    def key_id(self) -> str:
        """Its access key."""
        return f"ASIALENT{self.number:04d}"

    @property
    def secret(self) -> str:
        """Its secret access key."""
        return f"lent-secret-key-{self.number:04d}"

    @property
    def token(self) -> str:
        """Its session token."""
        return f"lent-session-token-{self.number:04d}"

    @property
    def has_ended(self) -> bool:
        """Whether the storage takes it no more."""
        return time.time() >= self.end_s


@dataclass
class State:
    """What was lent, and what happens next.

    Attributes:
        life_s: how long the next credentials hold.
        shown_life_s: what their answer says; the same unless a test lies.
        refusals: statuses that the catalog answers first, instead of credentials.
    """

    life_s: float = 3600.0
    shown_life_s: float | None = None
    refusals: list[int] = field(default_factory=list)
    lent: list[Credentials] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lend(self, token: str, url: str, operation: str) -> Credentials:
        """Lend the next ones."""
        with self.lock:
            end_s = time.time() + self.life_s
            credentials = Credentials(len(self.lent) + 1, token, url, operation, end_s)
            self.lent.append(credentials)
            return credentials

    def change(self, changes: dict[str, Any]) -> list[dict[str, Any]]:
        """Do what a test asks for; show what was lent."""
        if changes.pop("end_all", False):
            for credentials in self.lent:
                credentials.end_s = 0.0
        for name, value in changes.items():
            setattr(self, name, value)
        return [asdict(credentials) for credentials in self.lent]


@dataclass(frozen=True)
class Lending:
    """Both servers, in a process of their own: delta-rs lets no other thread run while it waits."""

    catalog_port: int
    storage_port: int

    @property
    def identity(self) -> dict[str, str]:
        """Who asks the catalog, as databricks-sdk finds it in the environment."""
        host = f"http://127.0.0.1:{self.catalog_port}"
        return {"DATABRICKS_HOST": host, "DATABRICKS_TOKEN": TOKEN}

    @property
    def options(self) -> dict[str, str]:
        """Storage options without credentials."""
        return {
            "txmq_credentials": "unity-catalog",
            "aws_region": s3.REGION,
            "aws_endpoint_url": f"http://127.0.0.1:{self.storage_port}",
            "aws_allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables, and the identity."""
        return {key.upper(): value for key, value in self.options.items()} | self.identity

    def lent(self, **changes: Any) -> list[Credentials]:
        """What was lent so far; `changes` are of `State.change`."""
        url = f"http://127.0.0.1:{self.catalog_port}{TEST_PATH}"
        request = urllib.request.Request(url, json.dumps(changes).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine
            return [Credentials(**each) for each in json.load(answer)]


class _Catalog(BaseHTTPRequestHandler):
    """The documented interface of Unity Catalog, as far as a path goes."""

    protocol_version = "HTTP/1.1"
    state: State

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == TEST_PATH:
            self._answer(200, self.state.change(asked))
        elif self.path != PATH:
            self._answer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": self.path})
        elif self._token() not in TOKENS:
            self._answer(401, {"error_code": "UNAUTHENTICATED", "message": "who are you?"})
        elif self.state.refusals:
            self._answer(self.state.refusals.pop(0), {"message": "as the test wants it"})
        else:
            self._answer(200, self._credentials(asked["url"], asked["operation"]))

    def _token(self) -> str:
        return (self.headers["Authorization"] or "").removeprefix("Bearer ")

    def _credentials(self, url: str, operation: str) -> dict[str, Any]:
        credentials = self.state.lend(self._token(), url, operation)
        shown_s = self.state.shown_life_s
        end_s = credentials.end_s if shown_s is None else time.time() + shown_s
        return {
            "aws_temp_credentials": {
                "access_key_id": credentials.key_id,
                "secret_access_key": credentials.secret,
                "session_token": credentials.token,
            },
            "expiration_time": int(end_s * 1000),
            "url": url,
        }

    def do_GET(self) -> None:
        """What the SDK asks a workspace for; an open catalog has none."""
        self._answer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": self.path})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests look at what was lent."""


class _Guarded(Handler):
    """Passes requests on whose credentials hold, and are for their path."""

    state: State

    def answer(self) -> None:
        """Look at the credentials first."""
        match = _KEY_ID.search(self.headers.get("Authorization") or "")
        lent = {credentials.key_id: credentials for credentials in self.state.lent}
        credentials = lent.get(match[1]) if match else None
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        refusal = self._refusal(credentials, body)
        if refusal is None:
            assert credentials is not None
            credentials.used += 1
            self._send(*self._upstream(body))
            return
        if credentials is not None:
            credentials.refused += 1
        status, text = refusal
        self._send(status, [("Content-Type", "application/xml")], text)

    def _refusal(self, credentials: Credentials | None, body: bytes) -> tuple[int, bytes] | None:
        token = self.headers.get("x-amz-security-token")
        if credentials is None or token != credentials.token:
            return 403, _error("InvalidAccessKeyId", "not known", "")
        if credentials.has_ended:
            return 400, _error("ExpiredToken", "The provided token has expired.", token)
        bucket, _, folder = credentials.url.partition("://")[2].partition("/")
        if not all(f"{key}/".startswith(f"{folder}/") for key in self._keys(bucket, body)):
            return 403, _error("AccessDenied", "not this path", "")
        if self.command not in ("GET", "HEAD") and credentials.operation == "PATH_READ":
            return 403, _error("AccessDenied", "read only", "")
        return None

    def _keys(self, bucket: str, body: bytes) -> list[str]:
        """What a request is about: an object, the prefix of a listing, or many to delete."""
        asked = urlsplit(self.path)
        key = unquote(asked.path).removeprefix(f"/{bucket}").strip("/")
        if key:
            return [key]
        prefix = re.search(r"(?:^|&)prefix=([^&]*)", asked.query)
        return [unquote(prefix[1]).rstrip("/")] if prefix else _KEYS.findall(body.decode())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - the names of http.server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Clients are killed; that their connections break is no news."""


class _GuardServer(_Server):
    """What `Handler` needs of its server."""

    given: Namespace


def _error(code: str, text: str, token: str) -> bytes:
    return _ERROR.format(code=code, text=text, token=token).encode()


@contextmanager
def lending(server: s3.S3, **changes: Any) -> Iterator[Lending]:
    """Both servers before an S3 server; `changes` are of `State.change`."""
    command = [sys.executable, "-m", "tests.kit.lending", str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            running = Lending(*map(int, process.stdout.readline().split()))
            running.lent(**changes)
            yield running
        finally:
            process.kill()


def main(upstream_port: int) -> None:
    """Serve until killed; print both ports."""
    state = State()
    catalog = _Server(("127.0.0.1", 0), type("Catalog", (_Catalog,), {"state": state}))
    guard = _GuardServer(("127.0.0.1", 0), type("Guarded", (_Guarded,), {"state": state}))
    guard.given = Namespace(port=upstream_port)
    threading.Thread(target=catalog.serve_forever, daemon=True).start()
    print(catalog.server_port, guard.server_port, flush=True)  # noqa: T201 - for who started it
    guard.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
