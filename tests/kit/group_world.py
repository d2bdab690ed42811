"""Consumers that send back what fails, in groups that are deleted or damaged."""

from __future__ import annotations

from tests.kit.consumer_world import BILLING, ConsumerWorld
from txmq import ConsumeStatus, PullConsumer
from txmq.consumer.send_back import SendBack
from txmq.message.received import ReceivedMessage


def consumer(world: ConsumerWorld) -> PullConsumer:
    return world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))


def fail(_: ReceivedMessage) -> ConsumeStatus:
    return ConsumeStatus.RECONSUME_LATER
