"""A proxy before an S3 server that counts requests, refuses some, and loses answers.

A process of its own: `python s3_proxy.py UPSTREAM_PORT LOG [--throttled RATE] [--lost RATE]
[--slow RATE]`; it prints its port. Each line of the log is a request: what was done to it, its
method, its path.
"""

from __future__ import annotations

import argparse
import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
SLOW_S = 0.5
_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive"}


class Proxy(ThreadingHTTPServer):
    """Forwards to a server of this machine."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.given = given
        self.log = Path(given.log).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self.draw, self.lock = random.Random(given.seed), threading.Lock()

    def handle_error(self, *_: object) -> None:
        """Clients are killed; that their connections break is no news."""

    def fate(self, method: str) -> str:
        """What is done to the next request."""
        with self.lock:
            drawn = self.draw.random()
        for name in ("throttled", "slow", "lost"):
            rate = getattr(self.given, name)
            # Only an answer to a write can hide that something was done.
            if drawn < rate and (name != "lost" or method in ("PUT", "POST", "DELETE")):
                return name
            drawn -= rate
        return "passed"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # An answer goes out at once.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Proxy
    upstream: http.client.HTTPConnection | None = None

    def answer(self) -> None:
        """Forward one request, as its fate is."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fate = self.server.fate(self.command)
        self.server.log.write(f"{fate} {self.command} {self.path}\n")
        if fate == "throttled":
            self._send(503, [("Content-Type", "application/xml")], SLOW_DOWN)
            return
        if fate == "slow":
            time.sleep(SLOW_S)
        status, headers, content = self._upstream(body)
        if fate == "lost":
            self.close_connection = True
            return
        self._send(status, headers, content)

    def _upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the server answers; the connection stays, as the client's does."""
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection(
                "127.0.0.1", self.server.given.port, timeout=60
            )
        try:
            return self._forwarded(self.upstream, body)
        except (OSError, http.client.HTTPException):
            # The server has closed it meanwhile; the next request opens it again.
            self.upstream.close()
            return self._forwarded(self.upstream, body)

    def _forwarded(
        self, upstream: http.client.HTTPConnection, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body or None)
        response = upstream.getresponse()
        return response.status, response.getheaders(), response.read()

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        has_length = False
        for name, value in headers:
            if name.lower() not in _HOP_HEADERS:
                has_length |= name.lower() == "content-length"
                self.send_header(name, value)
        if not has_length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        """The log has a form of its own."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("log")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("throttled", "lost", "slow"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    proxy = Proxy(parser.parse_args())
    print(proxy.server_port, flush=True)  # noqa: T201 - who started it reads its port
    proxy.serve_forever()


if __name__ == "__main__":
    main()
