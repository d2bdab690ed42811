"""A store with messages, and consumers on one clock that tests set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kit.delay_world import TOPIC, DelayWorld
from txmq import ConsumeStatus
from txmq.consumer.group import group_in
from txmq.consumer.group_rules import GroupState, TopicQueue
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import FailedMessage, SendBack
from txmq.ground.clock import Clock
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.topics import Topics
from txmq.spark.members import OffsetRange, RangeReader

BILLING = "billing"
QUEUES = 4


@dataclass
class SentBack:
    """In the place of the retry topic: what was sent back, and why."""

    messages: list[tuple[bytes, str, int]] = field(default_factory=list)
    failing: int = 0
    replays: list[int] = field(default_factory=list)

    def send_back_all(self, failed: Sequence[FailedMessage]) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError("no disk")
        for failure in failed:
            body, reason = failure.message.body, repr(failure.reason)
            self.messages.append((body, reason, failure.delay_level))
            self.replays.append(failure.replay)


class ConsumerWorld(DelayWorld):
    """Nothing runs by itself; consumers are closed by the test's fixture."""

    def __init__(self, folder: Path, *, queues: int = QUEUES, **settings: Any) -> None:
        super().__init__(folder, default_topic_queue_nums=queues, **settings)
        self.topics = Topics(self.store, clock=self.clock)
        self.sent_back = SentBack()
        self.consumers: list[PullConsumer] = []

    def consumer(
        self,
        topics: Any = TOPIC,
        *,
        group: str = BILLING,
        clock: Clock | None = None,
        sends_back: Any = None,
        **more: Any,
    ) -> PullConsumer:
        made = PullConsumer(
            self.store, consumer_group=group, topics=topics, clock=clock or self.clock,
            sends_back=sends_back or self.sent_back, **more,
        )  # fmt: skip
        self.consumers.append(made)
        return made

    def send_to(self, queue_id: int, *bodies: str, topic: str = TOPIC) -> None:
        """Messages to one queue, published."""
        batch = [Message(topic, body.encode()) for body in bodies]
        self.producer.send(batch, queue_id=queue_id)
        self.publisher.run_once()

    def fill(self, count: int, *, topic: str = TOPIC, queues: int = QUEUES) -> None:
        """So many messages in each queue, each body its queue and its offset."""
        for queue_id in range(queues):
            self.send_to(queue_id, *(f"{queue_id}-{n}" for n in range(count)), topic=topic)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.producer.close()


def retrying_consumer(world: ConsumerWorld) -> PullConsumer:
    """A consumer that sends back to the store what fails."""
    return world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))


def fail(_: ReceivedMessage) -> ConsumeStatus:
    """A handler that always asks for another try."""
    return ConsumeStatus.RECONSUME_LATER


def drained(consumer: PullConsumer, max_messages: int = 32) -> list[ReceivedMessage]:
    """All that is there now."""
    messages: list[ReceivedMessage] = []
    while polled := consumer.poll(max_messages, 0):
        messages += polled
    return messages


def taken_from(ranges: RangeReader, *limits: int) -> list[OffsetRange]:
    """Ranges of offsets that the caller has in hand."""
    taken = ranges.take(*limits)
    ranges.hand_out(taken)
    return taken


def bodies(messages: Iterable[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def are_in_order(messages: Sequence[ReceivedMessage]) -> bool:
    """Each queue from its first message on, without gaps."""
    offsets: dict[TopicQueue, list[int]] = {}
    for message in messages:
        queue = TopicQueue(message.topic, message.queue_id)
        offsets.setdefault(queue, []).append(message.queue_offset)
    return all(
        of_queue == list(range(of_queue[0], of_queue[0] + len(of_queue)))
        for of_queue in offsets.values()
    )


def wake(consumer: PullConsumer) -> None:
    """Let the next call look at everything, and not only some milliseconds later."""
    consumer._reader._looked_s = consumer._reader._member._looked_s = 0.0


def settle(consumers: Sequence[PullConsumer], rounds: int = 6) -> None:
    """Let members share the queues out, as their polls do."""
    for _ in range(rounds):
        for consumer in consumers:
            wake(consumer)
            consumer.pause(TOPIC)
            consumer.poll(1, 0)
            consumer.resume(TOPIC)


def offsets_of(world: ConsumerWorld, group: str = BILLING) -> dict[TopicQueue, int]:
    return dict(group_in(world.store, group).read().offsets_of(""))


def shares(consumers: Iterable[PullConsumer]) -> list[set[TopicQueue]]:
    return [set(consumer.assignment) for consumer in consumers]


def make_old(world: ConsumerWorld, seconds: float) -> None:
    """The storage took all commits of the group so much earlier, and so they were seen."""
    shift_ms = round(seconds * 1000)

    def earlier(state: GroupState) -> GroupState:
        seen = {
            name: sighting._replace(since_ms=sighting.since_ms - shift_ms)
            for name, sighting in state.seen.items()
        }
        return replace(state, seen=seen)

    group_in(world.store, BILLING).change(earlier, world.clock.now_ms())
    log = Path(world.store.location, "state", f"group_{BILLING}", "_delta_log")
    for path in log.glob("*.json"):
        times = path.stat()
        os.utime(path, (times.st_atime, times.st_mtime - seconds))
