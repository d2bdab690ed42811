"""What callers were told of each message; readers are held against it."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    MessageError,
)


class Answer(enum.Enum):
    """What must become of a message by what its caller was told."""

    SHOWN = "acknowledged"
    HIDDEN = "refused"
    EITHER = "unknown"


@dataclass
class Promise:
    """One message of one call.

    Attributes:
        due_s: it must not be seen before this time.
        is_after_damage: it was sent to a store that was damaged already.
    """

    topic: str
    body: str
    answer: Answer = Answer.EITHER
    due_s: float | None = None
    is_after_damage: bool = False
    asked_by: str = ""


@dataclass
class OpenTransaction:
    """A transaction that was prepared; its caller may still end it."""

    id: str
    who: str
    call: Any
    promises: list[Promise]
    listener_says: str
    maker: object = None


@dataclass
class Ledger:
    """All promises of a run, and what readers did.

    Attributes:
        handled: by group, how often a handler returned for each body.
        errors: the errors of each process since the last look at them.
        forgotten: transactions whose callers were told that retention has taken them.
        strange: errors that no caller of txmq should meet.
        failed_before: by group, what handlers failed on before the store was damaged.
        shown_before: topic and body of what was acknowledged before a file was lost.
    """

    promises: list[Promise] = field(default_factory=list)
    open: list[OpenTransaction] = field(default_factory=list)
    handled: dict[str, Counter[str]] = field(default_factory=dict)
    failed_once: set[tuple[str, str]] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)
    is_damaged: bool = False
    is_older: bool = False
    failed_before: set[tuple[str, str]] = field(default_factory=set)
    shown_before: set[tuple[str, str]] = field(default_factory=set)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def new_body(self, kind: str) -> str:
        """A body that no other message has."""
        return f"{kind}{next(self._numbers)}"

    def promise(self, topic: str, body: str, asked_by: str, due_s: float | None = None) -> Promise:
        """A message on its way to the store."""
        promise = Promise(topic, body, Answer.EITHER, due_s, self.is_damaged, asked_by)
        self.promises.append(promise)
        return promise

    def damage(self, *, is_older: bool) -> None:
        """What the store held until now may be gone."""
        self.is_damaged = True
        self.failed_before |= self.failed_once
        self.is_older = self.is_older or is_older
        for promise in self.promises:
            if promise.answer is Answer.SHOWN and not is_older:
                # Another try under its key is told of this one, whose file may be the lost one.
                self.shown_before.add((promise.topic, promise.body))
            if promise.answer is Answer.SHOWN or is_older:
                promise.answer = Answer.EITHER
        if is_older:
            self.open.clear()

    def bodies(self, answer: Answer) -> set[tuple[str, str]]:
        """Topic and body of the messages with this answer."""
        bodies = {(p.topic, p.body) for p in self.promises if p.answer is answer}
        return bodies - self.shown_before if answer is Answer.SHOWN else bodies


def answered(promises: Iterable[Promise], answer: Answer) -> None:
    """Note what the caller was told."""
    for promise in promises:
        promise.answer = answer


def refusal(error: BaseException, *, is_prepared: bool) -> Answer:
    """What an error tells the caller of `send`, `prepare` or an end."""
    if isinstance(error, AlreadyResolvedError):
        ends = {"COMMITTED": Answer.SHOWN, "PENDING": Answer.EITHER}
        return ends.get(error.resolution, Answer.HIDDEN)
    if isinstance(error, MessageError | IncompleteTransactionError):
        return Answer.HIDDEN
    return Answer.EITHER if is_prepared else Answer.HIDDEN
