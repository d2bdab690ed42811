"""What members journaled and did, beside what was sent and what the tables show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.endurance.groups.crew import Event, journals
from tests.endurance.groups.effects import effects_of
from tests.endurance.groups.journal import Call, CallEnd, calls_of
from tests.endurance.groups.outcome import Faults, GroupFigures
from tests.endurance.groups.service_times import (
    Interruptions,
    by_queue,
    disordered,
    handed_again,
    together,
)
from tests.endurance.groups.world import (
    MAX_RECONSUME_TIMES,
    POISON,
    TOPICS,
    FlakyError,
    Group,
    Note,
    PoisonError,
)
from tests.kit.reading import commits, rows_of
from txmq.consumer.lag import lag_of_group
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE_ID,
    ORIGIN_QUEUE_OFFSET,
    ORIGIN_TOPIC,
    RECONSUME_REASON,
    RECONSUME_TIMES,
    dead_letter_topic,
    retry_topic,
)
from txmq.store.store import Store

Row = Mapping[str, Any]
COPIED = ("body", "tags", "keys", "sharding_key")


def notes_of(journal: Path) -> dict[str, Note]:
    notes = (json.loads(line) for line in journal.read_text("utf-8").splitlines())
    return {note["id"]: note for note in notes}


def shown_rows(store: Store, topic: str) -> list[Row]:
    return rows_of(f"{store.location}/topics/{topic}")


@dataclass
class Comparison:
    """One group beside all that was sent."""

    store: Store
    folder: Path
    group: Group
    notes: Mapping[str, Note]
    origins: Mapping[str, Row]
    events: Sequence[Event]
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in journals(self.folder, self.group.name):
            self.calls += calls_of(path)
        own = self.group.name
        self.retries = shown_rows(self.store, retry_topic(own))
        self.dead = shown_rows(self.store, dead_letter_topic(own))
        self.effects = Counter(effects_of(self.folder, own))
        self.expected = {i for i, note in self.notes.items() if self.group.lets_through(note)}

    def faults(self) -> Faults:
        """All lists but those of the whole run."""
        begun = {call.origin for call in self.calls}
        dead = {_origin(row) for row in self.dead}
        return self._service_faults() + Faults(
            unseen=self._named(self.expected - begun),
            unwanted=self._named((begun | self.effects.keys()) - self.expected),
            missing=self._named(self.expected - self.effects.keys() - dead),
            doubled=self._named(own for own, count in self.effects.items() if count > 1),
            both=self._named((dead & self.effects.keys()) - self._failed_late()),
            retries=self._named(self._wrong_retries()),
            dead_letters=self._named(self._wrong_dead_letters()),
            lag=self._named(self._wrong_lag()),
        )

    def figures(self) -> GroupFigures:
        interruptions = Interruptions(self.events)
        again = (handed_again(own, interruptions)[0] for own in by_queue(self.calls).values())
        return GroupFigures(
            handled=sum(call.end is CallEnd.DONE for call in self.calls),
            retries=len(self.retries),
            dead_letters=len(self.dead),
            handed_again=sum(again),
            commits=commits(self.store, f"state/group_{self.group.name}"),
        )

    def _service_faults(self) -> Faults:
        interruptions, found = Interruptions(self.events), Faults()
        for calls in by_queue(self.calls).values():
            found += Faults(
                disordered=self._named(disordered(calls)),
                together=self._named(together(calls, interruptions)),
                handed_again=self._named(handed_again(calls, interruptions)[1]),
            )
        return found

    def _failed_late(self) -> set[str]:
        return {call.origin for call in self.calls if call.end is CallEnd.LATE}

    # --- retries and dead letters -----------------------------------------------------------

    def _wrong_retries(self) -> list[str]:
        """Numbers that are not 1, 2 …, each once, and rows that say something wrong."""
        times: dict[str, list[int]] = {}
        for row in self.retries:
            times.setdefault(_origin(row), []).append(int(_of(row)[RECONSUME_TIMES]))
        wrong = [row["message_id"] for row in self.retries if not self._is_right(row)]
        return wrong + [
            f"{origin} {sorted(own)}"
            for origin, own in times.items()
            if sorted(own) != list(range(1, len(own) + 1)) or len(own) > MAX_RECONSUME_TIMES
        ]

    def _wrong_dead_letters(self) -> list[str]:
        counts = Counter(_origin(row) for row in self.dead)
        retries = Counter(_origin(row) for row in self.retries)
        poison = {own for own in self.expected if POISON in self.notes[own]}
        wrong = [row["message_id"] for row in self.dead if not self._is_right_dead_letter(row)]
        twice = [f"{own} {count} times" for own, count in counts.items() if count > 1]
        early = [f"{own} too early" for own in counts if retries[own] != MAX_RECONSUME_TIMES]
        return wrong + twice + early + [f"{own} is missing" for own in poison - counts.keys()]

    def _is_right_dead_letter(self, row: Row) -> bool:
        own = _of(row)
        return (
            self._is_right(row)
            and int(own[RECONSUME_TIMES]) == MAX_RECONSUME_TIMES + 1
            and own[DEAD_LETTER_ORIGIN_TOPIC] == own[ORIGIN_TOPIC]
            and own[DEAD_LETTER_ORIGIN_MESSAGE_ID] == own[ORIGIN_MESSAGE_ID]
        )

    def _is_right(self, row: Row) -> bool:
        """Whether a row stands for the message that it names, and says why."""
        own, origin = _of(row), self.origins.get(_origin(row))
        if origin is None or _origin(row) not in self.expected:
            return False
        error = PoisonError if POISON in self.notes[_origin(row)] else FlakyError
        return (
            own[ORIGIN_TOPIC] == origin["topic"]
            and own[ORIGIN_QUEUE_ID] == str(origin["queue_id"])
            and own[ORIGIN_QUEUE_OFFSET] == str(origin["queue_offset"])
            and own[RECONSUME_REASON] == error.__name__
            and all(row[name] == origin[name] for name in COPIED)
            and _of(origin).items() <= own.items()
        )

    # --- lag --------------------------------------------------------------------------------

    def _wrong_lag(self) -> list[str]:
        """Each queue that has rows is consumed to its end, and the lag says so."""
        rows = [*self.origins.values(), *self.retries]
        ends: dict[tuple[str, int], int] = {}
        for row in rows:
            place = row["topic"], row["queue_id"]
            ends[place] = max(ends.get(place, 0), row["queue_offset"] + 1)
        shown = {
            (one.topic, one.queue_id): (one.next_offset, one.end_offset, one.lag)
            for one in lag_of_group(self.store, self.group.name)
        }
        right = {place: (end, end, 0) for place, end in ends.items()}
        return [f"{place} {shown.get(place)}" for place, one in right.items()
                if shown.get(place) != one]  # fmt: skip

    def _named(self, several: Any) -> list[str]:
        return [f"{self.group.name}: {each}" for each in sorted(several)]


def origins_of(store: Store) -> dict[str, Row]:
    return {row["message_id"]: row for topic in TOPICS for row in shown_rows(store, topic)}


def _of(row: Row) -> dict[str, str]:
    return dict(row["properties"] or ())


def _origin(row: Row) -> str:
    return _of(row).get(ORIGIN_MESSAGE_ID, "")
