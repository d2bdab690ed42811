"""Lets a writer through that loses again and again: the others wait for it, but not for long.

Commits go to whoever is fastest. A writer far away, or one that sleeps between its look and its
commit, would lose for ever against a fast one. It puts a file beside the log; writers that see it
pause. Nothing but patience rests on this file: a commit is right with it and without it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from txmq.delta.objects import Objects

TURN_FILE = "_turn"


class _Pace(NamedTuple):
    """How often a writer looks for the turn of another, and how long it waits for it."""

    look_s: float
    poll_s: float
    patience_s: float
    # For who computes its commit anew in its turn, such as a rebuild.
    long_patience_s: float


_LOCAL = _Pace(look_s=0.01, poll_s=0.002, patience_s=0.5, long_patience_s=5.0)
# Each look is a request.
_REMOTE = _Pace(look_s=1.0, poll_s=0.1, patience_s=5.0, long_patience_s=15.0)
_LONG = b"long "


class Turns:
    """The turns of one table, as one writer sees them. Not safe for several threads."""

    def __init__(self, objects: Objects, read: Callable[[str], bytes | None]) -> None:
        """Look at nothing yet; `read` gives the content of a file, None where there is none."""
        self._objects, self._read = objects, read
        self._pace = _REMOTE if objects.is_remote else _LOCAL
        self._own = b""
        # A turn that took longer than our patience; its owner may be dead.
        self._ignored = b""
        self._looked_s = -math.inf
        self._is_asked = False

    def ask(self, *, is_long: bool = False) -> None:
        """Ask the others to wait, unless another writer has its turn."""
        if not self._is_asked:
            # A new name each time: who lost patience with a turn ignores it for good.
            self._own = (_LONG if is_long else b"") + uuid.uuid4().hex.encode()
            # Who may not write this file, or has no room for it, goes on without a turn.
            with suppress(Exception):
                self._is_asked = self._objects.put_new(TURN_FILE, self._own)

    def give_back(self) -> None:
        """Let the others go on."""
        if self._is_asked:
            self._is_asked = False
            self._end(self._own)

    def wait(self) -> None:
        """Wait while another writer has its turn; most calls look at nothing."""
        now_s = time.monotonic()
        if self._is_asked or now_s - self._looked_s < self._pace.look_s:
            return
        turn = self._turn()
        is_long = turn is not None and turn.startswith(_LONG)
        patience_s = self._pace.long_patience_s if is_long else self._pace.patience_s
        until_s = now_s + patience_s
        while turn is not None and time.monotonic() < until_s:
            time.sleep(self._pace.poll_s)
            after = self._turn()
            if after != turn:
                break
        else:
            self._ignore(turn)
        self._looked_s = time.monotonic()

    def _turn(self) -> bytes | None:
        """The turn that another writer has; None also where a look fails."""
        with suppress(Exception):
            turn = self._read(TURN_FILE)
            return None if turn in {self._own, self._ignored} else turn
        return None

    def _ignore(self, turn: bytes | None) -> None:
        if turn is not None:
            self._ignored = turn
            self._end(turn)

    def _end(self, turn: bytes) -> None:
        """Remove a turn; a file that stays costs each writer its patience once."""
        with suppress(Exception):
            if self._read(TURN_FILE) == turn:
                self._objects.delete(TURN_FILE)
