"""A store with dead letters of one consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.delay_world import DelayWorld
from tests.kit.handed_out import received
from txmq.consumer.send_back import SendBack
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.dead_letters import DeadLetters

CONSUMERS = "billing"
DEAD = f"DLQ_{CONSUMERS}"
RETRY = f"RETRY_{CONSUMERS}"


class DeadWorld(DelayWorld):
    """Each message that `bury` sends is one that the group could not handle."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.send_back = SendBack(self.store, CONSUMERS, self.clock)

    @property
    def letters(self) -> DeadLetters:
        """Another operator each time."""
        return DeadLetters(self.store, CONSUMERS, clock=self.clock)

    def bury(self, *bodies: str, **fields: Any) -> list[str]:
        """Ids of the dead letters; each is a commit of its own."""
        letters = []
        for body in bodies:
            (own_id,) = self.send(body, **fields)
            (row,) = [row for row in self.rows() if row["message_id"] == own_id]
            sent = self.send_back.send_back(received(row), reason="no customer", delay_level=-1)
            letters.append(sent.message_id)
            self.publisher.run_once()
        return letters

    def received(self, topic: str) -> list[ReceivedMessage]:
        return [received(row) for row in self.rows(topic)]
