"""What a member was given: one line when a call of its handler begins, one when it ends.

The times are those of one clock that all processes of a machine share.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.endurance.groups.world import Delivery

Place = tuple[str, int, int]


class CallEnd(enum.StrEnum):
    """What a call of a handler came to; LATE failed after its effect."""

    DONE = "done"
    FAILED = "failed"
    LATE = "late"


@dataclass(frozen=True)
class Call:
    """One message in the hands of one member; without an end where the member died meanwhile."""

    member: str
    topic: str
    queue_id: int
    offset: int
    origin: str
    begin_s: float
    end_s: float | None = None
    end: CallEnd | None = None


class Journal:
    """Written by one member; each line is in the file before the next step."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def begin(self, deliveries: Iterable[Delivery], begin_s: float) -> None:
        """Written when it is known what was handed out at that moment."""
        self._write(
            begin_s,
            (
                f"begin {each.topic} {each.queue_id} {each.queue_offset} {each.origin_message_id}"
                for each in deliveries
            ),
        )

    def end(self, deliveries: Iterable[Delivery], end: CallEnd) -> None:
        self._write(
            time.monotonic(),
            (f"{end} {each.topic} {each.queue_id} {each.queue_offset}" for each in deliveries),
        )

    def close(self) -> None:
        self._file.close()

    def _write(self, moment_s: float, lines: Iterable[str]) -> None:
        self._file.write("".join(f"{moment_s:.6f} {line}\n" for line in lines))
        self._file.flush()


def calls_of(path: Path) -> list[Call]:
    """All calls of one member, in their order."""
    calls: list[Call] = []
    open_calls: dict[Place, int] = {}
    for line in whole_lines(path):
        moment, kind, topic, queue, offset, *origin = line.split()
        place = topic, int(queue), int(offset)
        if kind == "begin":
            open_calls[place] = len(calls)
            calls.append(Call(path.stem, *place, origin[0], float(moment)))
        else:
            at = open_calls.pop(place)
            calls[at] = replace(calls[at], end_s=float(moment), end=CallEnd(kind))
    return calls


def whole_lines(path: Path) -> list[str]:
    """A member that is killed may leave half a line."""
    return [line for line in path.read_text("utf-8").split("\n")[:-1] if line]
