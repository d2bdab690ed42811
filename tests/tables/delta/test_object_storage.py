"""What an object storage answers is told as what it is; the words are delta-rs's own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from txmq.delta.pinned import PinnedTable
from txmq.delta.table import Table
from txmq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from txmq.store.config import Config
from txmq.store.schemas import HALF
from txmq.store.tables import StoreTables

SECRET = "wJalrXUtnFEMI-hush"  # noqa: S105 - it is the point
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
NO_BUCKET = "<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"
WRONG_KEY = (
    "<Error><Code>InvalidAccessKeyId</Code><Message>No such key</Message>"
    f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"
)
WRONG_SIGNATURE = (
    "<Error><Code>SignatureDoesNotMatch</Code><Message>Wrong</Message>"
    f"<AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId><StringToSign>{SECRET}</StringToSign></Error>"
)
SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
ANSWERS = [
    (404, NO_BUCKET, BucketNotFoundError, "bucket does not exist"),
    (403, WRONG_KEY, AccessDeniedError, "credentials"),
    (403, WRONG_SIGNATURE, AccessDeniedError, "credentials"),
    (403, "", AccessDeniedError, "credentials"),
    (401, "", AccessDeniedError, "credentials"),
    (503, SLOW_DOWN, StorageUnavailableError, "too many"),
    (429, "", StorageUnavailableError, "too many"),
]


# In a process of its own: delta-rs's file system keeps the lock of the interpreter while it waits.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

status, body = int(sys.argv[1]), sys.argv[2].encode()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def storage(status: int, body: str) -> Iterator[str]:
    """A storage that gives one answer to all requests."""
    command = [sys.executable, "-c", SERVER, str(status), body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def options(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "max_retries": "0",
        "retry_timeout": "1s",
        "timeout": "30s",
    }


def store_tables(endpoint: str) -> StoreTables:
    return StoreTables("s3://orders-bucket/store", Config(), options(endpoint))


def failures_of(endpoint: str) -> list[StorageError]:
    """What a reader, a look-up and a creator are told."""
    table = Table("s3://orders-bucket/store/half", HALF, options(endpoint))
    marked = PinnedTable("a user's table", "s3://orders-bucket/orders", options(endpoint))
    calls: tuple[Callable[[], object], ...] = (
        table.refresh, table.exists, marked.refresh, partial(table.writer.create, 10),
        store_tables(endpoint).topic_names,
    )  # fmt: skip
    failures = []
    for call in calls:
        with pytest.raises(StorageError) as caught:
            call()
        failures.append(caught.value)
    return failures


@pytest.mark.parametrize(("status", "body", "kind", "words"), ANSWERS)
def test_an_answer_of_the_storage_is_told_as_what_it_is(
    status: int, body: str, kind: type[StorageError], words: str
) -> None:
    with storage(status, body) as endpoint:
        failures = failures_of(endpoint)

    assert [type(failure) for failure in failures] == [kind] * len(failures)
    for failure in failures:
        assert words in str(failure)
        assert SECRET not in str(failure)
        assert KEY_ID not in str(failure)


def test_a_storage_that_cannot_be_reached_is_told_as_such() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        failures = failures_of(f"http://127.0.0.1:{unused.getsockname()[1]}")

    assert {type(failure) for failure in failures} == {StorageUnavailableError}
    assert all(failure.retryable and "cannot be reached" in str(failure) for failure in failures)


def test_an_answer_that_nobody_foresaw_keeps_its_words() -> None:
    with storage(418, "<Error><Code>Teapot</Code></Error>") as endpoint:
        failures = failures_of(endpoint)

    assert {type(failure) for failure in failures} == {StorageError}
    assert all("418" in str(failure) for failure in failures)
