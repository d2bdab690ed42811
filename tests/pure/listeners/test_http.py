"""Questions over HTTP, against a real server on the loopback address."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
import requests

from tests.kit.asked import answers, asked_about
from txmq.errors import ListenerError
from txmq.listeners import http as http_listener
from txmq.listeners.http import HttpListener
from txmq.listeners.protocol import raised

Reply = Callable[[dict[str, Any]], tuple[int, bytes]]
SECRET = "Bearer of a secret"  # noqa: S105 - of a server that lives as long as a test


class Service:
    """Answers as told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: list[Reply] = []
        self.reply: Reply = self.all("COMMIT")
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(body)
                service.headers.append(dict(self.headers))
                reply = service.replies.pop(0) if service.replies else service.reply
                status, content = reply(body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/check"

    @staticmethod
    def all(state: str) -> Reply:
        return lambda body: (200, told([(each["transaction_id"], state) for each in body["heads"]]))

    @staticmethod
    def status(number: int) -> Reply:
        return lambda _: (number, b"")

    @staticmethod
    def content(content: bytes) -> Reply:
        return lambda _: (200, content)


def told(states: list[tuple[str, str]]) -> bytes:
    rows = [{"transaction_id": key, "state": state} for key, state in states]
    return json.dumps({"answers": rows}).encode()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.server.serve_forever, daemon=True)
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()


def test_batch_of_heads_is_one_post(service: Service) -> None:
    listener = HttpListener(service.url)

    assert answers(listener, ["1", "2"]) == {"1": ("COMMIT", None), "2": ("COMMIT", None)}
    ((body,),) = [service.asked]
    assert [head["transaction_id"] for head in body["heads"]] == ["1", "2"]
    assert body["heads"][0]["born_timestamp"] == "2023-11-14T22:13:20+00:00"


def test_more_heads_than_a_batch_are_several_posts(service: Service) -> None:
    listener = HttpListener(service.url, batch_size=2)

    found = answers(listener, ["1", "2", "3", "4", "5"])

    assert len(service.asked) == 3
    assert {state for state, _ in found.values()} == {"COMMIT"}


def test_all_fields_of_a_head_are_plain_json(service: Service) -> None:
    heads = asked_about(["1"])
    properties = pa.array([[("colour", "blue")]], pa.map_(pa.string(), pa.string()))
    heads = heads.append_column("properties", properties)
    heads = heads.append_column("body", pa.array([b"\x00\xff"]))
    HttpListener(service.url, head_columns=("properties", "body")).check_local_transactions_arrow(
        heads
    )

    (head,) = service.asked[0]["heads"]
    assert head["properties"] == {"colour": "blue"}
    assert base64.b64decode(head["body"]) == b"\x00\xff"


def test_reason_of_the_service_is_kept(service: Service) -> None:
    row = {"transaction_id": "1", "state": "UNKNOWN", "reason": "the ledger is closed"}
    service.reply = service.content(json.dumps({"answers": [row]}).encode())

    assert answers(HttpListener(service.url), ["1"]) == {"1": ("UNKNOWN", "the ledger is closed")}


def test_secret_is_taken_from_the_environment_at_each_call(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = HttpListener(service.url, header_variable="ORDERS_TOKEN")
    with pytest.raises(ListenerError, match="ORDERS_TOKEN is not set"):
        answers(listener, ["1"])
    monkeypatch.setenv("ORDERS_TOKEN", SECRET)

    answers(listener, ["1"])

    assert service.headers[0]["Authorization"] == SECRET
    assert SECRET not in repr(vars(listener))


def test_other_header_may_carry_the_secret(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_KEY", SECRET)

    answers(HttpListener(service.url, header="X-Api-Key", header_variable="ORDERS_KEY"), ["1"])

    assert service.headers[0]["X-Api-Key"] == SECRET


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_busy_service_is_asked_again(service: Service, status: int) -> None:
    service.replies = [service.status(status)]

    assert answers(HttpListener(service.url), ["1"]) == {"1": ("COMMIT", None)}
    assert len(service.asked) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 500])
def test_other_answers_of_the_service_are_no_answer(service: Service, status: int) -> None:
    service.reply = service.status(status)

    with pytest.raises(ListenerError, match=f"HTTP {status}"):
        answers(HttpListener(service.url), ["1"])
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"no JSON", b"[]", b"{}", b'{"answers": 7}', b'{"answers": [7]}', b'{"answers": ["a"]}',
     b"\xff\xfe"],
)  # fmt: skip
def test_nonsense_is_no_answer(service: Service, content: bytes) -> None:
    service.reply = service.content(content)

    with pytest.raises(ListenerError, match="something else") as told_error:
        answers(HttpListener(service.url), ["1"])
    reason = raised(told_error.value).reason or ""
    assert "something else" in reason


def test_answer_without_end_is_cut(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_ANSWER_BYTES", 1_000)
    service.reply = service.content(b" " * 100_000)

    with pytest.raises(ListenerError, match="more than 1,000 bytes"):
        answers(HttpListener(service.url), ["1"])


def test_answers_of_all_posts_together_are_bounded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listener, "MAX_ANSWERS_BYTES", 1_000)
    row = {"transaction_id": "1", "state": "UNKNOWN", "reason": "x" * 100_000}
    service.reply = service.content(json.dumps({"answers": [row]}).encode())

    assert answers(HttpListener(service.url), ["1"]) == {"1": ("UNKNOWN", "x" * 200)}
    with pytest.raises(ListenerError, match="more than 1,000 bytes in one call"):
        answers(HttpListener(service.url, batch_size=1), list("123456"))


def test_answer_that_is_nested_too_deep_is_no_answer(service: Service) -> None:
    service.reply = service.content(b"[" * 100_000)

    with pytest.raises(ListenerError, match="something else"):
        answers(HttpListener(service.url), ["1"])


def test_slow_service_is_no_answer(service: Service) -> None:
    ended = threading.Event()

    def slow(_: dict[str, Any]) -> tuple[int, bytes]:
        ended.wait(10.0)
        return 200, b""

    service.reply = slow
    with pytest.raises(requests.exceptions.RequestException):
        answers(HttpListener(service.url, timeout_s=0.1, retries=0), ["1"])
    ended.set()


def test_service_that_is_not_there_is_no_answer(service: Service) -> None:
    listener = HttpListener(f"{service.url.rpartition(':')[0]}:9/check", retries=0)

    with pytest.raises(requests.exceptions.ConnectionError):
        answers(listener, ["1"])


@pytest.mark.parametrize(
    "url", ["", "orders", "ftp://orders/check", "file:///etc/passwd", "http://", "http://a:b@c/"]
)
def test_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ListenerError, match="header_variable"):
        HttpListener(url)


@pytest.mark.parametrize("value", ["secret-token\n", " secret-token", "secret\rX: y", "secret\x00"])
def test_secret_that_no_header_can_carry_is_in_no_error(
    service: Service, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, "ORDERS_TOKEN": value})
    listener = HttpListener(service.url, header_variable="ORDERS_TOKEN")

    with pytest.raises(ListenerError, match="ORDERS_TOKEN holds text that no header") as caught:
        answers(listener, ["1"])

    assert "secret" not in str(caught.value)
