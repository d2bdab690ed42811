"""A process that sends for the groups: LOCATION JOURNAL SEED COUNT SECONDS."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.endurance.groups.world import POISON, REGIONS, TAGS, TOPICS
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

BATCH, KEYS, POISONED = 150, 40, 12
BODY_BYTES = 200


class Sender:
    """Evenly over the time; a few messages are poison."""

    def __init__(self, producer: TransactionProducer, journal: Path, seed: str) -> None:
        self._producer, self._draw = producer, random.Random(seed)
        self._journal = journal.open("a", encoding="utf-8", buffering=1)

    def send(self, count: int, seconds: float) -> None:
        poison = set(self._draw.sample(range(count), min(POISONED, count // 100)))
        begun_s, number = time.monotonic(), 0
        while number < count:
            end = min(count, number + self._draw.randint(1, BATCH))
            self._batch([(one, one in poison) for one in range(number, end)])
            number = end
            time.sleep(max(0.0, begun_s + seconds * number / count - time.monotonic()))

    def _batch(self, numbers: list[tuple[int, bool]]) -> None:
        topic = self._draw.choice(TOPICS)
        messages = [self._message(topic, number, is_poison=own) for number, own in numbers]
        ids = self._producer.send(messages).message_ids
        for own_id, message in zip(ids, messages, strict=True):
            note = {"id": own_id, "topic": topic, "tag": message.tags, **message.properties}
            self._journal.write(json.dumps(note) + "\n")

    def _message(self, topic: str, number: int, *, is_poison: bool) -> Message:
        draw = self._draw
        body = f"{number:08} {'x' * draw.randrange(BODY_BYTES)}".encode()
        properties = {"amount": str(draw.randrange(100)), "region": draw.choice(REGIONS)}
        if is_poison:
            properties = {"amount": "99", "region": "eu", POISON: "1"}
        tag = "paid" if is_poison else draw.choice(TAGS)
        key = f"key-{draw.randrange(KEYS)}" if draw.random() < 0.5 else None
        return Message(topic, body, tags=tag, properties=properties, sharding_key=key)


def main(location: str, journal: str, seed: str, count: str, seconds: str) -> None:
    with TransactionProducer(Store.open(location), producer_group="shop") as producer:
        Sender(producer, Path(journal), seed).send(int(count), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
