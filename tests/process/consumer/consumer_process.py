"""A member of a consumer group in a process of its own; its journal is outside txmq."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.kit.members import serve
from txmq.consumer.pull import PullConsumer
from txmq.message.received import ReceivedMessage
from txmq.store.config import Config
from txmq.store.store import Store


def main(location: str, folder: str, name: str, pause_s: str, lease_s: str) -> None:
    place = Path(folder)
    store = Store.open(location)
    store.config = Config.from_dict({**store.config.to_dict(), "consumer_lease_s": float(lease_s)})
    journal = (place / f"{name}.journal").open("a", encoding="utf-8", buffering=1)

    def handle(message: ReceivedMessage) -> None:
        where = f"{message.queue_id} {message.queue_offset} {message.body.decode()}"
        journal.write(f"{time.time()} begin {where}\n")
        time.sleep(float(pause_s))
        journal.write(f"{time.time()} end {where}\n")

    member = PullConsumer(store, consumer_group="billing", topics="order-paid", member_id=name)
    serve(member, handle, place, ready=f"{name}.ready", stop="stop")


if __name__ == "__main__":
    main(*sys.argv[1:])
