"""A queue of which each message is acknowledged for itself: what is in hands, and what comes again.

A message that was handed out is invisible for a while. If it is not acknowledged meanwhile, it
waits to be handed out again, before what nobody has had yet.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from txmq.consumer.attempts import UNACKNOWLEDGED_MAX, Attempts, attempts_of
from txmq.consumer.reader import Run
from txmq.consumer.taking import Delivery, QueuePosition
from txmq.message.received import ReceivedMessage, note_delivery, receipt_of

# Of all consumers of a process: no message of one has a receipt of another.
_receipts = itertools.count(1)


@dataclass(slots=True)
class AcknowledgedPosition(QueuePosition):
    """The position in a queue whose messages are acknowledged one by one.

    `next_offset` is the first one that nobody was handed out; it never goes back.

    Attributes:
        in_hands: the messages that are invisible, by offset.
        waiting: how often each message was handed out that is to come again, by offset.
    """

    in_hands: dict[int, Delivery] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    # Whether it was acknowledged what the group does not know.
    is_ahead: bool = False
    # What was taken and may not have reached the caller; where the fresh ones of these begin.
    _taken: list[int] = field(default_factory=list)
    _fresh_from: int | None = None
    _reads_waiting: bool = False

    # --- what the group knows ---------------------------------------------------------------

    def go_on_after(self, attempts: Attempts) -> None:
        """Have what an owner before has handed out come again, but what was acknowledged."""
        self.next_offset = attempts.end
        self.waiting = attempts.times()

    def attempts(self) -> Attempts | None:
        """Return what is not acknowledged; None if all is."""
        times = {offset: delivery.times for offset, delivery in self.in_hands.items()}
        times |= self.waiting
        return attempts_of(times, self.next_offset) if times else None

    def tries_at(self, offset: int) -> int:
        """Return how often a message in hands was handed out before."""
        return self.in_hands[offset].times - 1 if offset in self.in_hands else 0

    @property
    def handled_offset(self) -> int:
        """The first offset that is not acknowledged."""
        return min(itertools.chain(self.in_hands, self.waiting), default=self.next_offset)

    @property
    def may_lose(self) -> bool:
        """Whether the caller had messages, or acknowledged some, that are not committed."""
        return bool(self.in_hands) or self.is_ahead

    @property
    def has_messages_in_hands(self) -> bool:
        """Whether messages are invisible that were not acknowledged yet."""
        return bool(self.in_hands)

    # --- taking -----------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int]:
        """Another one after each message that is taken or skipped."""
        return self.next_offset, len(self._taken) - len(self.waiting)

    @property
    def read_offset(self) -> int | None:
        """The first offset that waits, else the next fresh one; None if too many are in hands."""
        if self.waiting:
            return min(self.waiting)
        return self.next_offset if self._room else None

    @property
    def _room(self) -> int:
        return UNACKNOWLEDGED_MAX - len(self.in_hands) - len(self.waiting)

    def put(self, run: Run) -> None:
        """Keep messages that were read ahead: those that wait, or fresh ones."""
        self._reads_waiting = bool(self.waiting)
        if not self._reads_waiting:
            super(AcknowledgedPosition, self).put(run)
            return
        rows = [row for row, offset in enumerate(run.offsets) if offset in self.waiting]
        messages, sizes_bytes = run.rows.messages(), run.rows.sizes_bytes()
        self._messages = [messages[row] for row in rows]
        self._offsets = [run.offsets[row] for row in rows]
        self._sizes_bytes, self._row = [sizes_bytes[row] for row in rows], 0
        # Another filter may not let them through any more.
        passed = set(self.waiting).difference(self._offsets)
        for offset in [at for at in passed if at < run.next_offset]:
            del self.waiting[offset]

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
            times, receipt = self.waiting.pop(offset, 0) + 1, next(_receipts)
            self.in_hands[offset] = Delivery(times, math.inf, receipt)
            self._taken.append(offset)
            note_delivery(message, times - 1, receipt)
        return messages, size_bytes

    def _pass_to(self, row: int) -> None:
        if self._reads_waiting:
            self._row = row
        else:
            super(AcknowledgedPosition, self)._pass_to(row)

    def move_to(self, offset: int) -> None:
        """Drop what was read ahead; go on at an offset."""
        super(AcknowledgedPosition, self).move_to(offset)
        self._reads_waiting, self.is_busy = False, bool(self.in_hands)

    def undo(self, offset: int, *, is_busy: bool) -> None:  # noqa: ARG002 - of the others
        """Put what was taken back as if it had not been handed out."""
        fresh_from = self.next_offset if self._fresh_from is None else self._fresh_from
        for taken in self._taken:
            times = self.in_hands.pop(taken).times
            if taken < fresh_from:
                self.waiting[taken] = times - 1
        self._taken, self._fresh_from = [], None
        self.move_to(fresh_from)

    def restart(self, offset: int) -> None:
        """Go on at any offset, without a trace of what was handed out before."""
        self.in_hands, self.waiting, self._taken, self._fresh_from = {}, {}, [], None
        super(AcknowledgedPosition, self).restart(offset)

    # --- what becomes of the messages -------------------------------------------------------

    def receive_until(self, until_ms: float) -> None:
        """Note that the caller has what was taken, which is invisible until then."""
        for offset in self._taken:
            self.in_hands[offset] = self.in_hands[offset]._replace(until_ms=until_ms)
        self._taken, self._fresh_from = [], None

    def hand_out_again(self, now_ms: float) -> None:
        """Have messages come again whose invisible time is over."""
        over = [offset for offset, at in self.in_hands.items() if at.until_ms <= now_ms]
        if not over:
            return
        for offset in over:
            self.waiting[offset] = self.in_hands.pop(offset).times
        # They come before what was read ahead.
        self.move_to(self.next_offset)

    def acknowledge(self, offset: int) -> None:
        """Note that a message is over."""
        self.in_hands.pop(offset, None)
        self.waiting.pop(offset, None)
        if offset in self._taken:
            self._taken.remove(offset)
        self.is_busy, self.is_ahead = bool(self.in_hands), True

    def note_durable(self) -> None:
        """Note that the group knows what was acknowledged."""
        self.is_ahead = False

    def delivery_of(self, message: ReceivedMessage) -> Delivery | None:
        """Return the handing out by which a caller has a message; None if it is over."""
        delivery = self.in_hands.get(message.queue_offset)
        is_same = delivery is not None and delivery.receipt == receipt_of(message)
        return delivery if is_same else None

    def change_invisible(self, offset: int, until_ms: float) -> None:
        """Have a message in hands come again at another time."""
        self.in_hands[offset] = self.in_hands[offset]._replace(until_ms=until_ms)
