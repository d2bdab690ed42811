"""A broker that is told to stop while its publisher catches up stops after the range it is at."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from tests.kit.reading import bodies, wait_until
from tests.kit.sending import send_each
from txmq.ground.fail_points import FailPoint, arm
from txmq.ops.broker import Broker, run_until_signal
from txmq.store.config import Config
from txmq.store.store import Store

MESSAGES, SETTLED = 20, 3


def test_signal_while_the_publisher_catches_up_is_obeyed_after_the_range(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(publish_batch_rows=1))
    sent = [b"%02d" % number for number in range(MESSAGES)]
    send_each(store, *sent, topic="orders")
    reached = list[FailPoint]()

    def terminate(point: FailPoint) -> None:
        if point is FailPoint.FACTS_COMMITTED:
            reached.append(point)
            if len(reached) == SETTLED:
                os.kill(os.getpid(), signal.SIGTERM)
                # The main thread hears of it, and a thread of its own tells the services.
                wait_until(
                    lambda: all(each.name != "txmq-signals" for each in threading.enumerate())
                )

    disarm = arm(terminate)
    try:
        run_until_signal(Broker(store).start)
    finally:
        disarm()

    assert len(reached) == SETTLED
    assert bodies(store, "orders") == sent[:SETTLED]
    Broker(store).run_once()
    assert bodies(store, "orders") == sent
