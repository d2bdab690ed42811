"""Asks a WSGI application without a socket, as a browser on this machine would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.util import setup_testing_defaults


@dataclass(frozen=True)
class Page:
    """An answer."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """What a reader sees of it, in one line."""
        reader = _Reader()
        reader.feed(self.text)
        return " ".join(" ".join(reader.parts).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def asked(application: Any, address: str, method: str = "GET", **headers: str) -> Page:
    """One request; `headers` as WSGI names them, such as HTTP_HOST."""
    path, _, query = address.partition("?")
    environment: dict[str, Any] = {
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "REQUEST_METHOD": method,
        "HTTP_HOST": "127.0.0.1:8320",
        **headers,
    }
    setup_testing_defaults(environment)
    told: list[Any] = []

    def start(status: str, sent: Iterable[tuple[str, str]]) -> None:
        told.extend((int(status.split(maxsplit=1)[0]), dict(sent)))

    body = b"".join(application(environment, start))
    return Page(told[0], told[1], body.decode("utf-8"))
