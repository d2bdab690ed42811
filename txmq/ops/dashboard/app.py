"""The dashboard as a service: it counts a store, and shows pages of what it saw."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl

from txmq.errors import (
    ConsumerGroupNotFoundError,
    MessageError,
    MessageNotFoundError,
    TopicNotFoundError,
    TransactionNotFoundError,
    TxmqError,
)
from txmq.ground.clock import Clock
from txmq.ground.handles import LOOK_INTERVAL_S
from txmq.ops.dashboard import pages
from txmq.ops.dashboard.lookups import Lookups
from txmq.ops.dashboard.pages import Content, Seen
from txmq.ops.dashboard.rendering import Pages
from txmq.ops.dashboard.snapshot import Counting
from txmq.ops.metrics.meter import MeterHandle
from txmq.ops.metrics.server import (
    REQUEST_S,
    Answer,
    Endpoint,
    Environment,
    ServerHandle,
    StartResponse,
    refusal,
    refused_request,
    sent,
)
from txmq.ops.metrics.service import MetricsHandle
from txmq.store.store import Store

logger = logging.getLogger(__name__)

# So many pages may read tables at once, whoever asks.
READS_MAX = 2
FIELDS_MAX = 10
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)
FRESH = ("Cache-Control", "no-store")
KEPT = ("Cache-Control", "max-age=86400")
_NOT_FOUND = (
    TransactionNotFoundError, MessageNotFoundError, TopicNotFoundError, ConsumerGroupNotFoundError,
)  # fmt: skip
_LISTS: dict[str, Callable[[Seen], Content]] = {
    "/": pages.overview,
    "/transactions": pages.transactions,
    "/topics": pages.topics,
    "/groups": pages.groups,
    "/dead-letters": pages.dead_letters,
    "/delayed": pages.delayed,
}


class DashboardEndpoint(Endpoint):
    """Where the dashboard is shown; see `Endpoint` for arguments and errors."""

    purpose = "dashboard"
    usual = "127.0.0.1:8320"


class Dashboard:
    """Web pages over a store; needs no Spark, changes nothing.

    It counts the store each 15 seconds, and for at most a twentieth of the time. Most pages show
    the last count; those of one transaction, message, topic or group read a bounded part of tables.

    Args:
        store: the store to show.
        endpoint: where to listen; on another address than this machine's own it needs TLS and a
            client authority.
        show_bodies: show the bodies of messages on their pages.
        clock: the clock by which ages and lags are computed.

    Example:
        >>> with Dashboard(store, DashboardEndpoint("127.0.0.1:8320")).start() as running:
        ...     print(running.address)
        http://127.0.0.1:8320/
    """

    def __init__(
        self,
        store: Store,
        endpoint: DashboardEndpoint | None = None,
        *,
        show_bodies: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Count nothing yet. Raises: EnvironmentProblemError where Jinja2 is not installed."""
        self._endpoint = endpoint or DashboardEndpoint(DashboardEndpoint.usual)
        self.counting = Counting(store, clock)
        lookups = Lookups(store, clock, show_bodies)
        templates = Pages(store.location, show_bodies=show_bodies)
        self.app = DashboardApp(self.counting, lookups, templates, is_local=self._endpoint.is_local)

    def start(self) -> DashboardHandle:
        """Listen, and count in a thread; a count that fails is tried again. Commits: 0.

        Raises:
            ConfigError: a file of the endpoint cannot be read.
            EnvironmentProblemError: the address cannot be had.
        """
        server = ServerHandle(self._endpoint, self.app)
        address = f"{server.address}/"
        logger.info("the dashboard is at %s", address)
        return DashboardHandle(server, MeterHandle(self.counting.count), address)


class DashboardHandle(MetricsHandle):
    """The running dashboard.

    Attributes:
        address: where a browser finds it.
    """

    def __init__(self, server: ServerHandle, meter: MeterHandle, address: str) -> None:
        """Hold the parts that `Dashboard.start()` made."""
        super().__init__([server, meter])
        self.address = address

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Wait until `stopping` is set or a part ends, then stop; raises what ended it."""
        event = stopping or threading.Event()
        try:
            while self.is_alive and not event.wait(LOOK_INTERVAL_S):
                pass
            failure = self.exception
        finally:
            self.stop()
        if failure is not None:
            raise failure


class DashboardApp:
    """All pages of a store.

    Args:
        counting: what was counted.
        lookups: reads what single pages are about.
        shown: makes HTML of them.
        is_local: whether only names of this machine are taken for the host.
    """

    def __init__(
        self, counting: Counting, lookups: Lookups, shown: Pages, *, is_local: bool
    ) -> None:
        """Keep them, and read the static files."""
        self._counting, self._lookups, self._shown = counting, lookups, shown
        self._is_local = is_local
        self._reads = threading.BoundedSemaphore(READS_MAX)
        self._static = {name: _static(name) for name in STATIC}
        shown.version = hashlib.sha256(b"".join(self._static.values())).hexdigest()[:12]

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request, as WSGI asks for it."""
        refused = refused_request(environment, is_local=self._is_local) or _foreign(environment)
        if refused is not None:
            return sent(start, refused, (*HEADERS, FRESH))
        path = _path(environment)
        if path.startswith("/static/") and (content := self._static.get(path[8:])) is not None:
            kind = STATIC[path[8:]]
            return _answered(environment, start, (HTTPStatus.OK, kind, content), KEPT)
        answer, more = self._answer(path, environment)
        return _answered(environment, start, answer, FRESH, *more)

    def _answer(self, path: str, environment: Environment) -> tuple[Answer, list[tuple[str, str]]]:
        snapshot = self._counting.last
        query = _query(environment)
        if snapshot is None:
            content = {"failure": self._counting.failure}
            return self._html(HTTPStatus.SERVICE_UNAVAILABLE, "counting", content), []
        seen = Seen(
            snapshot,
            self._counting.history.samples(),
            query,
            snapshot.status.location,
            self._counting.took_s,
        )
        template, content, status = self._page(path, seen)
        if address := content.get("to"):
            answer = (HTTPStatus.SEE_OTHER, "text/plain; charset=utf-8", b"")
            return answer, [("Location", address)]
        return self._html(status, template, content, seen), []

    def _page(self, path: str, seen: Seen) -> tuple[str, Content, HTTPStatus]:
        """Return the page of a path, or the one that says why there is none."""
        try:
            template, content = self._content(path, seen)
        except Exception as error:  # noqa: BLE001 - each has a page
            status, problem = _told(error, path)
            return "problem", {"problem": problem, "phrase": status.phrase}, status
        return template, content, HTTPStatus.OK

    def _content(self, path: str, seen: Seen) -> tuple[str, Content]:
        """Return the template of a path and its values. Raises: TxmqError if it names nothing."""
        if (page := _LISTS.get(path)) is not None:
            return path.strip("/") or "overview", page(seen)
        head, _, rest = path.strip("/").partition("/")
        if path == "/search":
            return "search", self._read(lambda: self._lookups.search(seen))
        if not rest:
            raise _NoPageError(path)
        return self._content_of(head, rest, seen)

    def _content_of(self, head: str, rest: str, seen: Seen) -> tuple[str, Content]:
        match head:
            case "transactions":
                return "transaction", self._read(lambda: self._lookups.life(seen, rest))
            case "messages":
                return "message", self._read(lambda: self._lookups.message(seen, rest))
            case "dead-letters":
                return "letters", self._read(lambda: self._lookups.letters(seen, rest))
            case "topics":
                offsets = self._read(lambda: self._lookups.offsets(seen, rest))
                return "topic", {**pages.topic(seen, rest), **offsets}
            case "groups":
                content = pages.group(seen, rest)
                if content is not None:
                    return "group", content
                if rest in seen.snapshot.damaged:
                    return "groups", pages.groups(seen)
                raise ConsumerGroupNotFoundError(rest)
            case _:
                raise _NoPageError(f"/{head}/{rest}")

    def _read(self, read: Callable[[], Content]) -> Content:
        """Read for a page, a few at a time."""
        if not self._reads.acquire(timeout=REQUEST_S):
            raise _BusyError
        try:
            return read()
        finally:
            self._reads.release()

    def _html(
        self, status: HTTPStatus, template: str, content: Content, seen: Seen | None = None
    ) -> Answer:
        common = {"failure": self._counting.failure, "seen": seen, "name": template}
        text = self._shown.html(template, {**common, **content})
        return status, "text/html; charset=utf-8", text.encode("utf-8", "backslashreplace")


class _NoPageError(TransactionNotFoundError):
    """No page has this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.args = (f"there is no page {path[:80]}; begin at the overview",)

    def __str__(self) -> str:
        return str(self.args[0])


class _BusyError(TxmqError):
    """Too many pages read at once."""

    def __str__(self) -> str:
        return f"{READS_MAX} other pages are reading; load this one again"


def _told(error: Exception, path: str) -> tuple[HTTPStatus, str]:
    """Return the status and text of a failure; one that nobody foresaw goes to the log alone."""
    if isinstance(error, _NOT_FOUND):
        return HTTPStatus.NOT_FOUND, str(error)
    if isinstance(error, MessageError):
        return HTTPStatus.BAD_REQUEST, str(error)
    if isinstance(error, TxmqError):
        return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    logger.error("the page %r could not be made", path, exc_info=error)
    problem = "The page could not be made; the log of the dashboard says why."
    return HTTPStatus.INTERNAL_SERVER_ERROR, problem


def _foreign(environment: Environment) -> Answer | None:
    """Refuse a page of another origin that makes a browser fetch from here; links are let in."""
    site = environment.get("HTTP_SEC_FETCH_SITE", "none")
    is_link = (
        environment.get("HTTP_SEC_FETCH_MODE") == "navigate"
        and environment.get("HTTP_SEC_FETCH_DEST") == "document"
    )
    if site in {"none", "same-origin"} or is_link:
        return None
    return refusal(HTTPStatus.FORBIDDEN, "pages of others may link here, and no more")


def _path(environment: Environment) -> str:
    """Decode the path; WSGI has its bytes as latin-1."""
    raw: str = environment.get("PATH_INFO", "") or "/"
    return raw.encode("latin-1", "replace").decode("utf-8", "replace")


def _query(environment: Environment) -> dict[str, str]:
    try:
        pairs = parse_qsl(environment.get("QUERY_STRING", ""), max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    return dict(pairs)


def _answered(
    environment: Environment, start: StartResponse, answer: Answer, *more: tuple[str, str]
) -> Iterable[bytes]:
    body = sent(start, answer, (*HEADERS, *more))
    return [] if environment.get("REQUEST_METHOD") == "HEAD" else body


def _static(name: str) -> bytes:
    return files("txmq.ops.dashboard").joinpath("static", name).read_bytes()
