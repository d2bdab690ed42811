"""Logs why a listener failed: its text, its traceback and the transaction, but no body."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterable

logger = logging.getLogger(__name__)

MAX_TRACE_CHARACTERS = 20_000
MAX_FRAMES = 50
# A shorter body is part of many words.
MIN_BODY_BYTES = 4
# An error may show the begin of a body alone.
BEGIN_CHARACTERS = 12
_HIDDEN = "<body>"


class Failures:
    """The failures of one listener: each kind once at ERROR, and again at DEBUG. Safe for threads.

    A listener whose database is away fails in each of two thousand questions alike.
    """

    def __init__(self, group: str) -> None:
        """Log nothing yet."""
        self._group = group
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def begin(self) -> None:
        """Begin a new round: each kind is worth a line again."""
        with self._lock:
            self._seen.clear()

    def failed(self, about: str, error: BaseException, bodies: Iterable[bytes]) -> None:
        """Log one failure.

        Args:
            about: what was asked, with the ids of the transactions.
            error: what the listener raised.
            bodies: what the text of the error must not show.
        """
        kind = _kind(error)
        with self._lock:
            level = logging.DEBUG if kind in self._seen else logging.ERROR
            self._seen.add(kind)
        if logger.isEnabledFor(level):
            text = "group %s: its listener failed when asked about %s; this counts as UNKNOWN\n%s"
            logger.log(level, text, self._group, about, trace(error, bodies))


def trace(error: BaseException, bodies: Iterable[bytes]) -> str:
    """Return the traceback and the text of an error, cut, without the bodies."""
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_FRAMES)
    return without_bodies("".join(lines).rstrip(), bodies)[-MAX_TRACE_CHARACTERS:]


def without_bodies(text: str, bodies: Iterable[bytes]) -> str:
    """Replace each body in the text, in each form in which Python may show it."""
    for body in bodies:
        if len(body) < MIN_BODY_BYTES:
            continue
        shown = body.decode("utf-8", errors="replace")
        for form in (shown, repr(shown)[1:-1], repr(body)[2:-1]):
            text = _without(text, form)
    return text


def _without(text: str, form: str) -> str:
    """Replace the form in the text, also if the text holds only its begin."""
    begin = form[:BEGIN_CHARACTERS]
    place = text.find(begin)
    while place >= 0:
        end = place + _same(text[place : place + len(form)], form)
        text = f"{text[:place]}{_HIDDEN}{text[end:]}"
        place = text.find(begin, place + len(_HIDDEN))
    return text


def _same(text: str, form: str) -> int:
    """Count the characters that both begin with."""
    pairs = enumerate(zip(text, form, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(text))


def _kind(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} {place}"
