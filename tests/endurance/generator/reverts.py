"""Takes a mend out again, so that the generator must find the hole that it closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.endurance.generator.judge import Kind
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.push import Batch, Send
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.rebuild import RebuiltGroups
from txmq.producer.ends import EndCommits
from txmq.producer.keyed import KeyedHalves, KeyedTry
from txmq.producer.transaction import Transaction
from txmq.publish import delay_service as delay
from txmq.publish.round import PublishRound
from txmq.publish.topic_writer import TopicWriter
from txmq.store.half import half_table
from txmq.store.known import Forgotten
from txmq.store.store_clock import StoreClock
from txmq.store.topic import TopicEnd

# What takes the place of an attribute while a mend is out.
Change = tuple[object, str, Any]


@dataclass(frozen=True)
class Hole:
    """A hole that is closed, and what opens it again.

    Attributes:
        finds: what a run says that meets it.
        plan: the beginning of the names of the plans in `kept` that meet it.
        changes: the attributes to change; a function, for some wrap what is there.
    """

    sentence: str
    finds: Kind
    plan: str
    changes: Callable[[], Sequence[Change]]


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take the mend of a hole out, in this process; `name` is one of `HOLES`."""
    with ExitStack() as stack:
        for owner, attribute, value in HOLES[name].changes():
            stack.enter_context(patch.object(owner, attribute, value, create=True))
        yield


# --- topics that were parked ----------------------------------------------------------------------


def _unparked_behind_the_mark() -> Sequence[Change]:
    def end_parking(self: Any, name: str, mark: int) -> None:  # noqa: ARG001 - it looks at no mark
        self._pauses.forget(name)
        self._progress = self._progress.without_parked(name)

    return [(PublishRound, "_end_parking", end_parking)]


# --- delayed messages -----------------------------------------------------------------------------


class _LatestTime:
    """A service's progress whose time never goes back."""

    def __get__(self, service: Any, _: object) -> Any:
        return service.__dict__["claimed"]

    def __set__(self, service: Any, claimed: Any) -> None:
        before = service.__dict__.get("claimed", claimed)
        latest = replace(claimed, due_ms=max(before.due_ms, claimed.due_ms))
        service.__dict__["claimed"] = latest


class _OwnClock(StoreClock):
    """The clock of the machine, as the services had it."""

    def now_ms(self) -> int:
        return self.own.now_ms()


def _latest_time_of_any_clock() -> Sequence[Change]:
    def kept(self: Any, _: int) -> Any:
        register = self._store.tables.register(delay.REGISTER)
        value = register.read().value if register.exists else {}
        is_ours = value.get("op_table_id") == self._op.table.log.table_id
        return delay._Claimed(value["op_version"], value["due_ms"]) if is_ours else delay._Claimed()

    return [
        (delay, "StoreClock", _OwnClock),
        (delay._DelayRound, "_claimed", _LatestTime()),
        (delay._DelayRound, "_read_progress", kept),
    ]


# --- keys -----------------------------------------------------------------------------------------


def _append_after_a_look() -> Sequence[Change]:
    def append(self: Any, tries: Sequence[KeyedTry]) -> None:
        if tries:
            rows = half_table(tried.half for tried in tries)
            reached(FailPoint.HALF_READY)
            self._half.log.table.writer.append(
                rows, app_id=tries[0].transaction_id, number=time.time_ns()
            )
            reached(FailPoint.HALF_COMMITTED)

    return [
        (KeyedHalves, "_append", append),
        (EndCommits, "_doubtful", lambda *_: []),
    ]


def _other_messages_join() -> Sequence[Change]:
    return [(KeyedHalves, "_check_same", lambda *_: None)]


# --- ends -----------------------------------------------------------------------------------------


def _late_ends_believed() -> Sequence[Change]:
    return [
        (Forgotten, "among", lambda *_: set()),
        (Transaction, "_is_old", False),
    ]


# --- copies ---------------------------------------------------------------------------------------


def _topics_of_any_op_log() -> Sequence[Change]:
    return [
        (TopicWriter, "_check_followed", lambda *_: None),
        (TopicWriter, "_check_not_ahead", lambda *_: None),
    ]


# --- consumers ------------------------------------------------------------------------------------


def _sent_back_after_the_batch() -> Sequence[Change]:
    next_message = Batch.next_message

    def next_at_once(
        self: Any, is_owned: Callable[[TopicQueue], bool], send: Send
    ) -> ReceivedMessage | None:
        failed, self._failed = self._failed, []
        try:
            return next_message(self, is_owned, send)
        finally:
            self._failed = failed

    return [(Batch, "next_message", next_at_once)]


def _rebuilt_under_groups() -> Sequence[Change]:
    # Parking a topic that went back closes the hole of this plan too.
    return [(RebuiltGroups, "check", lambda _: None), (TopicEnd, "is_behind", lambda *_: False)]


HOLES = {
    "1": Hole(
        "a parked topic goes on though another publisher is further",
        Kind.LOST, "hole-1-", _unparked_behind_the_mark,
    ),
    "2": Hole(
        "a delay service keeps the latest time that its clock has shown",
        Kind.LOST, "hole-2-", _latest_time_of_any_clock,
    ),
    "3": Hole(
        "two tries under one key both append, and commit() believes the claims",
        Kind.LOST, "hole-3-lost-", _append_after_a_look,
    ),
    "3-messages": Hole(
        "a try with other messages joins the first one",
        Kind.LOST, "hole-3-other-messages-", _other_messages_join,
    ),
    "4": Hole(
        "commit() after retention believes the claims that are left",
        Kind.LOST, "hole-4-", _late_ends_believed,
    ),
    "5": Hole(
        "a topic may follow another op log", Kind.SWALLOWED, "hole-5-", _topics_of_any_op_log
    ),
    "6": Hole(
        "what a handler failed on is sent back after all that follow",
        Kind.EFFECT_LOST, "hole-6-", _sent_back_after_the_batch,
    ),
    "7": Hole(
        "a rebuild moves offsets under groups", Kind.GROUP_MISSED, "hole-7-", _rebuilt_under_groups
    ),
}  # fmt: skip
