"""A queue of which each message is acknowledged for itself: what is in hands, and what comes again.

A message that was handed out is invisible for a while. If it is not acknowledged meanwhile, it
waits to be handed out again, before what nobody has had yet.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from txmq.consumer.attempts import UNACKNOWLEDGED_MAX, Attempts, attempts_of
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.reader import Run
from txmq.consumer.taking import QueuePosition, QueuePositions
from txmq.message.received import ReceivedMessage, note_delivery, receipt_of

# Of all consumers of a process: no message of one has a receipt of another.
_receipts = itertools.count(1)


class Delivery(NamedTuple):
    """One handing out of a message.

    Attributes:
        times: how often the message was handed out, this time included.
        until_ms: it comes again then, by the clock of durations.
        receipt: another number each time; 0 if no caller of this process has it.
        is_waiting: whether its time is over, so that it is to be handed out again.
        is_ahead: whether it was taken for a caller who has not asked for it yet.
    """

    times: int
    until_ms: float
    receipt: int
    is_waiting: bool = False
    is_ahead: bool = False


@dataclass(slots=True)
class AcknowledgedPosition(QueuePosition):
    """The position in a queue whose messages are acknowledged one by one.

    `next_offset` is the first one that nobody was handed out; it never goes back.

    Attributes:
        deliveries: the last handing out of each message that is not acknowledged, by offset. Each
            change is one step: an interrupt finds it done or not.
        is_ahead: whether a message was acknowledged, and the group does not know it yet.
    """

    deliveries: dict[int, Delivery] = field(default_factory=dict)
    is_ahead: bool = False
    # What was taken and may not have reached the caller; where the fresh ones of these begin.
    _taken: list[int] = field(default_factory=list)
    _fresh_from: int | None = None
    _reads_waiting: bool = False

    # --- what the group knows ---------------------------------------------------------------

    def go_on_after(self, attempts: Attempts) -> None:
        """Have what an owner before has handed out come again, but what was acknowledged."""
        self.deliveries = {
            offset: Delivery(times, 0, 0, is_waiting=True)
            for offset, times in attempts.times().items()
        }
        self.next_offset = attempts.end

    def attempts(self) -> Attempts | None:
        """Return what is not acknowledged; None if all is."""
        times = {offset: delivery.times for offset, delivery in self.deliveries.items()}
        return attempts_of(times, self.next_offset) if times else None

    def tries_at(self, offset: int) -> int:
        """Return how often a message in hands was handed out before."""
        return self.deliveries[offset].times - 1 if offset in self.deliveries else 0

    def note_durable(self) -> None:
        """Note that the group knows what was acknowledged."""
        self.is_ahead = False

    @property
    def handled_offset(self) -> int:
        """The first offset that is not acknowledged."""
        return min(self.deliveries, default=self.next_offset)

    @property
    def is_in_use(self) -> bool:
        """Whether the caller has messages of the queue."""
        return self.has_messages_in_hands

    @property
    def may_lose(self) -> bool:
        """Whether the caller had messages, or acknowledged some, that are not committed."""
        return self.is_ahead or self.has_messages_in_hands

    @property
    def has_messages_in_hands(self) -> bool:
        """Whether messages are invisible that were not acknowledged yet."""
        return len(self._waiting()) < len(self.deliveries)

    @property
    def visible_ms(self) -> float:
        """When the last one of the messages in hands comes again; 0 if there are none."""
        in_hands = (at for at in self.deliveries.values() if not at.is_waiting)
        return max((delivery.until_ms for delivery in in_hands), default=0)

    # --- taking -----------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int]:
        """Another one after each message that is taken or skipped."""
        return self.next_offset, len(self._taken) - len(self._waiting())

    def _waiting(self) -> list[int]:
        return [offset for offset, delivery in self.deliveries.items() if delivery.is_waiting]

    @property
    def _room(self) -> int:
        return UNACKNOWLEDGED_MAX - len(self.deliveries)

    @property
    def read_offset(self) -> int | None:
        """The first offset that waits, else the next fresh one; None if too many are in hands."""
        fresh = self.next_offset if self._room > 0 else None
        return min(self._waiting(), default=fresh)

    def put(self, run: Run) -> None:
        """Keep messages that were read ahead: those that wait, or fresh ones."""
        waiting = set(self._waiting())
        self._reads_waiting = bool(waiting)
        if not waiting:
            super(AcknowledgedPosition, self).put(run)
            return
        rows = [row for row, offset in enumerate(run.offsets) if offset in waiting]
        messages, sizes_bytes = run.rows.messages(), run.rows.sizes_bytes()
        self._messages = [messages[row] for row in rows]
        self._offsets = [run.offsets[row] for row in rows]
        self._sizes_bytes, self._row = [sizes_bytes[row] for row in rows], 0
        # Another filter may not let them through any more.
        for offset in waiting.difference(self._offsets):
            if offset < run.next_offset:
                del self.deliveries[offset]

    def has_messages(self) -> bool:
        """Tell whether messages that were read ahead may be handed out."""
        is_there = super(AcknowledgedPosition, self).has_messages()
        return is_there and (self._reads_waiting or self._room > 0)

    def take(self, count: int, room_bytes: int) -> tuple[list[ReceivedMessage], int]:
        """Hand out at most `count` messages, as far as there is room; each gets a receipt."""
        if not self._reads_waiting:
            count = min(count, self._room)
            self._fresh_from = self.next_offset if self._fresh_from is None else self._fresh_from
        first = self._row
        messages, size_bytes = super(AcknowledgedPosition, self).take(count, room_bytes)
        for offset, message in zip(self._offsets[first:], messages, strict=False):
            before, receipt = self.deliveries.get(offset), next(_receipts)
            times = 1 if before is None else before.times + 1
            note_delivery(message, times - 1, receipt)
            self._taken.append(offset)
            self.deliveries[offset] = Delivery(times, math.inf, receipt)
        return messages, size_bytes

    def _pass_to(self, row: int) -> None:
        if self._reads_waiting:
            self._row = row
        else:
            super(AcknowledgedPosition, self)._pass_to(row)

    def move_to(self, offset: int) -> None:
        """Drop what was read ahead; go on at an offset."""
        super(AcknowledgedPosition, self).move_to(offset)
        self._reads_waiting = False

    def undo(self, offset: int, *, is_busy: bool) -> None:  # noqa: ARG002 - of the others
        """Put what was taken back as if it had not been handed out."""
        fresh_from = self.next_offset if self._fresh_from is None else self._fresh_from
        # First, so that nothing is passed if this is interrupted too.
        self.move_to(fresh_from)
        for taken in self._taken:
            if taken >= fresh_from:
                self.deliveries.pop(taken, None)
            else:
                self.give_back(taken)
        self._taken, self._fresh_from = [], None
        self.move_to(fresh_from)

    def restart(self, offset: int) -> None:
        """Go on at any offset, without a trace of what was handed out before."""
        self.deliveries, self._taken, self._fresh_from = {}, [], None
        super(AcknowledgedPosition, self).restart(offset)

    # --- what becomes of the messages -------------------------------------------------------

    def receive_until(self, until_ms: float, *, is_ahead: bool) -> None:
        """Note that the caller has what was taken, which is invisible until then."""
        for offset in self._taken:
            delivery = self.deliveries.get(offset)
            if delivery is not None and not delivery.is_waiting:
                self.change_invisible(offset, until_ms, is_ahead=is_ahead)
        self._taken, self._fresh_from = [], None

    def hand_out_again(self, now_ms: float) -> None:
        """Have messages come again whose invisible time is over."""
        in_hands = {o: at for o, at in self.deliveries.items() if not at.is_waiting}
        over = {offset: at for offset, at in in_hands.items() if at.until_ms <= now_ms}
        for offset, delivery in over.items():
            if delivery.is_ahead:
                self.give_back(offset)
            else:
                self.deliveries[offset] = delivery._replace(is_waiting=True)
        if over:
            # They come before what was read ahead.
            self.move_to(self.next_offset)

    def give_back(self, offset: int) -> None:
        """Have a message in hands come again as if it had not been handed out."""
        delivery = self.deliveries.get(offset)
        if delivery is not None and not delivery.is_waiting:
            self.deliveries[offset] = Delivery(delivery.times - 1, 0, 0, is_waiting=True)

    def acknowledge(self, offset: int) -> None:
        """Note that a message is over."""
        self.is_ahead = True
        delivery = self.deliveries.pop(offset, None)
        if delivery is not None and delivery.is_waiting and self._reads_waiting:
            # It may have been read ahead.
            self.move_to(self.next_offset)

    def delivery_of(self, message: ReceivedMessage) -> Delivery | None:
        """Return the handing out by which a caller has a message; None if it is over.

        One whose time is over counts until the message is handed out again.
        """
        delivery, receipt = self.deliveries.get(message.queue_offset), receipt_of(message)
        is_same = delivery is not None and delivery.receipt == receipt != 0
        return delivery if is_same else None

    def change_invisible(self, offset: int, until_ms: float, *, is_ahead: bool) -> None:
        """Have a message come again at another time."""
        delivery = self.deliveries[offset]
        self.deliveries[offset] = delivery._replace(
            until_ms=until_ms, is_waiting=False, is_ahead=is_ahead
        )
        if delivery.is_waiting and self._reads_waiting:
            self.move_to(self.next_offset)


@dataclass(slots=True)
class OrderedPosition(AcknowledgedPosition):
    """The same in a group that keeps order: nothing fresh comes with what comes again."""

    @property
    def read_offset(self) -> int | None:
        """The first offset that waits; a fresh one only if no message came again before it."""
        offset = super(OrderedPosition, self).read_offset
        come_again = [at for at in self.deliveries.values() if at.times > 1 and not at.is_waiting]
        return None if come_again and offset == self.next_offset else offset


class AcknowledgedPositions(QueuePositions[AcknowledgedPosition]):
    """The positions of a member that acknowledges its messages one by one.

    Args:
        is_orderly: whether its group keeps order.
    """

    def __init__(self, *, is_orderly: bool) -> None:
        """Begin without a queue; `follow` adds the queues of a member."""
        super().__init__(OrderedPosition if is_orderly else AcknowledgedPosition)

    def undo_taken(self) -> None:
        """Put back what was taken and has not reached the caller."""
        for position in self._positions.values():
            position.undo(position.next_offset, is_busy=position.is_busy)

    def hand_out_again(self, now_ms: float) -> None:
        """Have messages come again whose invisible time is over."""
        for position in self._positions.values():
            position.hand_out_again(now_ms)

    def change_invisible(
        self, queue: TopicQueue, offset: int, until_ms: float, *, is_ahead: bool = False
    ) -> None:
        """Have a message in hands come again at another time."""
        if position := self._positions.get(queue):
            position.change_invisible(offset, until_ms, is_ahead=is_ahead)

    def give_back(self, queue: TopicQueue, offset: int) -> None:
        """Have a message in hands come again as if it had not been handed out."""
        if position := self._positions.get(queue):
            position.give_back(offset)

    def visible_ms(self) -> float:
        """Return when the last one of the messages in hands comes again; 0 if there are none."""
        return max((position.visible_ms for position in self._positions.values()), default=0)

    def receive_until(self, until_ms: float, *, is_ahead: bool = False) -> None:
        """Note that the caller has what was taken, which is invisible until then."""
        for position in self._positions.values():
            position.receive_until(until_ms, is_ahead=is_ahead)

    def delivery_of(self, queue: TopicQueue, message: ReceivedMessage) -> Delivery | None:
        """Return the handing out by which a caller has a message; None if it is over."""
        position = self.get(queue)
        return None if position is None else position.delivery_of(message)
