"""The time and the places of the endpoint's requests; no thread, no sleep."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from txmq.ops.metrics.server import REQUESTS_MAX, MetricsEndpoint, TimedReader, _Server

LIMIT_S = 10.0


class Drip(socket.socket):
    """A client that sends a byte each second, and so never lets one read time out."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.given_s = 0.0, list[float | None]()

    def settimeout(self, value: float | None) -> None:
        self.given_s.append(value)

    def recv_into(self, buffer: Any, *_: object) -> int:
        self.now_s += 1.0
        buffer[:1] = b"a"
        return 1


@pytest.fixture
def drip() -> Iterator[Drip]:
    with Drip() as made:
        yield made


def test_request_that_comes_drop_by_drop_ends(drip: Drip) -> None:
    reader = io.BufferedReader(TimedReader(drip, LIMIT_S, lambda: drip.now_s))

    with pytest.raises(TimeoutError, match="longer than 10 s"):
        reader.readline(65_537)

    assert drip.now_s == LIMIT_S
    # Before each read what is left; after it all, for the answer.
    assert drip.given_s[:4] == [10.0, LIMIT_S, 9.0, LIMIT_S]


def test_server_reads_the_head_by_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even what is there already is not read once the time is over."""
    monkeypatch.setattr("txmq.ops.metrics.server.REQUEST_S", 0.0)
    ours, theirs = socket.socketpair()
    server = _Server(MetricsEndpoint("127.0.0.1:0"))
    asked: list[object] = []
    server.set_app(lambda *_: asked.append(1) or [])
    with ours, theirs, server:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            server.finish_request(ours, ("127.0.0.1", 1))

    assert asked == []


def test_place_is_given_back_where_no_thread_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with _Server(MetricsEndpoint("127.0.0.1:0")) as server:
        for _ in range(REQUESTS_MAX + 1):
            with pytest.raises(RuntimeError):
                server.process_request(None, ("127.0.0.1", 1))
