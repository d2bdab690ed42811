"""What the processes of the demo share: they end when told to, and when the demo itself is gone."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

LOOK_INTERVAL_S = 0.5


def watch_parent(stopping: threading.Event) -> None:
    """Set `stopping` when the process that started this one has ended, however it did."""
    parent = os.getppid()

    def watch() -> None:
        while not stopping.wait(LOOK_INTERVAL_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, name="txmq-demo-parent", daemon=True).start()


def stop_on_signal(stopping: threading.Event) -> None:
    """SIGTERM and SIGINT only set the event: what has begun is finished."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
