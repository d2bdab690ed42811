"""How SIGTERM and Ctrl-C end a command that holds something."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Ending:
    """SIGTERM ends a block as Ctrl-C does, by an exception, so that a member leaves its group.

    Neither ends what is `held` halfway, but for a second signal.
    """

    def __init__(self) -> None:
        """No signal is caught yet."""
        self._is_held = False
        self._number: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Catch the signals."""
        caught = [signal.SIGTERM]
        # What ignores Ctrl-C, such as a job in the background, goes on to do so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            caught.append(signal.SIGINT)
        self._previous = {number: signal.signal(number, self._on_signal) for number in caught}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the signals to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have a signal end the block only after this one."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._number is not None:
            number, self._number = self._number, None
            _end(number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_held and self._number is None:
            self._number = number
        else:
            _end(number)


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
