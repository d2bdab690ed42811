"""A member in a process of its own, until SIGTERM; it receives by `pull` or by `spark`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.endurance.groups.effects import Effects
from tests.endurance.groups.journal import CallEnd, Journal
from tests.endurance.groups.world import (
    EARLY,
    GROUPS,
    LATE,
    POISON,
    Delivery,
    FlakyError,
    PoisonError,
    fails_early,
    fails_late,
    journal_of,
    mark_of,
)
from txmq.consumer.pull import PullConsumer
from txmq.ground.handles import ThreadHandle, set_by_signals
from txmq.message.received import MESSAGE_COLUMNS, MessageRows, ReceivedMessage
from txmq.store.store import Store

WORK_S, BATCH_MESSAGES, LOOK_S = 0.002, 400, 0.05


class Handler:
    """Journals each call, and has one effect for each message, behind the inbox."""

    def __init__(self, folder: Path, group: str, name: str) -> None:
        self._group, self._draw = group, random.Random(name)
        self._journal = Journal(journal_of(folder, name))
        self._effects = Effects(folder, group, name)

    def one(self, message: ReceivedMessage) -> None:
        self._journaled(time.monotonic(), [message], self._one)

    def batch(self, rows: Any) -> None:
        begin_s = time.monotonic()
        messages = MessageRows(rows.select(*MESSAGE_COLUMNS).toArrow()).messages()
        messages.sort(key=lambda own: (own.topic, own.queue_id, own.queue_offset))
        self._journaled(begin_s, messages, self._several)

    def _journaled(self, begin_s: float, messages: Sequence[ReceivedMessage], handle: Any) -> None:
        deliveries = [Delivery.of(message) for message in messages]
        self._journal.begin(deliveries, begin_s)
        end = CallEnd.FAILED
        try:
            end = handle(messages)
        finally:
            self._journal.end(deliveries, end)
        if end is not CallEnd.DONE:
            raise FlakyError

    def _one(self, messages: Sequence[ReceivedMessage]) -> CallEnd:
        (message,) = messages
        if POISON in message.properties:
            raise PoisonError
        if fails_early(self._group, message.message_id):
            raise FlakyError
        self._effects.apply_one(message)
        time.sleep(WORK_S)
        is_late = fails_late(self._group, message.message_id, message.reconsume_times)
        return CallEnd.LATE if is_late else CallEnd.DONE

    def _several(self, messages: Sequence[ReceivedMessage]) -> CallEnd:
        if any(POISON in message.properties for message in messages):
            raise PoisonError
        chance = self._draw.random()
        if chance < EARLY:
            raise FlakyError
        self._effects.apply(messages)
        return CallEnd.LATE if chance < LATE else CallEnd.DONE


def pull_until(stopping: threading.Event, store: Store, handler: Handler, ids: Any) -> None:
    folder, group, name = ids
    own = PullConsumer(store, consumer_group=group, topics=GROUPS[group].topics, member_id=name)
    with own as consumer:
        _run_until(stopping, consumer.start(handler.one), mark_of(folder, name))


def spark_until(stopping: threading.Event, store: Store, handler: Handler, ids: Any) -> None:
    from txmq.spark.session import local_session
    from txmq.spark.streams import Consumer

    folder, group, name = ids
    session = local_session(for_minutes=True, extra={"spark.ui.enabled": "false"})
    batches = Consumer(store, consumer_group=group).subscribe(
        GROUPS[group].topics, handler.batch, spark=session, max_messages=BATCH_MESSAGES,
        member_id=name,
    )  # fmt: skip
    with batches:
        _run_until(stopping, batches.start(), mark_of(folder, name))
    session.stop()


def _run_until(stopping: threading.Event, handle: ThreadHandle, ready: Path) -> None:
    ready.touch()
    while not stopping.wait(LOOK_S) and handle.is_alive:
        pass
    handle.stop()
    if handle.exception is not None:
        raise handle.exception


def main(location: str, folder: str, group: str, name: str, how: str) -> None:
    stopping = threading.Event()
    handler = Handler(Path(folder), group, name)
    until = spark_until if how == "spark" else pull_until
    with set_by_signals(stopping):
        until(stopping, Store.open(location), handler, (Path(folder), group, name))
