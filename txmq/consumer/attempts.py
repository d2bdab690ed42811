"""How often messages of a queue were handed out that are not acknowledged; rules without tables.

A queue has one next offset. What lies behind it and is over already, is told from what is not by
spans: the offsets that were handed out and are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from txmq.store.shapes import AtMost

# RocketMQ's popInflightMessageThreshold, of a queue; here they are a part of the group.
UNACKNOWLEDGED_MAX = 1_000


class Span(NamedTuple):
    """Consecutive offsets from `start` to before `end`, each handed out `times` times.

    0 times: it was taken for a caller who did not get it.
    """

    start: int
    end: int
    times: int


class Attempts(NamedTuple):
    """What of a queue was handed out, from its next offset on.

    Attributes:
        end: the offset after the last message that was handed out.
        spans: what is not acknowledged, in order; everything else before `end` is over.
    """

    end: int
    spans: Annotated[Sequence[Span], AtMost(UNACKNOWLEDGED_MAX)]

    @property
    def offset(self) -> int:
        """The next offset of the queue: the first one that is not acknowledged."""
        return self.spans[0].start if self.spans else self.end

    def times_of(self, offset: int) -> int:
        """Return how often the message at an offset was handed out; 0 if it is over."""
        return next((span.times for span in self.spans if span.start <= offset < span.end), 0)

    def times(self) -> dict[int, int]:
        """Return how often each message was handed out that is not acknowledged, by its offset."""
        return {at: span.times for span in self.spans for at in range(span.start, span.end)}

    def acknowledged(self) -> int:
        """Count the offsets behind the next one that are over."""
        return self.end - self.offset - sum(span.end - span.start for span in self.spans)

    def are_sound(self, offset: int, times_max: int) -> bool:
        """Tell whether these are attempts behind an offset as `attempts_of` returns them."""
        end = offset
        for span in self.spans:
            if not (end <= span.start < span.end and 0 <= span.times <= times_max):
                return False
            end = span.end
        count = sum(span.end - span.start for span in self.spans)
        return 0 < count <= UNACKNOWLEDGED_MAX and self.offset == offset and end <= self.end


def attempts_of(times: Mapping[int, int], end: int) -> Attempts:
    """Return as few spans as there can be.

    Args:
        times: how often each message was handed out that is not acknowledged, by its offset.
        end: the offset after the last message that was handed out.
    """
    spans: list[Span] = []
    for offset, count in sorted(times.items()):
        if spans and (spans[-1].end, spans[-1].times) == (offset, count):
            spans[-1] = spans[-1]._replace(end=offset + 1)
        else:
            spans.append(Span(offset, offset + 1, count))
    return Attempts(end, tuple(spans))
