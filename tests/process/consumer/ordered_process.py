"""A member of a group that keeps order, in a process of its own; a tenth of its messages fails."""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

from tests.kit.members import serve
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.pull import PullConsumer
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store

GROUP, TOPIC = "ordered", "order-paid"


def failures_of(body: bytes) -> int:
    """How often a message fails before it is handled: a tenth of them one to three times."""
    number = zlib.crc32(body)
    return 0 if number % 10 else 1 + number // 10 % 3


def main(location: str, folder: str, name: str) -> None:
    place = Path(folder)
    # One journal of all members, in the order of their calls: each line is one write.
    journal = os.open(place / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message: ReceivedMessage) -> ConsumeStatus:
        is_done = message.reconsume_times >= failures_of(message.body)
        line = f"{message.sharding_key} {message.body.decode()} {'done' if is_done else 'failed'}\n"
        os.write(journal, line.encode())
        return ConsumeStatus.SUCCESS if is_done else ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    member = PullConsumer(Store.open(location), consumer_group=GROUP, topics=TOPIC)
    serve(member, handle, place, ready=f"{name}.ready", stop=f"{name}.stop")


if __name__ == "__main__":
    main(*sys.argv[1:])
