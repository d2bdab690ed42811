"""What callers were told of each message; readers are held against it."""

from __future__ import annotations

import enum
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    MessageError,
)

# A topic and a body, which is that of one message alone.
Place = tuple[str, str]


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
        message_id, transaction_id: once its caller has it.
    """

    topic: str
    body: str
    answer: Answer = Answer.EITHER
    due_s: float | None = None
    is_after_damage: bool = False
    asked_by: str = ""
    message_id: str = ""
    transaction_id: str = ""

    @property
    def place(self) -> Place:
        return self.topic, self.body


@dataclass
class OpenTransaction:
    """A transaction that was prepared; its caller may still end it.

    Attributes:
        is_ended: its call has said so, and says it again from memory.
        renewed_s: when the file of its producer listed it last.
        may_have_ended: by a claim that an older copy of the op log has not.
    """

    id: str
    who: str
    call: Any
    promises: list[Promise]
    listener_says: str
    maker: object = None
    is_ended: bool = False
    renewed_s: float | None = None
    may_have_ended: bool = False


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
        taken: what other programs may have removed after it was acknowledged; it must be told.
        given_up: what operators erased or deleted, so that it need not be seen.
        erased: what an erasure that returned has erased; it must never be seen again.
        kept_in_backup: what was acknowledged before the backup began.
        undone: what had taken effect in a table of the user when another program set it back.
        paid: local transactions that were there before another program changed their table.
        unpaid: local transactions that were undone before anybody had ended them.
        sent_back: by group, what a member has sent back; only its retry may come.
        calls: topic, queue and offset of each call of a handler of the group that keeps order, and
            whether it has returned; in their order.
        acknowledged: what is acknowledged, and must not be handed out again.
        came_again: what was handed out all the same.
        read_s: when the groups read for the last time what waits for its time.
        failed: by group, when members failed on each body, by the true time.
        ahead_s: by the role of members, how far ahead one of their clocks has been.
        emptied: topics from which operators let messages be removed.
        beside_retry: what came again beside its retry.
        asked_too_early: transactions that were asked about while their producer renewed them.
        looks: promises that `verify` found broken while others were at work.
        has_foreign_rows: `verify` may name rows that no txmq wrote.
        outlived: what came back after retention had passed it; the next retention takes it.
        shown_earlier: the rows of a topic with a retention before each round of maintenance.
    """

    promises: list[Promise] = field(default_factory=list)
    open: list[OpenTransaction] = field(default_factory=list)
    handled: dict[str, Counter[str]] = field(default_factory=dict)
    failed_once: set[tuple[str, str]] = field(default_factory=set)
    asked_too_early: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)
    is_damaged: bool = False
    is_older: bool = False
    failed_before: set[tuple[str, str]] = field(default_factory=set)
    shown_before: set[tuple[str, str]] = field(default_factory=set)
    taken: set[Place] = field(default_factory=set)
    given_up: set[Place] = field(default_factory=set)
    erased: set[Place] = field(default_factory=set)
    kept_in_backup: set[Place] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    paid: set[str] = field(default_factory=set)
    unpaid: set[str] = field(default_factory=set)
    sent_back: set[tuple[str, str]] = field(default_factory=set)
    failed: defaultdict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ahead_s: Counter[str] = field(default_factory=Counter)
    emptied: set[str] = field(default_factory=set)
    outlived: set[str] = field(default_factory=set)
    beside_retry: list[Place] = field(default_factory=list)
    calls: list[tuple[str, int, int, bool]] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    came_again: list[Place] = field(default_factory=list)
    read_s: float = 0.0
    has_foreign_rows: bool = False
    looks: list[str] = field(default_factory=list)
    shown_earlier: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)
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
        self.acknowledged.clear()
        self.failed_before |= self.failed_once
        self.is_older = self.is_older or is_older
        for promise in self.promises:
            if promise.answer is Answer.SHOWN and not is_older:
                # Another try under its key is told of this one, whose file may be the lost one.
                self.shown_before.add((promise.topic, promise.body))
            if promise.answer is Answer.SHOWN or is_older:
                promise.answer = Answer.EITHER
        self.kept_in_backup.clear()
        if is_older:
            self.given_up |= self.erased
            self.erased.clear()
            self.sent_back.clear()

    def go_back(self) -> None:
        """An older copy is in the place of the store, or of a table: its operator knows that."""
        self.taken.clear()
        self.damage(is_older=True)

    def give_up(self, places: Iterable[Place]) -> None:
        """Operators take these away on purpose."""
        self.given_up |= set(places)

    def waiting(self) -> list[OpenTransaction]:
        """The transactions that nobody has ended yet."""
        return [one for one in self.open if one.promises[0].answer is Answer.EITHER]

    def bodies(self, answer: Answer) -> set[tuple[str, str]]:
        """Topic and body of the messages with this answer."""
        bodies = {(p.topic, p.body) for p in self.promises if p.answer is answer}
        return bodies - self.shown_before - self.given_up if answer is Answer.SHOWN else bodies


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
