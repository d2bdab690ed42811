"""Takes a mend out again, so that the generator must find the hole that it closed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tests.endurance.generator.judge import Kind
from txmq.consumer import group
from txmq.consumer.group_rules import GroupState, TopicQueue
from txmq.consumer.push import Batch, Send
from txmq.delta import files
from txmq.delta.commit_writer import CommitWriter
from txmq.delta.snapshot import Definition
from txmq.delta.table_writer import TableWriter
from txmq.errors import TxmqError
from txmq.ground.fail_points import FailPoint, reached
from txmq.listeners import heads
from txmq.maintenance.retention import TopicRetention
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.rebuild import RebuiltGroups
from txmq.producer.ends import EndCommits
from txmq.producer.keyed import KeyedHalves, KeyedTry
from txmq.producer.once import OnceSender
from txmq.producer.transaction import Transaction
from txmq.publish import delay_service as delay
from txmq.publish import plan
from txmq.publish.round import PublishRound
from txmq.publish.topic_writer import TopicWriter
from txmq.store import topic
from txmq.store.brokers import SigningKey
from txmq.store.half import half_table
from txmq.store.known import Forgotten
from txmq.store.logs import EndReader
from txmq.store.op import ClaimKeys, Judged
from txmq.store.register import Register, Registered
from txmq.store.renewals import RenewalReader
from txmq.store.store_clock import StoreClock
from txmq.store.topic import OFFSET_MARK, REBUILD_MARK, MovedOffsets, TopicEnd, TopicLog
from txmq.user_data.delta_inbox import InboxTable, QueueProgress
from txmq.user_data.delta_marker import MarkedTable

# A hundred topics of the largest number of queues.
QUEUES_IN_MEMORY = 409_600
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


def _found_again_unlooked() -> Sequence[Change]:
    def commit(self: Any, tries: list[KeyedTry]) -> list[bool | TxmqError]:
        first: dict[str, KeyedTry] = {}
        for tried in tries:
            first.setdefault(tried.transaction_id, tried)
        frames = {key: tried.frames for key, tried in first.items() if tried.frames}
        refused, retypings = self._watch.before([tried.half for tried in first.values()], frames)
        appended, too_old = self._appended([first[key] for key in first if key not in refused])
        changed = self._watch.after([tried.half for tried in appended], retypings, frames)
        errors = {**refused, **too_old, **changed}
        ids = {id(tried) for tried in appended}
        return [errors.get(tried.transaction_id) or id(tried) in ids for tried in tries]

    return [(KeyedHalves, "_commit", commit), (KeyedHalves, "_check_bodies", lambda *_: None)]


# --- ends -----------------------------------------------------------------------------------------


def _late_ends_believed() -> Sequence[Change]:
    return [
        (Forgotten, "among", lambda *_: set()),
        (Transaction, "_is_old", False),
    ]


def _ends_of_nothing_believed() -> Sequence[Change]:
    return [
        (EndReader, "without_halves", lambda *_: []),
        (Forgotten, "explained", lambda _, __, end: end),
    ]


# --- keys of claims -------------------------------------------------------------------------------


def _unknown_keys_taken_for_forged() -> Sequence[Change]:
    judge = ClaimKeys.judge

    def judge_known(self: Any, rows: pa.Table, store_id: str, *, warns: bool = False) -> Judged:
        judged = judge(self, rows, store_id, warns=warns)
        return Judged(judged.counted, judged.unknown.slice(0, 0))

    return [(ClaimKeys, "judge", judge_known), (SigningKey, "check", lambda _: None)]


def _signed_ends_of_any_life() -> Sequence[Change]:
    return [(ClaimKeys, "_with_lives", lambda _, rows: rows)]


# --- renewals -------------------------------------------------------------------------------------


def _renewals_unread() -> Sequence[Change]:
    return [(RenewalReader, "until_ms", lambda _: {})]


# --- copies ---------------------------------------------------------------------------------------


def _topics_of_any_op_log() -> Sequence[Change]:
    return [
        (TopicWriter, "_check_followed", lambda *_: None),
        (TopicWriter, "_check_not_ahead", lambda *_: None),
    ]


def _absent_taken_for_never_shown() -> Sequence[Change]:
    old = TopicRetention._old

    def old_of_all(self: Any, topic: str, hours: float, version: int, _: pa.Array) -> Any:
        return old(self, topic, hours, version, pa.array([], pa.string()))

    return [(TopicRetention, "_old", old_of_all)]


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


def _failures_passed_by() -> Sequence[Change]:
    return [(Batch, "leave_in_place", lambda self: self._pass())]


def _acknowledged_up_to_the_offset() -> Sequence[Change]:
    return [(GroupState, "attempted", lambda self, *_: self)]


def _rebuilt_under_groups() -> Sequence[Change]:
    # Each of these closes the hole of this plan too: the second look at the groups, the look of
    # their members, and the parking of a topic that went back.
    return [
        (RebuiltGroups, "check", lambda _: None),
        (RebuiltGroups, "reset", lambda *_, **__: ()),
        (MovedOffsets, "are_passed", lambda *_: False),
        (TopicEnd, "is_behind", lambda *_: False),
    ]


def _inbox_marks_moved_by_retries() -> Sequence[Change]:
    def after(self: QueueProgress, next_offset: int, done: Collection[int]) -> QueueProgress:
        return self._replace(
            next_offset=max(self.next_offset, next_offset, *(offset + 1 for offset in done), 0)
        )

    return [(QueueProgress, "after", after)]


def _retries_by_any_clock() -> Sequence[Change]:
    return [(OnceSender, "_now_ms", lambda self: self._clock.now_ms())]


# --- what other programs do -----------------------------------------------------------------------


def _rebuilt_over_rewrites() -> Sequence[Change]:
    base = TableWriter.base.fget
    assert base is not None

    def base_of_rebuilds(self: Any) -> Any:
        return base(self)._replace(rewrites=self._log.mark(REBUILD_MARK) or 0)

    return [(TableWriter, "base", property(base_of_rebuilds))]


def _merged_beside_others() -> Sequence[Change]:
    return [(Definition, "metadata_action", None)]


def _topics_restored_unseen() -> Sequence[Change]:
    return [(TopicLog, "may_have_lost", False)]


def _restored_marks_believed() -> Sequence[Change]:
    return [(MarkedTable, "undone", lambda *_: {}), (InboxTable, "undone_marks", lambda *_: {})]


def _any_queue_taken() -> Sequence[Change]:
    return [(plan, "are_queues", lambda queues: np.ones(len(queues), dtype=bool))]


def _any_number_becomes_a_size() -> Sequence[Change]:
    all_queues = GroupState.all_queues

    def all_queues_of_a_small_machine(self: GroupState) -> list[TopicQueue]:
        # So that the hole does not take the memory of the machine that looks for it.
        if sum(self.queues.values()) > QUEUES_IN_MEMORY:
            raise MemoryError
        return all_queues(self)

    return [
        (topic, "MAX_QUEUE_NUMS", 2**31),
        (topic, "_QUEUE", re.compile(rf"{OFFSET_MARK}([0-9]+)")),
        (group, "MAX_QUEUE_NUMS", 2**31),
        (GroupState, "all_queues", all_queues_of_a_small_machine),
    ]


def _any_time_read() -> Sequence[Change]:
    return [(heads, "with_python_values", lambda rows: rows)]


def _rows_of_registers_believed() -> Sequence[Change]:
    def read_pinned(self: Any) -> Registered:
        rows = self.table.rows.read(self.table.files.all(), ("revision", "value")).to_pylist()
        if not rows:
            return Registered(0, {})
        newest = max(rows, key=lambda row: row["revision"] or 0)
        return Registered(newest["revision"] or 0, self._parsed(newest["value"]))

    return [(Register, "read_pinned", read_pinned)]


# --- commits --------------------------------------------------------------------------------------


def _deleted_behind_its_checkpoint() -> Sequence[Change]:
    return [(CommitWriter, "_newest_checkpoint", lambda _: -1)]


def _properties_believed() -> Sequence[Change]:
    def number(text: str | None, unset: int) -> int:
        return unset if text is None else int(text)

    return [(files, "_number", number)]


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
    "8": Hole(
        "a writer that sleeps after its put deletes a commit of which there is a checkpoint",
        Kind.STUCK, "hole-8-", _deleted_behind_its_checkpoint,
    ),
    "9": Hole(
        "a property that is no number is read as one", Kind.STRANGE, "hole-9-", _properties_believed
    ),
    "10": Hole(
        "a retry moves the inbox's mark of the queue where its message was first",
        Kind.EFFECT_LOST, "inbox-retry-", _inbox_marks_moved_by_retries,
    ),
    "11": Hole(
        "claims of a key that is not known are passed over",
        Kind.LOST, "new-key-", _unknown_keys_taken_for_forged,
    ),
    "12": Hole(
        "a rebuild brings back what was erased while it ran",
        Kind.ERASED_IS_BACK, "rebuild-erased-", _rebuilt_over_rewrites,
    ),
    "13": Hole(
        "a topic forgets what it has shown of a transaction that is set aside",
        Kind.DOUBLED, "put-back-", _absent_taken_for_never_shown,
    ),
    "14": Hole(
        "commit() is acknowledged though its halves went away with the store",
        Kind.SWALLOWED, "store-back-", _ends_of_nothing_believed,
    ),
    "15": Hole(
        "delta-rs merges files that txmq has merged meanwhile",
        Kind.DOUBLED, "optimize-", _merged_beside_others,
    ),
    "16": Hole(
        "a signed end counts in any life",
        Kind.REFUSED_IS_SHOWN, "claim-again-", _signed_ends_of_any_life,
    ),
    "17": Hole(
        "the schema of a topic is not looked at for what a try with a key finds",
        Kind.WRONG_TYPE, "typed-", _found_again_unlooked,
    ),
    "18": Hole(
        "what was sent back is looked for by the clock of the member",
        Kind.BESIDE_RETRY, "clock-beside-", _retries_by_any_clock,
    ),
    "19": Hole(
        "nobody misses the rows that another program took from a topic",
        Kind.UNTOLD, "restore-untold", _topics_restored_unseen,
    ),
    "20": Hole(
        "a marker counts though RESTORE undid its change",
        Kind.UNPAID, "restore-unpaid", _restored_marks_believed,
    ),
    "21": Hole(
        "a message without a queue moves the offsets of others",
        Kind.LOST, "null-queue-", _any_queue_taken,
    ),
    "22": Hole(
        "a half with a time that Python has not ends the round of the check",
        Kind.STRANGE, "born-strange", _any_time_read,
    ),
    "23": Hole(
        "the row of a register counts though its log says that there is a newer one",
        Kind.MISLED, "register-", _rows_of_registers_believed,
    ),
    "25": Hole(
        "nobody reads what producers renew",
        Kind.ASKED, "asked-renewed", _renewals_unread,
    ),
    "26": Hole(
        "a queue number of another program becomes the number of queues of a topic",
        Kind.STRANGE, "queue-number-", _any_number_becomes_a_size,
    ),
    "27": Hole(
        "what fails in a group that keeps order does not hold its queue",
        Kind.OUT_OF_ORDER, "out-of-order", _failures_passed_by,
    ),
    "28": Hole(
        "what is acknowledged behind the offset is forgotten with its member",
        Kind.CAME_AGAIN, "came-again", _acknowledged_up_to_the_offset,
    ),
}  # fmt: skip
