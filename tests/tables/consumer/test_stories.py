"""Members of a group live, die, sleep and wake up on real tables, while messages come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.consumer_world import BILLING, QUEUES, ConsumerWorld, bodies, drained, wake
from tests.kit.delay_world import TOPIC
from txmq.consumer.lag import lag_of_group
from txmq.consumer.pull import PullConsumer
from txmq.maintenance.service import Maintenance
from txmq.message.received import ReceivedMessage

STEPS = 70
MEMBERS_MAX = 4


@dataclass
class Story:
    """What members hold and what was ever handed out."""

    world: ConsumerWorld
    chance: random.Random
    members: list[PullConsumer] = field(default_factory=list)
    in_hand: dict[PullConsumer, list[ReceivedMessage]] = field(default_factory=dict)
    handed: dict[int, list[int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    sent: int = 0

    def send(self) -> None:
        queue = self.chance.randrange(QUEUES)
        count = self.chance.randint(1, 5)
        self.world.send_to(queue, *(str(self.sent + n) for n in range(count)))
        self.sent += count

    def join(self) -> None:
        if len(self.members) < MEMBERS_MAX:
            self.members.append(self.world.consumer())
            self.in_hand[self.members[-1]] = []

    def poll(self) -> None:
        if not self.members:
            return
        member = self.chance.choice(self.members)
        wake(member)
        messages = member.poll(self.chance.randint(1, 9), 0)
        held_elsewhere = {
            message.queue_id
            for other, held in self.in_hand.items()
            if other is not member and other._reader.may_serve
            for message in held
        }
        assert not held_elsewhere & {message.queue_id for message in messages}
        for message in messages:
            before = [
                m.queue_offset for m in self.in_hand[member] if m.queue_id == message.queue_id
            ]
            assert not before or before[-1] + 1 == message.queue_offset
            self.in_hand[member].append(message)
        self.seen.update(bodies(messages))

    def commit(self) -> None:
        if self.members:
            member = self.chance.choice(self.members)
            member.commit()
            self.in_hand[member].clear()

    def leave(self) -> None:
        if self.members:
            member = self.members.pop(self.chance.randrange(len(self.members)))
            member.close()
            del self.in_hand[member]

    def die(self) -> None:
        """Nothing is said to anybody; only the lease ends."""
        if self.members:
            member = self.members.pop(self.chance.randrange(len(self.members)))
            assert member._reader._member._lease_renewal is not None
            member._reader._member._lease_renewal.stop()
            del self.in_hand[member]
            self.world.consumers.remove(member)

    def wait(self) -> None:
        self.world.clock.advance(self.chance.choice([1, 4, 11]))
        for member, held in self.in_hand.items():
            if not member._reader.may_serve:
                held.clear()

    def maintain(self) -> None:
        Maintenance(self.world.store, clock=self.world.clock).run_once()


@pytest.mark.parametrize("seed", range(4))
def test_every_message_is_handed_out_whatever_members_do(tmp_path: Path, seed: int) -> None:
    story = Story(ConsumerWorld(tmp_path), random.Random(seed))
    story.join()
    for _ in range(STEPS):
        steps = [story.send, story.poll, story.commit, story.join, story.leave, story.die]
        weights = [6, 10, 4, 2, 1, 1]
        story.chance.choices([*steps, story.wait, story.maintain], [*weights, 2, 1])[0]()
    for member in story.members:
        member.close()
    with story.world.consumer() as last:
        story.seen.update(bodies(drained(last)))
        # It has seen the silence of those that died for longer than their leases.
        story.world.clock.advance(60)
        story.seen.update(bodies(drained(last)))
        last.commit()

    assert story.seen == {str(number) for number in range(story.sent)}
    lags = lag_of_group(story.world.store, BILLING, story.world.clock)
    assert sum(lag.lag for lag in lags if lag.topic == TOPIC) == 0
    story.world.close()
