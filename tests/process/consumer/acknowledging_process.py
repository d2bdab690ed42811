"""A member that acknowledges each message for itself, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.process.consumer.ordered_process import failures_of
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.simple import SimpleConsumer
from txmq.errors import InvalidReceiptError
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store
from txmq.testing import WrongClock

GROUP, TOPIC = "acknowledging", "order-paid"
INVISIBLE_S, AT_ONCE, HOUR_S = 1.5, 64, 3600
NEVER = 500


def is_handled(message: ReceivedMessage) -> bool:
    """Whether it succeeds this time; one in NEVER never does."""
    return int(message.body) % NEVER > 0 and message.reconsume_times >= failures_of(message.body)


def acknowledged(consumer: SimpleConsumer, messages: list[ReceivedMessage]) -> list[str]:
    """Acknowledge what is handled; one line about each message once that is durable."""
    handled, lines = list[ReceivedMessage](), list[str]()
    for message in filter(is_handled, messages):
        try:
            consumer.ack(message)
            handled.append(message)
        except InvalidReceiptError:
            lines.append(f"refused {message.body.decode()} {message.reconsume_times}")
    lost = consumer.commit()
    for message in handled:
        is_lost = TopicQueue(message.topic, message.queue_id) in lost
        word = "refused" if is_lost else "acknowledged"
        lines.append(f"{word} {message.body.decode()} {message.reconsume_times}")
    return lines


def main(location: str, folder: str, name: str) -> None:
    place = Path(folder)
    # One journal of all members: what a member says at once is one write.
    journal = os.open(place / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(lines: list[str]) -> None:
        os.write(journal, "".join(f"{line}\n" for line in lines).encode())

    clock = WrongClock((int(name) % 3 - 1) * HOUR_S)
    store = Store.open(location)
    with SimpleConsumer(store, consumer_group=GROUP, topics=TOPIC, clock=clock) as consumer:
        while not place.joinpath(f"{name}.stop").exists():
            messages = consumer.receive(AT_ONCE, INVISIBLE_S, 0.2)
            write([f"given {m.body.decode()} {m.reconsume_times}" for m in messages])
            write(acknowledged(consumer, messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
